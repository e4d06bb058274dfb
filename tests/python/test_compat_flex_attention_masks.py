# BlockMasks of torch under tilewise.compat.flex_attention: their tables decide with their mask_mod, whoever made them;
# and create_block_mask makes torch's own, by pieces.
"""Block masks of the drop-in for torch's flex_attention."""

import pytest

torch = pytest.importorskip("torch")
torchs = pytest.importorskip("torch.nn.attention.flex_attention")
if not hasattr(torchs, "AuxRequest"):
    pytest.skip(f"torch {torch.__version__} has no AuxRequest", allow_module_level=True)

from flex_attention_cases import (  # noqa: E402
    BATCH_SIZE,
    CASES,
    DOCUMENTS,
    HEADS,
    SEQLENS,
    by_torch,
    causal,
    documents,
    draw,
    options_of,
)

from tilewise.compat.flex_attention import (  # noqa: E402  # noqa: E402
    BlockMask,
    _attention,
    _block_mask,
    _create,
    create_block_mask,
    flex_attention,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:flex_attention called without"),
]
ROWS, COLUMNS = 3, 4  # blocks of 16 over SEQLENS


@pytest.fixture
def options_seen(monkeypatch):
    """The options that reach tilewise.attention."""
    seen = []
    original = _attention._attend

    def attend(*args, **options):
        seen.append(options)
        return original(*args, **options)

    monkeypatch.setattr(_attention, "_attend", attend)
    return seen


def wavy(b, h, q_idx, kv_idx):
    return torch.sin(q_idx * 0.7 + kv_idx * (h + 1)) > 0.1 * b


def elements_of(block_mask, mask_mod):
    """By its definition, block by block: bool [BATCH_SIZE, HEADS, *SEQLENS]."""
    element = torchs.create_mask(mask_mod, BATCH_SIZE, HEADS, *SEQLENS, device="cpu")
    rows, columns = block_mask.BLOCK_SIZE
    visible = torch.zeros_like(element)
    lists = ((block_mask.kv_num_blocks, block_mask.kv_indices, False),)
    if block_mask.full_kv_num_blocks is not None:
        lists += ((block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True),)
    for counts, indices, full in lists:
        for b, h, row in torch.cartesian_prod(*map(torch.arange, (BATCH_SIZE, HEADS, counts.shape[2]))).tolist():
            own = b % counts.shape[0], h % counts.shape[1], row
            for column in indices[own][: int(counts[own])].tolist():
                where = b, h, slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns)
                visible[where] = True if full else element[where]
    return visible


def by_elements(tensors, elements):
    """torch's own function, whose eager implementation looks at mask_mod alone."""
    mask = torchs.create_block_mask(
        lambda b, h, q_idx, kv_idx: elements[b, h, q_idx, kv_idx], BATCH_SIZE, HEADS, *SEQLENS, device="cpu"
    )
    return by_torch(*tensors, block_mask=mask)


def drawn_lists(batch_size, heads, seed):
    """Counts and columns of each row in some order, with numbers beyond the counts that mean nothing."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, COLUMNS + 1, (batch_size, heads, ROWS), generator=generator).int()
    columns = torch.rand(batch_size, heads, ROWS, COLUMNS, generator=generator).argsort(-1).int()
    beyond = torch.arange(COLUMNS) >= counts[..., None]
    return counts, columns.masked_fill(beyond & (columns % 2 == 0), 77)


@pytest.mark.parametrize("sizes", [(1, 1), (BATCH_SIZE, 1), (1, HEADS), (BATCH_SIZE, 2)], ids=str)
@pytest.mark.parametrize(
    "mask_mod", [None, causal, documents, wavy], ids=["none", "causal", "documents", "untraceable"]
)
@pytest.mark.parametrize("with_full", [False, True])
def test_given_tables(sizes, mask_mod, with_full):
    partial = drawn_lists(*sizes, 0)
    full = drawn_lists(*sizes, 1) if with_full else (None, None)
    block_mask = BlockMask.from_kv_blocks(
        *partial, *full, BLOCK_SIZE=16, mask_mod=mask_mod, seq_lengths=SEQLENS, compute_q_blocks=False
    )
    tensors = draw()
    expected = by_elements(tensors, elements_of(block_mask, mask_mod or torchs.noop_mask))
    torch.testing.assert_close(flex_attention(*tensors, block_mask=block_mask), expected, rtol=1e-9, atol=1e-9)


def test_fewer_sequences_than_the_batch_repeat():
    counts, columns = drawn_lists(BATCH_SIZE, 1, 4)
    block_mask = BlockMask.from_kv_blocks(counts, columns, BLOCK_SIZE=16, seq_lengths=SEQLENS, compute_q_blocks=False)
    tensors = draw()
    twice = flex_attention(*(torch.cat((tensor, tensor)) for tensor in tensors), block_mask=block_mask)
    once = flex_attention(*tensors, block_mask=block_mask)
    torch.testing.assert_close(twice, torch.cat((once, once)))


def test_lists_that_change():
    counts, columns = drawn_lists(1, 1, 2)
    block_mask = BlockMask.from_kv_blocks(counts, columns, BLOCK_SIZE=16, seq_lengths=SEQLENS, compute_q_blocks=False)
    tensors = draw()
    for count in (1, 2):
        counts.fill_(count)
        columns[..., :count] = torch.arange(count)
        first = [tensors[0], *(tensor[:, :, : 16 * count] for tensor in tensors[1:])]
        torch.testing.assert_close(flex_attention(*tensors, block_mask=block_mask), flex_attention(*first))
    with torch.inference_mode():
        counts.fill_(1)
        torch.testing.assert_close(
            flex_attention(*tensors, block_mask=block_mask),
            flex_attention(tensors[0], *(tensor[:, :, :16] for tensor in tensors[1:])),
        )


def test_sizes_that_change():
    """What torch's own examples of decoding do to a BlockMask that they sliced."""
    tensors = draw()
    whole = create_block_mask(causal, None, None, *SEQLENS, device="cpu", BLOCK_SIZE=16)
    expected = flex_attention(*tensors, block_mask=whole)
    for row in (0, 17, 39):
        block_mask = whole[:, :, row // 16]
        block_mask.mask_mod = lambda b, h, q_idx, kv_idx, row=row: q_idx + row >= kv_idx
        for length in (SEQLENS[1], 40):
            block_mask.seq_lengths = (1, length)
            k, v = (tensor[:, :, :length] for tensor in tensors[1:])
            out = flex_attention(tensors[0][:, :, row : row + 1], k, v, block_mask=block_mask)
            torch.testing.assert_close(out, expected[:, :, row : row + 1], rtol=1e-9, atol=1e-9)


def test_too_few_rows():
    counts, columns = drawn_lists(1, 1, 3)
    block_mask = BlockMask.from_kv_blocks(counts[:, :, :2], columns[:, :, :2], BLOCK_SIZE=16, seq_lengths=SEQLENS)
    with pytest.raises(ValueError, match=r"block_mask: must list the blocks of 3 rows, for seqlen_q \(got 2\)"):
        flex_attention(*draw(), block_mask=block_mask)


def test_a_mask_that_cannot_be_traced_has_a_limit(monkeypatch):
    block_mask = create_block_mask(wavy, BATCH_SIZE, HEADS, *SEQLENS, device="cpu")
    tensors = draw()
    torch.testing.assert_close(
        flex_attention(*tensors, block_mask=block_mask), by_torch(*tensors, block_mask=block_mask)
    )
    monkeypatch.setattr(_block_mask, "MOST_ELEMENTS", 1000)
    with pytest.raises(
        NotImplementedError, match=r"up to 1000 scores \(got 17920\): mask_mod: no expression does what 's"
    ):
        flex_attention(*tensors, block_mask=block_mask)


# --- masks that create_block_mask made ---


@pytest.mark.parametrize("piece", [2**24, 2000, 1])
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].mask_mod is not None])
def test_made_masks_are_torchs(name, piece, monkeypatch):
    monkeypatch.setattr(_create, "_PIECE", piece)
    case = CASES[name]
    for options in ({"BLOCK_SIZE": 16}, {"BLOCK_SIZE": (16, 32), "separate_full_blocks": False}, {}):
        own, other = (
            create(case.mask_mod, *case.mask_sizes, *SEQLENS, device="cpu", **options)
            for create in (create_block_mask, torchs.create_block_mask)
        )
        for one, theirs in zip(own.as_tuple(), other.as_tuple()):
            assert torch.equal(one, theirs) if isinstance(one, torch.Tensor) else one == theirs


def test_orders_of_the_backward_pass_are_torchs(options_seen):
    block_mask = create_block_mask(causal, None, None, *SEQLENS, device="cpu", compute_dq_write_order=True)
    assert block_mask.dq_write_order is not None
    flex_attention(*draw(), block_mask=block_mask)
    assert options_seen[-1]["deterministic"]


def test_made_masks_are_their_mask_mod_alone_and_others_their_lists(options_seen):
    ids = DOCUMENTS.clone()

    def mask_mod(b, h, q_idx, kv_idx):
        return ids[b, q_idx] == ids[b, kv_idx]

    def is_listed(block_mask):
        out = flex_attention(*tensors, block_mask=block_mask)
        torch.testing.assert_close(out, by_elements(tensors, elements_of(block_mask, mask_mod)), rtol=1e-9, atol=1e-9)
        options = options_seen[-1]
        mask = options.get("block_mask")
        assert (options["mask_mod"] if mask is None else mask.mask_mod).text.count("table0[b,") == 2
        return mask is not None

    def made(batch_size):
        return create_block_mask(mask_mod, batch_size, None, *SEQLENS, device="cpu", BLOCK_SIZE=16)

    tensors = draw()
    block_mask, of_one = made(BATCH_SIZE), made(None)
    assert not is_listed(block_mask)
    assert is_listed(of_one)  # whose tables are the first sequence's
    assert is_listed(block_mask.to("cpu"))
    block_mask.mask_mod = lambda b, h, q_idx, kv_idx: mask_mod(b, h, q_idx, kv_idx) & (kv_idx >= 0)
    assert is_listed(block_mask)
    block_mask.mask_mod = mask_mod
    assert not is_listed(block_mask)
    ids[:, :8] = 1  # the tables are what they were
    assert is_listed(block_mask)


def test_blocks_that_the_core_does_not_take_become_a_table(options_seen):
    block_mask = torchs.create_block_mask(causal, None, None, *SEQLENS, device="cpu", BLOCK_SIZE=(8, 24))
    tensors = draw()
    out = flex_attention(*tensors, block_mask=block_mask)
    torch.testing.assert_close(out, by_elements(tensors, elements_of(block_mask, causal)), rtol=1e-9, atol=1e-9)
    assert "//24" in options_seen[-1]["mask_mod"].text


def test_a_mask_that_hides_nothing_is_none(options_seen):
    block_mask = create_block_mask(torchs.noop_mask, None, None, *SEQLENS, device="cpu")
    flex_attention(*draw(), block_mask=block_mask)
    assert "mask_mod" not in options_seen[-1]


@pytest.mark.parametrize("name", ["documents", "relative by documents"])
def test_made_and_torchs_are_one(name):
    case = CASES[name]
    tensors = draw(case.heads_k)
    own, other = (
        flex_attention(*tensors, **options_of(case, create)) for create in (create_block_mask, torchs.create_block_mask)
    )
    torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "message"), [((0, 1, 8, 8), "B: must be at least 1"), ((1, 1, 8, 0), "KV_LEN: must")]
)
def test_sizes_are_refused_by_name(sizes, message):
    with pytest.raises(ValueError, match=message):
        create_block_mask(causal, *sizes, device="cpu")
