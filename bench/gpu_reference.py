"""What both libraries' results on a GPU are compared with: float64 formulas on a few heads, on that GPU.

A block of query rows at a time, so that long sequences fit. Shares no code with what it judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpu_cases import GpuCase
from gpu_contenders import Inputs, Tensors

from tilewise.bench import reference
from tilewise.bench.reference import Accuracy

_BLOCK_ROWS = 1024


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
    q, dout = (_sequence(case, tensor, sequence)[:, group].double() for tensor in (inputs.q, inputs.dout))
    k, v = (_sequence(case, tensor, sequence)[:, key_head].double() for tensor in (inputs.k, inputs.v))
    scale, out, dq = 1.0 / math.sqrt(q.shape[2]), torch.empty_like(q), torch.empty_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, q.shape[0], _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, q.shape[0]))
        for head in range(q.shape[1]):
            p, slope = _probabilities(case, scale * (q[rows, head] @ k.T), start, q.shape[0])
            out[rows, head] = p @ v
            if "backward" not in case.passes:
                continue
            dp = dout[rows, head] @ v.T
            ds = scale * slope * p * (dp - (p * dp).sum(dim=1, keepdim=True))
            dq[rows, head] = ds @ k
            dk += ds.T @ q[rows, head]
            dv += p.T @ dout[rows, head]
    return Exact(sequence, key_head, out, (dq, dk[:, None], dv[:, None]))


def _probabilities(
    case: GpuCase, scores: torch.Tensor, first_row: int, seqlen_q: int
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """The weights of a block of rows, and the softcap's derivative; bottom-right alignment."""
    slope: torch.Tensor | float = 1.0
    if case.softcap:
        squashed = torch.tanh(scores / case.softcap)
        scores, slope = case.softcap * squashed, 1.0 - squashed**2
    keys = torch.arange(scores.shape[1], device=scores.device)[None, :]
    diagonal = torch.arange(scores.shape[0], device=scores.device)[:, None] + first_row + scores.shape[1] - seqlen_q
    if case.causal:
        scores = scores.masked_fill(keys > diagonal, -math.inf)
    if case.window_left >= 0:
        scores = scores.masked_fill(keys < diagonal - case.window_left, -math.inf)
    return torch.softmax(scores, dim=1), slope
