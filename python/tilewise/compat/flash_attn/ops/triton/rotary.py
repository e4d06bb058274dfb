# flash_attn.ops.triton.rotary.
"""apply_rotary, without a graph."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor

from tilewise.compat.flash_attn.layers.rotary import apply_rotary_emb

__all__ = ["apply_rotary"]


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """layers.rotary.apply_rotary_emb without a gradient; with `conjugate` it turns back."""
    with torch.no_grad():
        return apply_rotary_emb(
            x, cos, -sin if conjugate else sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen
        )
