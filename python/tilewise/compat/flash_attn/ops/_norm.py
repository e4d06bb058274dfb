# Normalisation after dropout and residual sum, which every form of it in flash_attn is made of.
"""LayerNorm and RMSNorm in plain torch operations."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from tilewise.compat.flash_attn._plain import wide


def normalized(x: Tensor, weight: Tensor, bias: Optional[Tensor], eps: float, rms: bool, centered: bool) -> Tensor:
    """The norm of x's last dimension in the dtype that layers compute in. `centered`: the weight counts from -1."""
    gain = wide(weight) + 1.0 if centered else wide(weight)
    shift = None if bias is None else wide(bias)
    x = wide(x)
    if not rms:
        return F.layer_norm(x, x.shape[-1:], gain.to(x.dtype), None if shift is None else shift.to(x.dtype), eps)
    result = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain
    return result if shift is None else result + shift


def dropped(x: Tensor, dropout_p: float) -> tuple[Tensor, Optional[Tensor]]:
    """(x after dropout, which elements were kept; None where none is dropped)."""
    if dropout_p <= 0.0:
        return x, None
    kept = torch.rand(x.shape, device=x.device) >= dropout_p
    scale = 0.0 if dropout_p >= 1.0 else 1.0 / (1.0 - dropout_p)
    return torch.where(kept, x * scale, 0.0), kept


def residual_dtype(x: Tensor, residual: Optional[Tensor], residual_in_fp32: bool) -> torch.dtype:
    """In which the sum is returned: the residual's, else fp32 where that is asked for, else x's."""
    if residual is not None:
        return residual.dtype
    return torch.float32 if residual_in_fp32 else x.dtype


def check_like(name: str, tensor: Optional[Tensor], x: Tensor) -> None:
    if tensor is not None:
        words = f"{name}: must have the shape of x, {tuple(x.shape)} (got {tuple(tensor.shape)})"
        assert tensor.shape == x.shape, words


def into(given: Optional[Tensor], result: Tensor) -> Tensor:
    """The result, written into the caller's tensor where there is one."""
    return result if given is None else given.copy_(result.reshape(given.shape))


def or_ones(kept: Optional[Tensor], x: Tensor) -> Tensor:
    """uint8, the mask of a dropout, of ones where nothing was dropped."""
    return torch.ones(x.shape, dtype=torch.uint8, device=x.device) if kept is None else kept.to(torch.uint8)


class Norm(torch.nn.Module):
    """What the modules of norms share: a weight of ones (zeros where it counts from -1), and a bias or none."""

    bias: Optional[Tensor]

    def __init__(self, hidden_size: int, eps: float, with_bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        self.eps = eps
        self.zero_centered_weight = False
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        bias = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype)) if with_bias else None
        self.register_parameter("bias", bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Makes the norm change nothing but the scale."""
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
