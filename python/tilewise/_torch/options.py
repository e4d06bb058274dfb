# The options of the torch operators as one value, in the order of their schema.
"""Options: every argument of a torch operator after its own tensors."""

from __future__ import annotations

from typing import NamedTuple, Optional

from torch import Tensor


class Options(NamedTuple):
    """Optional tensors, then scalars. The defaults are the schema's; a test compares the two."""

    bias: Optional[Tensor] = None
    sink: Optional[Tensor] = None
    alibi_slopes: Optional[Tensor] = None
    cu_seqlens_q: Optional[Tensor] = None
    cu_seqlens_k: Optional[Tensor] = None
    seqused_q: Optional[Tensor] = None
    seqused_k: Optional[Tensor] = None
    leftpad_k: Optional[Tensor] = None
    seed_and_offset: Optional[Tensor] = None
    seed: int = 0
    max_seqlen_q: Optional[int] = None
    max_seqlen_k: Optional[int] = None
    layout: str = "bshd"
    mask: str = "none"
    alignment: str = "bottom_right"
    window_left: int = -1
    window_right: int = -1
    softmax_scale: Optional[float] = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    deterministic: bool = False
    batch_invariant: bool = False
    implementation: str = ""


NUM_TENSORS = 9  # the fields of Options that are tensors; the scalars follow
