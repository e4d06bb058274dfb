# Operations that are stated by a schema, as functions of JAX: what follows from the core's description of each. A call
# is made once for each kind, so that JAX finds again what it has compiled.
"""Linear layers, experts, routing and quantised numbers under JAX."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from tilewise import _calls, _core
from tilewise._arrays import PAIRS
from tilewise._keywords import FunctionT
from tilewise._kinds import type_name
from tilewise.jax._batching import looped
from tilewise.jax._calls import DTYPES, Result, Wanted, alike, custom_call

_KINDS = 1024  # of calls, that are remembered
_DTYPES = DTYPES | {"float8_e8m0fnu": "fp8_e8m0"}
_JAX_DTYPES = {ours: theirs for theirs, ours in _DTYPES.items()} | {PAIRS: "uint8"}
_KINDS_OF_ATTRIBUTES = {"bool": np.bool_, "int": np.int64, "float": np.float64, "str": str}
# What has no gradient because the result does not change with it.
_CONSTANT = {"route": ("bias",)}


class Call(NamedTuple):
    """A call but for its arrays; hashable."""

    name: str  # of the kind of call
    values: tuple[tuple[str, Any], ...]  # fields, choices and implementation by name
    names: tuple[str, ...]  # of the arrays that are given
    forward_only: tuple[str, ...] = ()

    @property
    def kind(self) -> _calls.Call:
        return _calls.CALLS[self.name]


def _planned(name: str, shape: Sequence[int], dtype: str) -> _core.Array:
    return _core.Array.planned(name, list(shape), dtype)


def results_of(call: Call, arrays: Sequence[Any], wanted: Optional[Sequence[str]] = None) -> list[Result]:
    """What the call writes, or what is wanted of it. Checks the whole call, in the core's words."""
    values, kind = dict(call.values), call.kind
    views = {n: _planned(n, a.shape, _DTYPES.get(a.dtype.name, a.dtype.name)) for n, a in zip(call.names, arrays)}
    fields = {field.name: values[field.name] for field in kind.fields}
    tensors = {tensor.name: views.get(tensor.name) for tensor in (*kind.inputs, *kind.outputs)}
    results = []
    for output in _calls.planned_outputs(call.name, values, **tensors, **fields):
        if wanted is not None and output.name not in wanted:
            continue
        views[output.name] = _planned(output.name, output.shape, output.dtype)
        dtype = jnp.dtype(_JAX_DTYPES[output.dtype])
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError(f"{output.name}: {dtype.name} needs jax_enable_x64 (got it without)")
        shape = tuple(output.shape)
        results.append(Result(output.name, (*shape[:-1], shape[-1] // 2) if output.dtype == PAIRS else shape, dtype))
    getattr(_core, f"{call.name}_check")(views, fields, values["implementation"] or "")
    return results


def _attributes(call: Call) -> dict[str, Any]:
    values = dict(call.values)
    fields = {field.name: _KINDS_OF_ATTRIBUTES[field.type](values[field.name]) for field in call.kind.fields}
    return {**fields, "implementation": values["implementation"] or ""}


@functools.lru_cache(_KINDS)
def _run(call: Call, wanted: Optional[Wanted] = None) -> Callable[..., Any]:
    """The function from arrays to the tuple of results. Mapped, it computes one after another."""

    def run(*arrays: Any) -> Any:
        results = results_of(call, arrays, wanted)
        refusal = f"tilewise.jax: {call.name} has one reverse pass, for jax.grad and jax.vjp, and no other derivative"
        return custom_call(f"tilewise_{call.name}", _attributes(call), call.names, results, refusal)(*arrays)

    return looped(run)


def _check_gradients(call: Call, gradients: dict[str, str], perturbed: Sequence[str], arrays: dict[str, Any]) -> None:
    for name in perturbed:
        if name in gradients or name in _CONSTANT.get(call.name, ()):
            continue
        if jnp.issubdtype(arrays[name].dtype, jnp.inexact):
            raise NotImplementedError(f"{name}: has no gradient; pass jax.lax.stop_gradient({name})")
    if perturbed and call.forward_only:
        raise NotImplementedError(f"{call.forward_only[0]}: has no backward pass; call it on what wants no gradient")


@functools.lru_cache(_KINDS)
def _differentiable(call: Call) -> Callable[..., Any]:
    backward = _calls.CALLS.get(f"{call.name}_backward")
    inputs = () if backward is None else backward.inputs
    outputs = [tensor.name for tensor in call.kind.outputs]
    cotangent_of = {tensor.derivative_of: tensor for tensor in inputs if tensor.derivative_of in outputs}
    gradients = {} if backward is None else {tensor.derivative_of: tensor.name for tensor in backward.outputs}

    @jax.custom_vjp
    def tilewise_call(*arrays: Any) -> Any:
        return _run(call)(*arrays)

    def remember(*primals: Any) -> Any:
        arrays = {name: primal.value for name, primal in zip(call.names, primals)}
        perturbed = [name for name, primal in zip(call.names, primals) if primal.perturbed]
        _check_gradients(call, gradients, perturbed, arrays)
        results = _run(call)(*arrays.values())
        wanted = Wanted(gradients[name] for name in perturbed if name in gradients)
        return results, (wanted, tuple(arrays.values()), results)

    def pull_back(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        wanted, arrays, results = residuals
        if not wanted or backward is None:
            return (None,) * len(arrays)
        there = {**dict(zip(call.names, arrays)), **dict(zip(outputs, results))}
        for name, cotangent, result in zip(outputs, cotangents, results):
            if name in cotangent_of:
                zero = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
                there[cotangent_of[name].name] = jnp.zeros_like(result) if zero else cotangent
        given = {tensor.name: there[tensor.name] for tensor in backward.inputs if tensor.name in there}
        stated = {field.name for field in backward.fields} | {"implementation"}
        values = tuple((name, value) for name, value in call.values if name in stated)
        made = _run(Call(backward.name, values, tuple(given)), wanted)(*given.values())
        found = dict(zip((tensor.name for tensor in backward.outputs if tensor.name in wanted), made))
        return tuple(found.get(gradients.get(name, "")) for name in call.names)

    tilewise_call.defvjp(remember, pull_back, symbolic_zeros=True)
    return jax.jit(tilewise_call)


def is_array(value: Any) -> bool:
    """Whether it is JAX's, traced or not."""
    return isinstance(value, jax.Array)


def run_operation(operation: str, given: dict[str, Any], forward_only: Sequence[str]) -> tuple[Any, ...]:
    """The outputs of a call in the schema's order. given: inputs, fields, choices and implementation by name."""
    kind = _calls.CALLS[operation]
    arrays = {tensor.name: given[tensor.name] for tensor in kind.inputs if given.get(tensor.name) is not None}
    for tensor in kind.inputs:
        if tensor.name not in arrays and not tensor.optional:
            raise TypeError(f"{tensor.name}: must be an array (got None)")
    names = [field.name for field in (*kind.fields, *kind.choices)] + ["implementation"]
    for name in names:
        if isinstance(given.get(name), jax.core.Tracer):
            raise TypeError(f"{name}: must be known while JAX traces, as it is compiled in (got a traced one)")
    values = tuple((name, given.get(name)) for name in names)
    call = Call(operation, values, tuple(arrays), tuple(forward_only))
    operands = alike([_array(name, array) for name, array in arrays.items()])
    results_of(call, operands)  # its checks, before JAX's own words
    return tuple(_differentiable(call)(*operands))


def of_jax(function: FunctionT) -> FunctionT:
    """A function of tilewise for arrays of JAX, and of NumPy as such; its results are new arrays."""
    name = function.__name__
    first = next(iter(inspect.signature(function).parameters))
    outputs = [tensor.name for tensor in _calls.CALLS["linear" if name == "grouped_linear" else name].outputs]

    @functools.wraps(function)
    def on_jax(*arguments: Any, **options: Any) -> Any:
        for output in outputs:
            if options.get(output) is not None:
                raise ValueError(f"{output}: must not be given, since arrays of JAX never change (got an array)")
        if arguments:
            arguments = (_array(first, arguments[0]), *arguments[1:])
        elif first in options:
            options[first] = _array(first, options[first])
        return function(*arguments, **options)

    return on_jax  # type: ignore[return-value]


def _array(name: str, array: Any) -> jax.Array:
    if not isinstance(array, (jax.Array, np.ndarray)):
        raise TypeError(f"{name}: must be an array of JAX or NumPy (got {type_name(array)})")
    return jnp.asarray(array)
