# S_dmask, which flash_attn returns for tests of dropout: the weights, scaled so that the largest of each row is 1, with
# the sign bit where a weight was dropped. They come from attention itself, over values that are columns of the
# identity, so that no rule of masks or of the dropout's draws is written twice.
"""The weights and the dropout mask of a call."""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _torch
from tilewise._options import Options
from tilewise.compat.flash_attn._call import WHOLE, Packed, dense_options
from tilewise.compat.flash_attn._lse import places

_COLUMNS = 256  # of the identity in one call
_ROUNDED = 128  # both lengths of S_dmask are multiples of it
_FORMS = ("", "rocm")


def in_bytes() -> bool:
    """Whether TILEWISE_FLASH_ATTN_DMASK asks for random bytes, as flash_attn returns them on AMD's GPUs."""
    form = os.environ.get("TILEWISE_FLASH_ATTN_DMASK", "")
    if form not in _FORMS:
        raise ValueError(f"TILEWISE_FLASH_ATTN_DMASK: must be empty or rocm (got {form!r})")
    return form == "rocm"


def _over_identity(q: Tensor, k: Tensor, options: tuple[Any, ...], local_key: Tensor, seqlen_k: int) -> Tensor:
    """Attention whose values are rows of the identity: the weights, of out's shape with seqlen_k as its last dimension.

    `local_key`: the number of each key in its sequence, of k's shape without heads and head_dim.
    """
    parts = [q.new_zeros(*q.shape[:-1], 0)]
    for first in range(0, seqlen_k, _COLUMNS):
        columns = torch.arange(first, min(first + _COLUMNS, seqlen_k), device=q.device)
        values = (local_key[..., None] == columns).to(q.dtype).unsqueeze(-2)
        values = values.expand(*k.shape[:-1], columns.numel()).contiguous()
        parts.append(_torch.forward(q, k, values, options, return_lse=False))
    return torch.cat(parts, dim=-1)


def kept(batch_size: int, num_heads: int, seqlen_q: int, seqlen_k: int, dropout_p: float, seed: Tensor) -> Tensor:
    """bool [batch_size, num_heads, seqlen_q, seqlen_k]: which weights dropout keeps, whatever masks make of them.

    All scores are 0 here, so that a weight is 0 only where it was dropped.
    """
    q = torch.zeros(batch_size, seqlen_q, num_heads, 8, dtype=torch.bfloat16, device=seed.device)
    k = q.new_zeros(batch_size, seqlen_k, 1, 8)
    local_key = torch.arange(seqlen_k, device=seed.device).expand(batch_size, -1)
    options = dense_options(False, None, WHOLE, 0.0, None, dropout_p, seed, False)

    with torch.no_grad():
        return _over_identity(q, k, options, local_key, seqlen_k).transpose(1, 2) > 0


def _weights(q: Tensor, k: Tensor, options: tuple[Any, ...], local_key: Tensor, seqlen_k: int) -> Tensor:
    """The softmax's weights before dropout, as q's dtype has them."""
    options = tuple(Options(*options)._replace(dropout_p=0.0, seed_and_offset=None))
    return _over_identity(q, k, options, local_key, seqlen_k)


def _signed(weights: Tensor, keep: Tensor) -> Tensor:
    """S_dmask of weights [batch_size, num_heads, seqlen_q, seqlen_k]."""
    seqlen_q, seqlen_k = weights.shape[-2:]
    if seqlen_k > 0:
        largest = weights.amax(-1, keepdim=True)
        weights = torch.where(largest > 0, weights / largest, weights)
    return torch.nn.functional.pad(
        torch.where(keep, weights, -weights), (0, -seqlen_k % _ROUNDED, 0, -seqlen_q % _ROUNDED)
    )


def dense(q: Tensor, k: Tensor, options: tuple[Any, ...], dropout_p: float, seed: Tensor) -> Tensor:
    """S_dmask: [batch_size, num_heads, lengths rounded up to 128], or bytes without rounding."""
    batch_size, seqlen_q, num_heads = q.shape[:3]
    seqlen_k = k.shape[1]
    with torch.no_grad():
        keep = kept(batch_size, num_heads, seqlen_q, seqlen_k, dropout_p, seed)
        if in_bytes():
            return _bytes(keep)
        local_key = torch.arange(seqlen_k, device=k.device).expand(batch_size, -1)
        weights = _weights(q.detach(), k.detach(), options, local_key, seqlen_k)
        return _signed(weights.transpose(1, 2), keep)


def packed(q: Tensor, k: Tensor, options: tuple[Any, ...], sequences: Packed, dropout_p: float, seed: Tensor) -> Tensor:
    """S_dmask: as dense() with the longest lengths; bytes are [num_heads, total_q, max_seqlen_k]."""
    batch_size, num_heads = sequences.cu_seqlens_q.numel() - 1, q.shape[1]
    max_q, max_k = sequences.max_seqlen_q, sequences.max_seqlen_k
    with torch.no_grad():
        keep = kept(batch_size, num_heads, max_q, max_k, dropout_p, seed)
        sequence, row = places(sequences.cu_seqlens_q, q.shape[0])
        row = row.clamp(max=max(max_q - 1, 0))
        if in_bytes():
            return _bytes(keep)[sequence, :, row].transpose(0, 1).contiguous()
        of_key, local_key = places(sequences.cu_seqlens_k, k.shape[0])
        if sequences.leftpad_k is not None:
            local_key = local_key - sequences.leftpad_k[of_key]
        weights = _weights(q.detach(), k.detach(), options, local_key, max_k)
        padded = weights.new_zeros(batch_size, num_heads, max_q, max_k)
        owned = torch.arange(q.shape[0], device=q.device) < sequences.cu_seqlens_q[-1]
        padded[sequence[owned], :, row[owned]] = weights[owned]
        return _signed(padded, keep)


def _bytes(keep: Tensor) -> Tensor:
    """uint8: 0 where a weight is kept and 255 where it is dropped, on their sides of floor(255 * (1 - dropout_p))."""
    return torch.where(keep, 0, 255).to(torch.uint8)


def none(q: Tensor) -> Tensor:
    """What stands for S_dmask where there is no dropout."""
    return q.new_empty(0)


def of_call(
    q: Tensor,
    k: Tensor,
    options: tuple[Any, ...],
    sequences: Optional[Packed],
    dropout_p: float,
    seed: Optional[Tensor],
) -> Tensor:
    """S_dmask of a call, which has one only where it drops weights."""
    if seed is None:
        return none(q)
    if sequences is None:
        return dense(q, k, options, dropout_p, seed)
    return packed(q, k, options, sequences, dropout_p, seed)
