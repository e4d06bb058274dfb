# Attention with score_mod and mask_mod on torch tensors. Calls without other options have operators; of others an
# autograd.Function calls what are the operators' kernels in Python.
"""The torch side of score_mod and mask_mod."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _core
from tilewise._functions import Functions
from tilewise._options import Options
from tilewise._torch import private, python_kernels
from tilewise._torch.autograd import dense_rows
from tilewise._torch.errors import raise_known
from tilewise._torch.operators import eager_functions, eager_functions_backward, eager_functions_lse
from tilewise._torch.private import forward_ad

_grad_enabled = torch.is_grad_enabled
_compiling = torch.compiler.is_compiling
_TENSORS = (Tensor, torch.nn.Parameter)  # of subclasses the operators know less


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
        _refuse_second()
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


def _refuse_second() -> None:
    if torch.is_grad_enabled():
        raise NotImplementedError("score_mod: second derivatives are not there with score_mod or mask_mod")


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
_left_alone: Any = torch.compiler.disable(_attention)


def attention(q: Tensor, k: Any, v: Any, out: Any, options: Options, return_lse: bool, functions: Functions) -> Any:
    """out, or (out, softmax_lse); see tilewise.attention."""
    return (_left_alone if _compiling() else _attention)(q, k, v, out, options, return_lse, functions)


# --- calls without other options ---


class _Short(torch.autograd.Function):
    """q, k, v, form, softmax_scale, functions, and the tables once more, to (out, softmax_lse).

    functions: Texts, the tensors of a block mask, and the number of tables and the sizes of blocks.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, form: int, softmax_scale: Optional[float],
        functions: tuple[Any, ...], *tables: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        score_mod, mask_mod, lists, sizes = functions
        out, lse = eager_functions_lse(q, k, v, form, softmax_scale, score_mod, mask_mod, [*tables, *lists], *sizes)
        ctx.save_for_backward(q, k, v, out, lse, *tables)
        ctx.scalars = form, softmax_scale, functions
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Any, ...]:
        _refuse_second()
        q, k, v, out, lse, *tables = ctx.saved_tensors
        form, softmax_scale, (score_mod, mask_mod, lists, sizes) = ctx.scalars
        wanted = (*ctx.needs_input_grad[:3], *ctx.needs_input_grad[6:])
        needed = sum(want << place for place, want in enumerate(wanted))
        deterministic = torch.are_deterministic_algorithms_enabled()
        try:
            *of_rows, of_tables = eager_functions_backward(
                dense_rows(dout, out), None if dlse is None else dlse.contiguous(), q, k, v, out, lse, needed,
                deterministic, form, softmax_scale, score_mod, mask_mod, [*tables, *lists], *sizes,
            )  # fmt: skip
        except RuntimeError as error:
            _core.rethrow_torch_error(str(error))
            raise
        found = [gradient if want else None for gradient, want in zip((*of_rows, *of_tables), wanted)]
        return (*found[:3], None, None, None, *found[3:])


_apply_short: Any = private.unguarded_apply(_Short)


def short_attention(
    q: Tensor, k: Tensor, v: Tensor, form: int, softmax_scale: Optional[float], return_lse: bool, functions: Functions
) -> Any:
    """out, or (out, softmax_lse), of a call with no other options where no compiler or transform looks on; None where
    there is more to a tensor, and the careful way is to see to it."""
    score_mod, mask_mod, tables, block_mask = functions
    lists, rows, keys = [], 0, 0
    if block_mask is not None:
        lists, (rows, keys) = block_mask.arrays(), block_mask.block_size
    tensors = [*tables, *lists]
    needs_graph = False
    for tensor in (q, k, v, *tensors):
        if type(tensor) not in _TENSORS:
            return None
        needs_graph |= tensor.requires_grad
    try:
        if needs_graph and _grad_enabled():
            of_functions = (score_mod, mask_mod, lists, (len(tables), rows, keys))
            result, lse = _apply_short(q, k, v, form, softmax_scale, of_functions, *tables)
            return (result, lse) if return_lse else result
        run = eager_functions_lse if return_lse else eager_functions
        return run(q, k, v, form, softmax_scale, score_mod, mask_mod, tensors, len(tables), rows, keys)
    except RuntimeError as error:
        raise_known(error, q=q, k=k, v=v, **{f"table{i}": table for i, table in enumerate(tables)})
        raise
