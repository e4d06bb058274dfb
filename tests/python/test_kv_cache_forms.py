"""kv_cache_attention() and append_kv() over caches of other forms: strided, shared, of no length, with every option."""

from __future__ import annotations

import doctest

import pytest
import torch
from cases import lengths
from kv_cache_step import Step, attend, rotate

import tilewise

torch.manual_seed(0)
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [None, "reference"])


def _check(step, out, lse, tolerance=2e-5, **options):
    """Each sequence against the formula, on what its cache holds by now."""
    slopes = options.pop("slopes", None)
    for b in range(len(step.lengths)):
        k, v = (step.rows(b, cache) for cache in step.caches)
        own = slopes[b] if slopes is not None and slopes.ndim == 2 else slopes
        expected, expected_lse = attend(step.q[b], k, v, **options, slopes=own)
        assert (out[b] - expected).abs().max() < tolerance
        torch.testing.assert_close(lse[b].double(), expected_lse, rtol=0, atol=1e-4)


OPTIONS = {
    "window": {"window": (5, 1)},
    "window_right": {"window": (-1, 0)},
    "causal_window": {"mask": "causal", "window": (7, -1)},
    "scale": {"softmax_scale": -0.4},
    "scale_zero": {"softmax_scale": 0.0},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi_slopes": torch.rand(4), "mask": "causal"},
    "alibi_batch": {"alibi_slopes": torch.rand(3, 4)},
    "sink": {"sink": torch.randn(4)},
    "splits": {"num_splits": 5},
    "many_splits": {"num_splits": 1000, "mask": "causal"},
    "batch_invariant": {"batch_invariant": True},
    "everything": {
        "window": (30, 0),
        "softcap": 3.0,
        "alibi_slopes": torch.rand(4),
        "sink": torch.randn(4),
        "num_splits": 3,
        "softmax_scale": 0.3,
    },
}


@IMPLEMENTATIONS
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, implementation):
    options = OPTIONS[name]
    step = Step(5, [33, 0, 70], 4)
    out, lse = step.run(**options, implementation=implementation)
    _check(
        step,
        out,
        lse,
        causal=options.get("mask") == "causal",
        window=options.get("window", (-1, -1)),
        scale=options.get("softmax_scale"),
        softcap=options.get("softcap", 0.0),
        slopes=options.get("alibi_slopes"),
        sink=options.get("sink"),
    )


@IMPLEMENTATIONS
@pytest.mark.parametrize("rotary_dim", range(2, 34, 2))
def test_any_even_rotary_dim(rotary_dim, implementation):
    """At the last offset that head_dim has room for, odd ones too, after 40 bytes of other tables in each row."""
    step = Step(3, [4, 11], 2)
    offset = (32 - rotary_dim) // 2
    tables = torch.randn(2, 20, 10 + rotary_dim // 2)
    cos, sin = tables[0].cos()[:, 10:], tables[1].sin()[:, 10:]
    rotary = {"rotary_cos": cos, "rotary_sin": sin, "rotary_offset": offset, "rotary_interleaved": rotary_dim % 4 == 0}
    out, lse = step.run(**rotary, mask="causal", implementation=implementation)
    for b, length in enumerate(step.lengths):
        turned = [
            torch.stack([rotate(x[b, t], cos, sin, length + t, rotary_dim % 4 == 0, offset) for t in range(2)])
            for x in (step.k, step.q)
        ]
        torch.testing.assert_close(step.rows(b, step.caches[0])[length:], turned[0])
        step.q[b] = turned[1]
    _check(step, out, lse, causal=True)


def _like(tensor, memory, order):
    """A view with `tensor`'s values whose dimensions lie in memory in this order, with gaps between rows."""
    sizes = [tensor.shape[n] for n in order]
    view = memory.new_full([*sizes[:-1], sizes[-1] + 3], 0)[..., : sizes[-1]]
    view = view.permute([order.index(n) for n in range(tensor.ndim)])
    return view.copy_(tensor)


@IMPLEMENTATIONS
@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (1, 0, 2, 3)])
def test_strided_caches_tables_and_queries(order, implementation):
    """Heads-first pages, heads before pages, places before pages; every second column of a wider table."""
    plain, strided = Step(4, [9, 21], 3), Step(4, [9, 21], 3)
    plain.caches = [cache.contiguous() for cache in plain.caches]
    strided.caches = [_like(cache, cache, order) for cache in plain.caches]
    for name in ("q", "k", "v"):
        setattr(strided, name, _like(getattr(plain, name), plain.q, (0, 2, 1, 3)))
    rows = torch.full((5, plain.table.shape[1] + 4), 99, dtype=torch.int32)
    strided.table = rows[::3, 2:-2].copy_(plain.table)
    assert not any(tensor.is_contiguous() for tensor in (strided.q, strided.table, *strided.caches))
    options = {"mask": "causal", "num_splits": 2, "implementation": implementation}
    out, lse = strided.run(**options)
    expected, expected_lse = plain.run(**options)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    for mine, other in zip(strided.caches, plain.caches):
        torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)


@IMPLEMENTATIONS
def test_pages_that_sequences_share(implementation):
    """A prefix of two pages is in both tables; what is appended goes to pages of each one's own."""
    step = Step(4, [10, 13], 2)
    step.table[1, :2] = step.table[0, :2]
    out, lse = step.run(mask="causal", implementation=implementation)
    assert torch.equal(step.rows(0, step.caches[0])[:8], step.rows(1, step.caches[0])[:8])
    _check(step, out, lse, causal=True)


@IMPLEMENTATIONS
def test_nothing_at_all(implementation):
    """No sequence, no query, no key, no new key, or an empty cache: results have their shapes, rows are 0 and -inf."""
    cache = torch.randn(3, 8, 2, 32)
    row = torch.randn(3, 1, 4, 32)
    new = torch.randn(3, 1, 2, 32)
    options = {"return_lse": True, "implementation": implementation}

    out, lse = tilewise.kv_cache_attention(row[:0], cache[:0], cache[:0], new[:0], new[:0], cache_seqlens=3, **options)
    assert out.shape == (0, 1, 4, 32) and lse.shape == (0, 4, 1)

    mine = cache.clone()
    out, lse = tilewise.kv_cache_attention(row[:, :0], mine, mine.clone(), new, new, cache_seqlens=3, **options)
    assert out.shape == (3, 0, 4, 32) and lse.shape == (3, 4, 0)
    assert torch.equal(mine[:, 3], new[:, 0]), "new keys are appended without any query"

    mine = cache.clone()
    out, lse = tilewise.kv_cache_attention(row, mine, mine.clone(), new[:, :0], new[:, :0], cache_seqlens=0, **options)
    assert not out.any() and (lse == -torch.inf).all() and torch.equal(mine, cache)

    empty = torch.empty(3, 0, 2, 32)
    out, lse = tilewise.kv_cache_attention(row, empty, empty.clone(), sink=torch.ones(4), **options)
    assert not out.any() and (lse == 1.0).all(), "the sink alone, in a cache of no keys"

    pages = torch.empty(0, 16, 2, 32)
    out, lse = tilewise.kv_cache_attention(
        row, pages, pages.clone(), block_table=torch.empty(3, 0, dtype=torch.int32), cache_seqlens=lengths(0, -2, 0),
        sink=torch.ones(4), **options,
    )  # fmt: skip
    assert not out.any() and lse[:, 0, 0].tolist() == [1.0, -torch.inf, 1.0]

    starts = lengths(0, 0, 0)
    out, lse = tilewise.kv_cache_attention(
        row[0, :0], cache[:2], cache[:2].clone(), cu_seqlens_q=starts, cache_seqlens=lengths(3, 0), **options
    )
    assert out.shape == (0, 4, 32) and lse.shape == (4, 0)
    tilewise.append_kv(cache, cache.clone(), new[:, :0], new[:, :0], cache_seqlens=0, implementation=implementation)
    tilewise.append_kv(
        pages, pages.clone(), new[0, :0], new[0, :0], slots=torch.empty(0, dtype=torch.int64),
        implementation=implementation,
    )  # fmt: skip


@IMPLEMENTATIONS
@pytest.mark.parametrize("form", ["number", "tensor", "missing"])
def test_lengths_of_a_cache_that_is_only_read(form, implementation):
    cache, q = torch.randn(2, 9, 1, 16), torch.randn(2, 3, 2, 16)
    given = {"number": {"cache_seqlens": 9}, "tensor": {"cache_seqlens": lengths(9, 9)}, "missing": {}}[form]
    out = tilewise.kv_cache_attention(q, cache, cache, **given, mask="causal", implementation=implementation)
    for b in range(2):
        assert (out[b] - attend(q[b], cache[b], cache[b], causal=True)[0]).abs().max() < 2e-5


@pytest.mark.parametrize("function", [tilewise.kv_cache_attention, tilewise.append_kv])
def test_the_docstrings_example(function):
    (example,) = doctest.DocTestFinder().find(function, function.__name__, globs={"tilewise": tilewise})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("heads", [16, 64, 128])
def test_splits_and_company_of_mlas_form(heads):
    """With num_splits or batch_invariant a sequence's result is the same bits alone and beside others."""
    cache = (0.5 * torch.randn(12, 16, 1, 576)).bfloat16()
    table = torch.randperm(12).view(3, 4).int()
    q, seqlens = torch.randn(3, 1, heads, 576).bfloat16(), lengths(60, 7, 33)
    for options in ({"num_splits": 3}, {"batch_invariant": True}):
        together = tilewise.kv_cache_attention(
            q, cache, None, cache_seqlens=seqlens, block_table=table, head_dim_v=512, **options
        )
        for b in range(3):
            alone = tilewise.kv_cache_attention(
                q[b : b + 1], cache, None, cache_seqlens=seqlens[b : b + 1], block_table=table[b : b + 1],
                head_dim_v=512, **options,
            )  # fmt: skip
            assert torch.equal(alone[0], together[b])
            keys = torch.cat([cache[int(page)] for page in table[b]])[: int(seqlens[b])].float()
            assert (alone[0] - attend(q[b], keys, keys[..., :512], causal=False)[0]).abs().max() < 3e-2
