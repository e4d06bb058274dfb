# flash_attn.modules.mlp.
"""Mlp and GatedMlp, and both for a group of processes that share the hidden features."""

from __future__ import annotations

from typing import Any, Callable, Optional

from torch import Tensor, nn
from torch.nn import functional as F

from tilewise.compat.flash_attn.ops.activations import swiglu
from tilewise.compat.flash_attn.ops.fused_dense import (
    ColumnParallelLinear,
    FusedMLP,
    ParallelFusedMLP,
    RowParallelLinear,
)

__all__ = ["FusedMLP", "GatedMlp", "Mlp", "ParallelFusedMLP", "ParallelGatedMlp", "ParallelMLP"]

_Activation = Callable[[Tensor], Tensor]


def _gated_features(in_features: int, hidden_features: Optional[int], multiple_of: int) -> int:
    """hidden_features, or two thirds of 4 * in_features, rounded up to a multiple."""
    hidden = 8 * in_features // 3 if hidden_features is None else hidden_features
    return -(-hidden // multiple_of) * multiple_of


def _gated(y: Tensor, activation: _Activation) -> Tensor:
    """The first half of the columns times the activation of the second."""
    first, gate = y.chunk(2, dim=-1)
    if activation is F.silu:
        result: Tensor = swiglu(gate, first)
        return result
    return first * activation(gate)


class Mlp(nn.Module):
    """Linear layer, activation, linear layer.

    Args:
        hidden_features: None means 4 * in_features. out_features: None means in_features.
        activation: Any function of a tensor.
        bias1, bias2: Whether the layers have biases.
        return_residual: forward() returns (out, x).
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: _Activation = F.gelu,
        bias1: bool = True,
        bias2: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        out = in_features if out_features is None else out_features
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        """out [..., out_features] of x [..., in_features]."""
        out = self.fc2(self.activation(self.fc1(x)))
        return (out, x) if self.return_residual else out


class GatedMlp(nn.Module):
    """Linear layer to twice the hidden features, whose second half is the gate of the first, and a linear layer.

    Args:
        hidden_features: None means 8 / 3 * in_features; rounded up to a multiple of multiple_of.
        activation: Of the gate: F.sigmoid is GLU, F.silu is SwiGLU.
        Others: As Mlp's.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: _Activation = F.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        return_residual: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = _gated_features(in_features, hidden_features, multiple_of)
        out = in_features if out_features is None else out_features
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        """out [..., out_features] of x [..., in_features]."""
        out = self.fc2(_gated(self.fc1(x), self.activation))
        return (out, x) if self.return_residual else out


class ParallelMLP(nn.Module):
    """Mlp whose hidden features a group of processes shares; with sequence_parallel each has a part of the rows."""

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: _Activation = F.gelu,
        process_group: Any = None,
        sequence_parallel: bool = True,
        bias1: bool = True,
        bias2: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = 4 * in_features if hidden_features is None else hidden_features
        out = in_features if out_features is None else out_features
        made: dict[str, Any] = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        self.activation = activation
        self.fc1 = ColumnParallelLinear(in_features, hidden, process_group, bias=bias1, **made)
        self.fc2 = RowParallelLinear(hidden, out, process_group, bias=bias2, **made)

    def forward(self, x: Tensor) -> Any:
        """out of this process's rows, or without sequence_parallel of all."""
        return self.fc2(self.activation(self.fc1(x)))


class ParallelGatedMlp(nn.Module):
    """GatedMlp whose hidden features a group of processes shares; fc1 of each has its own gates in its second half."""

    def __init__(
        self,
        in_features: int,
        process_group: Any,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        activation: _Activation = F.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = _gated_features(in_features, hidden_features, multiple_of)
        out = in_features if out_features is None else out_features
        made: dict[str, Any] = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        self.activation = activation
        self.fc1 = ColumnParallelLinear(in_features, 2 * hidden, process_group, bias=bias1, **made)
        self.fc2 = RowParallelLinear(hidden, out, process_group, bias=bias2, **made)

    def forward(self, x: Tensor) -> Any:
        """out of this process's rows, or without sequence_parallel of all."""
        return self.fc2(_gated(self.fc1(x), self.activation))
