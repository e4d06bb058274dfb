# torch's flex_attention over Tilewise: functions of scores are traced to expressions, block masks to expressions over
# their tables. Nothing here computes attention.
"""torch.nn.attention.flex_attention: the same names, the same signatures, the same meaning.

``flex_attention`` and ``create_block_mask`` are Tilewise's; ``BlockMask``, ``create_mask``, ``and_masks``,
``or_masks``, ``noop_mask`` and the rest are torch's own. ``routed`` is a context manager (or decorator) in which
torch's own ``flex_attention``, and that of Hugging Face transformers, goes to it wherever Tilewise honours the call.
``RoutedCalls`` says how many went which way, and why.
"""

from __future__ import annotations

import torch
import torch.nn.attention.flex_attention as _torchs

if not (hasattr(_torchs, "AuxRequest") and hasattr(_torchs, "FlexKernelOptions")):
    raise ImportError(f"tilewise.compat.flex_attention: needs a torch that has AuxRequest (got {torch.__version__})")

from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    FlexKernelOptions,
    and_masks,
    create_mask,
    noop_mask,
    or_masks,
)

from tilewise._public import lists_public_names
from tilewise.compat.flex_attention._attention import flex_attention
from tilewise.compat.flex_attention._create import create_block_mask
from tilewise.compat.flex_attention._routing import LeftToTorch, RoutedCalls, routed

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "LeftToTorch",
    "RoutedCalls",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
    "routed",
]
__dir__ = lists_public_names(__all__)
