# A user's score_mod or mask_mod as an expression that means what torch has it mean.
"""Tracing of the drop-in's functions."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tilewise.compat._names import renamed
from tilewise.expression import Traced
from tilewise.expression import traced as _traced

_DEPTH = 4  # of functions within functions that are searched for a tensor


def traced(name: str, function: Callable[..., Any], device: torch.device) -> Traced:
    """`function` as an expression; TraceError where it is none, NotImplementedError where it asks for gradients."""
    if not callable(function):
        raise TypeError(f"{name}: must be a function (got {type(function).__name__})")
    try:
        found = _traced(function, device=device, from_the_end=True)
    except TypeError as error:  # of its arguments
        raise renamed(error, {"function": name}) from None
    if found.function != name:
        raise TypeError(f"{name}: must be a function of a {name}'s arguments (got a {found.function})")
    for number, table in enumerate(found.tables):
        if table.requires_grad and torch.is_grad_enabled():
            called = name_of(function, table) or f"table{number}"
            raise NotImplementedError(f"{name}: {called} must not require a gradient, captured tensors have none here")
    return found


def name_of(function: Callable[..., Any], tensor: Tensor) -> str:
    """What `function` calls a tensor that it has captured, "" where that is not found."""
    return next((name for name, value in _captured(function, _DEPTH) if _is_same(value, tensor)), "")


def _is_same(value: Any, tensor: Tensor) -> bool:
    """A tensor of one number is looked up as one of one dimension."""
    if value is tensor:
        return True
    return isinstance(value, Tensor) and value.dim() == 0 and value.data_ptr() == tensor.data_ptr()


def _captured(function: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Names and values of a function's variables from outside, of functions among them too."""
    if not isinstance(function, types.FunctionType) or depth == 0:
        return
    variables = {
        name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__
    }
    variables |= {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())
        if cell != types.CellType()  # not assigned yet
    }
    yield from variables.items()
    for value in variables.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            yield from _captured(inner, depth - 1)
