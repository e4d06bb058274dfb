# flash_attn.layers.rotary: the rotary embedding of queries and keys outside of a cache, in plain torch operations with
# gradients; computed in fp32 and rounded once.
"""apply_rotary_emb."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

_MAX_HEAD_DIM = 256


def _positions(x: Tensor, seqlen_offsets: Union[int, Tensor], cu_seqlens: Optional[Tensor]) -> Tensor:
    """Where each row stands: [1 or batch_size, seqlen], or [total] of packed rows."""
    if cu_seqlens is None:
        rows = torch.arange(x.shape[1], device=x.device)[None]
        return rows + (seqlen_offsets[:, None] if isinstance(seqlen_offsets, Tensor) else seqlen_offsets)
    rows = torch.arange(x.shape[0], device=x.device)
    sequence = torch.searchsorted(cu_seqlens[1:].long(), rows, right=True).clamp(max=cu_seqlens.numel() - 2)
    offsets = seqlen_offsets[sequence] if isinstance(seqlen_offsets, Tensor) else seqlen_offsets
    return rows - cu_seqlens[sequence] + offsets


def _angles(table: Tensor, positions: Tensor, beyond: float) -> Tensor:
    """The table's rows for all heads, fp32; `beyond` its end, where nothing is rotated."""
    inside = (positions >= 0) & (positions < table.shape[0])
    rows = table.float()[positions.clamp(0, max(table.shape[0] - 1, 0))]
    return torch.where(inside[..., None], rows, beyond).unsqueeze(-2)


def _pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    return (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)  # type: ignore[return-value]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, out: Tensor) -> None:
    """Writes the rotated first columns of x, as many as cos and sin have twice, into `out`."""
    dim = 2 * cos.shape[-1]
    first, second = (part.float() for part in _pairs(x[..., :dim], interleaved))
    parts = first * cos - second * sin, first * sin + second * cos
    for to, part in zip(_pairs(out[..., :dim], interleaved), parts):
        to.copy_(part)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inplace: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        if inplace and not (x.is_leaf and ctx.needs_input_grad[0]):  # flash_attn writes into leaves too
            ctx.mark_dirty(x)
        out = x if inplace else x.clone()
        _rotated(x, cos, sin, interleaved, out)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        dx = dout.clone()
        _rotated(dout, cos, -sin, ctx.interleaved, dx)
        return dx, None, None, None, None


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> Tensor:
    """Rotates the first rotary_dim columns of x; the others stay.

    Args:
        x: [batch_size, seqlen, num_heads, head_dim], or packed [total, num_heads, head_dim] with cu_seqlens.
        cos, sin: [rows, rotary_dim / 2], row p for position p.
        interleaved: Pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2).
        inplace: Whether to write into x and return it, of a leaf that requires a gradient a view of it.
        seqlen_offsets: int or integer [batch_size], the position of each sequence's first row.
        cu_seqlens: int32 [batch_size + 1].
        max_seqlen: Longest packed sequence; must be given with cu_seqlens.

    Returns:
        As x, with a gradient for x.

    Raises:
        AssertionError: Shapes do not fit.
    """
    assert cos.shape == sin.shape, f"sin: must have the shape of cos, {tuple(cos.shape)} (got {tuple(sin.shape)})"
    rotary_dim, head_dim = 2 * cos.shape[-1], x.shape[-1]
    assert rotary_dim <= head_dim, f"rotary_dim must be <= headdim (got {rotary_dim} and {head_dim})"
    assert head_dim <= _MAX_HEAD_DIM, f"Only support headdim <= 256 (got {head_dim})"
    assert cu_seqlens is None or max_seqlen is not None, "If cu_seqlens is passed in, then max_seqlen must be passed"
    seqlen = x.shape[1] if cu_seqlens is None or max_seqlen is None else max_seqlen
    assert cos.shape[0] >= seqlen, f"seqlen_ro must be >= seqlen (got {cos.shape[0]} and {seqlen})"
    positions = _positions(x, seqlen_offsets, cu_seqlens)
    return _Rotary.apply(x, _angles(cos, positions, 1.0), _angles(sin, positions, 0.0), interleaved, inplace)  # type: ignore[no-any-return]


apply_rotary_emb_func = apply_rotary_emb
