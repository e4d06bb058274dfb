# Attention with score_mod and mask_mod on torch tensors. The torch operators do not take them: an autograd.Function
# calls what are their kernels in Python.
"""The torch side of score_mod and mask_mod."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._functions import Functions
from tilewise._options import Options
from tilewise._torch import private, python_kernels
from tilewise._torch.private import forward_ad


class _Attention(torch.autograd.Function):
    """q, k, v, bias, sink, options, functions, and their tables once more, to (out, softmax_lse)."""

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
        *tables: Tensor,
    ) -> tuple[Tensor, Tensor]:
        out, lse = python_kernels.run_forward(q, k, v, options, functions)
        ctx.save_for_backward(q, k, v, bias, sink, out, lse, *tables)
        ctx.options, ctx.functions = options._replace(bias=None, sink=None), functions._replace(tables=())
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
        q, k, v, bias, sink, out, lse, *tables = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise NotImplementedError("score_mod: second derivatives are not there with score_mod or mask_mod")
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        dlse = None if dlse is None else dlse.contiguous()
        options = ctx.options._replace(bias=bias, sink=sink)
        if torch.are_deterministic_algorithms_enabled():
            options = options._replace(deterministic=True)
        inputs = (dout, dlse, q, k, v, out, lse)
        wanted = (*ctx.needs_input_grad[:5], *ctx.needs_input_grad[7:])
        functions = ctx.functions._replace(tables=tuple(tables))
        gradients = python_kernels.run_backward(inputs, wanted, options, functions)
        results = [gradient if want else None for gradient, want in zip(gradients, wanted)]
        return (*results[:5], None, None, *results[5:])


def refuse_jagged(q: Tensor) -> None:
    """Jagged tensors do not hand functions on."""
    if q.is_nested:
        raise NotImplementedError("score_mod: must not be given with jagged tensors, nor must mask_mod")


def _attention(q: Tensor, k: Any, v: Any, out: Any, options: Options, return_lse: bool, functions: Functions) -> Any:
    """out, or (out, softmax_lse); see tilewise.attention."""
    arrays = (("k", k), ("v", v), *((f"table{i}", table) for i, table in enumerate(functions.tables)))
    for name, array in arrays:
        if not isinstance(array, Tensor):
            raise TypeError(f"{name}: must be a torch tensor like q (got {type(array).__name__})")
    refuse_jagged(q)
    if private.are_transforms_active() or forward_ad._current_level >= 0:
        raise NotImplementedError("score_mod: must not be given under torch.func's transforms, nor must mask_mod")
    inputs = (q, k, v, options.bias, options.sink, *functions.tables)
    needs_graph = any(tensor is not None and tensor.requires_grad for tensor in inputs)
    needs_graph = needs_graph and torch.is_grad_enabled()
    if out is not None and needs_graph:
        raise ValueError("out: cannot be given with inputs that require gradients")
    if out is not None:
        lse = python_kernels.run_forward_out(q, k, v, out, options, functions)
        return (out, lse) if return_lse else out
    if needs_graph:
        result, lse = _Attention.apply(q, k, v, options.bias, options.sink, options, functions, *functions.tables)
    else:
        result, lse = python_kernels.run_forward(q, k, v, options, functions)
    return (result, lse) if return_lse else result


# A compiler that looks on leaves a call to itself: what is traced would be its stand-ins for tensors.
attention: Any = torch.compiler.disable(_attention)
