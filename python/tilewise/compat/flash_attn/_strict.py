# Whether flash_attn's refusals that are limits of its kernels hold here too.
"""TILEWISE_FLASH_ATTN_STRICT."""

from __future__ import annotations

import os

_VALUES = {"": False, "0": False, "1": True}


def strict() -> bool:
    """Whether a call that flash_attn's kernels do not take is refused though its meaning is plain.

    Asked where such a call has come alone, so that usual calls do not pay for it.
    """
    value = os.environ.get("TILEWISE_FLASH_ATTN_STRICT", "")
    if value not in _VALUES:
        raise ValueError(f"TILEWISE_FLASH_ATTN_STRICT: must be 0 or 1 (got {value!r})")
    return _VALUES[value]
