# flash_attn.ops.triton.cross_entropy. A graph keeps the logits, labels and log-sum-exps, and the gradient may go where
# the logits are: of [tokens, vocab_size] nothing else outlives the forward pass.
"""cross_entropy_loss."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tilewise.compat.flash_attn._plain import alone, refuse, wide

__all__ = ["CrossEntropyLoss", "cross_entropy_loss"]


def check_group(process_group: Any) -> None:
    """NotImplementedError for a vocabulary that several processes share."""
    if not alone(process_group):
        size = torch.distributed.get_world_size(process_group)
        raise refuse("process_group", "None or a group of one process", f"one of {size}")


def _check_labels(labels: Tensor, kept: Tensor, vocab_size: int) -> None:
    """IndexError for a label that is no class; on a GPU gather() says it."""
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = labels[kept & ((labels < 0) | (labels >= vocab_size))]
    if wrong.numel():
        raise IndexError(f"labels: must be 0 to {vocab_size - 1} or ignore_index (got {int(wrong[0])})")


class CrossEntropyLoss(torch.autograd.Function):
    """(losses, z_losses), of which the first have a gradient for the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        precomputed_lse: Optional[Tensor] = None,
        smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        ignore_index: int = -100,
        inplace_backward: bool = False,
        process_group: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """See cross_entropy_loss."""
        check_group(process_group)
        kept = labels != ignore_index
        _check_labels(labels, kept, logits.shape[-1])
        scores = wide(logits) * logit_scale
        usable = precomputed_lse is not None and logit_scale == 1.0 and smoothing == 0.0
        lse = precomputed_lse if usable and precomputed_lse is not None else torch.logsumexp(scores, -1)
        chosen = torch.where(kept, labels, 0).long()
        losses = lse - (1.0 - smoothing) * scores.gather(-1, chosen[:, None]).squeeze(-1)
        if smoothing > 0.0:
            losses = losses - smoothing * scores.mean(-1)
        squares = lse.square() if lse_square_scale != 0.0 else torch.zeros_like(lse)  # which may overflow
        z_losses = torch.where(kept, lse_square_scale * squares, 0.0)
        ctx.save_for_backward(logits, lse, labels)
        ctx.options = smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward
        ctx.mark_non_differentiable(z_losses)
        return torch.where(kept, losses, 0.0) + z_losses, z_losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses: Tensor, _: Any) -> Any:
        """The gradient of the logits."""
        logits, lse, labels = ctx.saved_tensors
        smoothing, logit_scale, lse_square_scale, ignore_index, inplace = ctx.options
        kept = labels != ignore_index
        slope = torch.where(kept, dlosses, 0.0)[:, None] * logit_scale
        gradient = torch.exp(wide(logits) * logit_scale - lse[:, None])
        gradient = gradient * (1.0 + 2.0 * lse_square_scale * lse[:, None])
        if smoothing > 0.0:
            gradient = gradient - smoothing / logits.shape[-1]
        chosen = torch.where(kept, labels, 0).long()[:, None]
        gradient = gradient.scatter_add(-1, chosen, torch.full_like(lse[:, None], smoothing - 1.0))
        gradient = gradient * slope
        if inplace and not torch.compiler.is_compiling():  # a compiler places the gradient by itself
            with torch.no_grad():
                gradient = logits.detach().copy_(gradient)
        return gradient.to(logits.dtype), *[None] * 8


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """The cross entropy of each row, computed in fp32.

    Args:
        logits: [batch_size, vocab_size].
        labels: Integers [batch_size].
        precomputed_lse: f32 [batch_size], log-sum-exps of the logits, used without smoothing and scale.
        label_smoothing: Weight of the mean over all classes beside the label's.
        logit_scale: What logits are multiplied with first.
        lse_square_scale: Adds this times the square of the log-sum-exp (z-loss).
        ignore_index: Rows with this label have loss and gradient 0.
        inplace_backward: The gradient is written over the logits.
        process_group: None, or a group of one process.

    Returns:
        (losses, z_losses), f32 [batch_size]; the second are a part of the first, without a gradient.

    Raises:
        IndexError: A label is none of the classes.
        NotImplementedError: A group of several processes.
    """
    shaped = logits.dim() == 2 and labels.shape == logits.shape[:1]
    assert shaped, f"labels: must have shape ({logits.shape[0]},) (got {tuple(labels.shape)})"
    losses: tuple[Tensor, Tensor] = CrossEntropyLoss.apply(
        logits, labels, precomputed_lse, label_smoothing, logit_scale, lse_square_scale, ignore_index,
        inplace_backward, process_group,
    )  # fmt: skip
    return losses
