# flash_attn.losses.cross_entropy.
"""CrossEntropyLoss."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise.compat.flash_attn.ops.triton.cross_entropy import check_group, cross_entropy_loss

__all__ = ["CrossEntropyLoss"]

_REDUCTIONS = ("mean", "none", "sum")


class CrossEntropyLoss(torch.nn.Module):
    """The cross entropy of logits [batch_size, vocab_size] and labels [batch_size], on CPUs and GPUs.

    Args:
        ignore_index: Rows with this label have loss 0, and do not count in the mean.
        reduction: "mean", "none" or "sum".
        label_smoothing, logit_scale, lse_square_scale, inplace_backward, process_group: As cross_entropy_loss's.
        return_z_loss: Also return the part of the loss that lse_square_scale adds, without a gradient.

    Raises:
        NotImplementedError: Another reduction, or a group of several processes.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        if reduction not in _REDUCTIONS:
            raise NotImplementedError(f"reduction: must be one of {', '.join(_REDUCTIONS)} (got {reduction!r})")
        check_group(process_group)
        super().__init__()
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.logit_scale, self.lse_square_scale = logit_scale, lse_square_scale
        self.inplace_backward, self.process_group = inplace_backward, process_group
        self.return_z_loss = return_z_loss

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Optional[Tensor] = None) -> Any:
        """The loss in f32, [batch_size] with reduction "none", else a number; or (loss, z_loss)."""
        losses = cross_entropy_loss(
            input, target, precomputed_lse, self.label_smoothing, self.logit_scale, self.lse_square_scale,
            self.ignore_index, self.inplace_backward, self.process_group,
        )  # fmt: skip
        loss, z_loss = (self._reduced(each, target) for each in losses)
        return (loss, z_loss) if self.return_z_loss else loss

    def _reduced(self, loss: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "none":
            return loss
        total = loss.sum()
        return total if self.reduction == "sum" else total / (target != self.ignore_index).sum()
