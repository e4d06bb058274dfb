# key_indices of attention() and of the KV cache step, against a mask of as many times as each key is selected.
"""Selected keys."""

import numpy as np
import pytest

import tilewise

torch = pytest.importorskip("torch")

from tilewise._options import Options  # noqa: E402
from tilewise._torch import operators  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, ROWS, KEYS, HEADS, HEADS_K, DIM, DIM_V, TOP_K = 2, 7, 40, 4, 2, 16, 24, 12


def inputs(dtype=torch.float64, requires_grad=False, heads=HEADS, heads_k=HEADS_K):
    torch.manual_seed(0)
    shapes = ((ROWS, heads, DIM), (KEYS, heads_k, DIM), (KEYS, heads_k, DIM_V))
    return [torch.randn(BATCH, *shape, dtype=dtype).requires_grad_(requires_grad) for shape in shapes]


def indices(heads=1, keys=KEYS, rows=ROWS, batch=BATCH):
    """Some twice, some none, some outside."""
    torch.manual_seed(1)
    return torch.randint(-2, keys + 3, (batch, rows, heads, TOP_K), dtype=torch.int32)


def times(selected, keys, heads=HEADS):
    """How often each key is selected, [batch, heads, rows, keys]."""
    counts = (selected[..., None] == torch.arange(keys)).sum(-2).transpose(1, 2)
    return counts.repeat_interleave(heads // counts.shape[1], 1)


def expected(q, k, v, counts, causal=False, sink=None, score=None):
    group = q.shape[2] // k.shape[2]
    k, v = (tensor.repeat_interleave(group, 2) for tensor in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    if score is not None:
        scores = score(scores)
    scores = scores + counts.to(scores.dtype).log()
    if causal:
        at = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        scores = scores.masked_fill(at < torch.arange(k.shape[1]), -torch.inf)
    lse = torch.logsumexp(scores, -1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink[:, None])
    weights = torch.where(scores > -torch.inf, torch.exp(scores - lse[..., None]), 0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse


@pytest.mark.parametrize("heads", [1, HEADS_K])
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward_of_torch(heads, causal):
    ours, theirs = inputs(requires_grad=True), inputs(requires_grad=True)
    selected = indices(heads)
    mask = "causal" if causal else None
    out, lse = tilewise.attention(*ours, key_indices=selected, mask=mask, return_lse=True)
    other, other_lse = expected(*theirs, times(selected, KEYS), causal)
    torch.testing.assert_close(out, other)
    torch.testing.assert_close(lse, other_lse)
    dout = torch.randn_like(out)
    for gradient, reference in zip(torch.autograd.grad(out, ours, dout), torch.autograd.grad(other, theirs, dout)):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype(dtype):
    ours = inputs(dtype, requires_grad=True)
    theirs = [tensor.detach().double().requires_grad_() for tensor in ours]
    selected = indices(HEADS_K)
    out = tilewise.attention(*ours, key_indices=selected)
    other = expected(*theirs, times(selected, KEYS))[0]
    tolerance = {"rtol": 0.0, "atol": 1e-5 if dtype == torch.float32 else 2e-2}
    torch.testing.assert_close(out.double(), other, **tolerance)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, ours, dout)
    for gradient, reference in zip(gradients, torch.autograd.grad(other, theirs, dout.double())):
        torch.testing.assert_close(gradient.double(), reference, rtol=0.0, atol=5 * tolerance["atol"])


def test_what_goes_by_the_place():
    q, k, v = inputs()
    selected = indices()
    slopes, sink = torch.rand(HEADS, dtype=torch.float64), torch.randn(HEADS, dtype=torch.float64)
    bias = torch.randn(HEADS, ROWS, KEYS, dtype=torch.float64)
    at = torch.arange(ROWS)[:, None] + KEYS - ROWS - torch.arange(KEYS)

    def score(scores):
        scores = scores + bias - slopes[:, None, None] * at.abs()
        return torch.where(torch.arange(KEYS) % 3 == 0, scores * 0.5, scores)

    out, lse = tilewise.attention(
        q, k, v, key_indices=selected, bias=bias, alibi_slopes=slopes, sink=sink, return_lse=True,
        score_mod="select(kv_idx % 3 == 0, score * 0.5, score)",
    )  # fmt: skip
    other, other_lse = expected(q, k, v, times(selected, KEYS), sink=sink, score=score)
    torch.testing.assert_close(out, other)
    torch.testing.assert_close(lse, other_lse)


@pytest.mark.parametrize("implementation", [None, "reference"])
def test_duplicates_share_a_draw_of_dropout(implementation):
    q, k, v = inputs(torch.float32)
    one = torch.arange(TOP_K, dtype=torch.int32).expand(BATCH, ROWS, 1, TOP_K)
    options = {"dropout_p": 0.5, "seed": 7, "implementation": implementation}
    once = tilewise.attention(q, k, v, key_indices=one.contiguous(), **options)
    twice = tilewise.attention(q, k, v, key_indices=one.repeat(1, 1, 1, 2), **options)
    torch.testing.assert_close(twice, once)
    dense = tilewise.attention(q, k[:, :TOP_K], v[:, :TOP_K], **options)
    torch.testing.assert_close(once, dense)


def test_packed():
    starts_q, starts_k = torch.tensor([0, 3, 7], dtype=torch.int32), torch.tensor([0, 25, 40], dtype=torch.int32)
    q, k, v = (tensor[0] for tensor in inputs())
    selected = indices()[0]
    out = tilewise.attention(q, k, v, layout="thd", cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, key_indices=selected)
    for b in range(2):
        rows, keys = slice(*starts_q[b : b + 2].tolist()), slice(*starts_k[b : b + 2].tolist())
        own = selected[None, rows]
        other = expected(q[None, rows], k[None, keys], v[None, keys], times(own, int(keys.stop - keys.start)))[0]
        torch.testing.assert_close(out[rows], other[0])


def test_opcheck():
    tensors = inputs(torch.float32, requires_grad=True)
    options = Options(key_indices=indices(HEADS_K))
    torch.library.opcheck(operators.forward, (*tensors, *options))


def test_derivatives_of_a_higher_order():
    torch.manual_seed(3)
    tensors = [torch.randn(1, rows, heads, 3, dtype=torch.float64) for rows, heads in ((2, 2), (6, 1), (6, 1))]
    selected = torch.tensor([[[[4, 0, 4]], [[-1, 6, 3]]]], dtype=torch.int32)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    assert torch.autograd.gradgradcheck(lambda *given: tilewise.attention(*given, key_indices=selected), leaves)


def test_vmap():
    q, k, v = inputs(torch.float32)
    selected = torch.stack([indices(), indices().flip(1)])
    out = torch.func.vmap(lambda own: tilewise.attention(q, k, v, key_indices=own))(selected)
    for own, part in zip(selected, out):
        torch.testing.assert_close(part, tilewise.attention(q, k, v, key_indices=own))


def test_numpy():
    q, k, v = (tensor.numpy() for tensor in inputs())
    selected = indices(HEADS_K)
    out, lse = tilewise.attention(q, k, v, key_indices=selected.numpy(), return_lse=True)
    other, other_lse = expected(*inputs(), times(selected, KEYS))
    np.testing.assert_allclose(out, other.numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(lse, other_lse.numpy(), rtol=1e-10)
    dout = np.ones_like(out)
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, key_indices=selected.numpy())
    theirs = inputs(requires_grad=True)
    references = torch.autograd.grad(expected(*theirs, times(selected, KEYS))[0].sum(), theirs)
    for gradient, reference in zip(gradients, references):
        np.testing.assert_allclose(gradient, reference.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache(page_size, dtype):
    q, k, v = inputs(dtype)
    lengths = torch.tensor([33, 21], dtype=torch.int32)
    selected = indices(HEADS_K, keys=33)
    options = {"cache_seqlens": lengths}
    caches = [k, v]
    if page_size is not None:
        table = torch.randperm(BATCH * KEYS // page_size, dtype=torch.int32).view(BATCH, -1)
        options["block_table"] = table
        caches = []
        for tensor in (k, v):
            pages = torch.empty(table.numel(), page_size, *tensor.shape[2:], dtype=dtype)
            pages[table.flatten().long()] = tensor.reshape(-1, page_size, *tensor.shape[2:])
            caches.append(pages)
    out, lse = tilewise.kv_cache_attention(q, *caches, key_indices=selected, mask="causal", return_lse=True, **options)
    for b in range(BATCH):
        length = int(lengths[b])
        rows = [tensor[b : b + 1, :length].double() for tensor in (k, v)]
        other, other_lse = expected(q[b : b + 1].double(), *rows, times(selected[b : b + 1], length), causal=True)
        tolerance = {"rtol": 0.0, "atol": 1e-5 if dtype == torch.float32 else 2e-2}
        torch.testing.assert_close(out[b : b + 1].double(), other, **tolerance)
        torch.testing.assert_close(lse[b : b + 1].double(), other_lse, **tolerance)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_form_of_mla(scaled):
    """128 heads on one key, whose first columns are the values; in fp8 too."""
    torch.manual_seed(2)
    q, cache = torch.randn(2, 1, 128, 80), torch.randn(2, 300, 1, 80)
    lengths, selected = torch.tensor([300, 170], dtype=torch.int32), indices(keys=160, rows=1).repeat(1, 1, 1, 20)
    options = {}
    if scaled:
        cache = cache.to(torch.float8_e4m3fn)
        options["k_scale"] = 0.5
    out = tilewise.kv_cache_attention(
        q, cache, None, cache_seqlens=lengths, head_dim_v=64, key_indices=selected, **options
    )
    keys = cache.double() * (0.5 if scaled else 1.0)
    for b in range(2):
        own = keys[b : b + 1, : int(lengths[b])]
        counts = times(selected[b : b + 1], own.shape[1], heads=128)
        torch.testing.assert_close(
            out[b : b + 1].double(), expected(q[b : b + 1].double(), own, own[..., :64], counts)[0], rtol=0, atol=1e-5
        )


def test_threads_change_nothing():
    tensors = inputs(torch.float32, requires_grad=True, heads=128, heads_k=1)
    selected = indices()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        out = tilewise.attention(*tensors, key_indices=selected)
        results.append((out, *torch.autograd.grad(out.sum(), tensors)))
    torch.set_num_threads(1)
    for one, other in zip(*results):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda x: x.long(), TypeError, "key_indices: dtype must be i32"),
        (lambda x: x[:, :, 0], ValueError, "key_indices: rank must be 4"),
        (lambda x: x[..., :0], ValueError, "key_indices: top_k must be >= 1"),
        (
            lambda x: x.expand(-1, -1, 3, -1),
            ValueError,
            r"key_indices: shape must be \[batch_size, seqlen_q, 1 or num_heads_k, top_k\]",
        ),
        (lambda x: [0], TypeError, "key_indices"),
    ],
)
def test_wrong_indices_are_refused_by_name(wrong, error, message):
    with pytest.raises(error, match=message):
        tilewise.attention(*inputs(), key_indices=wrong(indices()))


def test_indices_outside_are_an_error_where_checks_are_asked_for(monkeypatch):
    monkeypatch.setenv("TILEWISE_CHECK", "1")
    q, k, v = inputs(torch.float32)
    selected = torch.zeros(BATCH, ROWS, 1, 2, dtype=torch.int32)
    selected[1, 2, 0, 1] = KEYS
    match = r"key_indices: must be -1 \(none\) or 0 to 39, a key of sequence 1 \(got 40 as index 1 of row 2, head 0\)"
    with pytest.raises(ValueError, match=match):
        tilewise.attention(q, k, v, key_indices=selected)
    with pytest.raises(ValueError, match=match):
        tilewise.kv_cache_attention(q, k, v, key_indices=selected)
