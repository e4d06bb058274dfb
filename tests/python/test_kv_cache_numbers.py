"""What kv_cache_attention() promises of its numbers: NaN shows where it is seen, and bits do not depend on company."""

from __future__ import annotations

import math

import pytest
import torch
from kv_cache_step import Step, attend

import tilewise

torch.manual_seed(0)
FP8 = torch.float8_e4m3fn


@pytest.fixture
def threads():
    yield tilewise.set_num_threads
    tilewise.set_num_threads(None)


def _step(dtype, page_size=4, rows=3):
    """Two sequences of 21 and 9 keys, queries of the last `rows` places, four heads on two."""
    step = Step(page_size, [21 - rows, 9 - rows], rows, dtype)
    tilewise.append_kv(*step.caches, step.k, step.v, cache_seqlens=step.seqlens, block_table=step.table)
    step.seqlens, step.k, step.v = step.seqlens + rows, None, None
    return step


@pytest.mark.parametrize("implementation", [None, "cpu.generic", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
def test_nan_shows_where_it_is_seen(implementation, dtype, rows):
    options = {"mask": "causal", "implementation": implementation}

    step = _step(dtype, rows=rows)
    clean, clean_lse = step.run(**options)
    step.caches[0][(*step.page(0, 5), 1, 7)] = math.nan  # a key of head 1, seen by every query of heads 2 and 3
    out, lse = step.run(**options)
    assert out[0, :, 2:].isnan().all() and lse[0, 2:].isnan().all()
    assert torch.equal(out[0, :, :2], clean[0, :, :2]) and torch.equal(out[1], clean[1])

    step = _step(dtype, rows=rows)
    clean, clean_lse = step.run(**options)
    step.caches[1][(*step.page(1, 0), 0, 3)] = math.nan  # a value: its own column, and no log-sum-exp
    out, lse = step.run(**options)
    assert out[1, :, :2, 3].isnan().all() and out.isnan().sum() == 2 * rows
    assert torch.equal(lse, clean_lse)

    step = _step(dtype, rows=rows)
    step.q[1, 0, 3, 31] = math.nan
    out, lse = step.run(**options)
    assert out[1, 0, 3].isnan().all() and out.isnan().sum() == 32 and lse.isnan().sum() == 1

    step = _step(dtype, rows=rows)
    before = step.run(**options, window=(3, -1))
    step.caches[0][(*step.page(0, 2), 0, 0)] = math.nan  # outside every query's window
    step.caches[1][(*step.page(0, 2), 0, 0)] = 7.0
    after = step.run(**options, window=(3, -1))
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


@pytest.mark.parametrize("implementation", [None, "cpu.generic", "reference"])
def test_nan_in_fp8(implementation):
    """As a new key that is appended, and as a scale of a token."""
    cache = torch.zeros(1, 12, 1, 16).to(FP8)
    q, k = torch.randn(1, 2, 2, 16), torch.randn(1, 2, 1, 16)
    k[0, 1, 0, 5] = math.nan
    options = {"mask": "causal", "return_lse": True, "implementation": implementation}
    caches = [cache.clone() for _ in range(2)]
    out, lse = tilewise.kv_cache_attention(
        q, *caches, k, torch.ones_like(k), cache_seqlens=3, k_scale=0.5, v_scale=1.0, **options
    )
    assert out[0, 0].isfinite().all() and out[0, 1].isnan().all(), "only the second query sees the second key"
    assert lse[0, :, 0].isfinite().all() and lse[0, :, 1].isnan().all()
    scales = [torch.ones(1, 12, 1) for _ in range(2)]
    scales[1][0, 4] = math.nan
    out, lse = tilewise.kv_cache_attention(
        q, cache, cache, cache_seqlens=6, k_scale=scales[0], v_scale=scales[1], **options
    )
    assert out[0].isnan().all() and lse.isfinite().all(), "a value's scale spoils the value and no score"


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("cache_dtype", [None, FP8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_threads_nor_company_change_a_bit(threads, rows, cache_dtype, dtype):
    """On the CPU, whatever num_splits is; one sequence is much longer than the others."""
    lengths = torch.tensor([1500, 30, 0, 200], dtype=torch.int32)
    table = torch.randperm(4 * 94).view(4, 94).int()
    caches = [torch.randn(4 * 94, 16, 2, 32).to(cache_dtype or dtype) for _ in range(2)]
    scales = {"k_scale": 0.3, "v_scale": 0.7} if cache_dtype else {}
    q = torch.randn(4, rows, 8, 32).to(dtype)
    options = {**scales, "mask": "causal", "return_lse": True}
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(tilewise.kv_cache_attention(q, *caches, cache_seqlens=lengths, block_table=table, **options))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])
    for b in range(4):
        out, lse = tilewise.kv_cache_attention(
            q[b : b + 1], *caches, cache_seqlens=lengths[b : b + 1], block_table=table[b : b + 1], **options
        )
        assert torch.equal(out[0], results[0][0][b]) and torch.equal(lse[0], results[0][1][b])


def test_a_row_of_many_keys_is_right_in_every_number_of_parts():
    """The same result, but for rounding, as one part; 3,000 keys."""
    step = Step(16, [2999], 1)
    expected = None
    for splits in (1, 2, 3, 7, 50, 10**6):
        step.seqlens = torch.tensor([2999], dtype=torch.int32)
        out, _ = step.run(num_splits=splits)
        if expected is None:
            expected, _ = attend(step.q[0], *(step.rows(0, cache) for cache in step.caches), causal=False)
        assert (out[0] - expected).abs().max() < 2e-5
