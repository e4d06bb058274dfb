# The way of a call of the public functions: window, options, operators, and what flash_attn returns of it. A call's
# tensors come as q, k and v, and where two or three of them are views of one tensor, as that one too.
"""Attention forward with flash_attn's arguments."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _torch
from tilewise._torch.errors import raise_known
from tilewise._torch.refusals import refuse_gradient, refuse_tangents
from tilewise.compat.flash_attn import _probabilities, _refusals
from tilewise.compat.flash_attn._autograd import forward_stacked
from tilewise.compat.flash_attn._call import (
    HALVES,
    MAX_HEAD_DIM,
    Packed,
    dense_options,
    dense_rows,
    packed_options,
    window_sides,
)
from tilewise.compat.flash_attn._lse import (
    drops_row_constant,
    empty_rows_possible,
    packed_row_constants,
    row_constants,
    to_flash_attn,
)
from tilewise.compat.flash_attn._strict import strict


class Stacked:
    """qkv or kv [..., 3 or 2, num_heads, head_dim], and the q beside kv."""

    __slots__ = ("q", "tensor")

    def __init__(self, tensor: Tensor, q: Optional[Tensor]) -> None:
        self.tensor = dense_rows(tensor)
        name, parts = ("qkv", 3) if q is None else ("kv", 2)
        if tensor.dim() < 4 or tensor.shape[-3] != parts:
            words = f"{name} must have shape (..., {parts}, num_heads, head_dim)"
            raise RuntimeError(f"{words} (got {tuple(tensor.shape)})")
        self.q = None if q is None else dense_rows(q)

    def unstacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v)."""
        q, k, v = self.tensor.unbind(-3) if self.q is None else (self.q, *self.tensor.unbind(-3))
        return q, k, v


def in_doubt(q: Tensor, k: Tensor, v: Tensor, softcap: float, dropout_p: float) -> bool:
    """Whether flash_attn may refuse a call that Tilewise would take, and so must this one."""
    shape = q.shape
    doubtful = (
        q.dtype not in HALVES
        or shape[-1] > MAX_HEAD_DIM
        or shape[0] == 0
        or k.shape != v.shape
        or (softcap > 0.0 and dropout_p > 0.0)
    )
    return doubtful and strict()


def takes_short_way(q: Any, k: Any, v: Any) -> bool:
    """Whether flash_attn takes these tensors and the operators can read them as they are; cheap, and never wrong."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return False
    shape = q.shape
    return (
        q.dtype in HALVES
        and len(shape) == 4
        and shape[-1] <= MAX_HEAD_DIM
        and shape[0] != 0
        and k.shape == v.shape
        and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        and not q.is_nested
    )


def with_nothing_dropped(q: Tensor, k: Tensor, out: Tensor, softmax_lse: Tensor, causal: bool) -> Any:
    """What return_attn_probs returns of a call without dropout and ALiBi."""
    if empty_rows_possible(q.shape[1], k.shape[1], -1, causal):
        softmax_lse = to_flash_attn(softmax_lse, None)
    return out, softmax_lse, _probabilities.none(q)


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stacked: Optional[Stacked],
    options: tuple[Any, ...],
    with_lse: bool,
    sink: Optional[Tensor] = None,
) -> Any:
    """(out, softmax_lse), or out; autocast leaves flash_attn's operators alone, and so these. `sink`, which may need a
    gradient, is among the options."""
    if (_torch.compiling() or _torch.any_autocast()) and torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            return run(q, k, v, stacked, options, with_lse, sink)
    if _torch.forward_ad._current_level >= 0 and not _torch.compiling():
        refuse_tangents((("q", q), ("k", k), ("v", v)))
    if stacked is None:
        return _torch.forward(q, k, v, options, sink=sink, return_lse=with_lse)
    out, softmax_lse = forward_stacked(stacked.tensor, stacked.q, options)
    return (out, softmax_lse) if with_lse else out


def dense(
    tensors: tuple[Tensor, Tensor, Tensor],
    stacked: Optional[Stacked],
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    return_attn_probs: bool,
) -> Any:
    """out, or (out, softmax_lse, S_dmask), of tensors [batch_size, seqlen, num_heads, head_dim]."""
    q, k, v = tensors
    if in_doubt(q, k, v, softcap, dropout_p):
        _refusals.dense(q, k, v, softcap, dropout_p, alibi_slopes)
    if alibi_slopes is not None:
        refuse_gradient("alibi_slopes", alibi_slopes)
    window = window_sides(window_size, k.shape[1], causal)
    seed = _torch.drawn_seed(q.device) if dropout_p > 0.0 else None
    options = dense_options(
        bool(causal), softmax_scale, window, softcap, alibi_slopes, dropout_p, seed, bool(deterministic)
    )
    try:
        if not return_attn_probs:
            return run(q, k, v, stacked, options, False)
        out, softmax_lse = run(q, k, v, stacked, options, True)
    except RuntimeError as error:
        _refusals.dense(q, k, v, softcap, dropout_p, alibi_slopes)
        raise_known(error, q=q, k=k, v=v, alibi_slopes=alibi_slopes)
        raise
    constants = None
    if alibi_slopes is not None and drops_row_constant(alibi_slopes, causal, window):
        constants = row_constants(alibi_slopes, q.shape[1], k.shape[1])
    if constants is not None or empty_rows_possible(q.shape[1], k.shape[1], window[1], causal):
        softmax_lse = to_flash_attn(softmax_lse, constants)
    return out, softmax_lse, _probabilities.of_call(q, k, options, None, dropout_p, seed)


def packed(
    tensors: tuple[Tensor, Tensor, Tensor],
    stacked: Optional[Stacked],
    sequences: Packed,
    dropout_p: float,
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Any,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    return_attn_probs: bool,
) -> Any:
    """out, or (out, softmax_lse, S_dmask), of packed tensors [total, num_heads, head_dim]."""
    q, k, v = tensors
    if in_doubt(q, k, v, softcap, dropout_p):
        _refusals.packed(q, k, v, sequences, softcap, dropout_p, alibi_slopes)
    if alibi_slopes is not None:
        refuse_gradient("alibi_slopes", alibi_slopes)
    window = window_sides(window_size, sequences.max_seqlen_k, causal)
    seed = _torch.drawn_seed(q.device) if dropout_p > 0.0 else None
    options = packed_options(
        sequences, bool(causal), softmax_scale, window, softcap, alibi_slopes, dropout_p, seed, bool(deterministic)
    )
    try:
        if not return_attn_probs:
            return run(q, k, v, stacked, options, False)
        out, softmax_lse = run(q, k, v, stacked, options, True)
    except RuntimeError as error:
        _refusals.packed(q, k, v, sequences, softcap, dropout_p, alibi_slopes)
        raise_known(error, q=q, k=k, v=v, alibi_slopes=alibi_slopes, **sequences._asdict())
        raise
    constants = None
    if alibi_slopes is not None and drops_row_constant(alibi_slopes, causal, window):
        constants = packed_row_constants(alibi_slopes, sequences, q.shape[0])
    softmax_lse = to_flash_attn(softmax_lse, constants)
    return out, softmax_lse, _probabilities.of_call(q, k, options, sequences, dropout_p, seed)
