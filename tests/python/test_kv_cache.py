"""kv_cache_attention() and append_kv() against a straight formula in torch: pages, packed rows, rotary, fp8, MLA."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from kv_cache_step import TOLERANCE, Step, attend, rotate

import tilewise

torch.manual_seed(0)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 128])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("implementation", [None, "reference"])
def test_pages_in_any_order(page_size, dtype, implementation):
    step = Step(page_size, [37, 0, 200, 5], 3, dtype)
    before = [memory.clone() for memory in step.memory]
    out, lse = step.run(mask="causal", implementation=implementation)
    for b, length in enumerate(step.lengths):
        k, v = (step.rows(b, cache) for cache in step.caches)
        assert torch.equal(k[length:], step.k[b]) and torch.equal(v[length:], step.v[b])
        expected, expected_lse = attend(step.q[b], k, v, causal=True)
        assert (out[b] - expected).abs().max() < TOLERANCE[dtype]
        assert (lse[b] - expected_lse).abs().max() < 1e-4 if dtype == torch.float32 else 2e-2
    for old, memory, cache, new in zip(before, step.memory, step.caches, (step.k, step.v)):
        changed = memory.isnan() != old.isnan()
        assert changed.sum() == new.numel(), "as many elements as were appended"
        assert torch.equal(memory[~changed].nan_to_num(), old[~changed].nan_to_num()), "and no others"
        assert cache.isnan().any(), "poison is left in places that nobody needs"


@pytest.mark.parametrize("page_size", [32, 96])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_nothing_before_a_window_is_read(page_size, dtype):
    """Pages of whole blocks are read as they lie, from a window's first key on: one before it may be anything."""
    step = Step(page_size, [37, 300, 129, 98], 1, dtype)
    for b, length in enumerate(step.lengths):
        first = length - 20
        step.table[b, : first // page_size] = -(2**31)
        for place in range(first // page_size * page_size, first):
            for cache in step.caches:
                cache[step.page(b, place)] = torch.nan
    out, lse = step.run(mask="causal", window=(20, -1))
    for b, length in enumerate(step.lengths):
        k, v = (torch.stack([cache[step.page(b, place)] for place in range(length - 20, length + 1)])
                for cache in step.caches)  # fmt: skip
        expected, expected_lse = attend(step.q[b], k, v, causal=True)
        assert (out[b] - expected).abs().max() < TOLERANCE[dtype]
        assert (lse[b] - expected_lse).abs().max() < 1e-4 if dtype == torch.float32 else 2e-2


def test_appending_first_is_the_same_bit_for_bit():
    options = {"mask": "causal", "num_splits": 3}
    for dtype in TOLERANCE:
        torch.manual_seed(5)
        one, two = Step(16, [70, 300], 2, dtype), Step(16, [70, 300], 2, dtype)
        two.table, two.q, two.k, two.v = one.table, one.q, one.k, one.v
        for mine, other in zip(one.memory, two.memory):
            other.copy_(mine)
        out, lse = one.run(**options)
        places = {"cache_seqlens": two.seqlens, "block_table": two.table}
        tilewise.append_kv(*two.caches, two.k, two.v, **places)
        after = {**places, "cache_seqlens": two.seqlens + 2}
        again = tilewise.kv_cache_attention(two.q, *two.caches, **after, return_lse=True, **options)
        assert torch.equal(out, again[0]) and torch.equal(lse, again[1])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rotary_dim", "offset"), [(32, 0), (8, 0), (16, 6)])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_rotary(interleaved, rotary_dim, offset, mask):
    step = Step(4, [9, 21], 2)
    angles = torch.randn(64, rotary_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    first = torch.tensor([30, 3], dtype=torch.int32)
    rotary = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved, "rotary_offset": offset}
    out, _ = step.run(**rotary, rotary_seqlens=first, mask=mask)
    for b, length in enumerate(step.lengths):
        k, v = (step.rows(b, cache) for cache in step.caches)
        for t in range(2):
            expected = rotate(step.k[b, t], cos, sin, int(first[b]) + t, interleaved, offset)
            torch.testing.assert_close(k[length + t], expected)
        moved = [int(first[b]) + (i if mask else 0) for i in range(2)]
        q = torch.stack([rotate(step.q[b, i], cos, sin, moved[i], interleaved, offset) for i in range(2)])
        assert (out[b] - attend(q, k, v, mask is not None)[0]).abs().max() < 2e-5


def _scale(kind, shape, heads_k, batch):
    return {
        "number": 0.5,
        "tensor": torch.tensor(0.5),
        "head": torch.rand(heads_k) + 0.1,
        "batch_head": torch.rand(batch, heads_k) + 0.1,
        "token": torch.rand(shape) + 0.1,
    }[kind]


@pytest.mark.parametrize("kind", ["number", "tensor", "head", "batch_head", "token"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [16, 5])
def test_fp8_caches_with_every_kind_of_scale(kind, dtype, page_size):
    batch, heads_k, dim = 2, 2, 32
    pages = 30
    k_cache, v_cache = (torch.randn(pages, page_size, heads_k, dim).to(torch.float8_e4m3fn) for _ in range(2))
    table = torch.randperm(pages)[: 2 * 12].view(2, 12).int()
    lengths = torch.tensor([40, 7], dtype=torch.int32)
    q = torch.randn(batch, 1, 4, dim).to(dtype)
    k, v = (torch.randn(batch, 1, heads_k, dim).to(dtype) for _ in range(2))
    k_scale, v_scale = (_scale(kind, k_cache.shape[:3], heads_k, batch) for _ in range(2))
    out = tilewise.kv_cache_attention(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, k_scale=k_scale, v_scale=v_scale
    )
    for b in range(batch):
        rows = []
        for cache, scale, new in ((k_cache, k_scale, k), (v_cache, v_scale, v)):
            values = []
            for place in range(int(lengths[b]) + 1):
                at = int(table[b, place // page_size]), place % page_size
                own = torch.as_tensor(scale)
                own = own[b] if kind == "batch_head" else own[at] if kind == "token" else own
                own = own.expand(heads_k)[:, None]
                if place == lengths[b]:
                    fresh = new[b, 0].float()
                    if kind == "token":
                        torch.testing.assert_close(own[:, 0], fresh.abs().amax(-1) / 448, rtol=0, atol=0)
                    stored = (fresh / own).clamp(-448, 448).to(torch.float8_e4m3fn)
                    assert torch.equal(stored.view(torch.uint8), cache[at].view(torch.uint8))
                values.append(cache[at].float() * own)
            rows.append(torch.stack(values))
        expected = attend(q[b], *rows, causal=False)[0]
        assert (out[b] - expected).abs().max() < (1e-4 if dtype == torch.float32 else 2e-2)


def test_fp8_special_values():
    cache = torch.zeros(1, 8, 1, 4).to(torch.float8_e4m3fn)
    k = torch.tensor([[1e9, -torch.inf, torch.nan, 0.0]]).view(1, 1, 1, 4)
    tilewise.append_kv(cache, cache.clone(), k, k, cache_seqlens=2, k_scale=1.0, v_scale=1.0)
    assert cache[0, 2, 0].float().tolist()[:2] == [448.0, -448.0] and cache[0, 2, 0, 2].float().isnan()
    scale = torch.full((1, 8, 1), 7.0)
    rows = torch.tensor([[0.0, 0.0, 0.0, 0.0], [torch.inf, 1.0, 0.0, 0.0], [torch.nan, 4.48, 0.0, 0.0]])
    tilewise.append_kv(
        cache, cache.clone(), rows.view(1, 3, 1, 4), rows.view(1, 3, 1, 4), cache_seqlens=0, k_scale=scale,
        v_scale=scale.clone(),
    )  # fmt: skip
    assert scale[0, :4, 0].tolist() == [1.0, torch.inf, pytest.approx(0.01), 7.0]
    read = cache[0, :3, 0].float() * scale[0, :3]
    assert read[0].tolist() == [0.0] * 4 and read[1].isnan().all() and read[2].isnan().tolist() == [True] + [False] * 3


@pytest.mark.parametrize(("dim", "dim_v", "heads"), [(576, 512, 16), (48, 32, 128), (192, 128, 8)])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [1, 40])
def test_values_as_columns_of_the_keys(dim, dim_v, heads, cache_dtype, rows):
    torch.manual_seed(dim)
    cache = (0.5 * torch.randn(20, 16, 1, dim)).to(cache_dtype)
    table = torch.randperm(20)[:8].view(1, 8).int()
    q, k = torch.randn(1, rows, heads, dim).bfloat16(), (0.5 * torch.randn(1, rows, 1, dim)).bfloat16()
    scale = {"k_scale": 0.5} if cache_dtype == torch.float8_e4m3fn else {}
    length = 60
    out = tilewise.kv_cache_attention(
        q, cache, None, k, cache_seqlens=length, block_table=table, head_dim_v=dim_v, mask="causal", **scale
    )
    keys = torch.cat([cache[int(page)] for page in table[0]])[: length + rows].float() * scale.get("k_scale", 1.0)
    expected = attend(q[0], keys, keys[..., :dim_v], causal=True)[0]
    assert out.shape == (1, rows, heads, dim_v)
    assert (out[0] - expected).abs().max() < 3e-2


def test_packed_prefill_beside_decode():
    """Chunks of 1, 50, 0 and 7 queries in one call; results do not depend on the company."""
    lengths, chunks = [90, 20, 33, 0], [1, 50, 0, 7]
    step = Step(16, [n + 60 for n in lengths], 0)
    q, k, v = (torch.randn(sum(chunks) + 2, heads, 32) for heads in (4, 2, 2))
    cu = torch.tensor([0, *np.cumsum(chunks)], dtype=torch.int32)
    seqlens = torch.tensor(lengths, dtype=torch.int32)
    places = {"block_table": step.table, "mask": "causal", "batch_invariant": True}
    out, lse = tilewise.kv_cache_attention(
        q, *step.caches, k, v, cache_seqlens=seqlens, cu_seqlens_q=cu, max_seqlen_q=50, return_lse=True, **places
    )
    assert not out[cu[-1] :].any() and (lse[:, cu[-1] :] == -torch.inf).all(), "rows of no sequence"
    for b, chunk in enumerate(chunks):
        rows = slice(int(cu[b]), int(cu[b]) + chunk)
        keys, values = (
            torch.stack([cache[step.page(b, place)] for place in range(lengths[b] + chunk)] or [cache[0, 0]])
            for cache in step.caches
        )
        if not chunk:
            continue
        assert torch.equal(keys[lengths[b] :], k[rows])
        expected, expected_lse = attend(q[rows], keys, values, causal=True)
        assert (out[rows] - expected).abs().max() < 2e-5 and (lse[:, rows] - expected_lse).abs().max() < 1e-4
        alone = tilewise.kv_cache_attention(
            q[rows][None], *step.caches, cache_seqlens=seqlens[b : b + 1] + chunk,
            **{**places, "block_table": step.table[b : b + 1]},
        )  # fmt: skip
        assert torch.equal(alone[0], out[rows])


def test_contiguous_caches_with_batch_idx_and_leftpad():
    cache_k, cache_v = torch.randn(5, 64, 2, 32), torch.randn(5, 64, 2, 16)
    q, k, v = torch.randn(4, 2, 4, 32), torch.randn(4, 2, 2, 32), torch.randn(4, 2, 2, 16)
    rows = torch.tensor([3, -1, 0, 4], dtype=torch.int32)
    lengths, pads = torch.tensor([10, 5, -3, 62], dtype=torch.int32), torch.tensor([4, 0, 0, 30], dtype=torch.int32)
    before = cache_k.clone()
    sink = torch.randn(4)
    out, lse = tilewise.kv_cache_attention(
        q, cache_k, cache_v, k, v, cache_seqlens=lengths, cache_batch_idx=rows, cache_leftpad=pads, mask="causal",
        window=(20, -1), sink=sink, return_lse=True,
    )  # fmt: skip
    for b in (1, 2):
        assert not out[b].any() and (lse[b] == -torch.inf).all(), "without a cache"
    for b in (0, 3):
        row, first, last = int(rows[b]), int(pads[b]), int(lengths[b]) + 2
        assert torch.equal(cache_k[row, last - 2 : last], k[b])
        before[row, last - 2 : last] = k[b]
        expected, expected_lse = attend(
            q[b], cache_k[row, first:last], cache_v[row, first:last], True, (20, -1), sink=sink
        )
        assert (out[b] - expected).abs().max() < 2e-5 and (lse[b] - expected_lse).abs().max() < 1e-4
    assert torch.equal(cache_k, before)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots(dtype):
    cache_k, cache_v = torch.zeros(6, 4, 2, 8), torch.zeros(6, 4, 2, 8)
    k, v = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    slots = torch.tensor([23, -1, 0, 9, 4], dtype=dtype)
    tilewise.append_kv(cache_k, cache_v, k, v, slots=slots)
    for cache, new in ((cache_k, k), (cache_v, v)):
        expected = torch.zeros(24, 2, 8)
        expected[slots[slots >= 0].long()] = new[slots >= 0]
        assert torch.equal(cache.flatten(0, 1), expected)


def test_interleaved_caches_in_one_storage():
    both = torch.randn(8, 2, 16, 2, 32)
    step = Step(16, [20, 30], 1)
    for n in range(2):
        both[:, n].copy_(torch.randn(8, 16, 2, 32))
    table = torch.tensor([[5, 1], [0, 3]], dtype=torch.int32)
    apart = [both[:, n].clone() for n in range(2)]
    given = {"cache_seqlens": step.seqlens, "block_table": table}
    out = tilewise.kv_cache_attention(step.q, both[:, 0], both[:, 1], step.k, step.v, **given)
    expected = tilewise.kv_cache_attention(step.q, *apart, step.k, step.v, **given)
    assert torch.equal(out, expected) and torch.equal(both[:, 0], apart[0]) and torch.equal(both[:, 1], apart[1])


def test_other_arrays():
    step = Step(4, [9, 2], 1)
    expected, expected_lse = step.run()
    again = Step(4, [9, 2], 1)
    arrays = {name: getattr(step, name).numpy() for name in ("q", "k", "v", "table", "seqlens")}
    caches = [cache.numpy().copy() for cache in step.caches]
    out, lse = tilewise.kv_cache_attention(
        arrays["q"], *caches, arrays["k"], arrays["v"], cache_seqlens=arrays["seqlens"], block_table=arrays["table"],
        return_lse=True,
    )  # fmt: skip
    assert isinstance(out, np.ndarray) and np.array_equal(out, expected.numpy())
    assert np.array_equal(lse, expected_lse.numpy())
    del again
    fp8 = np.zeros((1, 4, 1, 8), ml_dtypes.float8_e4m3fn)
    k = np.ones((1, 1, 1, 8), np.float32)
    tilewise.append_kv(fp8, fp8.copy(), k, k, cache_seqlens=1, k_scale=0.5, v_scale=0.5)
    assert fp8[0, 1].astype(np.float32).tolist() == [[2.0] * 8]
