"""What both libraries' results on a GPU are compared with: float64 formulas on a few heads, on that GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpu_cases import GpuCase
from gpu_contenders import Inputs, Tensors

from tilewise.bench import reference
from tilewise.bench.device_reference import Scoring, exact_head
from tilewise.bench.reference import Accuracy


@dataclass(frozen=True)
class Exact:
    """Results of one key head and the query heads on it, in one sequence: [seqlen, heads, head_dim] float64."""

    sequence: int
    key_head: int
    out: torch.Tensor
    gradients: Tensors  # dq, dk, dv


def exact_heads(case: GpuCase, inputs: Inputs) -> list[Exact]:
    """The first head of the first sequence and the last of the last, but for dropout, which each library draws."""
    if case.dropout_p:
        return []
    ends = ((0, 0), (case.shape.batch_size - 1, case.shape.num_heads_k - 1))
    return [_exact(case, inputs, *which) for which in dict.fromkeys(ends)]


def judge(case: GpuCase, results: Tensors, exact: Sequence[Exact]) -> Accuracy:
    """The worst error of out, or of dq, dk and dv; anything that isn't finite anywhere is a failure."""
    for result in results:
        bad = result.numel() - int(torch.isfinite(result).sum())
        if bad:
            return reference.unwritten(bad, result.numel())
    actual, expected = [], []
    for heads in exact:
        key_head = slice(heads.key_head, heads.key_head + 1)
        picks = [_group(case, heads.key_head), key_head, key_head]
        for result, pick in zip(results, picks):
            actual.append(_sequence(case, result, heads.sequence)[:, pick].double().cpu().numpy())
        expected += [tensor.cpu().numpy() for tensor in ((heads.out,) if len(results) == 1 else heads.gradients)]
    return reference.compare(actual, expected, "bf16") if exact else Accuracy(math.nan, math.nan)


def _group(case: GpuCase, key_head: int) -> slice:
    """The query heads on a key head."""
    size = case.shape.num_heads_q // case.shape.num_heads_k
    return slice(key_head * size, (key_head + 1) * size)


def _sequence(case: GpuCase, tensor: torch.Tensor, index: int) -> torch.Tensor:
    """[seqlen, heads, head_dim] of one sequence."""
    if not case.lengths:
        return tensor[index]
    start = sum(case.lengths[:index])
    return tensor[start : start + case.lengths[index]]


def _exact(case: GpuCase, inputs: Inputs, sequence: int, key_head: int) -> Exact:
    group = _group(case, key_head)
    q, dout = (_sequence(case, tensor, sequence)[:, group] for tensor in (inputs.q, inputs.dout))
    k, v = (_sequence(case, tensor, sequence)[:, key_head] for tensor in (inputs.k, inputs.v))
    scoring = Scoring(case.causal, case.window_left, case.softcap)
    out, dq, dk, dv = exact_head(q, k, v, dout, scoring, "backward" in case.passes)
    return Exact(sequence, key_head, out, (dq, dk[:, None], dv[:, None]))
