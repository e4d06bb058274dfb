# tilewise.compat.flash_attn over caches: flash_attn_with_kvcache and flash_attn_varlen_func with a block_table, over
# all pairs of their arguments against float64 formulas.
"""Caches, contiguous and in pages."""

import functools
import math
import random
from typing import Any, NamedTuple, Optional

import pytest
import torch
from closeness import assert_as_close
from formulas import Call, dense
from pairwise import pairwise
from torch_support import Recorder

import tilewise.compat.flash_attn as flash_attn

AXES: dict[str, list[Any]] = {
    "dtype": [torch.float16, torch.bfloat16],
    "seqlen_q": [1, 3, 40],
    "heads": [(4, 4), (4, 2), (3, 1)],
    "head_dim": [32, 64, 80],
    "cache": ["rows", "batch_idx", "leftpad", "pages"],
    "seqlen_new": [0, 1, 5],
    "rotary": [None, "halves", "interleaved"],
    "seqlens": ["tensor", "int", "none"],
    "causal": [False, True],
    "window_size": [(-1, -1), (7, 3), torch.tensor([20, 0])],
    "softcap": [0.0, 2.0],
    "alibi": [None, "heads", "batch"],
    "num_splits": [0, 1, 3],
}


class Case(NamedTuple):
    dtype: torch.dtype
    seqlen_q: int
    heads: tuple[int, int]
    head_dim: int
    cache: str
    seqlen_new: int
    rotary: Optional[str]
    seqlens: str
    causal: bool
    window_size: Any
    softcap: float
    alibi: Optional[str]
    num_splits: int

    def __str__(self) -> str:
        window = [int(side) for side in self.window_size]
        return "-".join(str(value).replace("torch.", "") for value in self._replace(window_size=window))


def possible(values: dict[str, Any]) -> bool:
    """Rotary tables and no cache_seqlens at all say something with, and without new keys alone."""
    if values["rotary"] is not None and values["seqlen_new"] == 0:
        return False
    return values["seqlens"] != "none" or (values["seqlen_new"] == 0 and values["cache"] != "leftpad")


CASES = [Case(**values) for values in pairwise(AXES, possible)]


def _tables(case: Case, rows: int) -> tuple[Any, Any]:
    if case.rotary is None:
        return None, None
    angles = torch.rand(rows, 16) * 2 * math.pi
    return angles.cos().to(case.dtype), angles.sin().to(case.dtype)


def _rotated(x: torch.Tensor, tables: tuple[Any, Any], positions: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [rows, heads, dim] in its own dtype, by definition."""
    cos, sin = (table.double()[positions][:, None] for table in tables)
    result = x.double().clone()
    first, second = (slice(0, 32, 2), slice(1, 32, 2)) if interleaved else (slice(0, 16), slice(16, 32))
    a, b = x.double()[..., first], x.double()[..., second]
    result[..., first], result[..., second] = a * cos - b * sin, a * sin + b * cos
    return result.to(x.dtype)


class Cache(NamedTuple):
    """Two sequences of at most 512 keys, and where each of their places lies."""

    k: torch.Tensor
    v: torch.Tensor
    arguments: dict[str, Any]
    places: list[tuple[Any, ...]]  # for each sequence, indices of its places in order

    def keys(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k[self.places[b]], self.v[self.places[b]]


def _cache(case: Case) -> Cache:
    rng, capacity = random.Random(1), 512
    heads, dim = case.heads[1], case.head_dim
    shape = (7, 256, heads, dim) if case.cache == "pages" else (4, capacity, heads, dim)
    k, v = (torch.randn(shape).to(case.dtype) for _ in range(2))
    if case.cache != "pages" and case.cache != "batch_idx":
        k, v = k[:2], v[:2]
    arguments: dict[str, Any] = {}
    every = torch.arange(capacity)
    owners = [0, 1]
    if case.cache == "pages":
        table = torch.tensor([rng.sample(range(7), 2), [3, 5]], dtype=torch.int32)
        table[0][table[0] == 3], table[0][table[0] == 5] = 0, 1
        arguments["block_table"] = table
        return Cache(k, v, arguments, [(row[every // 256], every % 256) for row in table.long()])
    if case.cache == "batch_idx":
        owners = [3, 1]
        arguments["cache_batch_idx"] = torch.tensor(owners, dtype=torch.int32)
    if case.cache == "leftpad":
        arguments["cache_leftpad"] = torch.tensor([9, 0], dtype=torch.int32)
    return Cache(k, v, arguments, [(torch.full((capacity,), owner), every) for owner in owners])


def _lengths(case: Case) -> tuple[Any, list[int]]:
    """(cache_seqlens as an argument, of each sequence)."""
    if case.seqlens == "none":
        return None, [512, 512]
    lengths = [130, 61] if case.seqlens == "tensor" else [77, 77]
    return torch.tensor(lengths, dtype=torch.int32) if case.seqlens == "tensor" else lengths[0], lengths


def _by_formula(case: Case, q: Any, k: Any, v: Any, slopes: Any, dtype: torch.dtype) -> Any:
    left, right = (int(side) for side in case.window_size)
    options = Call(
        mask="causal" if case.causal else None,
        window=(left, right),
        softcap=case.softcap,
        alibi_slopes=None if slopes is None else slopes.to(dtype),
    )
    return dense(options, *(tensor[None].to(dtype) for tensor in (q, k, v)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_of_arguments(case):
    torch.manual_seed(1)
    heads, dim, new = case.heads[0], case.head_dim, case.seqlen_new
    q = torch.randn(2, case.seqlen_q, heads, dim).to(case.dtype)
    k, v = (torch.randn(2, new, case.heads[1], dim).to(case.dtype) if new else None for _ in range(2))
    cache, tables = _cache(case), _tables(case, 512)
    seqlens, lengths = _lengths(case)
    shape = {None: None, "heads": (heads,), "batch": (2, heads)}[case.alibi]
    slopes = None if shape is None else torch.rand(shape)
    before = cache._replace(k=cache.k.clone(), v=cache.v.clone())
    step = functools.partial(
        flash_attn.flash_attn_with_kvcache, q, cache.k, cache.v, k, v, *tables, seqlens, **cache.arguments,
        causal=case.causal, softcap=case.softcap, rotary_interleaved=case.rotary != "halves", alibi_slopes=slopes,
        num_splits=case.num_splits,
    )  # fmt: skip
    out, lse = step(window_size=case.window_size, return_softmax_lse=True)
    assert torch.equal(step(window_size=case.window_size), out)  # a step twice writes the same keys
    leftpad = cache.arguments.get("cache_leftpad", [0, 0])
    local = case.causal or any(int(side) >= 0 for side in case.window_size)
    for b, length in enumerate(lengths):
        keys, values = (part.clone() for part in before.keys(b))
        queries = q[b]
        if k is not None:
            assert v is not None
            positions = torch.arange(length, length + new)
            interleaved = case.rotary == "interleaved"
            keys[positions] = k[b] if case.rotary is None else _rotated(k[b], tables, positions, interleaved)
            values[positions] = v[b]
            if case.rotary is not None:
                rows = torch.arange(length, length + case.seqlen_q) if local else torch.full((case.seqlen_q,), length)
                queries = _rotated(queries, tables, rows, interleaved)
        written_k, written_v = cache.keys(b)
        assert torch.equal(written_v, values)
        torch.testing.assert_close(written_k, keys, rtol=2.0**-7, atol=1e-3)
        used = slice(int(leftpad[b]), length + new)
        of_b = slopes if slopes is None or slopes.dim() == 1 else slopes[b]
        operands = (queries, written_k[used], values[used], of_b)
        exact, exact_lse = _by_formula(case, *operands, torch.float64)
        same, _ = _by_formula(case, *operands, case.dtype)
        assert_as_close(out[b], same[0], exact[0], 3.0, f"sequence {b}")
        _check_lse(case, lse[b], exact_lse[0], of_b, used.stop - used.start)


def _check_lse(case: Case, lse: Any, exact: Any, slopes: Any, seqlen_k: int) -> None:
    left, right = (int(side) for side in case.window_size)
    if slopes is not None and left < 0 and (case.causal or right == 0):
        exact = exact + slopes[:, None] * (torch.arange(case.seqlen_q) + seqlen_k - case.seqlen_q)
    empty = exact == -math.inf
    assert torch.equal(lse == math.inf, empty)
    torch.testing.assert_close(lse[~empty].double(), exact[~empty], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("new", [0, 1])
def test_usual_step(paged, rotary, new):
    """What an engine asks for goes by the operator for it, and computes what that with all options does."""
    if rotary and not new:
        pytest.skip("tables without new keys are refused")
    case = CASES[0]._replace(
        dtype=torch.bfloat16, cache="pages" if paged else "rows", seqlen_new=new, rotary="halves" if rotary else None
    )
    torch.manual_seed(1)
    cache, tables, heads, dim = _cache(case), _tables(case, 512), case.heads, case.head_dim
    q = torch.randn(2, 1, heads[0], dim).to(case.dtype)
    k, v = (torch.randn(2, new, heads[1], dim).to(case.dtype) if new else None for _ in range(2))
    lengths = torch.tensor([130, 61], dtype=torch.int32)
    step = functools.partial(
        flash_attn.flash_attn_with_kvcache, q.requires_grad_(), cache.k, cache.v, k, v, *tables, lengths,
        **cache.arguments, causal=True, rotary_interleaved=False,
    )  # fmt: skip
    with Recorder() as recorder:
        out = step()
    assert torch.ops.tilewise.kv_cache_attention.plain in recorder.calls
    assert not out.requires_grad
    assert torch.equal(out, step(return_softmax_lse=True)[0])


# --- packed queries over pages ---


PAGED = {
    "causal": [False, True],
    "window_size": [(-1, -1), (20, 3), (-1, 0)],
    "softcap": [0.0, 2.0],
    "softmax_scale": [None, 0.3],
    "alibi_slopes": [None, torch.arange(1, 9).view(2, 4) / 16, torch.arange(1, 5) / 8],
}


@pytest.mark.parametrize("options", pairwise(PAGED, lambda _: True), ids=lambda options: str(list(options.values())))
def test_packed_queries_over_pages(options):
    torch.manual_seed(0)
    pages = [torch.randn(5, 256, 2, 32).to(torch.bfloat16) for _ in range(2)]
    table = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    rows = [pages_of[table.long()].flatten(1, 2) for pages_of in pages]
    lengths = [300, 40]
    k, v = (torch.cat([tensor[b, :n] for b, n in enumerate(lengths)]) for tensor in rows)
    q = torch.randn(60, 4, 32).to(torch.bfloat16).requires_grad_()
    starts = torch.tensor([0, 50, 60], dtype=torch.int32), torch.tensor([0, 300, 340], dtype=torch.int32)
    options = {**options, "return_attn_probs": True}
    expected, expected_lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, *starts, 50, 300, **options)
    out, lse, _ = flash_attn.flash_attn_varlen_func(q, *pages, *starts, 50, 300, block_table=table, **options)
    torch.testing.assert_close(out, expected, rtol=1.6e-2, atol=1e-2)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-3)
    with pytest.raises(NotImplementedError, match="there is no backward pass with block_table"):
        out.sum().backward()
    with pytest.raises(NotImplementedError, match=r"block_table: must come without dropout \(got dropout_p 0.1\)"):
        flash_attn.flash_attn_varlen_func(q, *pages, *starts, 50, 300, 0.1, block_table=table)


# --- what is refused ---


def _step(**changes: Any) -> dict[str, Any]:
    cache = torch.zeros(2, 64, 2, 32, dtype=torch.bfloat16)
    return {
        "q": torch.ones(2, 1, 4, 32, dtype=torch.bfloat16),
        "k_cache": cache,
        "v_cache": cache.clone(),
        "cache_seqlens": torch.tensor([5, 7], dtype=torch.int32),
        **changes,
    }


_NEW = torch.ones(2, 1, 2, 32, dtype=torch.bfloat16)
_TABLE = torch.zeros(2, 1, dtype=torch.int32)
_HALF = torch.ones(64, 16, dtype=torch.bfloat16)
_PAGES = torch.zeros(3, 256, 2, 32, dtype=torch.bfloat16)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "fp32": (
        {name: torch.ones(2, 1, 4, 32) for name in ("q", "k_cache", "v_cache")},
        "FlashAttention only support fp16 and bf16 data type",
    ),
    "mixed": ({"v_cache": torch.zeros(2, 64, 2, 32)}, "query and value must have the same dtype"),
    "heads": ({"q": torch.ones(2, 1, 3, 32, dtype=torch.bfloat16)}, "must divide number of heads in query"),
    "v_shape": ({"v_cache": torch.zeros(2, 63, 2, 32, dtype=torch.bfloat16)}, "v_cache must have shape"),
    "no_value": ({"k": _NEW}, "If key is supplied, value must also be passed in"),
    "no_lengths": ({"k": _NEW, "v": _NEW, "cache_seqlens": None}, "seqlens_k must also be passed in"),
    "k_shape": ({"k": _NEW[..., :16], "v": _NEW}, "k must have shape"),
    "int64": ({"cache_seqlens": torch.tensor([5, 7])}, "seqlens_k must have dtype int32"),
    "rotary_alone": ({"rotary_cos": _HALF, "rotary_sin": _HALF}, "new key / value to be appended"),
    "rotary_dim": ({"k": _NEW, "v": _NEW, "rotary_cos": _HALF[:, :12], "rotary_sin": _HALF[:, :12]}, "divisible by 16"),
    "rotary_rows": ({"k": _NEW, "v": _NEW, "rotary_cos": _HALF[:9], "rotary_sin": _HALF[:9]}, "cos/sin seqlen must be"),
    "rotary_f32": (
        {"k": _NEW, "v": _NEW, "rotary_cos": _HALF.float(), "rotary_sin": _HALF},
        "rotary_cos must have the",
    ),
    "no_sin": ({"k": _NEW, "v": _NEW, "rotary_cos": _HALF}, "rotary sin must also be provided"),
    "splits": ({"num_splits": 129}, "num_splits > 128 not supported"),
    "small_pages": ({"block_table": _TABLE}, "Paged KV cache block size must be divisible by 256"),
    "pages_idx": (
        {"k_cache": _PAGES, "v_cache": _PAGES, "block_table": _TABLE, "cache_batch_idx": _TABLE[:, 0]},
        "Paged KVcache does not support cache_batch_idx",
    ),
    "pages_leftpad": (
        {"k_cache": _PAGES, "v_cache": _PAGES, "block_table": _TABLE, "cache_leftpad": _TABLE[:, 0]},
        "We don't support Paged KV and leftpad_k",
    ),
    "pages_too_few": (
        {"k_cache": _PAGES, "v_cache": _PAGES, "block_table": _TABLE, "cache_seqlens": 257},
        r"block_table: its 1 pages of 256 must hold the longest sequence, new keys included \(got 257 \+ 0\)",
    ),
}


# What only flash_attn's kernels ask for.
LIMITS = ("fp32", "rotary_dim", "rotary_rows", "rotary_f32", "splits", "small_pages", "pages_leftpad")


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_in_their_words(name, monkeypatch):
    if name in LIMITS:
        monkeypatch.setenv("TILEWISE_FLASH_ATTN_STRICT", "1")
    changes, words = REFUSED[name]
    with pytest.raises(RuntimeError, match=words):
        flash_attn.flash_attn_with_kvcache(**_step(**changes))


def test_caches_whose_rows_are_not_contiguous():
    step = _step()
    with pytest.raises(AssertionError, match="k_cache must have contiguous last dimension"):
        flash_attn.flash_attn_with_kvcache(**{**step, "k_cache": step["k_cache"].mT})


def test_no_graph():
    out = flash_attn.flash_attn_with_kvcache(**_step(q=torch.ones(2, 1, 4, 32).bfloat16().requires_grad_()))
    assert not out.requires_grad
