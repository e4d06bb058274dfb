# flash_attn's older operations of norms, which its extension dropout_layer_norm computes: results in x0's dtype, the
# sum in the residual's.
"""Dropout, residual sum and norm in one call, for ops.layer_norm and ops.rms_norm."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from tilewise.compat.flash_attn._plain import wide
from tilewise.compat.flash_attn.ops._norm import Norm, dropped, normalized, or_ones, residual_dtype


class Options(NamedTuple):
    """What all forms of the operation take."""

    dropout_p: float
    epsilon: float
    prenorm: bool
    residual_in_fp32: bool
    return_dropout_mask: bool
    rms: bool


def _returned(results: tuple[Any, ...], total: Tensor, masks: tuple[Tensor, ...], options: Options) -> Any:
    """The results, then the sum with prenorm, then the masks where they are asked for; one alone is no tuple."""
    total_too = (total,) if options.prenorm else ()
    all_of_it = (*results, *total_too, *(masks if options.return_dropout_mask else ()))
    return all_of_it[0] if len(all_of_it) == 1 else all_of_it


def dropout_add_norm(
    x0: Tensor,
    residual: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    rowscale: Optional[Tensor],
    layerscale: Optional[Tensor],
    options: Options,
) -> Any:
    """norm(dropout(x0 * rowscale * layerscale) + residual): see dropout_add_layer_norm."""
    x = wide(x0)
    if rowscale is not None:
        x = x * wide(rowscale).unsqueeze(-1)
    if layerscale is not None:
        x = x * wide(layerscale)
    x, kept = dropped(x, options.dropout_p)
    if residual is not None:
        x = x + wide(residual)
    out = normalized(x, weight, bias, options.epsilon, options.rms, False).to(x0.dtype)
    total = x.to(residual_dtype(x0, residual, options.residual_in_fp32))
    return _returned((out,), total, (or_ones(kept, x0),), options)


def dropout_add_norm_subset(
    x0: Tensor,
    residual: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    layerscale: Optional[Tensor],
    x0_subset: Optional[Tensor],
    out_subset: Optional[Tensor],
    rowscale_const: float,
    options: Options,
) -> Any:
    """dropout_add_norm of rows: see dropout_add_layer_norm_subset."""
    x = wide(x0).flatten(0, -2) * rowscale_const
    if layerscale is not None:
        x = x * wide(layerscale)
    x, kept = dropped(x, options.dropout_p)
    if x0_subset is not None:
        places = x0_subset.flatten().long()
        x = torch.cat([x.new_zeros(1, x.shape[-1]), x])[places]
    if residual is not None:
        x = x + wide(residual).flatten(0, -2)
    rows = x if out_subset is None else x[out_subset.flatten() > 0]
    out = normalized(rows, weight, bias, options.epsilon, options.rms, False).to(x0.dtype)
    total = x.to(residual_dtype(x0, residual, options.residual_in_fp32))
    shape = (-1, *x0.shape[1:])
    mask = or_ones(kept, x0).view(x0.shape)
    return _returned((out.view(shape),), total.view(shape), (mask,), options)


def dropout_add_norm_parallel_residual(
    x0: Tensor,
    x1: Optional[Tensor],
    residual: Optional[Tensor],
    weights: tuple[Tensor, Optional[Tensor]],
    biases: tuple[Optional[Tensor], Optional[Tensor]],
    options: Options,
) -> Any:
    """Two norms of dropout(x0) + dropout(x1) + residual: see dropout_add_layer_norm_parallel_residual."""
    x, kept0 = dropped(wide(x0), options.dropout_p)
    kept1 = None
    if x1 is not None:
        other, kept1 = dropped(wide(x1), options.dropout_p)
        x = x + other
    if residual is not None:
        x = x + wide(residual)
    results = tuple(
        None if weight is None else normalized(x, weight, bias, options.epsilon, options.rms, False).to(x0.dtype)
        for weight, bias in zip(weights, biases)
    )
    total = x.to(residual_dtype(x0, residual, options.residual_in_fp32))
    return _returned(results, total, (or_ones(kept0, x0), or_ones(kept1, x0)), options)


class DropoutAddNorm(Norm):
    """Dropout of x0 while training, the sum with a residual, and a norm of it."""

    rms = False

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(hidden_size, eps, not self.rms, device, dtype)
        self.prenorm, self.p, self.residual_in_fp32 = prenorm, p, residual_in_fp32

    def forward(self, x0: Tensor, residual: Optional[Tensor] = None) -> Any:
        """The norm, or with prenorm (norm, sum)."""
        p = self.p if self.training else 0.0
        options = Options(p, self.eps, self.prenorm, self.residual_in_fp32, False, self.rms)
        return dropout_add_norm(x0, residual, self.weight, self.bias, None, None, options)
