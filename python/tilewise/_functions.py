# score_mod and mask_mod as callers give them, brought to what the core takes: texts and the tensors they look up.
"""Functions of scores among attention's arguments."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional


class Functions(NamedTuple):
    """Texts, "" where there is none, and the captured tensors of both: table0 and on."""

    score_mod: str
    mask_mod: str
    tables: tuple[Any, ...]


def score_functions(score_mod: Any, mask_mod: Any) -> Optional[Functions]:
    """Of a Python function, what trace() made of one, or text; None where neither is given."""
    if score_mod is None and mask_mod is None:
        return None
    score_text, score_tables = _traced("score_mod", score_mod)
    mask_text, mask_tables = _traced("mask_mod", mask_mod)
    first = len(score_tables)
    mask_text = re.sub(r"\btable(\d+)\[", lambda found: f"table{int(found[1]) + first}[", mask_text)
    return Functions(score_text, mask_text, score_tables + mask_tables)


def _traced(name: str, function: Any) -> tuple[str, tuple[Any, ...]]:
    from tilewise.expression import Traced, trace

    if function is None:
        return "", ()
    if isinstance(function, str):
        if not function.strip():
            raise ValueError(f"{name}: must be an expression (got {function!r})")
        return function, ()
    if not isinstance(function, Traced):
        if not callable(function):
            raise TypeError(f"{name}: must be a function or an expression's text (got {type(function).__name__})")
        function = trace(function)
    if function.function != name:
        raise TypeError(f"{name}: must be a function of a {name}'s arguments (got a {function.function})")
    return function.text, function.tables
