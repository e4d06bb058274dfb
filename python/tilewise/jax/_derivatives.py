# The two passes as functions of JAX, and the rule that joins them. All are made once for each kind of call, so that JAX
# finds again what it has compiled.
"""Attention as a differentiable function of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tilewise.jax._batching import with_vmap
from tilewise.jax._calls import NO_DERIVATIVE, Call, Result, Wanted, attributes_of, custom_call, forward_results
from tilewise.jax._functions import is_table

_DIFFERENTIABLE = ("q", "k", "v", "bias", "sink")
_KINDS = 1024  # of calls, that are remembered


def _custom_call(name: str, call: Call, results: Sequence[Result]) -> Callable[..., Any]:
    return custom_call(f"tilewise_attention_{name}", attributes_of(call), call.names, results, NO_DERIVATIVE)


@functools.lru_cache(_KINDS)
def forward(call: Call, return_lse: bool) -> Callable[..., Any]:
    """The function from arrays to (out,) or (out, softmax_lse)."""

    def run(*arrays: Any) -> Any:
        results = forward_results(call, arrays)[: 1 + return_lse]
        return _custom_call("forward", call, results)(*arrays)

    names = ("out", "softmax_lse")[: 1 + return_lse]
    return with_vmap(run, lambda other: forward(other, return_lse), call, names)


@functools.lru_cache(_KINDS)
def backward(call: Call, wanted: Wanted) -> Callable[..., Any]:
    """The function from arrays to the gradients that are wanted, a tuple in their order.

    call.names has what a backward pass reads besides: dout, out, softmax_lse and perhaps dlse.
    """

    def run(*arrays: Any) -> Any:
        given = dict(zip(call.names, arrays))
        results = [Result(f"d{name}", given[name].shape, given[name].dtype) for name in wanted]
        return _custom_call("backward", call, results)(*arrays)

    return with_vmap(run, lambda other: backward(other, wanted), call, tuple(f"d{name}" for name in wanted))


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


def _gradients(call: Call, wanted: Wanted, arrays: tuple[Any, ...], results: Any, cotangents: Any) -> tuple[Any, ...]:
    """One for each array of the call; None where none is wanted."""
    out, lse = results
    dout, dlse = cotangents
    if not wanted or (_is_zero(dout) and _is_zero(dlse)):
        return (None,) * len(arrays)
    given = {**dict(zip(call.names, arrays)), "out": out, "softmax_lse": lse}
    given["dout"] = jnp.zeros_like(out) if _is_zero(dout) else dout
    if not _is_zero(dlse):
        given["dlse"] = dlse
    made = backward(call._replace(names=tuple(given)), wanted)(*given.values())
    gradients = dict(zip(wanted, made))
    return tuple(gradients.get(name) for name in call.names)


@functools.lru_cache(_KINDS)
def differentiable(call: Call, return_lse: bool) -> Callable[..., Any]:
    """attention() as a function of call.names' arrays; its result is out, or (out, softmax_lse)."""

    @jax.custom_vjp
    def tilewise_attention(*arrays: Any) -> Any:
        results = forward(call, return_lse)(*arrays)
        return results if return_lse else results[0]

    def remember(*primals: Any) -> Any:
        arrays = tuple(primal.value for primal in primals)
        for name, primal in zip(call.names, primals):
            if primal.perturbed and is_table(name) and jnp.issubdtype(primal.value.dtype, jnp.floating):
                raise NotImplementedError(f"{name}: has no gradient in tilewise.jax; give jax.lax.stop_gradient of it")
        wanted = Wanted(n for n, p in zip(call.names, primals) if p.perturbed and n in _DIFFERENTIABLE)
        results = forward(call, True)(*arrays)
        wanted = Wanted(n for n in wanted if jnp.issubdtype(arrays[call.names.index(n)].dtype, jnp.floating))
        return results if return_lse else results[0], (wanted, arrays, results)

    def pull_back(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        wanted, arrays, results = residuals
        if not return_lse:
            cotangents = (cotangents, jax.custom_derivatives.SymbolicZero(jax.typeof(results[1])))
        return _gradients(call, wanted, arrays, results, cotangents)

    tilewise_attention.defvjp(remember, pull_back, symbolic_zeros=True)
    return jax.jit(tilewise_attention)
