# The rotation itself: which row of the tables belongs to which row of x, the formula in fp32, and writing in place so
# that gradients stay right.
"""Rotary embedding in plain torch operations."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

import torch
from torch import Tensor

from tilewise._torch.private import name_of
from tilewise.compat.flash_attn._plain import wide
from tilewise.compat.flash_attn._strict import strict

_MAX_HEAD_DIM = 256  # of flash_attn's kernel
_DEFAULT_CREATION = "DEFAULT"


def check_shapes(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """AssertionError where tables do not fit to x."""
    assert cos.shape == sin.shape, f"sin: must have the shape of cos, {tuple(cos.shape)} (got {tuple(sin.shape)})"
    rotary_dim, head_dim = 2 * cos.shape[-1], x.shape[-1]
    assert rotary_dim <= head_dim, f"rotary_dim must be <= headdim (got {rotary_dim} and {head_dim})"
    fits = head_dim <= _MAX_HEAD_DIM or not strict()
    assert fits, f"Only support headdim <= 256 (got {head_dim})"


def _may_look(tensor: Tensor) -> bool:
    """Whether the host may read `tensor`: on a GPU that waits, which TILEWISE_CHECK=1 asks for."""
    if torch.compiler.is_compiling():
        return False
    return tensor.device.type == "cpu" or (tensor.is_cuda and os.environ.get("TILEWISE_CHECK") == "1")


def _check_positions(positions: Tensor, owned: Optional[Tensor], rows: int) -> None:
    """AssertionError where a row that belongs to a sequence stands outside the tables."""
    if owned is not None:
        positions = positions[owned]
    if positions.numel() == 0:
        return
    least, greatest = (int(position) for position in positions.aminmax())
    inside = least >= 0 and greatest < rows
    assert inside, f"seqlen_offsets: positions must be 0 to {rows - 1}, the rows of cos (got {least} to {greatest})"


def _at(table: Tensor, positions: Tensor, owned: Optional[Tensor], unturned: float) -> Tensor:
    """Rows of a table. Rows of no sequence are not turned; what stands outside the table becomes NaN, which no host
    has looked at on a GPU, rather than pass for a rotation."""
    rows = wide(table)[positions.clamp(0, max(table.shape[0] - 1, 0))]
    inside = (positions >= 0) & (positions < table.shape[0])
    rows = torch.where(inside[..., None], rows, torch.nan)
    return rows if owned is None else torch.where(owned[..., None], rows, unturned)


def table_rows(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: Union[int, Tensor],
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> tuple[Tensor, Tensor]:
    """(cos, sin) of each row of x, to be broadcast over heads; see apply_rotary_emb for the arguments.

    Raises:
        AssertionError: Shapes do not fit, or the tables lack a position.
    """
    check_shapes(x, cos, sin)
    assert cu_seqlens is None or max_seqlen is not None, "If cu_seqlens is passed in, then max_seqlen must be passed"
    seqlen = x.shape[1] if cu_seqlens is None or max_seqlen is None else max_seqlen
    rows = cos.shape[0]
    assert rows >= seqlen, f"seqlen_ro must be >= seqlen (got {rows} and {seqlen})"
    if not isinstance(seqlen_offsets, Tensor):
        inside = seqlen_offsets >= 0 and seqlen_offsets + seqlen <= rows
        assert inside, f"seqlen_offsets + seqlen must be <= seqlen_ro (got {seqlen_offsets} + {seqlen} and {rows})"
        if cu_seqlens is None:
            part = slice(seqlen_offsets, seqlen_offsets + seqlen)
            return wide(cos[part])[None, :, None], wide(sin[part])[None, :, None]
    positions, owned = _positions(x, seqlen_offsets, cu_seqlens)
    if _may_look(positions):
        _check_positions(positions, owned, rows)
    return _at(cos, positions, owned, 1.0).unsqueeze(-2), _at(sin, positions, owned, 0.0).unsqueeze(-2)


def _positions(
    x: Tensor, seqlen_offsets: Union[int, Tensor], cu_seqlens: Optional[Tensor]
) -> tuple[Tensor, Optional[Tensor]]:
    """(position of each row: [batch_size, seqlen] or [total], which packed rows belong to a sequence)."""
    batch_size = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    if isinstance(seqlen_offsets, Tensor):
        words = f"seqlen_offsets: must be integers of shape ({batch_size},)"
        fits = seqlen_offsets.shape == (batch_size,) and seqlen_offsets.dtype in (torch.int32, torch.int64)
        assert fits, f"{words} (got {tuple(seqlen_offsets.shape)} of {seqlen_offsets.dtype})"
    if cu_seqlens is None:
        assert isinstance(seqlen_offsets, Tensor)
        return torch.arange(x.shape[1], device=x.device) + seqlen_offsets[:, None], None
    rows = torch.arange(x.shape[0], device=x.device)
    sequence = torch.searchsorted(cu_seqlens[1:].long(), rows, right=True).clamp(max=batch_size - 1)
    offsets = seqlen_offsets[sequence] if isinstance(seqlen_offsets, Tensor) else seqlen_offsets
    return rows - cu_seqlens[sequence] + offsets, rows < cu_seqlens[-1]


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first columns of x, as many as cos and sin have twice, rotated."""
    columns = wide(x[..., : 2 * cos.shape[-1]])
    if interleaved:
        first, second = columns[..., ::2], columns[..., 1::2]
        return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(-2).to(x.dtype)
    first, second = columns.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


def _autograd_may_write(x: Tensor) -> bool:
    """Whether autograd lets x be overwritten: not a leaf, and not one of several views that one call returned."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return True
    if x.is_leaf:
        return False
    if torch.compiler.is_compiling() or not x._is_view():
        return True
    creation: Any = name_of("_C._autograd._get_creation_meta")(x)
    return bool(creation.name == _DEFAULT_CREATION)


def overwritten(x: Tensor, *parts: tuple[Any, Tensor]) -> Tensor:
    """x with each (index, new values) written into it.

    Returns:
        x; where autograd forbids that, x is written all the same and a tensor equal to it has the graph.
    """
    if _autograd_may_write(x):
        for index, new in parts:
            x[index] = new
        return x
    result = x.clone()
    for index, new in parts:
        result[index] = new
    with torch.no_grad():
        x.copy_(result)
    return result
