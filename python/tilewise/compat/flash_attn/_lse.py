# The log-sum-exp as flash_attn 2 keeps it: +inf where a row sees nothing, and under a causal mask with ALiBi without
# the constant of each row, slope * (i + seqlen_k - seqlen_q), which cancels in the softmax.
"""softmax_lse between Tilewise's form and flash_attn's."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

from tilewise.compat.flash_attn._call import Packed


def empty_rows_possible(seqlen_q: int, seqlen_k: int, window_right: int, causal: bool) -> bool:
    """Whether a dense call has rows that see nothing: the first ones, where they end before the first key."""
    right = 0 if causal else window_right
    return seqlen_k == 0 or (right >= 0 and seqlen_k - seqlen_q + right < 0)


def drops_row_constant(alibi_slopes: Optional[Tensor], causal: bool, window: tuple[int, int]) -> bool:
    """Whether flash_attn takes the call for a causal one with ALiBi; one with a left side is local, and has it all."""
    return alibi_slopes is not None and window[0] < 0 and (causal or window[1] == 0)


def row_constants(alibi_slopes: Tensor, seqlen_q: int, seqlen_k: int) -> Tensor:
    """[num_heads, seqlen_q] or [batch_size, num_heads, seqlen_q] of a dense call."""
    rows = torch.arange(seqlen_q, device=alibi_slopes.device, dtype=torch.float32) + (seqlen_k - seqlen_q)
    return alibi_slopes[..., None] * rows


def lengths_of(cu_seqlens: Tensor) -> Tensor:
    """int32 [batch_size]."""
    return cu_seqlens[1:] - cu_seqlens[:-1]


def packed_row_constants(alibi_slopes: Tensor, packed: Packed, total_q: int) -> Tensor:
    """[num_heads, total_q]."""
    lengths_k = packed.used_keys()
    if lengths_k is None:
        lengths_k = lengths_of(packed.cu_seqlens_k)
        if packed.leftpad_k is not None:
            lengths_k = lengths_k - packed.leftpad_k
    sequence, row = places(packed.cu_seqlens_q, total_q)
    rows = row + (lengths_k - lengths_of(packed.cu_seqlens_q))[sequence]
    slopes = alibi_slopes[:, None] if alibi_slopes.dim() == 1 else alibi_slopes[sequence].T
    return slopes * rows


def places(cu_seqlens: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """(sequence, row within it) of each packed row; rows of no sequence count to the last one."""
    rows = torch.arange(total, device=cu_seqlens.device, dtype=torch.int32)
    sequence = torch.searchsorted(cu_seqlens[1:], rows, right=True).clamp(max=cu_seqlens.numel() - 2)
    return sequence, rows - cu_seqlens[sequence]


def to_flash_attn(softmax_lse: Tensor, constants: Optional[Tensor]) -> Tensor:
    """A new tensor in flash_attn's form; `constants` are those of the rows where it leaves them out."""
    if constants is not None:
        softmax_lse = softmax_lse + constants
    return softmax_lse.masked_fill(softmax_lse == -math.inf, math.inf)


def from_flash_attn(softmax_lse: Tensor, constants: Optional[Tensor]) -> Tensor:
    """The inverse of to_flash_attn(), for a backward pass on what the caller kept."""
    softmax_lse = softmax_lse.masked_fill(softmax_lse == math.inf, -math.inf)
    return softmax_lse if constants is None else softmax_lse - constants
