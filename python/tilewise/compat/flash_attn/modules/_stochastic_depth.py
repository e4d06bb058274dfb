# The drop path of residual branches, under the attributes that torchvision gives it.
"""StochasticDepth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_MODES = ("batch", "row")


class StochasticDepth(nn.Module):
    """Drops whole samples while training, and scales the others by 1 / (1 - p).

    Args:
        p: Probability of dropping.
        mode: "row" draws for each index of the first dimension, "batch" once for all.
    """

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p: must be in [0, 1] (got {p})")
        if mode not in _MODES:
            raise ValueError(f"mode: must be one of {', '.join(_MODES)} (got {mode!r})")
        self.p, self.mode = p, mode

    def forward(self, input: Tensor) -> Tensor:
        """As input."""
        if not self.training or self.p == 0.0:
            return input
        rows = input.shape[0] if self.mode == "row" else 1
        kept = torch.rand(rows, *[1] * (input.dim() - 1), device=input.device) >= self.p
        scale = 0.0 if self.p == 1.0 else 1.0 / (1.0 - self.p)
        return torch.where(kept, input * scale, 0.0)
