# flash_attn.utils.distributed by torch.distributed.
"""Sums and gathers over a group of processes, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewise._torch.private import name_of

_flatten_dense_tensors = name_of("_flatten_dense_tensors", "torch._utils")
_unflatten_dense_tensors = name_of("_unflatten_dense_tensors", "torch._utils")

__all__ = [
    "AllGatherFunc",
    "AllReduceFunc",
    "ReduceScatterFunc",
    "all_gather",
    "all_gather_raw",
    "all_reduce",
    "all_reduce_raw",
    "allreduce_sequence_parallel_grad",
    "get_dim_for_local_rank",
    "reduce_scatter",
    "reduce_scatter_raw",
    "sync_shared_params",
]


def _named(name: str, older: str) -> Any:
    """A function of torch.distributed by its name of today, or the one it had."""
    return getattr(torch.distributed, name, None) or getattr(torch.distributed, older)


def all_gather_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """([world_size * rows, ...], a handle), without a graph."""
    world_size = torch.distributed.get_world_size(process_group)
    output = input_.new_empty(world_size * input_.shape[0], *input_.shape[1:])
    gather = _named("all_gather_single", "all_gather_into_tensor")
    handle = gather(output, input_.contiguous(), group=process_group, async_op=async_op)
    return output, handle


def reduce_scatter_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """(this process's [rows / world_size, ...] of the sum, a handle), without a graph."""
    world_size = torch.distributed.get_world_size(process_group)
    rows = input_.shape[0]
    assert rows % world_size == 0, f"input_: must have a multiple of {world_size} rows (got {rows})"
    output = input_.new_empty(rows // world_size, *input_.shape[1:])
    scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
    handle = scatter(output, input_.contiguous(), group=process_group, async_op=async_op)
    return output, handle


def all_reduce_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """(the sum, in input_'s own memory where that is contiguous, a handle), without a graph."""
    input_ = input_.contiguous()
    return input_, torch.distributed.all_reduce(input_, group=process_group, async_op=async_op)


class AllGatherFunc(torch.autograd.Function):
    """All processes' rows one after the other."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        """Of this process's rows."""
        ctx.process_group = process_group
        return all_gather_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        """The sum's part of this process."""
        return reduce_scatter_raw(grad_output, ctx.process_group)[0], None


class ReduceScatterFunc(torch.autograd.Function):
    """This process's rows of the sum."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        """Of this process's summand."""
        ctx.process_group = process_group
        return reduce_scatter_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        """All rows' gradients."""
        return all_gather_raw(grad_output, ctx.process_group)[0], None


class AllReduceFunc(torch.autograd.Function):
    """The sum, which each process computes the same of, so that its gradient is each summand's."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        """Of this process's summand, which stays as it is."""
        return all_reduce_raw(input_.clone(), process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        """The gradient itself."""
        return grad_output, None


class _CopyToGroup(torch.autograd.Function):
    """What all processes have the same of, each for work of its own, whose gradients are summed."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return input_.view_as(input_)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return all_reduce_raw(grad_output.clone(), ctx.process_group)[0], None


all_gather: Any = AllGatherFunc.apply
reduce_scatter: Any = ReduceScatterFunc.apply
all_reduce: Any = AllReduceFunc.apply
copy_to_group: Any = _CopyToGroup.apply


def sync_shared_params(model: torch.nn.Module, process_group: Any) -> None:
    """Gives every process the first one's parameters that are marked with _shared_params."""
    shared = {name: p for name, p in model.named_parameters() if getattr(p, "_shared_params", False)}
    source = torch.distributed.get_global_rank(process_group, 0)
    with torch.no_grad():
        for _, parameter in sorted(shared.items()):
            torch.distributed.broadcast(parameter, src=source, group=process_group)


def allreduce_sequence_parallel_grad(model: torch.nn.Module, process_group: Any) -> None:
    """Sums the gradients of parameters that are marked with _sequence_parallel, in one call."""
    marked = {name: p for name, p in model.named_parameters() if getattr(p, "_sequence_parallel", False)}
    gradients = [p.grad for _, p in sorted(marked.items()) if p.grad is not None]
    if not gradients:
        return
    with torch.no_grad():
        together = _flatten_dense_tensors(gradients)
        torch.distributed.all_reduce(together, group=process_group)
        for gradient, summed in zip(gradients, _unflatten_dense_tensors(together, gradients)):
            gradient.copy_(summed)


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """How much of `dim` a process has where it is shared in multiples, the first ones getting one more."""
    each, more = divmod(dim // multiple_of, world_size)
    return (each + int(local_rank < more)) * multiple_of
