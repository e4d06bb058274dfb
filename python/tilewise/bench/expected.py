"""What the results of an attention case must be: the whole float64 result, or a few heads of it where that is long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewise.bench import reference
from tilewise.bench.device_reference import HeadOptions, Scoring, exact_attention, exact_head
from tilewise.bench.inputs import Inputs, to_reference
from tilewise.bench.reference import Accuracy
from tilewise.bench.shapes import Case


class Expected(Protocol):
    """Judges results, which are tensors or arrays in the layout of the case."""

    def judge(self, results: Sequence[Any]) -> Accuracy: ...


@dataclass(frozen=True)
class WholeResult:
    """Every element of out, or of dq, dk and dv."""

    case: Case
    exact: list[reference.Array]

    def judge(self, results: Sequence[Any]) -> Accuracy:
        return reference.compare([to_reference(r, self.case.layout) for r in results], self.exact, self.case.dtype)


def whole_result(case: Case, inputs: Inputs) -> WholeResult:
    """Of a case without options."""
    if case.device != "cpu":  # float64 takes seconds on a host, milliseconds on a GPU
        return WholeResult(case, _on_gpu(case, inputs))
    q, k, v, dout = (to_reference(tensor, case.layout) for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout))
    causal = case.mask == "causal"
    if case.operation == "forward":
        return WholeResult(case, [reference.attention_forward(q, k, v, causal=causal)])
    return WholeResult(case, list(reference.attention_backward(q, k, v, dout, causal=causal)))


def _on_gpu(case: Case, inputs: Inputs) -> list[reference.Array]:
    tensors = (inputs.q, inputs.k, inputs.v, inputs.dout)
    if case.layout == "bhsd":
        tensors = tuple(tensor.transpose(1, 2) for tensor in tensors)
    exact = exact_attention(*tensors, Scoring(case.mask == "causal"), case.operation == "backward")
    return [to_reference(tensor, "bshd") for tensor in exact]


@dataclass(frozen=True)
class ExactHead:
    """Results of one key head and the query heads on it, in one sequence: [seqlen, heads, head_dim] float64."""

    sequence: int
    key_head: int
    out: Any
    gradients: tuple[Any, Any, Any]  # dq, dk, dv


@dataclass(frozen=True)
class FewHeads:
    """Some heads of torch tensors in layout bshd or packed, by formulas on their own device; of the others, that
    they are finite. Serves both passes."""

    case: Case
    heads: list[ExactHead]

    def judge(self, results: Sequence[Any]) -> Accuracy:
        """The worst error of out, or of dq, dk and dv; anything that isn't finite anywhere is a failure."""
        import torch

        for result in results:
            bad = result.numel() - int(torch.isfinite(result).sum())
            if bad:
                return reference.unwritten(bad, result.numel())
        actual: list[Any] = []
        expected: list[Any] = []
        for head in self.heads:
            key_head = slice(head.key_head, head.key_head + 1)
            picks = [_group(self.case, head.key_head), key_head, key_head]
            for result, pick in zip(results, picks):
                actual.append(_sequence(self.case, result, head.sequence)[:, pick].double().cpu().numpy())
            tensors = (head.out,) if len(results) == 1 else head.gradients
            expected += [np.asarray(tensor.cpu()) for tensor in tensors]
        return reference.compare(actual, expected, self.case.dtype) if self.heads else Accuracy(math.nan, math.nan)


def few_heads(case: Case, inputs: Inputs, gradients: bool) -> FewHeads:
    """The first head of the first sequence and the last of the last, but for dropout, which each library draws."""
    if case.dropout_p:
        return FewHeads(case, [])
    ends = ((0, 0), (case.shape.batch_size - 1, case.shape.num_heads_k - 1))
    return FewHeads(case, [_exact(case, inputs, *which, gradients) for which in dict.fromkeys(ends)])


def _exact(case: Case, inputs: Inputs, sequence: int, key_head: int, gradients: bool) -> ExactHead:
    group = _group(case, key_head)
    q, dout = (_sequence(case, tensor, sequence)[:, group] for tensor in (inputs.q, inputs.dout))
    k, v = (_sequence(case, tensor, sequence)[:, key_head] for tensor in (inputs.k, inputs.v))
    scoring = Scoring(case.mask == "causal", case.window_left, case.softcap)
    bias, slopes = inputs.bias, inputs.alibi_slopes
    options = HeadOptions(
        None if bias is None else bias[0, group] if bias.shape[1] > 1 else bias[0],
        None if slopes is None else slopes[group],
    )
    out, dq, dk, dv = exact_head(q, k, v, dout, scoring, gradients, options)
    return ExactHead(sequence, key_head, out, (dq, dk[:, None], dv[:, None]))


def _group(case: Case, key_head: int) -> slice:
    """The query heads on a key head."""
    size = case.shape.num_heads_q // case.shape.num_heads_k
    return slice(key_head * size, (key_head + 1) * size)


def _sequence(case: Case, tensor: Any, index: int) -> Any:
    """[seqlen, heads, head_dim] of one sequence."""
    if not case.lengths:
        return tensor[index]
    start = sum(case.lengths[:index])
    return tensor[start : start + case.lengths[index]]
