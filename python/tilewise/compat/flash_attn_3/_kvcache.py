# flash_attn_with_kvcache of FlashAttention-3, and calls without a cache whose keys are fp8 or whose queries meet the
# values too: those are steps over a cache that is full.
"""Calls of FlashAttention-3 over caches."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from tilewise._kv_cache import in_order
from tilewise._torch import kv_cache
from tilewise.compat.flash_attn._call import WHOLE, dense_rows
from tilewise.compat.flash_attn_3._arguments import in_16_bits, latent, refuse, scales, sides

_OF_APPEND = ("cache_seqlens", "cache_batch_idx", "cache_leftpad", "block_table", "cu_seqlens_k_new")


def _append_fp8(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Optional[Tensor], places: dict[str, Any]) -> Any:
    """Appends keys that are fp8 already, as they are: bf16 holds them, and a scale of 1 gives them back. Returns the
    cache_seqlens of then."""
    if places.get("rotary_cos") is not None:
        raise NotImplementedError("rotary_cos: must not come with new keys in fp8, which are not rotated")
    if v is None:
        raise ValueError("v: must be given with k (got None)")
    starts = places.get("cu_seqlens_k_new")
    if starts is None and k.dim() == 3:
        starts = places.get("cu_seqlens_q")
    seqlens = places["cache_seqlens"]
    numbers: dict[str, Any] = scales(None, None, None)[1]
    given = {**{name: places.get(name) for name in _OF_APPEND}, "cu_seqlens_k_new": starts}
    if isinstance(seqlens, int):
        numbers["cache_seqlen"], given["cache_seqlens"] = seqlens, None
    arrays = in_order(**given)
    kv_cache.append(k_cache, v_cache, in_16_bits(k), in_16_bits(v), arrays, numbers, None)
    return seqlens + k.shape[1] if starts is None else (starts[1:] - starts[:-1]) + seqlens


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    qv: Optional[Tensor],
    places: dict[str, Any],
    descales: tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]],
    numbers: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse). `places`: the tensors that say where keys lie, and rotary tables, by Tilewise's names;
    `numbers`: the KV cache step's options that are no tensors."""
    values: Optional[Tensor] = v_cache
    if qv is not None:
        given = latent(q, qv, k_cache, v_cache, k, v)
        q, k_cache, values, k, v = given.q, given.cache, None, given.new, None
        numbers = {**numbers, "head_dim_v": given.head_dim_v}
        if places.get("rotary_cos") is not None:
            numbers["rotary_offset"] = given.head_dim_v
    with torch.no_grad():  # as there, nothing of it has a graph
        if k is not None and k.dtype == torch.float8_e4m3fn:
            places = {**places, "cache_seqlens": _append_fp8(k_cache, v_cache, k, v, places), "cu_seqlens_k_new": None}
            k = v = None
        if k_cache.dtype == torch.float8_e4m3fn:  # descales have no effect on other dtypes, as there
            tensors, ones = scales(*descales)
            places, numbers = {**places, **tensors}, {**numbers, **ones}
        if isinstance(places.get("cache_seqlens"), int):
            numbers = {**numbers, "cache_seqlen": places["cache_seqlens"]}
            places = {**places, "cache_seqlens": None}
        arrays = in_order(**places)
        result: tuple[Tensor, Tensor] = kv_cache.attend(
            in_16_bits(q), k_cache, values, k, v, arrays, numbers, None, True, None
        )
    return result


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Appends k and v to the caches in place, rotated if tables are given, and attends over the caches.

    Args:
        q: [batch_size, seqlen_q, num_heads, head_dim], or packed [total_q, num_heads, head_dim] with cu_seqlens_q;
            fp16, bf16 or fp8 e4m3, which counts as bf16.
        k_cache, v_cache: [batch_size_cache, capacity, num_heads_k, head_dim], or with a page_table [num_pages,
            page_size, num_heads_k, head_dim] of any page_size; q's dtype or fp8. v_cache with head_dim_v.
        k, v: New keys and values as q is, packed with cu_seqlens_k_new or cu_seqlens_q; None: none.
        qv: As q with head_dim_v, which is multiplied with the values; v_cache and k_cache must be views of one
            [latent | rope] tensor.
        rotary_cos, rotary_sin: f32 or q's dtype, [rows, rotary_dim / 2].
        rotary_seqlens: int32 [batch_size], position of the first new key; None: cache_seqlens.
        cache_seqlens, cache_batch_idx, cache_leftpad: As flash_attn's.
        page_table: int32 [batch_size, pages].
        cu_seqlens_q, cu_seqlens_k_new: int32 [batch_size + 1]. max_seqlen_q: longest sequence of packed queries.
        q_descale, k_descale, v_descale: Of fp8 caches, f32 [batch_size, num_heads_k]; else without effect.
        softmax_scale: None means 1/sqrt(head_dim), of both parts of a query where qv is given.
        num_splits: Parts of the keys that are computed side by side; 0 chooses.
        attention_chunk: 0; others are refused.
        scheduler_metadata, pack_gqa, sm_margin: Without effect.

    Returns:
        out; or (out, softmax_lse, None, None), -inf where a row sees nothing, without partial results.
    """
    refuse(q, k_cache, v_cache, attention_chunk)
    assert k_cache.stride(-1) == 1, "k_cache must have contiguous last dimension"
    assert v_cache.stride(-1) == 1, "v_cache must have contiguous last dimension"
    k, v = (None if tensor is None else dense_rows(tensor) for tensor in (k, v))
    if (
        not return_softmax_lse
        and qv is cu_seqlens_q is cu_seqlens_k_new is cache_batch_idx is cache_leftpad is rotary_seqlens is None
        and window_size is WHOLE
        and softcap <= 0.0
        and num_splits == 0
        and isinstance(cache_seqlens, Tensor)
        and q.dtype == k_cache.dtype != torch.float8_e4m3fn
        and (rotary_cos is None or not rotary_interleaved)
        and not torch.compiler.is_compiling()
        and kv_cache.nobody_derives()
    ):  # what an engine asks for, at a third of the cost
        return kv_cache.plain_attend(
            dense_rows(q), k_cache, v_cache, k, v, cache_seqlens, page_table, rotary_cos, rotary_sin, bool(causal),
            softmax_scale,
        )  # fmt: skip
    window = sides(window_size, causal)
    places: dict[str, Any] = {
        "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin,
        "rotary_seqlens": rotary_seqlens,
        "cache_seqlens": cache_seqlens,
        "cache_batch_idx": cache_batch_idx,
        "cache_leftpad": cache_leftpad,
        "block_table": page_table,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k_new": cu_seqlens_k_new,
    }
    numbers: dict[str, Any] = {
        "rotary_interleaved": bool(rotary_interleaved) and rotary_cos is not None,
        "max_seqlen_q": max_seqlen_q if cu_seqlens_q is not None else None,
        "causal": bool(causal),
        "window_left": window[0],
        "window_right": window[1],
        "softmax_scale": softmax_scale,
        "softcap": softcap if softcap > 0.0 else 0.0,
        "num_splits": num_splits,
    }
    out, lse = attend(dense_rows(q), k_cache, v_cache, k, v, qv, places, (q_descale, k_descale, v_descale), numbers)
    return (out, lse, None, None) if return_softmax_lse else out
