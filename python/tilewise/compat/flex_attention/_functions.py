# A user's score_mod or mask_mod as an expression that means what torch has it mean.
"""Tracing of the drop-in's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewise.compat._names import renamed
from tilewise.expression import Traced
from tilewise.expression import traced as _traced


def traced(name: str, function: Callable[..., Any], device: torch.device) -> Traced:
    """`function` as an expression; TraceError where it is none."""
    if not callable(function):
        raise TypeError(f"{name}: must be a function (got {type(function).__name__})")
    try:
        found = _traced(function, device=device, from_the_end=True)
    except TypeError as error:  # of its arguments
        raise renamed(error, {"function": name}) from None
    if found.function != name:
        raise TypeError(f"{name}: must be a function of a {name}'s arguments (got a {found.function})")
    return found
