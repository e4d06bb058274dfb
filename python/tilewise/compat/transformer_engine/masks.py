# The table of Transformer Engine's masks, and what each means in tilewise.attention's words. A causal mask is
# top-left there unless its name says bottom_right; without one, bottom_right_diagonal says it.
"""attn_mask_type, window_size and bottom_right_diagonal."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple, Optional

from tilewise._arguments import flag, named, window_pair
from tilewise.compat._names import REFUSALS, renamed


class MaskKind(NamedTuple):
    """What an attn_mask_type asks for."""

    causal: bool
    padding: bool  # cu_seqlens (or attention_mask) say how long sequences are
    array: bool  # attention_mask says which positions are hidden
    bottom_right: Optional[bool]  # None: bottom_right_diagonal says it


KINDS: dict[str, MaskKind] = {
    "no_mask": MaskKind(causal=False, padding=False, array=False, bottom_right=None),
    "padding": MaskKind(causal=False, padding=True, array=False, bottom_right=None),
    "causal": MaskKind(causal=True, padding=False, array=False, bottom_right=False),
    "padding_causal": MaskKind(causal=True, padding=True, array=False, bottom_right=False),
    "causal_bottom_right": MaskKind(causal=True, padding=False, array=False, bottom_right=True),
    "padding_causal_bottom_right": MaskKind(causal=True, padding=True, array=False, bottom_right=True),
    "arbitrary": MaskKind(causal=False, padding=False, array=True, bottom_right=None),
}
_SPELLINGS = {**{name: name for name in KINDS}, "padding,causal": "padding_causal", "causal,padding": "padding_causal",
              "causal_padding": "padding_causal"}  # fmt: skip


class Mask(NamedTuple):
    """A mask kind with its window and its diagonal."""

    kind: MaskKind
    left: int
    right: int
    bottom_right: bool

    def options(self, same_lengths: bool, alibi: bool) -> dict[str, Any]:
        """mask, window and alignment of tilewise.attention, what has its default left out. Where every sequence has as
        many queries as keys, both alignments mean the same, and the default one is the quicker."""
        found: dict[str, Any] = {"mask": "causal"} if self.kind.causal else {}
        right = -1 if self.kind.causal else self.right
        if self.left >= 0 or right >= 0:
            found["window"] = (self.left, right)
        if not (self.bottom_right or same_lengths) and (found or alibi):
            found["alignment"] = "top_left"
        return found


def resolve(attn_mask_type: Any, window_size: Any, bottom_right_diagonal: Any, default_diagonal: bool = True) -> Mask:
    """The mask of a call. `default_diagonal` is bottom_right_diagonal where neither it nor the kind of mask says any.

    ValueError, TypeError where one of the three is none of what Transformer Engine takes.
    """
    if isinstance(window_size, list):
        window_size = tuple(window_size)
    try:
        return _resolved(attn_mask_type, window_size, bottom_right_diagonal, default_diagonal)
    except TypeError:  # it may be that one of them has no hash
        return _resolved.__wrapped__(attn_mask_type, window_size, bottom_right_diagonal, default_diagonal)


@functools.lru_cache(maxsize=256, typed=True)
def _resolved(attn_mask_type: Any, window_size: Any, bottom_right_diagonal: Any, default_diagonal: bool) -> Mask:
    name = named("attn_mask_type", attn_mask_type, _SPELLINGS)
    kind = KINDS[name]
    left, right = _checked_window(name, kind.causal, None if window_size is None else _window_pair(window_size))
    bottom_right = default_diagonal
    if bottom_right_diagonal is not None:
        bottom_right = flag("bottom_right_diagonal", bottom_right_diagonal)
    return Mask(kind, left, right, bottom_right if kind.bottom_right is None else kind.bottom_right)


def _window_pair(window_size: Any) -> tuple[int, int]:
    try:
        return window_pair(window_size)
    except REFUSALS as error:
        raise renamed(error, {"window": "window_size"}) from None


def _checked_window(name: str, causal: bool, window: Optional[tuple[int, int]]) -> tuple[int, int]:
    """The window that Transformer Engine makes of `window`: some are set right with a warning, others refused."""
    unbounded = (-1, 0) if causal else (-1, -1)
    if window is None or window == unbounded:
        return unbounded
    left, right = window
    expected = "(-1, 0) or (>=0, 0)" if causal else "(-1, -1) or (>=0, >=0)"
    repaired = window in ((-1, -1), (-1, 0)) or (causal and left >= 0 and right != 0)
    if repaired:
        warnings.warn(f"window_size: should be {expected} with attn_mask_type={name} (got {window})", stacklevel=4)
        return (left, 0) if causal else unbounded
    if left < 0 or right < 0:
        raise ValueError(f"window_size: must be {expected} with attn_mask_type={name} (got {window})")
    return window
