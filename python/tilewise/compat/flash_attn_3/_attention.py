# flash_attn_func and flash_attn_varlen_func of FlashAttention-3.
"""FlashAttention-3 without a cache."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _torch
from tilewise._options import AFTER_DETERMINISTIC, AFTER_SCALES, FORMS, NO_SCALES
from tilewise._torch.errors import raise_known
from tilewise.compat.flash_attn import _attend
from tilewise.compat.flash_attn._autograd import without_backward
from tilewise.compat.flash_attn._call import WHOLE, dense_options, dense_rows
from tilewise.compat.flash_attn_3 import _kvcache
from tilewise.compat.flash_attn_3._arguments import refuse, sides

_FULL, _CAUSAL = FORMS[None, "bshd"], FORMS["causal", "bshd"]
_NO_BACKWARD = "flash_attn_func: there is no backward pass with fp8 or qv"


def _in_fp8(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    try:
        with torch.no_grad():
            result: tuple[Tensor, Tensor] = _attend.run(q, k, v, None, options, True)
    except RuntimeError as error:
        raise_known(error, q=q, k=k, v=v)
        raise
    return result


def _without_graph(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Optional[Tensor],
    descales: tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]],
    softmax_scale: Optional[float],
    causal: bool,
    window: tuple[int, int],
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """A forward call on keys in fp8, or with queries for the values. All in fp8 it is attention's own; where that is
    refused (by GPUs other than Hopper's), and for others, the keys are a full cache, which widens queries to bf16."""
    if qv is None and q.dtype == v.dtype == k.dtype:
        options = dense_options(causal, softmax_scale, window, softcap, None, 0.0, None, False, descales)
        try:
            out, lse = _in_fp8(q, k, v, options)
            return without_backward(out, _NO_BACKWARD, q, k, v), lse
        except NotImplementedError:
            pass
    numbers = {
        "causal": causal,
        "window_left": window[0],
        "window_right": window[1],
        "softmax_scale": softmax_scale,
        "softcap": softcap,
    }
    out, lse = _kvcache.attend(q, k, v, None, None, qv, {}, descales, numbers)
    return without_backward(out, _NO_BACKWARD, q, k, v), lse


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: Any = WHOLE,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [batch_size, seqlen_q, num_heads, head_dim] and k, v [batch_size, seqlen_k, num_heads_k, dim].

    Args:
        q, k, v: fp16, bf16, or fp8 e4m3 without a backward pass, whose out is bf16; v may have a head_dim of its own.
        qv: As q with v's head_dim, which is multiplied with the values; v and k must be views of one tensor then.
        q_descale, k_descale, v_descale: Of fp8 keys, f32 [batch_size, num_heads_k]; else without effect.
        softmax_scale, causal, window_size, softcap, deterministic: As flash_attn's.
        attention_chunk: 0; others are refused.
        num_splits, pack_gqa, sm_margin: Without effect.
        return_attn_probs: Also return softmax_lse.

    Returns:
        out; or (out, softmax_lse f32 [batch_size, num_heads, seqlen_q]), -inf where a row sees nothing.

    Raises:
        RuntimeError, ValueError, TypeError, NotImplementedError: The call is refused; the message says why.
    """
    refuse(q, k, v, attention_chunk)
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    softcap = softcap if softcap > 0.0 else 0.0
    if qv is not None or k.dtype == torch.float8_e4m3fn:
        window, descales = sides(window_size, causal), (q_descale, k_descale, v_descale)
        result = _without_graph(q, k, v, qv, descales, softmax_scale, bool(causal), window, softcap)
        return result if return_attn_probs else result[0]
    try:
        if (
            window_size is WHOLE
            and not deterministic
            and softcap == 0.0
            and not _torch.compiling()
            and not _torch.transforming()
            and _torch.forward_ad._current_level < 0
        ):
            return _torch.plain_attention(q, k, v, _CAUSAL if causal else _FULL, softmax_scale, return_attn_probs)
        window = sides(window_size, causal)
        options = dense_options(bool(causal), softmax_scale, window, softcap, None, 0.0, None, bool(deterministic))
        return _attend.run(q, k, v, None, options, return_attn_probs)
    except RuntimeError as error:
        raise_known(error, q=q, k=k, v=v)
        raise


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    window_size: Any = WHOLE,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of sequences one after the other: q [total_q, num_heads, head_dim], k, v [total_k, ...].

    Args:
        cu_seqlens_q, cu_seqlens_k: int32 [batch_size + 1], where sequences start.
        seqused_q, seqused_k: int32 [batch_size], how many rows of each sequence count; others are 0 in out.
        q, k, v: fp16, bf16, or all in fp8 e4m3, without a backward pass.
        qv: None; flash_attn_with_kvcache takes it.

    Returns:
        out; or (out, softmax_lse f32 [num_heads, total_q]).
    """
    refuse(q, k, v, attention_chunk)
    if qv is not None:
        raise NotImplementedError("qv: must be None for packed keys; flash_attn_with_kvcache takes it")
    descales = (q_descale, k_descale, v_descale) if k.dtype == torch.float8_e4m3fn else NO_SCALES
    left, right = sides(window_size, causal)
    options = (
        bool(causal), softmax_scale, "thd", None, None, None, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, None,
        *descales, *AFTER_SCALES, None, 0, max_seqlen_q, max_seqlen_k, False, left, right,
        softcap if softcap > 0.0 else 0.0, 0.0, bool(deterministic), *AFTER_DETERMINISTIC,
    )  # fmt: skip
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    try:
        return _attend.run(q, k, v, None, options, return_attn_probs)
    except RuntimeError as error:
        given = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        raise_known(error, q=q, k=k, v=v, **given, seqused_q=seqused_q, seqused_k=seqused_k)
        raise
