# Transformer Engine's attention by its documentation, in float64 torch, written apart from the library: which cells a
# mask shows, and what attention makes of them.
"""The reference of tests of tilewise.compat.transformer_engine, shared with tests/gpu."""

import math
from typing import Any, Optional

import torch

KINDS = (
    "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right", "arbitrary",
)  # fmt: skip


def diagonal_at_bottom_right(kind: str, bottom_right_diagonal: Optional[bool]) -> bool:
    if "causal" in kind:
        return "bottom_right" in kind
    return bottom_right_diagonal is not False


def visible(
    kind: str, window: Any, bottom_right_diagonal: Optional[bool], sizes: tuple[int, int], used: tuple[int, int]
) -> torch.Tensor:
    """bool [seqlen_q, seqlen_kv] of one sequence; `used` are its lengths without padding."""
    padding = "padding" in kind
    nq, nk = used if padding else sizes
    offset = nk - nq if diagonal_at_bottom_right(kind, bottom_right_diagonal) else 0
    left, right = window or (-1, -1)
    if "causal" in kind:
        right = 0
    cells = torch.zeros(sizes, dtype=torch.bool)
    for i in range(nq):
        for j in range(nk):
            distance = j - (i + offset)
            cells[i, j] = (left < 0 or distance >= -left) and (right < 0 or distance <= right)
    return cells


def distances(bottom_right: bool, sizes: tuple[int, int], used: tuple[int, int]) -> torch.Tensor:
    """|i + offset - j|, what ALiBi's slopes are multiplied with."""
    offset = used[1] - used[0] if bottom_right else 0
    return (torch.arange(sizes[0])[:, None] + offset - torch.arange(sizes[1])).abs().double()


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cells: torch.Tensor,
    scale: Optional[float] = None,
    pre_bias: Any = 0.0,
    post_bias: Any = 0.0,
    offset: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """out of bshd tensors, [batch_size, seqlen_q, heads * head_dim_v], in their precision. Rows that see nothing are 0.

    cells broadcast to [batch_size, heads, seqlen_q, seqlen_kv].
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if k.shape[2] == 0:
        return q.new_zeros(q.shape[0], q.shape[2], q.shape[1] * v.shape[3])
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2) + pre_bias) * (q.shape[-1] ** -0.5 if scale is None else scale) + post_bias
    scores = scores.masked_fill(~cells, -math.inf)
    largest = scores.amax(-1, keepdim=True).detach()
    sink = None
    if offset is not None:
        sink = offset.flatten()[:, None, None].to(scores)
        largest = torch.maximum(largest, sink.detach())
    weights = torch.where(cells, torch.exp(scores - torch.where(largest.isfinite(), largest, 0.0)), 0.0)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - largest)
    out = (weights / torch.where(total > 0, total, 1.0)).to(v.dtype) @ v
    return out.transpose(1, 2).flatten(2)


def to_format(tensor: torch.Tensor, qkv_format: str) -> torch.Tensor:
    """bshd (or [batch_size, seqlen, heads * dim]) to a dense format, and back."""
    return tensor.transpose(0, 1) if qkv_format == "sbhd" else tensor


def lengths_to_cu(lengths: Any) -> torch.Tensor:
    """int32 [batch_size + 1]."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
