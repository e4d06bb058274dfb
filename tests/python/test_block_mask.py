# Given block masks: made of functions, given as lists, and torch's own, against the same mask as a bool bias.
"""tilewise.block_mask, attention(block_mask=...) and kv_cache_attention(block_mask=...)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise
from tilewise import BlockMask, block_mask

SIZES = (2, 100, 150, 4)  # batch_size, seqlen_q, seqlen_k, num_heads_q
DOCUMENTS = np.arange(150, dtype=np.int32) // 40
IMPLEMENTATIONS = ("reference", None)


def rows(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def drawn() -> tuple[Any, ...]:
    batch, seqlen_q, seqlen_k, heads = SIZES
    return rows(0, batch, seqlen_q, heads, 32), rows(1, batch, seqlen_k, 2, 32), rows(2, batch, seqlen_k, 2, 32)


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx + 50


def by_head(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (kv_idx < 30 * (h + 1)) | (abs(q_idx - kv_idx) < 20 + 10 * b)


def seen(mask_mod: Any) -> Any:
    b, h, q, k = np.ix_(*(np.arange(size) for size in (SIZES[0], SIZES[3], SIZES[1], SIZES[2])))
    return np.broadcast_to(mask_mod(b, h, q, k), (SIZES[0], SIZES[3], SIZES[1], SIZES[2]))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("block_size", [16, (32, 48), 128])
@pytest.mark.parametrize("mask_mod", [causal, by_head])
def test_made_masks_hide_what_their_functions_hide(mask_mod: Any, block_size: Any, implementation: Any) -> None:
    q, k, v = drawn()
    sizes = {"batch_size": 2, "num_heads": 4} if mask_mod is by_head else {}
    mask = block_mask(mask_mod, *SIZES[1:3], block_size=block_size, **sizes)
    out, lse = tilewise.attention(q, k, v, block_mask=mask, return_lse=True, implementation=implementation)
    wanted, wanted_lse = tilewise.attention(q, k, v, bias=seen(mask_mod), return_lse=True, implementation="reference")
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    np.testing.assert_allclose(lse, wanted_lse, atol=2e-6)
    dout = rows(3, *out.shape)
    options = {"implementation": implementation} if implementation else {}
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, block_mask=mask, **options)
    expected = tilewise.attention_backward(dout, q, k, v, wanted, wanted_lse, bias=seen(mask_mod))
    for gradient, other in zip(gradients[:3], expected[:3]):
        np.testing.assert_allclose(gradient, other, atol=2e-5)


MASKS = {
    "causal": "kv_idx <= q_idx + 50",
    "documents": "table0[q_idx] == table0[kv_idx]",
    "documents, causal": "(table0[q_idx] == table0[kv_idx]) & (kv_idx <= q_idx) | (kv_idx < 16)",
    "of a sequence and a head": "(table1[b, q_idx - 16] != table1[b, kv_idx]) & ~table2[kv_idx, h] | (h == 3)",
    "beyond": "table0[kv_idx + 140] < 2",
    "by number": "table1[1, kv_idx] > -table0[7]",
    "periods": "(q_idx // 40 == kv_idx // 40) | ((q_idx - kv_idx) % 40 == 3)",
    "distance": "t0=q_idx-kv_idx;(abs(t0) < 40) | (clamp(t0, -3, 90) == 90) | (max(q_idx, kv_idx) * 2 < min(t0, 70))",
    "selected": "select(q_idx < 48, kv_idx < 20, q_idx > 90) & (select(h < 2, q_idx, kv_idx) < 120)",
    "floats": "(float(q_idx) * 0.5 < 20.0) | (kv_idx < 32)",
}


@pytest.mark.parametrize("block", [(16, 16), (32, 48), (128, 128)])
@pytest.mark.parametrize("name", MASKS)
def test_bounds_of_blocks_on_a_device_are_true(name: str, block: tuple[int, int]) -> None:
    """What the GPU's way lists whole, or not at all, is so; of sorted documents it knows all that the CPU does."""
    torch = pytest.importorskip("torch")
    from tilewise import _block_mask_bounds as bounds

    generator = np.random.default_rng(3)
    tables = [DOCUMENTS, generator.integers(-2, 3, (2, 150)).astype(np.int64), generator.random((150, 4)) < 0.1]
    given = [tables[i] for i in range(3) if f"table{i}" in MASKS[name]]
    text = MASKS[name]
    for place, table in enumerate(i for i in range(3) if f"table{i}" in text):
        text = text.replace(f"table{table}", f"table{place}")
    traced = tilewise.expression.Traced("mask_mod", text, tuple(torch.from_numpy(table) for table in given))
    exact = block_mask(traced, *SIZES[1:3], batch_size=2, num_heads=4, block_size=block)
    blocks = bounds.Blocks(2, 4, *SIZES[1:3], *block)
    both = bounds.states(text, list(traced.tables), blocks, torch.device("cpu"))
    full, partial = both
    states = np.zeros(full.shape, np.int32)
    for state, counts, indices in ((1, exact.counts, exact.indices), (2, exact.full_counts, exact.full_indices)):
        for at in np.ndindex(*counts.shape):
            states[(*at, indices[at][: counts[at]])] = state
    assert not (full & partial).any()
    assert (states[full.numpy()] == 2).all()
    assert (states[~(full | partial).numpy()] == 0).all()
    if name in ("causal", "documents", "beyond", "by number"):
        assert ((states == 1) == partial.numpy()).all()
    if name != "floats":
        assert (~partial).any() or block != (16, 16)
    for listed_blocks, counts, indices in zip(both, *bounds.listed(both)):
        assert torch.equal(counts, listed_blocks.sum(-1, dtype=torch.int32)) and indices.dtype == torch.int32
        for at in np.ndindex(*counts.shape):
            chosen = torch.nonzero(listed_blocks[at]).flatten().int()
            assert torch.equal(indices[at][: len(chosen)], chosen) and not indices[at][len(chosen) :].any()


def test_bounds_on_a_device_share_no_results() -> None:
    """What calls keep for later ones is the same for all of them."""
    torch = pytest.importorskip("torch")
    from tilewise import _block_mask_bounds as bounds

    table = torch.arange(64, dtype=torch.int32) // 16

    def states(text: str, size: int, block: int) -> Any:
        blocks = bounds.Blocks(1, 1, size, size, block, block)
        return bounds.states(text, [table], blocks, torch.device("cpu")).int()

    for _ in range(2):  # one block: as large as what is kept
        assert states("table0[q_idx] * 0.5 < 1.0", 16, 16).flatten().tolist() == [0, 1]
        assert states("kv_idx <= q_idx", 16, 16).flatten().tolist() == [0, 1]
        assert states("True", 16, 16).flatten().tolist() == [1, 0]
    same = "table0[q_idx] == table0[kv_idx]"
    assert torch.equal(states(same, 64, 16)[0, 0, 0], torch.eye(4, dtype=torch.int32))
    assert torch.equal(states(same, 64, 32)[1, 0, 0], torch.eye(2, dtype=torch.int32))
    table.fill_(7)
    assert (states(same, 64, 16)[0] == 1).all()
    assert (states("table0[q_idx] + 2147483647 > 2147483653", 64, 16)[0] == 1).all()
    assert (states("table0[q_idx] < 4294967296", 64, 16)[0] == 1).all()


def listed(states: Any) -> tuple[Any, ...]:
    """Counts and indices of partial and of full blocks; what is behind them no one may read."""
    lists = []
    for state in (1, 2):
        chosen = states == state
        order = np.argsort(~chosen, axis=-1, kind="stable").astype(np.int32)
        counts = chosen.sum(-1).astype(np.int32)
        lists += [counts, np.where(np.arange(states.shape[-1]) < counts[..., None], order, 10**9).astype(np.int32)]
    return tuple(lists)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_full_blocks_are_taken_at_their_word(implementation: Any) -> None:
    q, k, v = drawn()
    states = np.random.default_rng(7).integers(0, 3, (2, 4, 4, 10))
    mask = BlockMask("kv_idx % 3 != 1", *listed(states), block_size=(32, 16))
    out = tilewise.attention(q, k, v, block_mask=mask, implementation=implementation)
    whole = states.repeat(32, 2)[:, :, :100].repeat(16, 3)[..., :150]
    visible = (whole == 2) | ((whole == 1) & (np.arange(150) % 3 != 1))
    np.testing.assert_allclose(out, tilewise.attention(q, k, v, bias=visible, implementation="reference"), atol=2e-6)


def test_without_a_mask_mod_listed_blocks_are_visible() -> None:
    q, k, v = drawn()
    counts, indices = np.full((1, 1, 1), 1, np.int32), np.array([1, 0], np.int32).reshape(1, 1, 1, 2)
    out = tilewise.attention(q, k, v, block_mask=BlockMask(None, counts, indices))
    np.testing.assert_allclose(out, tilewise.attention(q, k[:, 128:], v[:, 128:]), atol=2e-6)


def test_out_of_range_is_hidden_and_an_error_where_checks_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = drawn()
    indices = np.array([1, 2], np.int32).reshape(1, 1, 1, 2)
    mask = BlockMask(None, np.full((1, 1, 1), 9, np.int32), indices)
    np.testing.assert_allclose(
        tilewise.attention(q, k, v, block_mask=mask), tilewise.attention(q, k[:, 128:], v[:, 128:]), atol=2e-6
    )
    monkeypatch.setenv("TILEWISE_CHECK", "1")
    for implementation in IMPLEMENTATIONS:
        with pytest.raises(
            ValueError, match=r"^block_counts\[0, 0, 0\]: must be 0 to 2, the columns of blocks \(got 9\)"
        ):
            tilewise.attention(q, k, v, block_mask=mask, implementation=implementation)
        two = mask._replace(counts=np.full((1, 1, 1), 2, np.int32))
        with pytest.raises(
            ValueError, match=r"^block_indices\[0, 0, 0, 1\]: must be 0 to 1, a column of blocks \(got 2\)"
        ):
            tilewise.attention(q, k, v, block_mask=two, implementation=implementation)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"block_size": (128, 20)}, r"block_keys: must be a multiple of 16 from 16 to 2\^30 \(got 20\)"),
        ({"counts": np.zeros((1, 1, 1), np.int64)}, "block_counts: dtype must be i32"),
        ({"counts": np.zeros((3, 1, 1), np.int32)}, r"block_counts: dimension 0 must be 1 or batch_size = 2 \(got 3\)"),
        ({"indices": np.zeros((1, 1, 1, 5), np.int32)}, r"block_indices: .*ceil\(seqlen_k / block_keys\)"),
    ],
)
def test_refused(change: dict[str, Any], sentence: str) -> None:
    q, k, v = drawn()
    mask = BlockMask(None, np.zeros((1, 1, 1), np.int32), np.zeros((1, 1, 1, 2), np.int32))._replace(**change)
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        tilewise.attention(q, k, v, block_mask=mask)


def test_a_mask_mod_beside_it_is_refused() -> None:
    q, k, v = drawn()
    mask = block_mask("kv_idx <= q_idx", *SIZES[1:3])
    with pytest.raises(ValueError, match=r"^mask_mod: must be None beside a block_mask"):
        tilewise.attention(q, k, v, mask_mod="kv_idx == q_idx", block_mask=mask)
    with pytest.raises(TypeError, match=r"^block_mask: must be a BlockMask of tilewise or of torch"):
        tilewise.attention(q, k, v, block_mask=7)


def test_torchs_own_are_taken() -> None:
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    documents = torch.from_numpy(DOCUMENTS)

    def same(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return documents[q_idx] == documents[kv_idx]

    theirs = flex.create_block_mask(same, None, None, *SIZES[1:3], device="cpu", BLOCK_SIZE=16)
    ours = block_mask(same, *SIZES[1:3], block_size=16)
    # A short block of the last queries is never full by torch's counting.
    np.testing.assert_array_equal(theirs.kv_num_blocks.numpy()[..., :6], ours.counts[..., :6])
    np.testing.assert_array_equal(theirs.full_kv_num_blocks.numpy()[..., :6], ours.full_counts[..., :6])
    q, k, v = (torch.from_numpy(array).requires_grad_() for array in drawn())
    bias = torch.from_numpy(DOCUMENTS[:100, None] == DOCUMENTS)
    wanted = tilewise.attention(q, k, v, bias=bias)
    gradients = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    for mask in (theirs, ours):
        out = tilewise.attention(q, k, v, block_mask=mask)
        torch.testing.assert_close(out, wanted, atol=2e-6, rtol=0)
        for own, other in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), gradients):
            torch.testing.assert_close(own, other, atol=2e-5, rtol=0)


CAPACITY, PAGE = 96, 16


class Step:
    """A step of two sequences in a cache of CAPACITY places, contiguous or in pages, and what attention makes of it."""

    def __init__(self, seqlen_q: int, lengths: tuple[int, int], leftpad: tuple[int, int] = (0, 0)) -> None:
        self.q = rows(0, 2, seqlen_q, 4, 32)
        self.k, self.v = rows(1, 2, CAPACITY, 2, 32), rows(2, 2, CAPACITY, 2, 32)
        self.seqlen_q, self.lengths, self.leftpad = seqlen_q, lengths, leftpad

    def paged(self) -> dict[str, Any]:
        pages = np.random.default_rng(5).permutation(2 * CAPACITY // PAGE).astype(np.int32)
        caches = [np.empty_like(array).reshape(-1, PAGE, 2, 32) for array in (self.k, self.v)]
        for cache, array in zip(caches, (self.k, self.v)):
            cache[pages] = array.reshape(-1, PAGE, 2, 32)
        return {"k_cache": caches[0], "v_cache": caches[1], "block_table": pages.reshape(2, -1)}

    def run(self, mask: BlockMask, paged: bool, **options: Any) -> Any:
        caches = self.paged() if paged else {"k_cache": self.k, "v_cache": self.v}
        if any(self.leftpad):
            caches["cache_leftpad"] = np.array(self.leftpad, np.int32)
        lengths = np.array(self.lengths, np.int32)
        return tilewise.kv_cache_attention(self.q, **caches, cache_seqlens=lengths, block_mask=mask, **options)

    def wanted(self, b: int, seen: Any) -> Any:
        """`seen`: of head, position and key."""
        keys = slice(self.leftpad[b], self.lengths[b])
        count = self.lengths[b] - self.leftpad[b]
        h, q, k = np.ix_(np.arange(4), np.arange(count - self.seqlen_q, count), np.arange(count))
        k_of, v_of = self.k[b : b + 1, keys], self.v[b : b + 1, keys]
        bias = np.broadcast_to(seen(h, q, k), (1, 4, self.seqlen_q, count))
        return tilewise.attention(self.q[b : b + 1], k_of, v_of, bias=bias, implementation="reference")[0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("seqlen_q", "leftpad"), [(1, (0, 0)), (5, (0, 7)), (40, (3, 0))])
def test_blocks_of_a_cache(seqlen_q: int, leftpad: tuple[int, int], paged: bool, implementation: Any) -> None:
    step = Step(seqlen_q, (70, 96), (0, 0) if paged else leftpad)
    states = np.random.default_rng(7).integers(0, 3, (2, 4, 6, 3))  # blocks of 16 queries and 32 keys
    mask = BlockMask("kv_idx % 3 != 1", *listed(states), block_size=(16, 32))
    out = step.run(mask, paged, implementation=implementation)
    whole = states.repeat(16, 2).repeat(32, 3)
    for b in range(2):
        wanted = step.wanted(
            b, lambda h, q, k, b=b: (whole[b, h, q, k] == 2) | ((whole[b, h, q, k] == 1) & (k % 3 != 1))
        )
        np.testing.assert_allclose(out[b], wanted, atol=2e-6)


def test_a_made_mask_of_a_cache() -> None:
    torch = pytest.importorskip("torch")
    step = Step(3, (50, 96))
    mask = block_mask("(kv_idx <= q_idx) & (q_idx - kv_idx < 20)", CAPACITY, CAPACITY, block_size=16)
    out = step.run(mask, paged=True)
    for b in range(2):
        np.testing.assert_allclose(out[b], step.wanted(b, lambda h, q, k: (k <= q) & (q - k < 20)), atol=2e-6)
    lists = [torch.from_numpy(array) for array in mask.arrays()]
    step.q, step.k, step.v = (torch.from_numpy(array) for array in (step.q, step.k, step.v))
    caches = {"k_cache": step.k, "v_cache": step.v, "cache_seqlens": torch.tensor(step.lengths, dtype=torch.int32)}
    of_torch = BlockMask(mask.mask_mod, *lists, mask.block_size)
    np.testing.assert_allclose(tilewise.kv_cache_attention(step.q, **caches, block_mask=of_torch), out, atol=2e-6)
    with pytest.raises(TypeError, match=r"^block_counts: must be a torch tensor like q \(got ndarray\)"):
        tilewise.kv_cache_attention(step.q, **caches, block_mask=mask)


def test_a_mask_of_another_capacity_is_refused() -> None:
    step = Step(1, (50, 96))
    mask = block_mask("kv_idx <= q_idx", 1, CAPACITY, block_size=16)
    with pytest.raises(ValueError, match=r"^block_counts: .*ceil\(capacity / block_rows\)"):
        step.run(mask, paged=False)


def test_plans_are_explained() -> None:
    q, k, v = drawn()
    mask = block_mask("kv_idx <= q_idx", *SIZES[1:3])
    assert "block_mask=128x128[1,1]+full" in tilewise.explain(q, k, v, block_mask=mask).problem
