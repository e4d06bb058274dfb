"""The float64 attention of reference.py on torch tensors, on whatever device they are: a GPU's own reference.

A block of query rows at a time, so that long sequences fit. Shares no code with what it judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Union

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Scoring:
    """What the reference knows besides q, k and v; bottom-right alignment, scale 1/sqrt(head_dim)."""

    causal: bool = False
    window_left: int = -1
    softcap: float = 0.0


@dataclass(frozen=True)
class HeadOptions:
    """What is added to the scores of the query heads on one key head, in one sequence.

    bias: [heads or 1, seqlen_q, seqlen_k], or booleans that are true where a key is seen; alibi_slopes: [heads].
    """

    bias: Optional[Tensor] = None
    alibi_slopes: Optional[Tensor] = None


def exact_attention(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scoring: Scoring, gradients: bool) -> list[Tensor]:
    """[out], or [dq, dk, dv] for `gradients`, float64: [batch, seqlen, heads, head_dim], of v and out head_dim_v."""
    import torch

    like = (q, k, v) if gradients else (dout,)
    results = [torch.empty_like(tensor, dtype=torch.float64) for tensor in like]
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for h in range(k.shape[2]):
            heads = slice(h * group, (h + 1) * group)
            out, dq, dk, dv = exact_head(q[b, :, heads], k[b, :, h], v[b, :, h], dout[b, :, heads], scoring, gradients)
            if gradients:
                results[0][b, :, heads], results[1][b, :, h], results[2][b, :, h] = dq, dk, dv
            else:
                results[0][b, :, heads] = out
    return results


def exact_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    scoring: Scoring,
    gradients: bool,
    options: HeadOptions = HeadOptions(),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """float64 out, dq, dk and dv of one key head: k [seqlen_k, head_dim], v [seqlen_k, head_dim_v], q [seqlen_q, heads,
    head_dim], and dout [seqlen_q, heads, head_dim_v].

    Without `gradients` the last three are not computed.
    """
    import torch

    q, k, v, dout = q.double(), k.double(), v.double(), dout.double()
    scale, out, dq = 1.0 / math.sqrt(q.shape[2]), torch.empty_like(dout), torch.empty_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, q.shape[0], _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, q.shape[0]))
        for head in range(q.shape[1]):
            scores = scale * (q[rows, head] @ k.T)
            p, slope = _probabilities(scores, scoring, start, q.shape[0], _of_head(options, head, rows))
            out[rows, head] = p @ v
            if not gradients:
                continue
            dp = dout[rows, head] @ v.T
            ds = scale * slope * p * (dp - (p * dp).sum(dim=1, keepdim=True))
            dq[rows, head] = ds @ k
            dk += ds.T @ q[rows, head]
            dv += p.T @ dout[rows, head]
    return out, dq, dk, dv


def _of_head(options: HeadOptions, head: int, rows: slice) -> HeadOptions:
    """bias [rows, seqlen_k] and one slope."""
    bias, slopes = options.bias, options.alibi_slopes
    return HeadOptions(
        None if bias is None else bias[min(head, bias.shape[0] - 1), rows],
        None if slopes is None else slopes[head].double(),
    )


def _probabilities(
    scores: Tensor, scoring: Scoring, first_row: int, seqlen_q: int, options: HeadOptions
) -> tuple[Tensor, Union[Tensor, float]]:
    """The weights of a block of rows, and the softcap's derivative."""
    import torch

    slope: Union[Tensor, float] = 1.0
    if scoring.softcap:
        squashed = torch.tanh(scores / scoring.softcap)
        scores, slope = scoring.softcap * squashed, 1.0 - squashed**2
    keys = torch.arange(scores.shape[1], device=scores.device)[None, :]
    diagonal = torch.arange(scores.shape[0], device=scores.device)[:, None] + first_row + scores.shape[1] - seqlen_q
    if options.alibi_slopes is not None:
        scores = scores - options.alibi_slopes * (diagonal - keys).abs()
    if options.bias is not None and options.bias.dtype == torch.bool:
        scores = scores.masked_fill(~options.bias, -math.inf)
    elif options.bias is not None:
        scores = scores + options.bias.double()
    if scoring.causal:
        scores = scores.masked_fill(keys > diagonal, -math.inf)
    if scoring.window_left >= 0:
        scores = scores.masked_fill(keys < diagonal - scoring.window_left, -math.inf)
    # Rows that see nothing have weights of 0, where softmax would say NaN.
    return torch.softmax(scores, dim=1).nan_to_num(0.0), slope
