# score_mod and mask_mod as callers give them, brought to what the core takes: texts and the tensors they look up.
"""Functions of scores among attention's arguments."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple, Optional

from tilewise._block_mask import BlockMask, taken
from tilewise.expression import Traced, traced


class Functions(NamedTuple):
    """Texts, "" where there is none, and the captured tensors of both: table0 and on. block_mask has no mask_mod
    of its own left."""

    score_mod: str
    mask_mod: str
    tables: tuple[Any, ...]
    block_mask: Optional[BlockMask] = None


def score_functions(score_mod: Any = None, mask_mod: Any = None, block_mask: Any = None) -> Optional[Functions]:
    """Of a Python function, what trace() made of one, or text; None where nothing is given."""
    if score_mod is None and mask_mod is None and block_mask is None:
        return None
    if block_mask is not None:
        block_mask = taken(block_mask)
        if mask_mod is not None:
            raise ValueError("mask_mod: must be None beside a block_mask, which has its own (got one)")
        mask_mod, block_mask = block_mask.mask_mod, BlockMask(None, *block_mask[1:])
    score_text, score_tables = traced_function("score_mod", score_mod)
    if mask_mod is None:
        return Functions(score_text, "", score_tables, block_mask)
    mask_text, mask_tables = traced_function("mask_mod", mask_mod)
    if score_tables and mask_text:
        mask_text = _with_later_tables(mask_text, len(score_tables))
    return Functions(score_text, mask_text, score_tables + mask_tables, block_mask)


@functools.lru_cache(maxsize=256)
def _with_later_tables(text: str, first: int) -> str:
    return re.sub(r"\btable(\d+)\[", lambda found: f"table{int(found[1]) + first}[", text)


def traced_function(name: str, function: Any) -> tuple[str, tuple[Any, ...]]:
    """Its text and what it captures."""
    if function is None:
        return "", ()
    if isinstance(function, str):
        if not function.strip():
            raise ValueError(f"{name}: must be an expression (got {function!r})")
        return function, ()
    if type(function) is not Traced:
        if not callable(function):
            raise TypeError(f"{name}: must be a function or an expression's text (got {type(function).__name__})")
        function = traced(function)
    own, text, tables = function
    if own != name:
        raise TypeError(f"{name}: must be a function of a {name}'s arguments (got a {own})")
    return text, tables
