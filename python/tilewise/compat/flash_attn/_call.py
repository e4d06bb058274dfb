# What flash_attn's conventions come to in the options of the torch operators, written once for the public functions
# and the raw ones. Options go as one flat tuple in the operators' order: no dictionary is made for a call.
"""flash_attn's arguments as options of the operators."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from tilewise._options import AFTER_DETERMINISTIC, AFTER_SCALES, NO_SCALES

HALVES = frozenset((torch.float16, torch.bfloat16))
MAX_HEAD_DIM = 256  # of flash_attn; Tilewise itself goes further
WHOLE = (-1, -1)  # the window that sees everything


class Packed(NamedTuple):
    """Where the sequences of packed tensors lie."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    seqused_k: Optional[Tensor] = None
    leftpad_k: Optional[Tensor] = None

    def used_keys(self) -> Optional[Tensor]:
        """seqused_k as Tilewise counts it: behind the left padding, which flash_attn counts in."""
        if self.seqused_k is None or self.leftpad_k is None:
            return self.seqused_k
        return self.seqused_k - self.leftpad_k


def dense_rows(tensor: Tensor) -> Tensor:
    """The tensor with a contiguous last dimension, copied where it has another stride there, as flash_attn does."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"q, k and v: must be torch tensors (got {type(tensor).__name__})")
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def window_sides(window_size: Any, seqlen_k: int, causal: bool) -> tuple[int, int]:
    """(left, right) with -1 for unbounded, of numbers or of a tensor: sides of seqlen_k or more are cleared before
    the call counts as local, and a causal one has no right side."""
    if window_size is WHOLE:
        return window_size
    left, right = int(window_size[0]), int(window_size[1])
    return (
        -1 if left < 0 or left >= seqlen_k else left,
        -1 if causal or right < 0 or right >= seqlen_k else right,
    )


def dense_options(
    causal: bool,
    softmax_scale: Optional[float],
    window: tuple[int, int],
    softcap: float,
    alibi_slopes: Optional[Tensor],
    dropout_p: float,
    seed: Optional[Tensor],
    deterministic: bool,
    scales: tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]] = NO_SCALES,
) -> tuple[Any, ...]:
    """tilewise._options.Options of [batch_size, seqlen, num_heads, head_dim] tensors, as a plain tuple.

    `scales`: of q, k and v in fp8.
    """
    return (
        causal, softmax_scale, "bshd", None, None, alibi_slopes, None, None, None, None, None, *scales, *AFTER_SCALES,
        seed, 0, None, None, False, window[0], window[1], softcap if softcap > 0.0 else 0.0, dropout_p, deterministic,
        *AFTER_DETERMINISTIC,
    )  # fmt: skip


def packed_options(
    packed: Packed,
    causal: bool,
    softmax_scale: Optional[float],
    window: tuple[int, int],
    softcap: float,
    alibi_slopes: Optional[Tensor],
    dropout_p: float,
    seed: Optional[Tensor],
    deterministic: bool,
) -> tuple[Any, ...]:
    """Options of [total, num_heads, head_dim] tensors."""
    return (
        causal, softmax_scale, "thd", None, None, alibi_slopes, packed.cu_seqlens_q, packed.cu_seqlens_k, None,
        packed.used_keys(), packed.leftpad_k, *NO_SCALES, *AFTER_SCALES, seed, 0, packed.max_seqlen_q,
        packed.max_seqlen_k, False, window[0], window[1], softcap if softcap > 0.0 else 0.0, dropout_p, deterministic,
        *AFTER_DETERMINISTIC,
    )  # fmt: skip
