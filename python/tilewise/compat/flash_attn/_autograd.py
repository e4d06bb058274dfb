# Gradients of packed tensors: the views of qkv or kv that attention reads have their gradients written side by side
# into one tensor, without the copy that autograd of the views would make.
"""Autograd of qkv and kv in one tensor, and of what has no backward pass."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tilewise import _core, _torch
from tilewise._options import ARRAYS, HEAD, TAIL, Options
from tilewise._torch import autograd, operators
from tilewise._torch.refusals import refuse_tangents

_STACKED = -3  # the dimension of 3 or 2 in [batch_size, seqlen, 3, num_heads, head_dim], and in packed rows
_CU_SEQLENS = {"q": Options._fields.index("cu_seqlens_q"), "k": Options._fields.index("cu_seqlens_k")}
_DETERMINISTIC = Options._fields.index("deterministic")


def _unstacked(stacked: Tensor, q: Optional[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of qkv, or of kv beside a q."""
    q, k, v = stacked.unbind(_STACKED) if q is None else (q, *stacked.unbind(_STACKED))
    return q, k, v


def new_gradient(like: Tensor, cu_seqlens: Optional[Tensor]) -> Tensor:
    """A contiguous tensor to write a gradient into; its rows of no sequence, which no kernel writes, are 0."""
    gradient = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    if cu_seqlens is not None:
        # On a GPU the host does not know which rows these are.
        gradient[0 if cu_seqlens.is_cuda else int(cu_seqlens[-1]) :].zero_()
    return gradient


def with_determinism(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options of a backward pass, deterministic where torch is asked to be."""
    if torch.are_deterministic_algorithms_enabled():
        return (*options[:_DETERMINISTIC], True, *options[_DETERMINISTIC + 1 :])
    return options


class StackedAttention(torch.autograd.Function):
    """(out, softmax_lse) of qkv in one tensor, where q is None, or of q and kv."""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, q: Optional[Tensor], options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        out, softmax_lse = autograd.eager_forward(*_unstacked(stacked, q), options)
        ctx.save_for_backward(stacked, q, out, softmax_lse, *options[ARRAYS])
        ctx.scalars = options[HEAD], options[TAIL]
        ctx.set_materialize_grads(False)
        return out, softmax_lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> Any:
        refuse_tangents((("dout", dout), ("dlse", dlse)))
        head, tail = ctx.scalars
        stacked, q, out, softmax_lse, *arrays = ctx.saved_tensors
        options = with_determinism((*head, *arrays, *tail))
        need_stacked, need_q, *_ = ctx.needs_input_grad
        dstacked = new_gradient(stacked, options[_CU_SEQLENS["k"]]) if need_stacked else None
        dq = new_gradient(q, options[_CU_SEQLENS["q"]]) if q is not None and need_q else None
        views = (None, None) if dstacked is None else dstacked.unbind(_STACKED)
        gradients = views if q is None else (dq, *views)
        dout = torch.zeros_like(out) if dout is None else dout if dout.stride(-1) == 1 else dout.contiguous()
        try:
            with autograd.below_autograd():
                operators.backward_out(
                    dout, dlse, *_unstacked(stacked, q), out, softmax_lse, *gradients, *options
                )  # fmt: skip
        except RuntimeError as error:
            _core.rethrow_torch_error(str(error))
            raise
        return dstacked, dq, None


_apply_stacked: Any = super(torch.autograd.Function, StackedAttention).apply  # without what functorch needs


def forward_stacked(stacked: Tensor, q: Optional[Tensor], options: tuple[Any, ...]) -> Any:
    """(out, softmax_lse) with a graph where one is needed, whatever looks on."""
    if _torch.compiling() or _torch.transforming():
        return _torch.forward(*_unstacked(stacked, q), options)
    if torch.is_grad_enabled() and (stacked.requires_grad or (q is not None and q.requires_grad)):
        return _apply_stacked(stacked, q, options)
    return autograd.eager_forward(*_unstacked(stacked, q), options)


class _WithoutBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, why: str, *inputs: Tensor) -> Tensor:
        ctx.why = why
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Any:
        raise NotImplementedError(ctx.why)


def without_backward(out: Tensor, why: str, *inputs: Tensor) -> Tensor:
    """`out`, whose backward pass raises `why` where an input requires a gradient: it would be None otherwise."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        result: Tensor = _WithoutBackward.apply(out, why, *inputs)
        return result
    return out
