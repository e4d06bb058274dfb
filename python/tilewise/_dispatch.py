# Where operations that are stated by a schema go once their arguments have one form: to the module of the arrays' kind.
"""Calls of operations by the kind of their arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tilewise import _arrays
from tilewise._attention import _is_torch, _load_torch_backend
from tilewise._calls import CALLS


def call(
    operation: str, given: dict[str, Any], out: dict[str, Any], forward_only: Sequence[str] = ()
) -> tuple[Any, ...]:
    """The outputs in the schema's order.

    given: Inputs, fields, choices and implementation by name. out: Outputs that there are, or None. forward_only: Those
    of given that gradients would need and the backward call does not take.
    """
    first = given[CALLS[operation].inputs[0].name]
    if _is_torch(first):
        return tuple(_load_torch_backend().OPERATIONS[operation](given, out, forward_only))
    jax = sys.modules.get("tilewise.jax")  # without it JAX's arrays are borrowed as others are
    if jax is not None and jax.is_array(first) and all(value is None for value in out.values()):
        return tuple(jax.run_operation(operation, given, forward_only))
    return _arrays.call(operation, given, out)
