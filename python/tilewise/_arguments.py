# Arguments of the public functions, brought to one form for every kind of array. Ranges and
# combinations are the core's to judge; here stand only Python's types and the known names.
"""Normalisation of arguments."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tilewise import _core
from tilewise._keywords import nearest_word

LAYOUT_NAMES = tuple(_core.layout_names())
LAYOUTS: dict[str, str] = {name: name for name in LAYOUT_NAMES}
ALIGNMENTS: dict[str, bool] = {"bottom_right": False, "top_left": True}  # value: top_left
MASKS: dict[Optional[str], tuple[bool, bool]] = {  # value: causal, and whether that sets top_left
    None: (False, False),
    "causal": (True, False),
    "causal_top_left": (True, True),
}


def _is_bool(value: Any) -> bool:
    """Whether `value` is a truth value, from whatever library: those count as numbers, but are not meant as such."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def number(name: str, value: Any) -> float:
    """`value` as a float; TypeError where it is no real number."""
    if type(value) is float:
        return value
    imaginary = isinstance(value, (complex, np.complexfloating))  # NumPy's would be cut to their real parts
    if hasattr(value, "requires_grad") and "torch" in sys.modules:  # a tensor, whose derivatives would be lost
        from tilewise._torch.refusals import refuse_gradient, refuse_tangents

        refuse_gradient(name, value)
        refuse_tangents([(name, value)])
    if (isinstance(value, (float, int)) or hasattr(value, "__float__")) and not (imaginary or _is_bool(value)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass  # such as an array of more than one
    raise TypeError(f"{name}: must be a number (got {type(value).__name__})")


def integer(name: str, value: Any) -> int:
    """`value` as an int; TypeError where it is no integer, ValueError beyond 64 bits."""
    if type(value) is int and -(2**31) <= value < 2**31:  # nearly always
        return value
    index = _index(name, value, "an integer")
    if not -(2**63) <= index < 2**63:
        raise ValueError(f"{name}: must fit in 64 bits (got {index})")
    return index


def _index(name: str, value: Any, expected: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if not _is_bool(value):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name}: must be {expected} (got {type(value).__name__})")


def flag(name: str, value: Any) -> bool:
    """`value` as a bool if it is one, NumPy's own too; TypeError otherwise."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(f"{name}: must be True or False (got {type(value).__name__})")


def named(name: str, value: Any, known: Mapping[Any, Any], advice: str = "") -> Any:
    """What `known` holds under `value`; TypeError or ValueError, with `advice`, where that is no known name."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}: must be one of {listed(known)}{advice} (got {type(value).__name__})")
    if value not in known:
        raise ValueError(f"{name}: must be one of {listed(known)}{advice or _meant(value, known)} (got {value!r})")
    return known[value]


def _meant(value: Optional[str], known: Mapping[Any, Any]) -> str:
    """Which name a mistyped one was probably meant to be."""
    near = nearest_word(value or "", [name for name in known if name is not None])
    return f"; did you mean {near!r}?" if near else ""


def mask_advice(mask: Any) -> str:
    """What to say to a `mask` that came as other libraries take it."""
    if _is_bool(mask) and not getattr(mask, "shape", ()):
        return '; "causal" stands for True and None for False'
    if hasattr(mask, "shape") or isinstance(mask, (list, tuple)):
        return "; an array is given as bias=, bool (true = visible) or numbers added to the scores"
    return ""


def listed(known: Mapping[Any, Any]) -> str:
    return ", ".join(repr(name) for name in known)


def implementation_name(implementation: Any) -> Optional[str]:
    """The name of an implementation or None; the core knows which exist."""
    if implementation is not None and not isinstance(implementation, str):
        raise TypeError(f"implementation: must be a name or None (got {type(implementation).__name__})")
    return implementation


_CORE_DTYPES = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
}


def dtype_name(name: str, dtype: Any, known: Sequence[str]) -> Optional[str]:
    """The core's name of a dtype of torch or NumPy, or of its name; None for None. ValueError for one not `known`."""
    if dtype is None:
        return None
    word = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    word = word.removeprefix("torch.")
    if word not in known:
        raise ValueError(f"{name}: must be {', '.join(known[:-1])} or {known[-1]} (got {word})")
    return _CORE_DTYPES[word]


def is_number(value: Any) -> bool:
    """Whether an argument that may be a number or an array is meant as a number."""
    # Of the symbolic integers of torch.compile no attribute can be asked for, but they are integers.
    return isinstance(value, (int, float)) or (value is not None and not hasattr(value, "__dlpack__"))


def without_number(value: Any) -> Any:
    """What stands among the ARRAYS for an argument that may be a number instead: then it stands in the TAIL."""
    return None if is_number(value) else value


def window_pair(window: Any) -> tuple[int, int]:
    """(left, right) of a window; -1 stands for unbounded."""
    if not isinstance(window, (tuple, list)):
        raise TypeError(f"window: must be a pair (left, right) of integers (got {type(window).__name__})")
    if any(side is None for side in window):
        raise TypeError("window: must be a pair (left, right) of integers, -1 for unbounded (got None)")
    if len(window) != 2:
        raise ValueError(f"window: must be a pair (left, right) of integers (got {len(window)} values)")
    return integer("window[0]", window[0]), integer("window[1]", window[1])


def seed_value(seed: Any) -> int:
    """An integer seed in torch.manual_seed's range, folded into 64 signed bits."""
    value = _index("seed", seed, "an integer or an int64 tensor [2] of seed and offset")
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"seed: must be at least -2**63 and less than 2**64 (got {value})")
    return value - 2**64 if value >= 2**63 else value
