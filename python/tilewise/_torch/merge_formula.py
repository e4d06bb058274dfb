# Merge in torch's own operations: the road of calls on GPUs that no implementation accepts, such as float64 ones, and
# of forward AD and second derivatives (see formulas.py). It can be captured.
"""merge() and its gradients as torch formulas."""

from __future__ import annotations

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


def differentiable(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse), with every derivative."""
    outs, layout = given["outs"], given["layout"]
    dtype = (outs if isinstance(outs, Tensor) else outs[0]).dtype
    return forward(*_stacks(given, dtype), given["sink"], dtype, layout)


def write(given: dict[str, Any], outputs: dict[str, Any]) -> None:
    """The outputs of a call of either kind that are not None."""
    sink, layout = given["sink"], given["layout"]
    if "out" in outputs:
        out = outputs["out"]
        results: tuple[Any, ...] = forward(*_stacks(given, out.dtype), sink, out.dtype, layout)
    else:
        outs, lses = _stacks(given, given["dout"].dtype)
        results = backward(given["dout"], given["dlse"], outs, lses, sink, layout)
    for target, result in zip(outputs.values(), results):
        if isinstance(target, list):
            stacked = len(target) == 1 and target[0].dim() == result.dim()
            for each, part in zip(target, [result] if stacked else result):
                each.copy_(part)
        elif target is not None:
            target.copy_(result)


def _stacks(given: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """outs and lses, each in one tensor, of lists of parts or of one stack."""
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    rank = 3 if given["layout"] == "thd" else 4
    return _stacked(given["outs"], rank, statistics), _stacked(given["lses"], rank - 1, statistics)


def _stacked(tensors: Any, rank: int, dtype: torch.dtype) -> Tensor:
    """`rank`: of one of them."""
    if not isinstance(tensors, Tensor) and len(tensors) == 1 and tensors[0].dim() == rank + 1:
        tensors = tensors[0]
    if isinstance(tensors, Tensor):
        return tensors.to(dtype)
    return torch.stack([tensor.to(dtype) for tensor in tensors])


def second(given: dict[str, Any], derivatives: dict[str, Any]) -> dict[str, Any]:
    """Gradients of merge's gradients, whose own are `derivatives`: those of douts, dlses (lists, or None) and dsink."""
    outs, lses, sink, dlse = given["outs"], given["lses"], given["sink"], given["dlse"]
    count, inputs = len(outs), (*outs, *lses, *(() if sink is None else (sink,)))
    flat = (
        *(derivatives["douts"] or (None,) * count),
        *(derivatives["dlses"] or (None,) * count),
        derivatives["dsink"],
    )
    wanted = [i for i, gradient in enumerate(flat) if gradient is not None and i < len(inputs)]
    if not wanted:
        return {"outs": [None] * count, "lses": [None] * count}
    rows = (given["dout"],) if dlse is None else (given["dout"], dlse)

    def first(*tensors: Tensor) -> tuple[Tensor, ...]:
        own, values = tensors[: len(rows)], list(tensors[len(rows) :])

        def run(*parts: Tensor) -> tuple[Tensor, ...]:
            for place, part in zip(wanted, parts):
                values[place] = part
            parts_and_sink = {
                "outs": values[:count],
                "lses": values[count : 2 * count],
                "sink": values[2 * count] if sink is not None else None,
            }
            return differentiable({**given, **parts_and_sink})[: len(rows)]

        found: tuple[Tensor, ...] = torch.func.vjp(run, *(values[i] for i in wanted))[1](own)
        return found

    found = list(torch.func.vjp(first, *rows, *inputs)[1](tuple(flat[i] for i in wanted)))
    results = {"dout": found.pop(0), "dlse": found.pop(0) if dlse is not None else None}
    return {
        **results,
        "outs": found[:count],
        "lses": found[count : 2 * count],
        "sink": found[2 * count] if sink is not None else None,
    }
