# Arguments of the public functions, brought to one form for every kind of array. Ranges and
# combinations are the core's to judge; here stand only Python's types and the known names.
"""Normalisation of attention's arguments."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

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

GRADIENTS: dict[str, int] = {name: place for place, name in enumerate(("dq", "dk", "dv", "dbias", "dsink"))}

# What the operators for calls without rarer options take instead of mask and layout: 2 * layout + causal.
FORMS: dict[tuple[Optional[str], str], int] = {
    (mask, layout): 2 * number + causal
    for mask, (causal, top_left) in MASKS.items()
    if not top_left
    for number, layout in enumerate(LAYOUT_NAMES)
}


class Options(NamedTuple):
    """Everything about a call but q, k, v and the outputs, in the order of the torch operators' schema.

    First the HEAD that most calls are content with, then ARRAYS, each of them optional, then the TAIL.
    """

    causal: bool = False
    softmax_scale: Optional[float] = None
    layout: str = "bshd"
    bias: Any = None
    sink: Any = None
    alibi_slopes: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    seqused_q: Any = None
    seqused_k: Any = None
    leftpad_k: Any = None
    q_scale: Any = None
    k_scale: Any = None
    v_scale: Any = None
    seed_and_offset: Any = None
    seed: int = 0
    max_seqlen_q: Optional[int] = None
    max_seqlen_k: Optional[int] = None
    top_left: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    dropout_p: float = 0.0
    deterministic: bool = False
    batch_invariant: bool = False
    q_scale_value: Optional[float] = None
    k_scale_value: Optional[float] = None
    v_scale_value: Optional[float] = None
    implementation: Optional[str] = None


class Short(NamedTuple):
    """What the short operators take, in the order of their schema."""

    form: int
    softmax_scale: Optional[float]
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    window_left: int
    window_right: int
    softcap: float

    def options(self) -> tuple[Any, ...]:
        """The Options that they are short for."""
        causal, layout = form_parts(self.form)
        return Options(causal=causal, layout=layout, **{name: getattr(self, name) for name in self._fields[1:]})


def short_options(options: tuple[Any, ...]) -> Optional[tuple[Any, ...]]:
    """Short of a call whose Options have nothing else, as a plain tuple; None of others."""
    causal, softmax_scale, layout, bias, sink, alibi_slopes, cu_seqlens_q, cu_seqlens_k, *others = options
    (
        seqused_q, seqused_k, leftpad_k, q_scale, k_scale, v_scale, seed_and_offset, _, max_seqlen_q, max_seqlen_k,
        top_left, window_left, window_right, softcap, dropout_p, deterministic, batch_invariant, q_value, k_value,
        v_value, implementation,
    ) = others  # fmt: skip
    if (
        bias is sink is alibi_slopes is seqused_q is seqused_k is leftpad_k is q_scale is k_scale is v_scale is None
        and seed_and_offset is q_value is k_value is v_value is implementation is None
        and not (top_left or dropout_p or deterministic or batch_invariant)
    ):
        form = FORMS["causal" if causal else None, layout]
        return (
            form, softmax_scale, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, window_left, window_right,
            softcap,
        )  # fmt: skip
    return None


HEAD = slice(0, 3)
ARRAYS = slice(3, 15)
TAIL = slice(15, None)
ARRAY_NAMES = Options._fields[3:14]  # the optional arrays of attention(), seed apart
NO_SCALES = (None, None, None)  # of q, k and v, as ARRAYS and in the TAIL: none but in fp8
NO_ARRAYS = (None,) * len(ARRAY_NAMES)
_DEFAULTS: tuple[Any, ...] = Options()
DEFAULT_TAIL = _DEFAULTS[TAIL]
DROPOUT_IN_TAIL = Options._fields[TAIL].index("dropout_p")


def form_parts(form: int) -> tuple[bool, str]:
    """(causal, layout) of one of the FORMS."""
    return bool(form & 1), LAYOUT_NAMES[form >> 1]


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
        raise TypeError(f"{name}: must be one of {_listed(known)}{advice} (got {type(value).__name__})")
    if value not in known:
        raise ValueError(f"{name}: must be one of {_listed(known)}{advice or _meant(value, known)} (got {value!r})")
    return known[value]


def _meant(value: Optional[str], known: Mapping[Any, Any]) -> str:
    """Which name a mistyped one was probably meant to be."""
    near = nearest_word(value or "", [name for name in known if name is not None])
    return f"; did you mean {near!r}?" if near else ""


def _mask_advice(mask: Any) -> str:
    """What to say to a `mask` that came as other libraries take it."""
    if _is_bool(mask) and not getattr(mask, "shape", ()):
        return '; "causal" stands for True and None for False'
    if hasattr(mask, "shape") or isinstance(mask, (list, tuple)):
        return "; an array is given as bias=, bool (true = visible) or numbers added to the scores"
    return ""


def _listed(known: Mapping[Any, Any]) -> str:
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


def head_and_tail(
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
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> tuple[tuple[Any, ...], Optional[tuple[Any, ...]]]:
    """HEAD and TAIL of the call's Options; None stands for a TAIL of defaults."""
    rest = (
        alignment, window, softcap, dropout_p, max_seqlen_q, max_seqlen_k, deterministic, batch_invariant,
        implementation,
    )  # fmt: skip
    scales: tuple[Optional[float], ...] = NO_SCALES
    if not (q_scale is k_scale is v_scale is None):
        given = (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale))
        scales = tuple(number(name, scale) if is_number(scale) else None for name, scale in given)
    if softmax_scale is not None:
        softmax_scale = number("softmax_scale", softmax_scale)
    try:  # the usual call, at a tenth of the cost
        causal, mask_is_top_left = MASKS[mask]
        flags_are_bools = deterministic is False and batch_invariant is False
        numbers_are_bools = softcap is False or dropout_p is False
        if (
            rest == _DEFAULT_REST
            and scales == NO_SCALES
            and flags_are_bools
            and not (numbers_are_bools or mask_is_top_left)
        ):
            return (causal, softmax_scale, LAYOUTS[layout]), None
    except (KeyError, TypeError, ValueError, RuntimeError):
        pass  # something is no name or no number: the careful way says what
    advice = "" if mask is None or isinstance(mask, str) else _mask_advice(mask)
    causal, mask_is_top_left = named("mask", mask, MASKS, advice)
    head = (causal, softmax_scale, named("layout", layout, LAYOUTS))
    return head, _tail(mask_is_top_left, scales, *rest)


_DEFAULT_REST = ("bottom_right", (-1, -1), 0.0, 0.0, None, None, False, False, None)


def _tail(
    mask_is_top_left: bool,
    scales: tuple[Optional[float], ...],
    alignment: Any,
    window: Any,
    softcap: Any,
    dropout_p: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    deterministic: Any,
    batch_invariant: Any,
    implementation: Any,
) -> tuple[Any, ...]:
    left, right = window_pair(window)
    return (
        0,
        None if max_seqlen_q is None else integer("max_seqlen_q", max_seqlen_q),
        None if max_seqlen_k is None else integer("max_seqlen_k", max_seqlen_k),
        named("alignment", alignment, ALIGNMENTS) or mask_is_top_left,
        left,
        right,
        number("softcap", softcap),
        number("dropout_p", dropout_p),
        flag("deterministic", deterministic),
        flag("batch_invariant", batch_invariant),
        *scales,
        implementation_name(implementation),
    )


def with_seed(tail: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """TAIL with an integer seed, which is its first field."""
    return (seed, *tail[1:])


def wanted_gradients(gradients: Any, options: Options, bias_is_bool: bool) -> tuple[bool, ...]:
    """Which of the GRADIENTS a backward pass computes; None: all that there are."""
    if gradients is None:
        return True, True, True, options.bias is not None and not bias_is_bool, options.sink is not None
    if not isinstance(gradients, (tuple, list)):
        raise TypeError(f"gradients: must be a tuple or list of names (got {type(gradients).__name__})")
    places = [named(f"gradients[{i}]", name, GRADIENTS) for i, name in enumerate(gradients)]
    if not places:
        raise ValueError(f"gradients: must name at least one of {_listed(GRADIENTS)} (got none)")
    for name, value in (("bias", options.bias), ("sink", options.sink)):
        if value is None and GRADIENTS[f"d{name}"] in places:
            raise ValueError(f"gradients: 'd{name}' requires {name} (got None)")
    return tuple(place in places for place in GRADIENTS.values())
