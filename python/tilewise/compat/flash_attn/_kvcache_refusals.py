# What flash_attn_with_kvcache refuses, in flash_attn's words.
"""Errors of calls over caches."""

from __future__ import annotations

from typing import Any

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
    page_table,
    score,
)


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
    check(batch_size > 0, "batch size must be positive (got 0)")
    check_heads(q, k_cache)
    check_shape("k_cache", k_cache, *k_cache.shape[:-1], q.shape[-1])
    check_shape("v_cache", v_cache, *k_cache.shape)
    if block_table is not None:
        check(cache_batch_idx is None, "Paged KVcache does not support cache_batch_idx")
        page_table(block_table, batch_size, k_cache.shape[1])
        words = "We don't support Paged KV and leftpad_k running at the same time yet"
        check(cache_leftpad is None, words)
    if isinstance(cache_seqlens, Tensor):
        check_int32("seqlens_k", cache_seqlens, batch_size)
    check_int32("leftpad_k", cache_leftpad, batch_size)
    check_int32("cache_batch_idx", cache_batch_idx, batch_size)
    score(batch_size, q.shape[2], softcap, 0.0, alibi_slopes)
    check(num_splits <= 128, f"num_splits > 128 not supported (got {num_splits})")
    _refuse_new(q, k_cache, k, v, cache_seqlens)
    rotary_tables(q, k_cache, k, rotary, block_table)


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
    check_shape("v", v, *wanted)


def rotary_tables(q: Tensor, k_cache: Tensor, k: Any, rotary: tuple[Any, Any], block_table: Any) -> None:
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
    check(rotary_dim % 16 == 0, words)
    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    words = f"cos/sin seqlen must be at least the seqlen of KV cache (got {cos.shape[0]} and {capacity})"
    check(cos.shape[0] >= capacity, words)
    check(cos.dtype == q.dtype, f"rotary_cos must have the same dtype as query (got {cos.dtype})")
    check_shape("rotary_sin", sin, *cos.shape)
    check(sin.dtype == q.dtype, f"rotary_sin must have the same dtype as query (got {sin.dtype})")
