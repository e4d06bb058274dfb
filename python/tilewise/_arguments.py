# Arguments of the public functions, brought to one form for every kind of array. Ranges and
# combinations are the core's to judge; here stand only Python's types and the known names.
"""Normalisation of attention's arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tilewise import _core

LAYOUTS: tuple[str, ...] = tuple(_core.layout_names())
MASKS: tuple[str, ...] = tuple(_core.mask_names())
ALIGNMENTS: tuple[str, ...] = tuple(_core.alignment_names())

# The optional arrays (seed apart), in the order of the torch operators' schema.
ARRAY_NAMES = (
    "bias", "sink", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k",
)  # fmt: skip


class Scalars(NamedTuple):
    """Every option of a call that is not an array, in the order of the torch operators' schema."""

    seed: int
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    layout: str
    mask: str
    alignment: str
    window_left: int
    window_right: int
    softmax_scale: Optional[float]
    softcap: float
    dropout_p: float
    deterministic: bool
    batch_invariant: bool
    implementation: str


def number(name: str, value: Any) -> float:
    """`value` as a float; TypeError where it is no number."""
    if isinstance(value, (float, int)):
        return float(value)
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"{name}: must be a number (got {type(value).__name__})")


def integer(name: str, value: Any) -> int:
    """`value` as an int; TypeError where it is no integer, ValueError beyond 64 bits."""
    if not isinstance(value, int):
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"{name}: must be an integer (got {type(value).__name__})") from None
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: must fit in 64 bits (got {value})")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """`value` if it is a bool; TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: must be True or False (got {type(value).__name__})")
    return value


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """`value` if it is a known name; TypeError or ValueError otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: must be one of {', '.join(known)} (got {type(value).__name__})")
    if value not in known:
        raise ValueError(f"{name}: must be one of {', '.join(known)} (got {value!r})")
    return value


def window_pair(window: Any) -> tuple[int, int]:
    """(left, right) of a window; -1 stands for unbounded."""
    if not isinstance(window, (tuple, list)):
        raise TypeError(f"window: must be a pair (left, right) of integers (got {type(window).__name__})")
    if len(window) != 2:
        raise ValueError(f"window: must be a pair (left, right) of integers (got {len(window)} values)")
    return integer("window[0]", window[0]), integer("window[1]", window[1])


def seed_value(seed: Any) -> int:
    """An integer seed in torch.manual_seed's range, as the 64 bits that two's complement gives it."""
    try:
        value = operator.index(seed)
    except TypeError:
        expected = "an integer or an int64 tensor [2] of seed and offset"
        raise TypeError(f"seed: must be {expected} (got {type(seed).__name__})") from None
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"seed: must be at least -2**63 and less than 2**64 (got {value})")
    return value - 2**64 if value >= 2**63 else value


def scalars(
    mask: Any,
    alignment: Any,
    window: Any,
    softmax_scale: Any,
    softcap: Any,
    dropout_p: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    layout: Any,
    deterministic: Any,
    batch_invariant: Any,
    implementation: Any,
) -> Scalars:
    """Checks types and names. The defaults are told by identity, so the usual call stays cheap."""
    left, right = window_pair(window)
    return Scalars(
        0,
        None if max_seqlen_q is None else integer("max_seqlen_q", max_seqlen_q),
        None if max_seqlen_k is None else integer("max_seqlen_k", max_seqlen_k),
        layout if layout == "bshd" else one_of("layout", layout, LAYOUTS),
        "none" if mask is None else one_of("mask", mask, MASKS),
        alignment if alignment == "bottom_right" else one_of("alignment", alignment, ALIGNMENTS),
        left,
        right,
        None if softmax_scale is None else number("softmax_scale", softmax_scale),
        number("softcap", softcap),
        number("dropout_p", dropout_p),
        flag("deterministic", deterministic),
        flag("batch_invariant", batch_invariant),
        "" if implementation is None else implementation_name(implementation),
    )


def implementation_name(implementation: Any) -> str:
    """The name of an implementation; the core knows which exist."""
    if not isinstance(implementation, str):
        raise TypeError(f"implementation: must be a name or None (got {type(implementation).__name__})")
    return implementation
