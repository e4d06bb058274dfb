# flash_attn.flash_attn_triton, flash_attn's older functions with a bias, which models with ALiBi as a bias call.
"""Attention with a bias."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

import tilewise

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func"]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Optional[Tensor] = None,
    causal: bool = False,
    softmax_scale: Optional[float] = None,
) -> Tensor:
    """Attention of q [batch_size, seqlen_q, num_heads, head_dim] and k, v [batch_size, seqlen_k, num_heads, head_dim].

    Args:
        bias: Broadcastable to [batch_size, num_heads, seqlen_q, seqlen_k], in f32 or the dtype of q; has a gradient.
        causal: Whether query i sees keys up to i, the first ones being side by side.
        softmax_scale: None means 1/sqrt(head_dim).

    Returns:
        As q.
    """
    out: Tensor = tilewise.attention(
        q, k, v, mask="causal_top_left" if causal else None, bias=bias, softmax_scale=softmax_scale
    )
    return out


def flash_attn_qkvpacked_func(
    qkv: Tensor, bias: Optional[Tensor] = None, causal: bool = False, softmax_scale: Optional[float] = None
) -> Tensor:
    """flash_attn_func of qkv [batch_size, seqlen, 3, num_heads, head_dim]."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, bias, causal, softmax_scale)


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, bias: Optional[Tensor] = None, causal: bool = False, softmax_scale: Optional[float] = None
) -> Tensor:
    """flash_attn_func of kv [batch_size, seqlen_k, 2, num_heads, head_dim]."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, bias, causal, softmax_scale)
