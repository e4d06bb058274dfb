# Transformer Engine's arguments as tilewise.attention's. Tensors of queries, keys and values are never copied: a
# format is a layout, packed inputs are views, padding between sequences is used lengths.
"""What the module and the functions of this package share."""

from __future__ import annotations

import functools
import math
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _torch
from tilewise._arguments import integer, named
from tilewise._options import AFTER_DETERMINISTIC, ARRAY_NAMES
from tilewise.compat.transformer_engine.masks import Mask

FORMATS = {name: name for name in ("sbhd", "bshd", "thd")}
BIAS_TYPES = {name: name for name in ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")}
SOFTMAX_TYPES = {name: name for name in ("vanilla", "off-by-one", "learnable")}
SEQLEN_AXIS = {"sbhd": 0, "bshd": 1}

# tilewise.attention's arguments under the module's names.
NAMES = {
    "q": "query_layer",
    "k": "key_layer",
    "v": "value_layer",
    "bias": "core_attention_bias",
    "sink": "softmax_offset",
    "cu_seqlens_k": "cu_seqlens_kv",
    "max_seqlen_k": "max_seqlen_kv",
    "seqused_q": "cu_seqlens_q",
    "seqused_k": "cu_seqlens_kv",
    "dropout_p": "attention_dropout",
    "window": "window_size",
}


def length_options(
    mask: Mask,
    qkv_format: str,
    q: Tensor,
    k: Tensor,
    attention_mask: Any,
    cu_seqlens: tuple[Any, Any],
    cu_seqlens_padded: tuple[Any, Any],
    max_seqlens: tuple[Any, Any],
) -> dict[str, Any]:
    """The layout, and where sequences begin and end. The pairs are those of queries and of keys and values."""
    found: dict[str, Any] = {"layout": qkv_format}
    if qkv_format == "thd":
        if not mask.kind.padding:
            raise ValueError("attn_mask_type: must be a padding kind with qkv_format=thd")
        for side, te, cu, padded, longest in zip("qk", ("q", "kv"), cu_seqlens, cu_seqlens_padded, max_seqlens):
            if padded is not None and padded is not cu:  # where sequences stand, and how much of each is used
                _check_cu_seqlens(f"cu_seqlens_{te}_padded", padded)
                _check_cu_seqlens(f"cu_seqlens_{te}", cu)
                found[f"seqused_{side}"] = _differences(cu)
                # On the CPU the longest is computed for nothing, and what was given may be that of used parts.
                cu, longest = padded, longest if q.is_cuda else None
            elif cu is None:
                _check_cu_seqlens(f"cu_seqlens_{te}", cu)
            found[f"cu_seqlens_{side}"] = cu  # the core checks it
            found[f"max_seqlen_{side}"] = None if longest is None else integer(f"max_seqlen_{te}", longest)
        return found
    axis = SEQLEN_AXIS[qkv_format]
    for te, tensor, longest in zip(("q", "kv"), (q, k), max_seqlens):
        if longest is not None and longest != tensor.shape[axis]:
            raise ValueError(
                f"max_seqlen_{te}: must be None or the length of the tensor, {tensor.shape[axis]}, with "
                f"qkv_format={qkv_format} (got {longest})"
            )
    if mask.kind.padding:
        masks = attention_mask if isinstance(attention_mask, (tuple, list)) else (attention_mask, attention_mask)
        if len(masks) != 2:
            raise ValueError(f"attention_mask: must be a tensor or a pair of them (got {len(masks)})")
        for side, te, tensor, cu, padding in zip("qk", ("q", "kv"), (q, k), cu_seqlens, masks):
            if cu is not None:
                _check_cu_seqlens(f"cu_seqlens_{te}", cu)
                found[f"seqused_{side}"] = _differences(cu)
            else:
                found[f"seqused_{side}"] = _used(padding, te, tensor.shape[1 - axis], tensor.shape[axis])
    return found


def _check_cu_seqlens(name: str, cu_seqlens: Any) -> None:
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"{name}: must be an int32 tensor [batch_size + 1] (got {type(cu_seqlens).__name__})")
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(
            f"{name}: must be an int32 tensor [batch_size + 1] (got {cu_seqlens.dtype} {list(cu_seqlens.shape)})"
        )


def _differences(cu_seqlens: Tensor) -> Tensor:
    return cu_seqlens[1:] - cu_seqlens[:-1]


def _used(padding: Any, te: str, batch_size: int, seqlen: int) -> Tensor:
    """How many tokens come before the padding of each sequence."""
    if not isinstance(padding, Tensor):
        raise ValueError(
            f"cu_seqlens_{te}: this or attention_mask must be given with a padding kind of attn_mask_type (got None)"
        )
    if padding.dtype != torch.bool or tuple(padding.shape) != (batch_size, 1, 1, seqlen):
        raise ValueError(
            f"attention_mask: must be bool [batch_size, 1, 1, seqlen_{te}] = [{batch_size}, 1, 1, {seqlen}], true for "
            f"padding (got {padding.dtype} {list(padding.shape)})"
        )
    if not padding.is_cuda and not torch.compiler.is_compiling() and (padding[..., :-1] & ~padding[..., 1:]).any():
        raise ValueError("attention_mask: padding must come after all tokens of a sequence (got some before)")
    return (~padding).flatten(1).sum(1, dtype=torch.int32)


def score_options(
    mask: Mask,
    q: Tensor,
    attention_mask: Any,
    bias_type: Any,
    bias: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    softmax_scale: Optional[float],
    names: tuple[str, str] = ("core_attention_bias_type", "core_attention_bias"),
) -> dict[str, Any]:
    """bias and alibi_slopes. `names` are those of bias_type and bias."""
    type_name, bias_name = names
    bias_type = named(type_name, bias_type, BIAS_TYPES)
    scaled = bias_type in ("pre_scale_bias", "post_scale_bias")
    if scaled != (bias is not None):
        raise ValueError(f"{bias_name}: must {'' if scaled else 'not '}be given with {type_name}={bias_type}")
    if alibi_slopes is not None and bias_type != "alibi":
        raise ValueError(f"alibi_slopes: must not be given with {type_name}={bias_type}")
    found: dict[str, Any] = {}
    if bias_type == "alibi":
        found["alibi_slopes"] = usual_slopes(q.shape[-2], q.device, q.dtype) if alibi_slopes is None else alibi_slopes
    if bias_type == "pre_scale_bias" and bias is not None:
        bias = bias * (1.0 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale)
    if mask.kind.array:
        hidden = attention_mask
        if not isinstance(hidden, Tensor) or hidden.dtype != torch.bool:
            got = hidden.dtype if isinstance(hidden, Tensor) else type(hidden).__name__
            raise TypeError(f"attention_mask: must be a bool tensor, true for hidden, with arbitrary (got {got})")
        bias = ~hidden if bias is None else bias.masked_fill(hidden, -math.inf)
    if bias is not None:
        found["bias"] = bias
    return found


@functools.lru_cache(maxsize=64)
def usual_slopes(num_heads: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The slopes of ALiBi's paper: 2^(-8 i / n) for the largest power of two n, then every second one of twice as
    many heads."""
    n = 2 ** math.floor(math.log2(num_heads))
    exponents = [-8.0 * i / n for i in range(1, n + 1)] + [-4.0 * i / n for i in range(1, 2 * (num_heads - n), 2)]
    dtype = dtype if dtype == torch.float64 else torch.float32
    with torch.inference_mode(False):  # what is kept must do for calls with gradients too
        return torch.tensor([2.0**x for x in exponents], device=device, dtype=dtype)


def sink_of(softmax_offset: Optional[Tensor], q: Tensor) -> Optional[Tensor]:
    """[num_heads], or [1, num_heads, 1, 1] as the functions have it, in a dtype that goes with q."""
    if softmax_offset is None:
        return None
    sink = softmax_offset.flatten()
    if sink.dtype in (q.dtype, torch.float32) and q.dtype != torch.float64:
        return sink
    return sink.to(torch.float64 if q.dtype == torch.float64 else torch.float32)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: str,
    mask: Optional[str] = None,
    softmax_scale: Optional[float] = None,
    window: tuple[int, int] = (-1, -1),
    alignment: str = "bottom_right",
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    dropout_p: float = 0.0,
    deterministic: bool = False,
    **arrays: Optional[Tensor],
) -> Tensor:
    """tilewise.attention() of keywords that this package has brought to their form: checking them again would cost a
    call 3 microseconds."""
    tail = (
        0, max_seqlen_q, max_seqlen_k, alignment == "top_left", *window, 0.0, dropout_p, deterministic,
        *AFTER_DETERMINISTIC,
    )  # fmt: skip
    head = (mask is not None, softmax_scale, layout)
    given = tuple(map(arrays.get, ARRAY_NAMES)) if arrays else None
    out: Tensor = _torch.attention(q, k, v, None, None, head, given, tail, False)
    return out
