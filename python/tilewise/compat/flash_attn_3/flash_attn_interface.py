# FlashAttention-3's module of this name, which its installation has at the top level too.
"""flash_attn_interface of FlashAttention-3 over Tilewise."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

import tilewise
from tilewise.compat.flash_attn._call import WHOLE
from tilewise.compat.flash_attn_3._attention import flash_attn_func, flash_attn_varlen_func
from tilewise.compat.flash_attn_3._kvcache import flash_attn_with_kvcache
from tilewise.compat.flash_attn_3._raw import _flash_attn_backward, _flash_attn_forward

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: Any = WHOLE,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Optional[int] = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of qkv [batch_size, seqlen, 3, num_heads, head_dim], or with num_heads_q [batch_size, seqlen,
    num_heads_q + 2 * num_heads_k, head_dim]."""
    if qkv.dim() == 5:
        assert qkv.shape[2] == 3, f"qkv must have shape (batch, seqlen, 3, nheads, headdim) (got {tuple(qkv.shape)})"
        q, k, v = qkv.unbind(2)
    else:
        assert qkv.dim() == 4, f"qkv must have 4 or 5 dimensions (got {qkv.dim()})"
        assert num_heads_q is not None, "num_heads_q must be given with qkv of 4 dimensions"
        keys = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, keys, keys], dim=2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, sm_margin=sm_margin, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Optional[Tensor] = None, out_dtype: Optional[torch.dtype] = None
) -> tuple[Tensor, Tensor]:
    """Joins results of the same queries over disjoint keys.

    Args:
        out_partial: [parts, batch_size, seqlen, num_heads, head_dim].
        lse_partial: f32 [parts, batch_size, seqlen, num_heads].
        out: Where to write. out_dtype: Of the result otherwise; None: out_partial's.

    Returns:
        (out [batch_size, seqlen, num_heads, head_dim], softmax_lse f32 [batch_size, seqlen, num_heads]).
    """
    if out is None and out_dtype not in (None, out_partial.dtype):
        out = out_partial.new_empty(out_partial.shape[1:], dtype=out_dtype)
    merged, lse = tilewise.merge(out_partial, lse_partial.transpose(-1, -2).contiguous(), out=out)
    return merged, lse.transpose(-1, -2)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: Optional[int] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    page_size: Optional[int] = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Any = WHOLE,
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> Tensor:
    """An empty int32 tensor: Tilewise plans a call from its shapes, and flash_attn_with_kvcache does not read this."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)
