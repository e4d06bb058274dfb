# flash_attn's calls over caches, contiguous or in pages, as steps of the KV cache operators.
"""flash_attn_with_kvcache, and packed calls whose keys lie in pages."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from tilewise._kv_cache import in_order
from tilewise._torch import kv_cache
from tilewise.compat.flash_attn import _kvcache_refusals
from tilewise.compat.flash_attn._call import HALVES, MAX_HEAD_DIM, WHOLE, Packed, dense_rows, window_sides
from tilewise.compat.flash_attn._leftpad import Rotary, appended, without_leftpad
from tilewise.compat.flash_attn._lse import (
    drops_row_constant,
    lengths_of,
    packed_row_constants,
    to_flash_attn,
)
from tilewise.compat.flash_attn._strict import strict


def check_pages(block_table: Tensor, page_size: int, seqlens: Any, seqlen_new: int) -> None:
    """RuntimeError where a sequence is longer than its row of block_table, as flash_attn says it.

    On a GPU this waits for the lengths, as there, but not while a graph is captured.
    """
    if seqlens is None or _kvcache_refusals.capturing(block_table):
        return
    longest = _kvcache_refusals.longest_of(seqlens)
    room = block_table.shape[1] * page_size
    if longest + seqlen_new > room:
        raise RuntimeError(
            f"block_table: its {block_table.shape[1]} pages of {page_size} must hold the longest sequence, new keys "
            f"included (got {longest} + {seqlen_new})"
        )


def _row_constants(alibi_slopes: Tensor, seqlen_q: int, lengths: Tensor) -> Tensor:
    """[batch_size, num_heads, seqlen_q] of what flash_attn leaves out under a causal mask; lengths [batch_size]."""
    rows = torch.arange(seqlen_q, device=alibi_slopes.device, dtype=torch.float32) - seqlen_q
    return alibi_slopes[..., None] * (rows + lengths[:, None, None])


def _attended(
    cache_seqlens: Union[int, Tensor, None], cache_leftpad: Optional[Tensor], capacity: int, new: int, q: Tensor
) -> Tensor:
    """[batch_size], the keys that each sequence attends to."""
    lengths = _lengths(cache_seqlens, capacity, q) + new
    return lengths if cache_leftpad is None else lengths - cache_leftpad


def _in_doubt(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Optional[Tensor], num_splits: int) -> bool:
    """Whether flash_attn may refuse a call that Tilewise would take, and so must this one."""
    shape = q.shape
    doubtful = (
        q.dtype not in HALVES
        or shape[-1] > MAX_HEAD_DIM
        or shape[0] == 0
        or k_cache.shape != v_cache.shape
        or num_splits > 128
        or (block_table is not None and k_cache.shape[1] % 256 != 0)
    )
    return doubtful and strict()


def _lengths(cache_seqlens: Union[int, Tensor, None], capacity: int, q: Tensor) -> Tensor:
    """int32 [batch_size], the places in use, whatever they came as."""
    if isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    used = capacity if cache_seqlens is None else cache_seqlens
    return torch.full((q.shape[0],), used, device=q.device, dtype=torch.int32)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    rotary_cos: Optional[Tensor],
    rotary_sin: Optional[Tensor],
    cache_seqlens: Union[int, Tensor, None],
    cache_batch_idx: Optional[Tensor],
    cache_leftpad: Optional[Tensor],
    block_table: Optional[Tensor],
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    softcap: float,
    rotary_interleaved: bool,
    alibi_slopes: Optional[Tensor],
    num_splits: int,
    return_lse: bool,
    out: Optional[Tensor] = None,
) -> Any:
    """out, or (out, softmax_lse); see flash_attn_with_kvcache."""
    refusal = (q, k_cache, v_cache, k, v, (rotary_cos, rotary_sin), cache_seqlens, cache_batch_idx, cache_leftpad,
               block_table, softcap, alibi_slopes, num_splits)  # fmt: skip
    if _in_doubt(q, k_cache, v_cache, block_table, num_splits):
        _kvcache_refusals.refuse(*refusal)
    if rotary_cos is not None:
        _kvcache_refusals.rotary_tables(q, k_cache, k, (rotary_cos, rotary_sin), block_table, cache_seqlens)
    new = 0 if k is None else k.shape[1]
    capacity = k_cache.shape[1]
    if block_table is not None:
        check_pages(block_table, capacity, cache_seqlens, new)
        capacity *= block_table.shape[1]
    if (
        not return_lse
        and out is cache_batch_idx is cache_leftpad is alibi_slopes is None
        and window_size is WHOLE
        and softcap <= 0.0
        and num_splits == 0
        and isinstance(cache_seqlens, Tensor)
        and (rotary_cos is None or not rotary_interleaved)
        and not torch.compiler.is_compiling()
        and kv_cache.nobody_derives()
    ):
        try:
            return kv_cache.plain_attend(
                q, k_cache, v_cache, k, v, cache_seqlens, block_table, rotary_cos, rotary_sin, bool(causal),
                softmax_scale,
            )  # fmt: skip
        except (RuntimeError, TypeError, ValueError):
            _kvcache_refusals.refuse(*refusal)
            raise
    window = window_sides(window_size, capacity, causal)
    if block_table is not None and cache_leftpad is not None:
        _kvcache_refusals.refuse(*refusal)
        lengths = _lengths(cache_seqlens, capacity, q)
        rotary = Rotary(rotary_cos, rotary_sin, bool(rotary_interleaved), causal or window != WHOLE)
        q = appended(q, k_cache, v_cache, k, v, rotary, lengths, block_table)
        k_cache, v_cache, block_table, cache_seqlens = without_leftpad(
            k_cache, v_cache, block_table, cache_leftpad, lengths + new
        )
        k = v = rotary_cos = rotary_sin = cache_leftpad = None
        new = 0
    values: dict[str, Any] = {
        "rotary_interleaved": bool(rotary_interleaved) and rotary_cos is not None,
        "causal": bool(causal),
        "window_left": window[0],
        "window_right": window[1],
        "softmax_scale": softmax_scale,
        "softcap": softcap if softcap > 0.0 else 0.0,
        "num_splits": num_splits,
    }
    if isinstance(cache_seqlens, int):
        values["cache_seqlen"] = cache_seqlens
    arrays = in_order(
        rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        cache_seqlens=cache_seqlens if isinstance(cache_seqlens, Tensor) else None, cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad, block_table=block_table, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    with torch.no_grad():  # as there, nothing of it has a graph
        try:
            result, lse = kv_cache.attend(q, k_cache, v_cache, k, v, arrays, values, out, True, None)
        except (RuntimeError, TypeError, ValueError):
            _kvcache_refusals.refuse(*refusal)
            raise
        if not return_lse:
            return result
        constants = None
        if alibi_slopes is not None and drops_row_constant(alibi_slopes, causal, window):
            lengths = _attended(cache_seqlens, cache_leftpad, capacity, new, q)
            constants = _row_constants(alibi_slopes, q.shape[1], lengths)
        return result, to_flash_attn(lse, constants)


def attend_packed(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    sequences: Packed,
    block_table: Tensor,
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    out: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse in flash_attn's form) of packed queries over pages, as long as cu_seqlens_k says."""
    window = window_sides(window_size, sequences.max_seqlen_k, causal)
    lengths = sequences.seqused_k
    if lengths is None:
        lengths = lengths_of(sequences.cu_seqlens_k)
    used = lengths
    if sequences.leftpad_k is not None:
        with torch.no_grad():
            k_pages, v_pages, block_table, used = without_leftpad(
                k_pages, v_pages, block_table, sequences.leftpad_k, lengths
            )
    values: dict[str, Any] = {
        "causal": bool(causal),
        "window_left": window[0],
        "window_right": window[1],
        "softmax_scale": softmax_scale,
        "softcap": softcap if softcap > 0.0 else 0.0,
        "max_seqlen_q": sequences.max_seqlen_q,
    }
    arrays = in_order(
        cache_seqlens=used, block_table=block_table, cu_seqlens_q=sequences.cu_seqlens_q, alibi_slopes=alibi_slopes
    )
    with torch.no_grad():
        result, lse = kv_cache.attend(
            dense_rows(q), k_pages, v_pages, None, None, arrays, values, out, True, None
        )  # fmt: skip
        constants = None
        if alibi_slopes is not None and drops_row_constant(alibi_slopes, causal, window):
            constants = packed_row_constants(alibi_slopes, sequences._replace(seqused_k=lengths), q.shape[0])
        return result, to_flash_attn(lse, constants)
