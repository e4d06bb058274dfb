# Attention with score_mod and mask_mod on torch tensors. The torch operators do not take them: tensors are handed to
# the core as any other arrays are, behind an autograd.Function.
"""The torch side of score_mod and mask_mod."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _arrays
from tilewise._arguments import Options
from tilewise._functions import Functions
from tilewise._torch import private
from tilewise._torch.private import forward_ad


def _detached(options: Options, bias: Optional[Tensor], sink: Optional[Tensor]) -> Options:
    return options._replace(bias=None if bias is None else bias.detach(), sink=None if sink is None else sink.detach())


class _Attention(torch.autograd.Function):
    """q, k, v, bias, sink, options, functions to (out, softmax_lse)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Optional[Tensor],
        sink: Optional[Tensor],
        options: Options,
        functions: Functions,
    ) -> tuple[Tensor, Tensor]:
        inputs = q.detach(), k.detach(), v.detach()
        out, lse = _arrays.attention(*inputs, None, _detached(options, bias, sink), True, functions)
        ctx.save_for_backward(q, k, v, bias, sink, out, lse)
        ctx.options, ctx.functions = options._replace(bias=None, sink=None), functions
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
        q, k, v, bias, sink, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise NotImplementedError("score_mod: second derivatives are not there with score_mod or mask_mod")
        names = ("dq", "dk", "dv", "dbias", "dsink")
        wanted = [name for name, needed in zip(names, ctx.needs_input_grad) if needed]
        tensors = {
            "dout": torch.zeros_like(out) if dout is None else dout.contiguous(),
            "dlse": None if dlse is None else dlse.contiguous(),
            "q": q.detach(), "k": k.detach(), "v": v.detach(), "out": out.detach(), "softmax_lse": lse.detach(),
        }  # fmt: skip
        options = _detached(ctx.options, bias, sink)
        if torch.are_deterministic_algorithms_enabled():
            options = options._replace(deterministic=True)
        return (*_arrays.attention_backward(tensors, wanted, options, ctx.functions), None, None)


def backward(tensors: dict[str, Any], gradients: Any, options: Options, functions: Functions) -> list[Optional[Tensor]]:
    """attention_backward() of torch tensors, without a graph."""
    if tensors["q"].is_nested:
        raise NotImplementedError("score_mod: must not be given with jagged tensors, nor must mask_mod")
    detached = {name: None if tensor is None else tensor.detach() for name, tensor in tensors.items()}
    functions = functions._replace(tables=tuple(table.detach() for table in functions.tables))
    return _arrays.attention_backward(detached, gradients, _detached(options, options.bias, options.sink), functions)


def _attention(q: Tensor, k: Any, v: Any, out: Any, options: Options, return_lse: bool, functions: Functions) -> Any:
    """out, or (out, softmax_lse); see tilewise.attention."""
    arrays = (("k", k), ("v", v), *((f"table{i}", table) for i, table in enumerate(functions.tables)))
    for name, array in arrays:
        if not isinstance(array, Tensor):
            raise TypeError(f"{name}: must be a torch tensor like q (got {type(array).__name__})")
    if q.is_nested:
        raise NotImplementedError("score_mod: must not be given with jagged tensors, nor must mask_mod")
    if private.are_transforms_active() or forward_ad._current_level >= 0:
        raise NotImplementedError("score_mod: must not be given under torch.func's transforms, nor must mask_mod")
    needs_graph = any(tensor is not None and tensor.requires_grad for tensor in (q, k, v, options.bias, options.sink))
    if torch.is_grad_enabled():
        for i, table in enumerate(functions.tables):
            if table.requires_grad:
                raise NotImplementedError(f"table{i}: captured tensors have no gradient; pass them detached")
        if out is not None and needs_graph:
            raise ValueError("out: cannot be given with inputs that require gradients")
    functions = functions._replace(tables=tuple(table.detach() for table in functions.tables))
    if out is not None:
        detached = _detached(options, options.bias, options.sink)
        return _arrays.attention(q.detach(), k.detach(), v.detach(), out, detached, return_lse, functions)
    result, lse = _Attention.apply(q, k, v, options.bias, options.sink, options, functions)
    return (result, lse) if return_lse else result


# A compiler that looks on leaves a call to itself: what is traced would be its stand-ins for tensors.
attention: Any = torch.compiler.disable(_attention)
