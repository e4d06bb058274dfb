# flash_attn.ops.triton.mlp.
"""An MLP with squared ReLU."""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor

from tilewise.compat.flash_attn.ops.fused_dense import FusedMLP, fused_mlp_func

__all__ = ["FusedDenseSqreluDense", "fused_dense_sqrelu_dense_function"]


def fused_dense_sqrelu_dense_function(
    x: Tensor,
    weight1: Tensor,
    bias1: Optional[Tensor],
    weight2: Tensor,
    bias2: Optional[Tensor],
    checkpoint_lvl: int = 0,
) -> Tensor:
    """ops.fused_dense.fused_mlp_func with activation="sqrelu"."""
    out: Tensor = fused_mlp_func(x, weight1, weight2, bias1, bias2, "sqrelu", checkpoint_lvl=checkpoint_lvl)
    return out


class FusedDenseSqreluDense(FusedMLP):
    """ops.fused_dense.FusedMLP with squared ReLU."""

    def __init__(
        self,
        in_features: int,
        hidden_features: Optional[int] = None,
        out_features: Optional[int] = None,
        bias1: bool = True,
        bias2: bool = True,
        checkpoint_lvl: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_features, hidden_features, out_features, bias1, bias2, "sqrelu", checkpoint_lvl=checkpoint_lvl,
            device=device, dtype=dtype,
        )  # fmt: skip
