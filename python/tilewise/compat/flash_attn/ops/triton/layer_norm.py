# flash_attn.ops.triton.layer_norm in plain torch operations: the sum is in fp32 and rounded once for each result.
"""layer_norm_fn, rms_norm_fn, layer_norm_linear_fn and RMSNorm."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from tilewise.compat.flash_attn._plain import wide
from tilewise.compat.flash_attn.ops._norm import Norm, check_like, dropped, into, normalized, residual_dtype

__all__ = ["RMSNorm", "layer_norm_fn", "layer_norm_linear_fn", "rms_norm_fn"]


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    residual: Optional[Tensor] = None,
    x1: Optional[Tensor] = None,
    weight1: Optional[Tensor] = None,
    bias1: Optional[Tensor] = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: Optional[torch.dtype] = None,
    out: Optional[Tensor] = None,
    residual_out: Optional[Tensor] = None,
) -> Any:
    """norm(dropout(x * rowscale) + dropout(x1) + residual), and with weight1 a second norm of that sum.

    Args:
        x, x1, residual: [..., hidden_size]; the last two may be None.
        weight, bias, weight1, bias1: [hidden_size]; biases may be None.
        rowscale: [...], not with x1.
        prenorm: Also return the sum, in the residual's dtype, else fp32 with residual_in_fp32, else x's.
        zero_centered_weight: Weights are 1 more than they say.
        is_rms_norm: RMSNorm rather than LayerNorm.
        return_dropout_mask: Also return which elements of x and x1 were kept, bool as x, or None.
        out_dtype: Of the norms; None: x's.
        out, residual_out: Tensors to write the first norm and the sum into.

    Returns:
        The norm, or a tuple of it, the second norm, the sum, and two masks, of those that there are.

    Raises:
        AssertionError: Shapes do not fit, or rowscale comes with x1.
    """
    check_like("residual", residual, x)
    check_like("x1", x1, x)
    assert x1 is None or rowscale is None, "rowscale is not supported with parallel LayerNorm"
    total = wide(x) if rowscale is None else wide(x) * wide(rowscale).reshape(*x.shape[:-1], 1)
    total, kept = dropped(total, dropout_p)
    kept1 = None
    if x1 is not None:
        other, kept1 = dropped(wide(x1), dropout_p)
        total = total + other
    if residual is not None:
        total = total + wide(residual)
    dtype = x.dtype if out_dtype is None else out_dtype
    y = normalized(total, weight, bias, eps, is_rms_norm, zero_centered_weight).to(dtype)
    results: list[Any] = [into(out, y).view(x.shape)]
    if weight1 is not None:
        results.append(normalized(total, weight1, bias1, eps, is_rms_norm, zero_centered_weight).to(dtype))
    if prenorm:
        rounded = total.to(residual_dtype(x, residual, residual_in_fp32))
        results.append(into(residual_out, rounded).view(x.shape))
    if return_dropout_mask:
        results += [kept, kept1]
    return results[0] if len(results) == 1 else tuple(results)


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    residual: Optional[Tensor] = None,
    x1: Optional[Tensor] = None,
    weight1: Optional[Tensor] = None,
    bias1: Optional[Tensor] = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Optional[Tensor] = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: Optional[torch.dtype] = None,
    out: Optional[Tensor] = None,
    residual_out: Optional[Tensor] = None,
) -> Any:
    """layer_norm_fn with RMSNorm."""
    return layer_norm_fn(
        x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32,
        zero_centered_weight, True, return_dropout_mask, out_dtype, out, residual_out,
    )  # fmt: skip


def layer_norm_linear_fn(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Optional[Tensor],
    linear_weight: Tensor,
    linear_bias: Optional[Tensor],
    residual: Optional[Tensor] = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """A linear layer of layer_norm_fn's result: out [..., out_features], or with prenorm (out, sum)."""
    y, total = layer_norm_fn(
        x, norm_weight, norm_bias, residual, eps=eps, prenorm=True, residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
    )  # fmt: skip
    out = F.linear(y.to(linear_weight.dtype), linear_weight, linear_bias)
    return (out, total) if prenorm else out


class RMSNorm(Norm):
    """rms_norm_fn with a weight of its own."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(hidden_size, eps, False, device, dtype)
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.zero_centered_weight = zero_centered_weight
        self.reset_parameters()

    def forward(
        self, x: Tensor, residual: Optional[Tensor] = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """The norm of dropout(x) + residual, or with prenorm (norm, sum)."""
        dropout_p = self.drop.p if self.drop is not None and self.training else 0.0
        return rms_norm_fn(
            x, self.weight, None, residual, eps=self.eps, dropout_p=dropout_p, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight,
        )  # fmt: skip
