# The functions that Transformer Engine's module calls for its fused backend, for programs that call them themselves:
# a forward pass that returns what the backward pass needs, and that pass.
"""fused_attn_fwd and fused_attn_bwd."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._arguments import named
from tilewise._attention import attention
from tilewise._backward import attention_backward
from tilewise._keywords import with_known_keywords
from tilewise.compat._names import REFUSALS, renamed
from tilewise.compat.transformer_engine.masks import resolve
from tilewise.compat.transformer_engine.translate import (
    FORMATS,
    NAMES,
    SEQLEN_AXIS,
    SOFTMAX_TYPES,
    length_options,
    score_options,
    sink_of,
)

__all__ = ["fused_attn_bwd", "fused_attn_fwd"]

_NAMES = {
    **NAMES,
    "q": "q",
    "k": "k",
    "v": "v",
    "bias": "attn_bias",
    "softmax_scale": "attn_scale",
    "dropout_p": "dropout",
    "out": "o",
    "dout": "d_o",
    "softmax_lse": "aux_ctx_tensors[0]",
    "seed": "aux_ctx_tensors[1]",
}


def _format_of(qkv_layout: Any) -> str:
    """The one format of q, k and v: "sbhd" of "sb3hd", say."""
    if not isinstance(qkv_layout, str):
        raise TypeError(f"qkv_layout: must be a layout such as 'sbhd_sbhd_sbhd' (got {type(qkv_layout).__name__})")
    parts = {part.replace("2", "").replace("3", "") for part in qkv_layout.split("_")}
    if len(parts) != 1 or not parts <= FORMATS.keys():
        raise NotImplementedError(f"qkv_layout: must have one of sbhd, bshd and thd for all (got {qkv_layout!r})")
    return parts.pop()


def _options(
    q: Tensor,
    k: Tensor,
    lengths: tuple[Any, ...],
    qkv_layout: Any,
    attn_scale: Optional[float],
    bias: tuple[Any, Optional[Tensor]],
    attn_mask_type: Any,
    softmax: tuple[Any, Optional[Tensor]],
    window_size: Any,
    bottom_right_diagonal: Optional[bool],
) -> dict[str, Any]:
    """tilewise.attention's arguments. `lengths`: max_seqlens, cu_seqlens and those with padding, of q and kv each."""
    qkv_format = _format_of(qkv_layout)
    mask = resolve(attn_mask_type, window_size, bottom_right_diagonal, default_diagonal=False)
    if mask.kind.array:
        raise NotImplementedError(
            "attn_mask_type: arbitrary is DotProductAttention's alone; give the mask as attn_bias"
        )
    max_q, max_kv, cu_q, cu_kv, padded_q, padded_kv = lengths
    longest = (max_q, max_kv) if qkv_format == "thd" else (None, None)  # "may be larger" than the lengths there
    found = length_options(mask, qkv_format, q, k, None, (cu_q, cu_kv), (padded_q, padded_kv), longest)
    found |= score_options(mask, q, None, *bias, None, attn_scale, ("attn_bias_type", "attn_bias"))
    dense = qkv_format != "thd" and not mask.kind.padding
    same_lengths = dense and q.shape[SEQLEN_AXIS[qkv_format]] == k.shape[SEQLEN_AXIS[qkv_format]]
    found |= mask.options(same_lengths, "alibi_slopes" in found)
    softmax_type, softmax_offset = named("softmax_type", softmax[0], SOFTMAX_TYPES), softmax[1]
    if softmax_type == "off-by-one":  # zeros, whatever was given
        softmax_offset = torch.zeros(q.shape[-2], device=q.device)
    if (softmax_type == "vanilla") != (softmax_offset is None):
        expected = "not be given" if softmax_type == "vanilla" else "be given"
        raise ValueError(f"softmax_offset: must {expected} with softmax_type={softmax_type}")
    return {**found, "softmax_scale": attn_scale, "sink": sink_of(softmax_offset, q)}


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            reason = "paged caches: use tilewise.kv_cache_attention" if "page" in name else "not supported"
            raise NotImplementedError(f"{name}: {reason} (got {type(value).__name__})")


@with_known_keywords
def fused_attn_fwd(
    is_training: bool,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fake_dtype: Any = None,
    fused_attention_backend: Any = None,
    attn_bias: Optional[Tensor] = None,
    cu_seqlens_q_padded: Optional[Tensor] = None,
    cu_seqlens_kv_padded: Optional[Tensor] = None,
    page_table_k: Optional[Tensor] = None,
    page_table_v: Optional[Tensor] = None,
    s_quantizer: Any = None,
    o_quantizer: Any = None,
    attn_scale: Optional[float] = None,
    dropout: float = 0.0,
    fast_zero_fill: bool = True,
    qkv_layout: str = "sbh3d",
    attn_bias_type: str = "no_bias",
    attn_mask_type: str = "padding",
    softmax_type: str = "vanilla",
    window_size: tuple[int, int] = (-1, -1),
    bottom_right_diagonal: Optional[bool] = None,
    rng_gen: Optional[torch.Generator] = None,
    softmax_offset: Optional[Tensor] = None,
    return_max_logit: bool = False,
    cuda_graph: bool = False,
) -> tuple[Tensor, Optional[list[Tensor]]]:
    """Attention without autograd, and what fused_attn_bwd() needs of it.

    Args:
        is_training: Whether to return the second result.
        max_seqlen_q, max_seqlen_kv: Longest sequences of format "thd"; others do not read them.
        cu_seqlens_q, cu_seqlens_kv: int32 [batch_size + 1], read by padding kinds of attn_mask_type and by "thd".
        q, k, v: Of one format, "sbhd", "bshd" or "thd"; any strides with a contiguous last dimension.
        fake_dtype, fused_attention_backend, fast_zero_fill, cuda_graph: Of no effect.
        attn_bias: With attn_bias_type "pre_scale_bias" or "post_scale_bias".
        qkv_layout: Says the format ("bs3hd": "bshd"); how tensors interleave is told by their strides.
        bottom_right_diagonal: None: True for the kinds that say so alone.
        rng_gen: Generator of the seed of dropout; None: torch's.
        softmax_offset: [heads] or [1, heads, 1, 1], with softmax_type "learnable"; "off-by-one" takes zeros for it.

    Returns:
        (out, aux_ctx_tensors): out like q with v's last dimension. aux_ctx_tensors are the log-sum-exps in f32,
        [batch_size, heads, seqlen_q, 1] or packed [total_q, heads, 1], seed and offset int64 [2], the bias and the
        softmax_offset where there are any; None without is_training.

    Raises:
        ValueError, TypeError, NotImplementedError: The message names the argument.
    """
    _refuse(page_table_k=page_table_k, page_table_v=page_table_v, s_quantizer=s_quantizer, o_quantizer=o_quantizer,
            return_max_logit=return_max_logit)  # fmt: skip
    lengths = (max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded)
    options = _options(
        q, k, lengths, qkv_layout, attn_scale, (attn_bias_type, attn_bias), attn_mask_type,
        (softmax_type, softmax_offset), window_size, bottom_right_diagonal,
    )  # fmt: skip
    seed = None
    if dropout != 0.0:
        seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=q.device, generator=rng_gen)
    try:
        with torch.no_grad():
            out, lse = attention(q, k, v, return_lse=True, dropout_p=dropout, seed=seed, **options)
    except REFUSALS as error:
        raise renamed(error, _NAMES) from None
    if not is_training:
        return out, None
    stats = lse.transpose(0, 1) if lse.dim() == 2 else lse
    state = torch.zeros(2, dtype=torch.int64, device=q.device) if seed is None else seed
    learnt = softmax_offset if softmax_type == "learnable" else None
    optional = [tensor for tensor in (attn_bias, learnt) if tensor is not None]
    return out, [stats.unsqueeze(-1), state, *optional]


@with_known_keywords
def fused_attn_bwd(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    d_o: Tensor,
    fake_dtype: Any = None,
    dqkv_dtype: Any = None,
    aux_ctx_tensors: Any = None,
    fused_attention_backend: Any = None,
    cu_seqlens_q_padded: Optional[Tensor] = None,
    cu_seqlens_kv_padded: Optional[Tensor] = None,
    s_quantizer: Any = None,
    dp_quantizer: Any = None,
    dqkv_quantizer: Any = None,
    attn_scale: Optional[float] = None,
    dropout: float = 0.0,
    fast_zero_fill: bool = True,
    qkv_layout: str = "sbh3d",
    attn_bias_type: str = "no_bias",
    attn_mask_type: str = "padding",
    softmax_type: str = "vanilla",
    window_size: tuple[int, int] = (-1, -1),
    bottom_right_diagonal: Optional[bool] = None,
    deterministic: bool = False,
    cuda_graph: bool = False,
) -> tuple[Optional[Tensor], ...]:
    """The backward pass of fused_attn_fwd(), whose results o and aux_ctx_tensors it takes; the rest as given there.

    Returns:
        (dq, dk, dv, dbias, dsoftmax_offset), shaped like their inputs; the last two None where there are none.

    Raises:
        ValueError, TypeError, NotImplementedError: The message names the argument.
    """
    _refuse(s_quantizer=s_quantizer, dp_quantizer=dp_quantizer, dqkv_quantizer=dqkv_quantizer)
    biased, sinks = attn_bias_type in ("pre_scale_bias", "post_scale_bias"), softmax_type == "learnable"
    expected = 2 + biased + sinks
    if not isinstance(aux_ctx_tensors, (list, tuple)) or len(aux_ctx_tensors) < expected:
        got = len(aux_ctx_tensors) if isinstance(aux_ctx_tensors, (list, tuple)) else type(aux_ctx_tensors).__name__
        raise ValueError(f"aux_ctx_tensors: must be fused_attn_fwd's {expected} tensors (got {got})")
    stats, seed, *optional = aux_ctx_tensors
    attn_bias = optional.pop(0) if biased else None
    softmax_offset = optional.pop(0) if sinks else None
    lengths = (max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded)
    options = _options(
        q, k, lengths, qkv_layout, attn_scale, (attn_bias_type, attn_bias), attn_mask_type,
        (softmax_type, softmax_offset), window_size, bottom_right_diagonal,
    )  # fmt: skip
    lse = stats.squeeze(-1)
    lse = lse.transpose(0, 1) if lse.dim() == 2 else lse
    try:
        dq, dk, dv, dbias, dsink = attention_backward(
            d_o, q, k, v, o, lse, dropout_p=dropout, seed=seed, deterministic=deterministic, **options
        )
    except REFUSALS as error:
        raise renamed(error, _NAMES) from None
    if attn_bias_type == "pre_scale_bias":
        dbias = dbias * (q.shape[-1] ** -0.5 if attn_scale is None else attn_scale)
    return dq, dk, dv, dbias, dsink.view_as(softmax_offset) if sinks else None
