"""kv_cache_attention() and append_kv() against a straight formula in torch: pages, packed rows, rotary, fp8, MLA."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewise

torch.manual_seed(0)


def _rotate(x, cos, sin, position, interleaved, offset):
    """x [heads, dim] of one token, in f32."""
    x = x.float().clone()
    half = cos.shape[1]
    part = x[:, offset : offset + 2 * half]
    c, s = cos[position].float(), sin[position].float()
    first, second = (part[:, 0::2], part[:, 1::2]) if interleaved else (part[:, :half], part[:, half:])
    rotated = first * c - second * s, first * s + second * c
    if interleaved:
        x[:, offset : offset + 2 * half] = torch.stack(rotated, -1).flatten(-2)
    else:
        x[:, offset : offset + 2 * half] = torch.cat(rotated, -1)
    return x


def _attend(q, k, v, causal, window=(-1, -1), scale=None, sink=None):
    """One sequence: q [rows, heads, dim], k and v [keys, heads_k, dim], in f64."""
    rows, heads, dim = q.shape
    keys, group = k.shape[0], heads // k.shape[1]
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q.double(), k) * (scale or 1 / math.sqrt(dim))
    at = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)[None]
    seen = torch.ones_like(at, dtype=torch.bool)
    if causal:
        seen &= at >= 0
    if window[0] >= 0:
        seen &= at <= window[0]
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.double()[:, None])
    weights = torch.exp(scores - lse[..., None]).nan_to_num()
    return torch.einsum("hij,jhd->ihd", weights, v), lse


class Step:
    """Two or more sequences with pages in random order and poison in everything that nobody may touch."""

    def __init__(self, page_size, lengths, new, dtype=torch.float32, heads=4, heads_k=2, dim=32, dim_v=32, guard=8):
        self.page_size, self.lengths, self.new, self.dtype = page_size, lengths, new, dtype
        pages = [-(-(n + new) // page_size) for n in lengths]
        total = sum(pages) + 2
        order = torch.randperm(total)
        self.table = torch.full((len(lengths), max(pages) + 1), -(2**31), dtype=torch.int32)
        for b, count in enumerate(pages):
            self.table[b, :count], order = order[:count].int(), order[count:]
        # Each page lies between guards: [pages, guard + page_size * heads_k * dim + guard].
        self.memory, self.caches = [], []
        for width in (dim, dim_v):
            memory = torch.full((total, 2 * guard + page_size * heads_k * width), torch.nan, dtype=dtype)
            cache = memory[:, guard:-guard].unflatten(1, (page_size, heads_k, width))
            for b, length in enumerate(lengths):
                for place in range(length):
                    cache[self.page(b, place)] = torch.randn(heads_k, width).to(dtype)
            self.memory.append(memory)
            self.caches.append(cache)
        shape = (len(lengths), new)
        self.q = torch.randn(*shape, heads, dim).to(dtype)
        self.k, self.v = torch.randn(*shape, heads_k, dim).to(dtype), torch.randn(*shape, heads_k, dim_v).to(dtype)
        self.seqlens = torch.tensor(lengths, dtype=torch.int32)

    def page(self, b, place):
        return int(self.table[b, place // self.page_size]), place % self.page_size

    def rows(self, b, cache):
        return torch.stack([cache[self.page(b, place)] for place in range(self.lengths[b] + self.new)])

    def run(self, **options):
        given = {"cache_seqlens": self.seqlens, "block_table": self.table, "return_lse": True, **options}
        return tilewise.kv_cache_attention(self.q, *self.caches, self.k, self.v, **given)


TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


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
        expected, expected_lse = _attend(step.q[b], k, v, causal=True)
        assert (out[b] - expected).abs().max() < TOLERANCE[dtype]
        assert (lse[b] - expected_lse).abs().max() < 1e-4 if dtype == torch.float32 else 2e-2
    for old, memory, cache, new in zip(before, step.memory, step.caches, (step.k, step.v)):
        changed = memory.isnan() != old.isnan()
        assert changed.sum() == new.numel(), "as many elements as were appended"
        assert torch.equal(memory[~changed].nan_to_num(), old[~changed].nan_to_num()), "and no others"
        assert cache.isnan().any(), "poison is left in places that nobody needs"


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
            expected = _rotate(step.k[b, t], cos, sin, int(first[b]) + t, interleaved, offset)
            torch.testing.assert_close(k[length + t], expected)
        moved = [int(first[b]) + (i if mask else 0) for i in range(2)]
        q = torch.stack([_rotate(step.q[b, i], cos, sin, moved[i], interleaved, offset) for i in range(2)])
        assert (out[b] - _attend(q, k, v, mask is not None)[0]).abs().max() < 2e-5


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
        expected = _attend(q[b], *rows, causal=False)[0]
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
    expected = _attend(q[0], keys, keys[..., :dim_v], causal=True)[0]
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
        expected, expected_lse = _attend(q[rows], keys, values, causal=True)
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
        expected, expected_lse = _attend(
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


@pytest.mark.parametrize("scales", [False, True])
def test_compiled(scales):
    def step(q, k_cache, v_cache, k, v, seqlens, table, k_scale, v_scale):
        out = tilewise.kv_cache_attention(
            q, k_cache, v_cache, k, v, cache_seqlens=seqlens, block_table=table, k_scale=k_scale, v_scale=v_scale,
            mask="causal",
        )  # fmt: skip
        tilewise.append_kv(k_cache, v_cache, k, v, cache_seqlens=seqlens + 1, block_table=table, k_scale=k_scale,
                           v_scale=v_scale)  # fmt: skip
        return out + 1

    first = Step(4, [9, 2], 1)
    table = torch.randperm(16)[:8].view(2, 4).int()
    dtype = torch.float8_e4m3fn if scales else torch.float32
    caches = [torch.randn(16, 4, 2, 32).to(dtype) for _ in range(2)]
    kinds = [torch.rand(16, 4, 2) + 0.1 for _ in range(2)] if scales else [None, None]
    results = []
    for function in (step, torch.compile(step, fullgraph=True)):
        own = [None if t is None else t.clone() for t in (*caches, *kinds)]
        out = function(first.q, own[0], own[1], first.k, first.v, first.seqlens, table, own[2], own[3])
        results.append([out, *(t.float() for t in own if t is not None)])
    for eager, compiled in zip(*results):
        assert torch.equal(eager.nan_to_num(), compiled.nan_to_num())


def test_operators_pass_torchs_own_checks():
    step = Step(4, [9, 2], 1)
    step.caches = [torch.randn(16, 4, 2, 32) for _ in range(2)]
    table = torch.randperm(16)[:8].view(2, 4).int()
    arrays = (None, None, None, step.seqlens, None, None, table, None, None, None, None, None)
    scalars = (False, 0, None, None, None, None, None, None, True, -1, -1, None, 0.0, 0, False, None)
    operands = (step.q, *step.caches, None, None, step.k, step.v, *arrays, *scalars)
    torch.library.opcheck(torch.ops.tilewise.kv_cache_attention.default, operands,
                          test_utils=("test_schema", "test_faketensor"))  # fmt: skip
