# Where operations that are stated by a schema go once their arguments have one form: to the module of the arrays' kind.
"""Calls of operations by the kind of their arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tilewise import _arrays
from tilewise._attention import torch_backend
from tilewise._calls import CALLS


def is_traced() -> bool:
    """Whether a compiler of torch's looks on."""
    backend = torch_backend()
    return backend is not None and backend.compiling()


def call_packed(operation: str, inputs: dict[str, Any], fields: dict[str, Any]) -> Any:
    """The outputs of an eager call on torch tensors that no gradient or transform looks at, some 10 us faster than
    call(); None of another one, or one that is refused, for which call() is there.

    inputs: By name, None where not given. fields: All else; a dictionary that stays as it is.
    """
    backend = torch_backend()
    if backend is None or backend.compiling():
        return None
    return backend.OPERATIONS[operation].run_packed(inputs, fields)


def call(
    operation: str, given: dict[str, Any], out: dict[str, Any], forward_only: Sequence[str] = ()
) -> tuple[Any, ...]:
    """The outputs in the schema's order.

    given: Inputs, fields, choices and implementation by name. out: Outputs that there are, or None. forward_only: Those
    of given that gradients would need and the backward call does not take.
    """
    first = given[CALLS[operation].inputs[0].name]
    backend = torch_backend()
    if backend is not None and isinstance(first, backend.Tensor):
        return tuple(backend.OPERATIONS[operation](given, out, forward_only))
    jax = sys.modules.get("tilewise.jax")  # without it JAX's arrays are borrowed as others are
    if jax is not None and jax.is_array(first) and all(value is None for value in out.values()):
        return tuple(jax.run_operation(operation, given, forward_only))
    return _arrays.call(operation, given, out)
