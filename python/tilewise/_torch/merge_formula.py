# Merge in torch's own operations: the road of calls on GPUs that no implementation accepts, such as float64 ones. It
# can be captured.
"""merge() and its gradients as torch formulas."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

_ORDER = {"bshd": (0, 1, 3, 2), "sbhd": (0, 3, 1, 2), "bhsd": (0, 1, 2, 3), "thd": (0, 2, 1)}


class _Weights:
    """What each part weighs: [parts, ...] like the log-sum-exps, and as factors of the rows of out."""

    def __init__(self, lses: Tensor, sink: Optional[Tensor], layout: str) -> None:
        everything = lses
        if sink is not None:
            own = sink.to(lses.dtype).reshape(-1, 1).expand_as(lses[0]).unsqueeze(0)
            everything = torch.cat((lses, own))
        self.lse = torch.logsumexp(everything, 0)
        self.seen = ~torch.isneginf(lses)
        self.parts = torch.where(self.seen, torch.exp(lses - self.lse), 0.0)
        self.order = _ORDER[layout]

    def of_rows(self, tensor: Tensor) -> Tensor:
        return tensor.permute(self.order).unsqueeze(-1)

    def of_statistics(self, rows: Tensor) -> Tensor:
        """[parts, ...] in the order of the rows of out, as log-sum-exps have it."""
        return rows.permute(*(self.order.index(axis) for axis in range(len(self.order))))


def forward(
    outs: Tensor, lses: Tensor, sink: Optional[Tensor], dtype: torch.dtype, layout: str
) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse) of stacked parts."""
    weights = _Weights(lses, sink, layout)
    scaled = weights.of_rows(weights.parts) * outs.to(lses.dtype)
    scaled = torch.where(weights.of_rows(weights.seen), scaled, 0.0)  # whatever the others hold
    return scaled.sum(0).to(dtype), weights.lse


def backward(
    dout: Tensor, dlse: Optional[Tensor], outs: Tensor, lses: Tensor, sink: Optional[Tensor], layout: str
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """(douts, dlses, dsink) of stacked parts, in the dtype of lses."""
    weights = _Weights(lses, sink, layout)
    seen = weights.of_rows(weights.seen)
    dout = dout.to(lses.dtype)
    douts = torch.where(seen, weights.of_rows(weights.parts) * dout, 0.0)
    dots = weights.of_statistics(torch.where(seen, outs.to(lses.dtype) * dout, 0.0).sum(-1))
    own = torch.zeros_like(lses[0]) if dlse is None else dlse
    own = own - (weights.parts * dots).sum(0)  # dlse - delta
    dlses = torch.where(weights.seen, weights.parts * (dots + own), 0.0)
    if sink is None:
        return douts, dlses, None
    logit = sink.to(lses.dtype).reshape(-1, 1)
    terms = torch.where(torch.isneginf(logit), 0.0, torch.exp(logit - weights.lse)) * own
    return douts, dlses, terms.sum([axis for axis in range(terms.dim()) if axis != terms.dim() - 2])
