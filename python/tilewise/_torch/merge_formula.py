# Merge in torch's own operations: the road of calls on GPUs that no implementation accepts, such as float64 ones, and
# of forward AD and second derivatives. It can be captured.
"""merge() and its gradients as torch formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

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
        # By hand, since differences of infinities have NaN for a derivative. The greatest counts as a constant.
        seen = ~torch.isneginf(everything)
        top = everything.detach().amax(0)
        top = torch.where(torch.isneginf(top), 0.0, top)
        terms = torch.where(seen, torch.exp(torch.where(seen, everything - top, 0.0)), 0.0)
        total = terms.sum(0)
        nothing = total == 0
        total = torch.where(nothing, 1.0, total)
        self.lse = torch.where(nothing, -torch.inf, top + torch.log(total))
        self.seen = seen[: lses.shape[0]]
        self.parts = terms[: lses.shape[0]] / total
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


def of_parts(
    outs: Sequence[Tensor], lses: Sequence[Tensor], sink: Optional[Tensor], layout: str
) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse) of parts in lists, or of lists of one stack, with every derivative."""
    dtype = outs[0].dtype
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    stacks = (_stacked(outs, layout, statistics), _stacked(lses, layout, statistics, own_rank=2))
    return forward(*stacks, sink, dtype, layout)


def _stacked(tensors: Sequence[Tensor], layout: str, dtype: torch.dtype, own_rank: Optional[int] = None) -> Tensor:
    rank = (3 if layout == "thd" else 4) if own_rank is None else (2 if layout == "thd" else 3)
    if len(tensors) == 1 and tensors[0].dim() == rank + 1:
        return tensors[0].to(dtype)
    return torch.stack([tensor.to(dtype) for tensor in tensors])


def second_gradients(
    given: tuple[Any, Any, Optional[Tensor]],
    dout: Tensor,
    dlse: Optional[Tensor],
    outs: Sequence[Tensor],
    lses: Sequence[Tensor],
    sink: Optional[Tensor],
    layout: str,
) -> tuple[Any, ...]:
    """Gradients by dout, dlse, outs, lses and sink of merge's gradients, whose own are `given`: those of douts, dlses
    (lists, or None) and dsink."""
    count, inputs = len(outs), (*outs, *lses, *(() if sink is None else (sink,)))
    flat = (*(given[0] or (None,) * count), *(given[1] or (None,) * count), given[2])
    wanted = [i for i, gradient in enumerate(flat) if gradient is not None and i < len(inputs)]
    if not wanted:
        return None, None, [None] * count, [None] * count, None
    rows = (dout,) if dlse is None else (dout, dlse)

    def first(*tensors: Tensor) -> tuple[Tensor, ...]:
        own, values = tensors[: len(rows)], list(tensors[len(rows) :])

        def run(*parts: Tensor) -> tuple[Tensor, ...]:
            for place, part in zip(wanted, parts):
                values[place] = part
            results = of_parts(
                values[:count], values[count : 2 * count], values[2 * count] if sink is not None else None, layout
            )
            return results[: len(rows)]

        found: tuple[Tensor, ...] = torch.func.vjp(run, *(values[i] for i in wanted))[1](own)
        return found

    found = list(torch.func.vjp(first, *rows, *inputs)[1](tuple(flat[i] for i in wanted)))
    ddout, ddlse = found.pop(0), found.pop(0) if dlse is not None else None
    return ddout, ddlse, found[:count], found[count : 2 * count], found[2 * count] if sink is not None else None
