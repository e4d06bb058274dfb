# score_mod, mask_mod and block masks as a call of XLA has them: texts that are compiled into it, and arrays beside q.
"""Functions of scores for JAX."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from tilewise._arrays import BLOCK_MASK_NAMES
from tilewise._functions import score_functions


class Functions(NamedTuple):
    """What does not change between calls; hashable."""

    score_mod: str = ""
    mask_mod: str = ""
    block_rows: int = 128
    block_keys: int = 128


def taken(score_mod: Any, mask_mod: Any, block_mask: Any) -> tuple[Optional[Functions], dict[str, Any]]:
    """None where there is none; and the arrays that go with them, by name."""
    given = score_functions(score_mod, mask_mod, block_mask)
    if given is None:
        return None, {}
    arrays = {f"table{i}": table for i, table in enumerate(given.tables)}
    if given.block_mask is None:
        return Functions(given.score_mod, given.mask_mod), arrays
    arrays |= zip(BLOCK_MASK_NAMES, given.block_mask.arrays())
    return Functions(given.score_mod, given.mask_mod, *given.block_mask.block_size), arrays


def is_table(name: str) -> bool:
    """Whether an array of a call is one that functions look up."""
    return name.startswith("table")


def core_values(functions: Optional[Functions], views: dict[str, Any]) -> dict[str, Any]:
    """Keywords of the core's options; their arrays are taken out of `views`."""
    tables = [views.pop(name) for name in list(views) if is_table(name)]
    lists = [views.pop(name) for name in BLOCK_MASK_NAMES if name in views]
    return {} if functions is None else {**functions._asdict(), "tables": tables, "block_mask": lists}
