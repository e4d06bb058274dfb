# vmap: the mapped dimension joins the batch where a call over a larger batch means the same;
# otherwise (packed input, dropout, a mapped sink) the slices are computed one by one.
"""vmap rules of the torch operators."""

from __future__ import annotations

import functools
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._options import Options
from tilewise._torch import operators
from tilewise._torch.operators import LIBRARY

_BATCH_AXIS = {"bshd": 0, "sbhd": 1, "bhsd": 0}


def _contiguous_rows(tensor: Tensor) -> Tensor:
    """The tensor with a contiguous last dimension, which moving the mapped one may have undone."""
    return tensor if tensor.dim() == 0 or tensor.stride(-1) == 1 else tensor.contiguous()


def _slice_wise(operator: Any, size: int, dims: tuple[Optional[int], ...], args: tuple[Any, ...]) -> Any:
    """Runs the operator on every slice and stacks the results along a new first dimension."""
    results = [
        operator(*(arg if dim is None else _contiguous_rows(arg.select(dim, index)) for arg, dim in zip(args, dims)))
        for index in range(size)
    ]
    stacked = tuple(torch.stack(tensors) for tensors in zip(*results))
    return stacked, tuple(0 for _ in stacked)


class _Fold:
    """Merges the mapped dimension, of `size`, into a batch of `batch_size`."""

    def __init__(self, size: int, batch_size: int) -> None:
        self.size = size
        self.batch_size = batch_size

    def into(self, tensor: Tensor, dim: Optional[int], axis: int) -> Tensor:
        """Into the dimension `axis` of each slice, which is the batch; repeats what is not mapped."""
        if dim is None:
            shape = (*tensor.shape[:axis], self.size, *tensor.shape[axis:])
            tensor = tensor.unsqueeze(axis).expand(shape)
        else:
            tensor = tensor.movedim(dim, axis)
        return _contiguous_rows(tensor.flatten(axis, axis + 1))

    def lengths(self, tensor: Optional[Tensor], dim: Optional[int]) -> Optional[Tensor]:
        return None if tensor is None else self.into(tensor, dim, 0)

    def broadcast(self, tensor: Optional[Tensor], dim: Optional[int], rank: int) -> Optional[Tensor]:
        """A tensor that broadcasts to `rank` dimensions of which the first is the batch."""
        if tensor is None:
            return None
        own_rank = tensor.dim() - (dim is not None)
        if dim is None and (own_rank < rank or tensor.shape[0] == 1):
            return tensor
        if dim is not None:
            tensor = tensor.movedim(dim, 0)
            tensor = tensor.reshape(self.size, *[1] * (rank - own_rank), *tensor.shape[1:])
            return tensor.expand(self.size, self.batch_size, *tensor.shape[2:]).flatten(0, 1)
        return self.into(tensor, None, 0)


def forward(operator: Any, info: Any, in_dims: tuple[Optional[int], ...], *args: Any) -> Any:
    options = Options(*args[3:])
    dims = (*in_dims, *[None] * (3 + len(Options._fields) - len(in_dims)))
    dim_of = dict(zip(Options._fields, dims[3:]))
    mapped = any(dim_of[name] is not None for name in ("sink", "q_scale", "k_scale", "v_scale"))
    if options.layout == "thd" or options.dropout_p != 0.0 or mapped:
        return _slice_wise(operator, info.batch_size, dims, (*args[:3], *options))
    axis = _BATCH_AXIS[options.layout]
    batch_size = (args[0] if dims[0] is None else args[0].select(dims[0], 0)).shape[axis]
    fold = _Fold(info.batch_size, batch_size)
    q, k, v = (fold.into(tensor, dim, axis) for tensor, dim in zip(args[:3], dims))
    options = options._replace(
        bias=fold.broadcast(options.bias, dim_of["bias"], 4),
        alibi_slopes=fold.broadcast(options.alibi_slopes, dim_of["alibi_slopes"], 2),
        seqused_q=fold.lengths(options.seqused_q, dim_of["seqused_q"]),
        seqused_k=fold.lengths(options.seqused_k, dim_of["seqused_k"]),
        leftpad_k=fold.lengths(options.leftpad_k, dim_of["leftpad_k"]),
        q_scale=fold.broadcast(options.q_scale, None, 2),
        k_scale=fold.broadcast(options.k_scale, None, 2),
        v_scale=fold.broadcast(options.v_scale, None, 2),
        key_indices=fold.lengths(options.key_indices, dim_of["key_indices"]),
    )
    out, lse = operator(q, k, v, *options)
    sizes = (info.batch_size, batch_size)
    return (out.unflatten(axis, sizes), lse.unflatten(0, sizes)), (axis, 0)


def backward(operator: Any, info: Any, in_dims: tuple[Optional[int], ...], *args: Any) -> Any:
    dims = (*in_dims, *[None] * (len(args) - len(in_dims)))
    return _slice_wise(operator, info.batch_size, dims, args)


torch.library.register_vmap("tilewise::attention_forward", functools.partial(forward, operators.forward), lib=LIBRARY)
torch.library.register_vmap(
    "tilewise::attention_backward", functools.partial(backward, operators.backward), lib=LIBRARY
)
