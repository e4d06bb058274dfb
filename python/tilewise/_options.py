# Attention's options in all their forms: as type checkers see them, as operators take them, and from the first to the
# second.
"""Options of attention."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypedDict, Union

from tilewise._arguments import (
    ALIGNMENTS,
    LAYOUT_NAMES,
    LAYOUTS,
    MASKS,
    flag,
    implementation_name,
    integer,
    is_number,
    listed,
    mask_advice,
    named,
    number,
    window_pair,
    without_number,
)

if TYPE_CHECKING:
    from tilewise._types import Alignment, Array, Layout, Mask, ScoreFunction


class RowOptions(TypedDict, total=False):
    """Of a call of any kind, in JAX too. Arrays are of q's kind; see attention() for the meaning."""

    alignment: Alignment
    window: tuple[int, int]
    softcap: float
    bias: Optional[Array]
    alibi_slopes: Optional[Array]
    score_mod: Optional[ScoreFunction]
    mask_mod: Optional[ScoreFunction]
    block_mask: Optional[object]
    key_indices: Optional[Array]
    sink: Optional[Array]
    seed: Optional[Union[int, Array]]
    cu_seqlens_q: Optional[Array]
    cu_seqlens_k: Optional[Array]
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    seqused_q: Optional[Array]
    seqused_k: Optional[Array]
    leftpad_k: Optional[Array]
    batch_invariant: bool
    implementation: Optional[str]


class FormOptions(TypedDict, total=False):
    """What tilewise.nn.FlashAttention has of its own, or takes under another name."""

    mask: Mask
    softmax_scale: Optional[float]
    dropout_p: float
    layout: Layout
    deterministic: bool


class ScaleOptions(TypedDict, total=False):
    """Beside q, k and v in fp8."""

    q_scale: Optional[Union[float, Array]]
    k_scale: Optional[Union[float, Array]]
    v_scale: Optional[Union[float, Array]]


class JaxOptions(RowOptions, FormOptions, ScaleOptions, total=False):
    """Everything that tilewise.jax.attention() takes by keyword, return_lse apart."""


class ModuleOptions(RowOptions, ScaleOptions, total=False):
    """Everything that a call of tilewise.nn.FlashAttention takes by keyword, causal and return_lse apart."""

    out: Optional[Array]


class AttentionOptions(ModuleOptions, FormOptions, total=False):
    """Everything that attention() takes by keyword, return_lse apart."""


class AttendOptions(RowOptions, FormOptions, total=False):
    """Everything that attention_backward() takes as attention() took it."""


class BackwardOptions(AttendOptions, total=False):
    """Everything that attention_backward() takes by keyword, gradients apart."""

    dlse: Optional[Array]


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
    key_indices: Any = None
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
        seqused_q, seqused_k, leftpad_k, q_scale, k_scale, v_scale, key_indices, seed_and_offset, _, max_seqlen_q,
        max_seqlen_k, top_left, window_left, window_right, softcap, dropout_p, deterministic, batch_invariant, q_value,
        k_value, v_value, implementation,
    ) = others  # fmt: skip
    if (
        bias is sink is alibi_slopes is seqused_q is seqused_k is leftpad_k is q_scale is k_scale is v_scale is None
        and key_indices is seed_and_offset is q_value is k_value is v_value is implementation is None
        and not (top_left or dropout_p or deterministic or batch_invariant)
    ):
        form = FORMS["causal" if causal else None, layout]
        return (
            form, softmax_scale, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, window_left, window_right,
            softcap,
        )  # fmt: skip
    return None


_SEED = Options._fields.index("seed_and_offset")
HEAD = slice(0, 3)
ARRAYS = slice(3, _SEED + 1)
TAIL = slice(_SEED + 1, None)
ARRAY_NAMES = Options._fields[3:_SEED]  # the optional arrays of attention(), seed apart
NO_SCALES = (None, None, None)  # of q, k and v, as ARRAYS and in the TAIL: none but in fp8
NO_ARRAYS = (None,) * len(ARRAY_NAMES)
_DEFAULTS: tuple[Any, ...] = Options()
DEFAULT_TAIL = _DEFAULTS[TAIL]
# What follows in the Options of drop-ins, whose originals have nothing like it.
AFTER_SCALES = _DEFAULTS[Options._fields.index("v_scale") + 1 : _SEED]
AFTER_DETERMINISTIC = _DEFAULTS[Options._fields.index("deterministic") + 1 :]
DROPOUT_IN_TAIL = Options._fields[TAIL].index("dropout_p")


def form_parts(form: int) -> tuple[bool, str]:
    """(causal, layout) of one of the FORMS."""
    return bool(form & 1), LAYOUT_NAMES[form >> 1]


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
    advice = "" if mask is None or isinstance(mask, str) else mask_advice(mask)
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


_OF_HEAD_AND_TAIL = tuple(inspect.signature(head_and_tail).parameters)


def option_parts(given: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], Optional[tuple[Any, ...]]]:
    """HEAD, ARRAYS without the seed and TAIL of options by name; arrays that are not among them are None."""
    head, tail = head_and_tail(**{name: given[name] for name in _OF_HEAD_AND_TAIL if name in given})
    arrays = {name: given.get(name) for name in ARRAY_NAMES}
    for name in ("q_scale", "k_scale", "v_scale"):
        arrays[name] = without_number(arrays[name])
    return head, tuple(arrays.values()), tail


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
        raise ValueError(f"gradients: must name at least one of {listed(GRADIENTS)} (got none)")
    for name, value in (("bias", options.bias), ("sink", options.sink)):
        if value is None and GRADIENTS[f"d{name}"] in places:
            raise ValueError(f"gradients: 'd{name}' requires {name} (got None)")
    return tuple(place in places for place in GRADIENTS.values())
