# What flash_attn_with_kvcache refuses, in flash_attn's words.
"""Errors of calls over caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewise.compat.flash_attn._refusals import (
    check,
    check_dtypes,
    check_heads,
    check_int32,
    check_rank,
    check_same_device,
    check_shape,
    check_tensors,
    check_v,
    limit,
    page_table,
    score,
)


def capturing(lengths: Any) -> bool:
    """Whether a graph is captured, so that the host cannot wait for `lengths`; under a compiler it cannot either."""
    if torch.compiler.is_compiling():
        return isinstance(lengths, Tensor)
    return isinstance(lengths, Tensor) and lengths.is_cuda and torch.cuda.is_current_stream_capturing()


def longest_of(lengths: Any) -> int:
    """The greatest of them, or the number that they are."""
    if isinstance(lengths, Tensor):
        return int(lengths.max()) if lengths.numel() else 0
    return int(lengths)


def refuse(q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, rotary: tuple[Any, Any], cache_seqlens: Any,
           cache_batch_idx: Any, cache_leftpad: Any, block_table: Any, softcap: float, alibi_slopes: Any,
           num_splits: int) -> None:  # fmt: skip
    """What flash_attn_with_kvcache refuses, in its words."""
    check_tensors(q=q, k_cache=k_cache, v_cache=v_cache)
    others = {"k": k, "v": v, "cache_seqlens": cache_seqlens, "cache_batch_idx": cache_batch_idx}
    others |= {"cache_leftpad": cache_leftpad, "block_table": block_table, "alibi_slopes": alibi_slopes}
    check_same_device(q, {"k_cache": k_cache, "v_cache": v_cache, **others})
    check_rank("q", q, 4)
    check_rank("k_cache", k_cache, 4)
    check_dtypes(q, k_cache, v_cache)
    batch_size = q.shape[0]
    limit(batch_size > 0, "batch size must be positive (got 0)")
    check_heads(q, k_cache)
    check_shape("k_cache", k_cache, *k_cache.shape[:-1], q.shape[-1])
    check_v("v_cache", v_cache, *k_cache.shape)
    if block_table is not None:
        check(cache_batch_idx is None, "Paged KVcache does not support cache_batch_idx")
        page_table(block_table, batch_size, k_cache.shape[1])
        words = "We don't support Paged KV and leftpad_k running at the same time yet"
        limit(cache_leftpad is None, words)
    if isinstance(cache_seqlens, Tensor):
        check_int32("seqlens_k", cache_seqlens, batch_size)
    check_int32("leftpad_k", cache_leftpad, batch_size)
    check_int32("cache_batch_idx", cache_batch_idx, batch_size)
    score(batch_size, q.shape[2], softcap, 0.0, alibi_slopes)
    limit(num_splits <= 128, f"num_splits > 128 not supported (got {num_splits})")
    _refuse_new(q, k_cache, k, v, cache_seqlens)
    rotary_tables(q, k_cache, k, rotary, block_table, cache_seqlens)


def _refuse_new(q: Tensor, k_cache: Tensor, k: Any, v: Any, cache_seqlens: Any) -> None:
    if k is None:
        return
    check(v is not None, "If key is supplied, value must also be passed in")
    check(cache_seqlens is not None, "If key is supplied, seqlens_k must also be passed in")
    check_tensors(k=k, v=v)
    check(k.dtype == q.dtype, f"Key must have the same dtype as query (got {k.dtype})")
    check(v.dtype == q.dtype, f"Value must have the same dtype as query (got {v.dtype})")
    wanted = (q.shape[0], k.shape[1] if k.dim() > 1 else 0, k_cache.shape[2], q.shape[3])
    check_shape("k", k, *wanted)
    check_v("v", v, *wanted)


def rotary_tables(
    q: Tensor, k_cache: Tensor, k: Any, rotary: tuple[Any, Any], block_table: Any, cache_seqlens: Any
) -> None:
    """Of tables for the new keys."""
    cos, sin = rotary
    if cos is None:
        return
    words = "If rotary cos/sin are provided, new key / value to be appended to KV cache must also be provided"
    check(k is not None, words)
    check(sin is not None, "If rotary cos is provided, rotary sin must also be provided")
    check_tensors(rotary_cos=cos, rotary_sin=sin)
    check_rank("rotary_cos", cos, 2)
    rotary_dim = cos.shape[1] * 2
    check(rotary_dim <= q.shape[3], f"rotary_dim must be <= headdim (got {rotary_dim} and {q.shape[3]})")
    words = f"Only rotary dimensions divisible by 16 are currently supported (got {rotary_dim})"
    limit(rotary_dim % 16 == 0, words)
    limit(cos.dtype == q.dtype, f"rotary_cos must have the same dtype as query (got {cos.dtype})")
    check_shape("rotary_sin", sin, *cos.shape)
    limit(sin.dtype == q.dtype, f"rotary_sin must have the same dtype as query (got {sin.dtype})")
    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    if cos.shape[0] < capacity:
        _table_rows(cos.shape[0], capacity, cache_seqlens, k.shape[1])


def _table_rows(rows: int, capacity: int, cache_seqlens: Any, seqlen_new: int) -> None:
    """Of tables shorter than the cache: they must have a row for every position of this step, for which lengths on a
    GPU are waited for; while a graph is captured there is no waiting, and so no telling."""
    words = f"cos/sin seqlen must be at least the seqlen of KV cache (got {rows} and {capacity}"
    limit(False, f"{words})")
    may_look = cache_seqlens is not None and not capturing(cache_seqlens)
    check(may_look, f"{words}, and lengths that cannot be read here)")
    longest = longest_of(cache_seqlens)
    check(longest + seqlen_new <= rows, f"{words}; positions reach {longest} + {seqlen_new})")
