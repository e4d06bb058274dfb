# flash_attn.ops.fused_dense by torch's own linear layers, which autocast, torch.compile and every device know. What was
# fused there is not here; names, arguments and results are the same.
"""Linear layers and MLPs, also of a group of processes that share their rows or columns."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tilewise.compat.flash_attn.ops.activations import sqrelu_bwd, sqrelu_fwd
from tilewise.compat.flash_attn.utils.distributed import (
    all_gather,
    all_reduce,
    copy_to_group,
    get_dim_for_local_rank,
    reduce_scatter,
)

__all__ = [
    "ColumnParallelLinear",
    "FusedDense",
    "FusedMLP",
    "ParallelFusedMLP",
    "RowParallelLinear",
    "fused_dense_func",
    "fused_mlp_func",
]


class _SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return sqrelu_fwd(x)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        return sqrelu_bwd(dout, *ctx.saved_tensors)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_approx": _gelu,
    "relu": F.relu,
    "sqrelu": _SquaredRelu.apply,
}


def _check(activation: str, checkpoint_lvl: int) -> None:
    words = f"activation: must be one of {', '.join(_ACTIVATIONS)} (got {activation!r})"
    assert activation in _ACTIVATIONS, words
    assert checkpoint_lvl in (0, 1, 2), f"checkpoint_lvl: must be 0, 1 or 2 (got {checkpoint_lvl})"


def _of_all(x: Tensor, process_group: Any, sequence_parallel: bool) -> Tensor:
    """x as every process of a group needs it for its own columns: gathered where each has a part of its rows."""
    if process_group is None:
        return x
    gathered: Tensor = (all_gather if sequence_parallel else copy_to_group)(x, process_group)
    return gathered


def fused_dense_func(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    return_residual: bool = False,
    process_group: Any = None,
    sequence_parallel: bool = True,
) -> Any:
    """A linear layer of x [..., in_features].

    Args:
        weight: [out_features, in_features]. bias: [out_features] or None.
        return_residual: Also return x.
        process_group: Processes that have other rows of weight each.
        sequence_parallel: x is this process's part of the rows, and all are gathered first.

    Returns:
        out [..., out_features]; or (out, x).
    """
    out = F.linear(_of_all(x, process_group, sequence_parallel), weight, bias)
    return (out, x) if return_residual else out


class FusedDense(nn.Linear):
    """nn.Linear that can return its input too."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x: Tensor, process_group: Any = None) -> Any:
        """out, or with return_residual (out, x); rows are gathered from a process_group first."""
        return fused_dense_func(x, self.weight, self.bias, self.return_residual, process_group)


def _share(name: str, features: int, multiple_of: int, process_group: Any) -> int:
    """How many of `features` this process has."""
    if features % multiple_of:
        raise ValueError(f"{name} ({features}) must be a multiple of {multiple_of}")
    world_size, rank = torch.distributed.get_world_size(process_group), torch.distributed.get_rank(process_group)
    return get_dim_for_local_rank(features, world_size, rank, multiple_of)


class ColumnParallelLinear(nn.Linear):
    """A linear layer of which each process of a group has some of the out_features."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        own = _share("out_features", out_features, multiple_of, process_group)
        super().__init__(in_features, own, bias=bias, device=device, dtype=dtype)
        self.process_group, self.sequence_parallel = process_group, sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """This process's columns, of all rows."""
        out: Tensor = fused_dense_func(
            x, self.weight, self.bias, False, self.process_group, self.sequence_parallel
        )  # fmt: skip
        return out


class RowParallelLinear(nn.Linear):
    """A linear layer of which each process of a group has some of the in_features; the first one has the bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        process_group: Any,
        bias: bool = True,
        sequence_parallel: bool = True,
        multiple_of: int = 1,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        own = _share("in_features", in_features, multiple_of, process_group)
        bias = bias and torch.distributed.get_rank(process_group) == 0
        super().__init__(own, out_features, bias=bias, device=device, dtype=dtype)
        self.process_group, self.sequence_parallel = process_group, sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """The sum over the group: this process's part of the rows, or with sequence_parallel=False all of them."""
        reduce = reduce_scatter if self.sequence_parallel else all_reduce
        out: Tensor = reduce(F.linear(x, self.weight, self.bias), self.process_group)
        return out


def fused_mlp_func(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Optional[Tensor] = None,
    bias2: Optional[Tensor] = None,
    activation: str = "gelu_approx",
    save_pre_act: bool = True,
    return_residual: bool = False,
    checkpoint_lvl: int = 0,
    heuristic: int = 0,
    process_group: Any = None,
    sequence_parallel: bool = True,
) -> Any:
    """Linear layer, activation, linear layer of x [..., in_features].

    Args:
        weight1: [hidden_features, in_features]. weight2: [out_features, hidden_features].
        activation: "gelu_approx", "relu" or "sqrelu", the square of ReLU.
        save_pre_act, checkpoint_lvl: What a graph keeps: 0 all, 1 not the activation, 2 the input alone, as where
            save_pre_act is False; the rest is computed again.
        heuristic: Without effect.
        return_residual, process_group, sequence_parallel: As fused_dense_func's; the caller sums over the
            group.

    Returns:
        out [..., out_features]; or (out, x).
    """
    _check(activation, checkpoint_lvl)
    act = _ACTIVATIONS[activation]

    def second(before: Tensor) -> Tensor:
        return F.linear(act(before), weight2, bias2)

    def both(rows: Tensor) -> Tensor:
        return second(F.linear(rows, weight1, bias1))

    rows = _of_all(x, process_group, sequence_parallel)
    level = checkpoint_lvl if save_pre_act else 2
    if level == 0 or not torch.is_grad_enabled():
        out = both(rows)
    elif level == 1:
        out = checkpoint(second, F.linear(rows, weight1, bias1), use_reentrant=False)
    else:
        out = checkpoint(both, rows, use_reentrant=False)
    return (out, x) if return_residual else out


class FusedMLP(nn.Module):
    """Linear layer, activation, linear layer.

    Args:
        hidden_features: None means 4 * in_features. out_features: None means in_features.
        activation, return_residual, checkpoint_lvl: As fused_mlp_func's.
        heuristic: Without effect.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        bias1: bool = True,
        bias2: bool = True,
        activation: str = "gelu_approx",
        return_residual: bool = False,
        checkpoint_lvl: int = 0,
        heuristic: Any = "auto",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        _check(activation, checkpoint_lvl)
        super().__init__()
        hidden = hidden_features or 4 * in_features
        self.activation, self.return_residual = activation, return_residual
        self.checkpoint_lvl, self.heuristic = checkpoint_lvl, heuristic
        self.fc1 = nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out_features or in_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor, process_group: Any = None) -> Any:
        """out, or with return_residual (out, x)."""
        out = fused_mlp_func(
            x, self.fc1.weight, self.fc2.weight, self.fc1.bias, self.fc2.bias, self.activation,
            checkpoint_lvl=self.checkpoint_lvl, process_group=process_group,
        )  # fmt: skip
        if process_group is not None:
            out = reduce_scatter(out, process_group)
        return (out, x) if self.return_residual else out


class ParallelFusedMLP(nn.Module):
    """FusedMLP whose hidden features a group of processes shares."""

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: str = "gelu_approx",
        process_group: Any = None,
        bias1: bool = True,
        bias2: bool = True,
        sequence_parallel: bool = True,
        checkpoint_lvl: int = 0,
        heuristic: Any = "auto",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        _check(activation, checkpoint_lvl)
        assert process_group is not None, "process_group: must be given (got None)"
        super().__init__()
        hidden = hidden_features or 4 * in_features
        self.activation, self.process_group, self.sequence_parallel = activation, process_group, sequence_parallel
        self.checkpoint_lvl, self.heuristic = checkpoint_lvl, heuristic
        self.fc1 = ColumnParallelLinear(
            in_features, hidden, process_group, bias1, sequence_parallel, device=device, dtype=dtype
        )
        self.fc2 = RowParallelLinear(
            hidden, out_features or in_features, process_group, bias2, sequence_parallel, device=device, dtype=dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        """out of this process's rows, or with sequence_parallel=False of all."""
        out = fused_mlp_func(
            x, self.fc1.weight, self.fc2.weight, self.fc1.bias, self.fc2.bias, self.activation,
            checkpoint_lvl=self.checkpoint_lvl, process_group=self.process_group,
            sequence_parallel=self.sequence_parallel,
        )  # fmt: skip
        reduced: Tensor = (reduce_scatter if self.sequence_parallel else all_reduce)(out, self.process_group)
        return reduced
