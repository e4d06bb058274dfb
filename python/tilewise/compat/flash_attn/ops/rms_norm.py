# flash_attn.ops.rms_norm.
"""RMSNorm after dropout and a residual sum, in plain torch operations."""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor

from tilewise.compat.flash_attn.ops._dropout_add_norm import (
    DropoutAddNorm,
    Options,
    dropout_add_norm,
    dropout_add_norm_parallel_residual,
    dropout_add_norm_subset,
)
from tilewise.compat.flash_attn.ops._norm import Norm

__all__ = [
    "DropoutAddRMSNorm",
    "RMSNorm",
    "dropout_add_rms_norm",
    "dropout_add_rms_norm_parallel_residual",
    "dropout_add_rms_norm_subset",
    "rms_norm",
]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of x's last dimension, in x's dtype."""
    out: Tensor = dropout_add_rms_norm(x, None, weight, None, 0.0, epsilon)
    return out


def dropout_add_rms_norm(
    x0: Tensor,
    residual: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    dropout_p: float,
    epsilon: float,
    rowscale: Optional[Tensor] = None,
    layerscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """norm(dropout(x0 * rowscale * layerscale) + residual).

    Args:
        x0, residual: [..., hidden_size]; residual may be None.
        weight, bias: [hidden_size].
        rowscale: [...], layerscale: [hidden_size].
        prenorm: Also return the sum that was normalised, in the residual's dtype.
        residual_in_fp32: That dtype is fp32 where there is no residual.
        return_dropout_mask: Also return uint8 as x0, 1 where an element was kept.

    Returns:
        out in x0's dtype; or a tuple of it, the sum, the mask.
    """
    options = Options(dropout_p, epsilon, prenorm, residual_in_fp32, return_dropout_mask, True)
    return dropout_add_norm(x0, residual, weight, bias, rowscale, layerscale, options)


def dropout_add_rms_norm_subset(
    x0: Tensor,
    residual: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    dropout_p: float,
    epsilon: float,
    layerscale: Optional[Tensor] = None,
    x0_subset: Optional[Tensor] = None,
    out_subset: Optional[Tensor] = None,
    rowscale_const: float = 1.0,
    out_numrows: int = 0,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """dropout_add_rms_norm where x0 lacks rows, as after a drop path, or not all rows of the result are wanted.

    Args:
        x0_subset: Integers, for each row of the sum the row of x0 counted from 1, or 0 where it has none.
        out_subset: Integers, for each row of the sum more than 0 where it is normalised.
        rowscale_const: What x0 is multiplied with.
        out_numrows: How many rows out has; out_subset says it.
        Others: As dropout_add_rms_norm's.

    Returns:
        As dropout_add_rms_norm, with the dimensions of x0 but the first one.
    """
    options = Options(dropout_p, epsilon, prenorm, residual_in_fp32, return_dropout_mask, True)
    return dropout_add_norm_subset(
        x0, residual, weight, bias, layerscale, x0_subset, out_subset, rowscale_const, options
    )


def dropout_add_rms_norm_parallel_residual(
    x0: Tensor,
    x1: Optional[Tensor],
    residual: Optional[Tensor],
    weight0: Tensor,
    bias0: Optional[Tensor],
    weight1: Optional[Tensor],
    bias1: Optional[Tensor],
    dropout_p: float,
    epsilon: float,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """Two norms of dropout(x0) + dropout(x1) + residual.

    Returns:
        (out0, out1), out1 None without a weight1; then the sum with prenorm, then both masks.
    """
    options = Options(dropout_p, epsilon, prenorm, residual_in_fp32, return_dropout_mask, True)
    return dropout_add_norm_parallel_residual(x0, x1, residual, (weight0, weight1), (bias0, bias1), options)


class RMSNorm(Norm):
    """rms_norm with a weight of its own."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:
        super().__init__(hidden_size, eps, False, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of x [..., hidden_size]."""
        return rms_norm(x, self.weight, self.eps)


class DropoutAddRMSNorm(DropoutAddNorm):
    """dropout_add_rms_norm with a weight of its own."""

    rms = True
