# Python functions of scores as expressions: the public side of tracing.
"""Functions of attention scores as values.

``trace`` runs a function of FlexAttention's signature once, on stand-ins for its arguments, and returns what it
computes as an expression: one line of text, and the tensors it looks things up in. docs/expressions.md says what
expressions are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from tilewise._captured import remembered
from tilewise._public import lists_public_names
from tilewise._tracing import TraceError, Tracer

__all__ = ["TraceError", "Traced", "trace"]
__dir__ = lists_public_names(__all__)

_ARGUMENTS = {
    "score_mod": ("score", "b", "h", "q_idx", "kv_idx"),
    "mask_mod": ("b", "h", "q_idx", "kv_idx"),
}


class Traced(NamedTuple):
    """What a function computes.

    Attributes:
        function: "score_mod" or "mask_mod".
        text: The expression's canonical text, in which the tensors are table0, table1, ...
        tables: The captured tensors, each the one that the function has, with 1 to 4 dimensions.
    """

    function: str
    text: str
    tables: tuple[Any, ...]


def trace(function: Callable[..., Any]) -> Traced:
    """Traces a score_mod(score, b, h, q_idx, kv_idx) or a mask_mod(b, h, q_idx, kv_idx).

    The function runs once. It may use Python's arithmetic and comparisons, ``&``, ``|`` and ``~``, ``abs``, torch's
    functions and methods for the same, ``torch.where``, ``minimum``, ``maximum``, ``clamp``, ``exp``, ``exp2``,
    ``log`` and ``tanh``, and indexing of torch tensors that it captures, down to one element. Those
    are taken as they are: what is written into them later counts. What Python itself decides on numbers of its own (a
    loop over a fixed range, an ``if`` on a captured flag) is decided while tracing.

    Args:
        function: Takes five arguments, of which the first is the score, and gives a score; or takes four, and gives
            whether the key is visible. Arguments with defaults keep them.

    Returns:
        The expression's text and the captured tensors.

    Raises:
        TraceError: The function does something that no expression does; the message has the file, the line and its
            text. It is a ValueError.
        TypeError: The function takes another number of arguments.
    """
    return _traced(function)[0]


def traced(function: Callable[..., Any], device: Any = None, from_the_end: bool = False) -> Traced:
    """trace() with options of the Tracer, from an earlier trace where that gives the same."""
    made: Traced = remembered(function, (device, from_the_end), _traced)
    return made


def _traced(function: Callable[..., Any], device: Any = None, from_the_end: bool = False) -> tuple[Traced, Tracer]:
    try:
        parameters = inspect.signature(function).parameters.values()
        count = sum(parameter.default is parameter.empty for parameter in parameters)
    except (TypeError, ValueError):
        count = -1  # no function, or one that does not tell
    name = {len(arguments): name for name, arguments in _ARGUMENTS.items()}.get(count)
    if name is None:
        got = type(function).__name__ if count < 0 else f"one of {count}"
        raise TypeError(f"function: must take score, b, h, q_idx and kv_idx, or b, h, q_idx and kv_idx (got {got})")
    tracer = Tracer(name, device, from_the_end)
    text = tracer.run(function, _ARGUMENTS[name])
    return Traced(name, text, tuple(tracer.tables)), tracer
