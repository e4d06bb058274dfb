# vmap: the mapped dimension joins the batch where a call over a larger batch means the same; otherwise (packed input,
# dropout, a mapped sink or its gradient, scales of fp8, functions of scores) a loop computes one after another.
"""vmap rules of the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tilewise.jax._calls import Call

_BATCH_AXIS = {"bshd": 0, "sbhd": 1, "bhsd": 0}
_ROWS = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
_LOOPED = ("sink", "dsink", "q_scale", "k_scale", "v_scale")


class Fold:
    """Merges a mapped dimension, which stands in front, into the batch, and takes it out of results again."""

    def __init__(self, call: Call, size: int, arrays: dict[str, Any], mapped: dict[str, bool]) -> None:
        self.axis = _BATCH_AXIS[call.options.layout]
        self.size = size
        self.arrays = arrays
        self.mapped = mapped
        self.batch_size = arrays["q"].shape[self.axis + mapped["q"]]

    def own_shape(self, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.arrays[name].shape
        return shape[1:] if self.mapped[name] else shape

    def into(self, name: str, axis: int) -> Any:
        """An array with the batch in dimension `axis` of its own; one that is not mapped is repeated."""
        array, own = self.arrays[name], self.own_shape(name)
        if not self.mapped[name]:
            array = jnp.broadcast_to(array[None], (self.size, *own))
        return jnp.moveaxis(array, 0, axis).reshape(*own[:axis], self.size * own[axis], *own[axis + 1 :])

    def broadcast(self, name: str, rank: int, whole: bool) -> Any:
        """An array that broadcasts to `rank` dimensions, of which the first is the batch; `whole`: it must have it."""
        own = self.own_shape(name)
        array = self.arrays[name]
        lacks_batch = len(own) < rank or own[0] == 1
        if not self.mapped[name] and lacks_batch and not whole:
            return array
        front = (self.size,) if self.mapped[name] else (1,)
        array = array.reshape(*front, *[1] * (rank - len(own)), *own)
        array = jnp.broadcast_to(array, (self.size, self.batch_size, *array.shape[2:]))
        return array.reshape(-1, *array.shape[2:])

    def array(self, name: str, whole_bias: bool) -> Any:
        if name in _ROWS:
            return self.into(name, self.axis)
        if name == "bias":
            return self.broadcast(name, 4, whole_bias)
        if name == "alibi_slopes":
            return self.broadcast(name, 2, False)
        return self.arrays[name] if name in _LOOPED else self.into(name, 0)

    def result(self, name: str, array: Any) -> Any:
        """A result with the mapped dimension in front."""
        axis = self.axis if name in _ROWS else 0
        array = array.reshape(*array.shape[:axis], self.size, self.batch_size, *array.shape[axis + 1 :])
        if name != "dbias":
            return jnp.moveaxis(array, axis, 0)
        own = self.own_shape("bias")
        if len(own) < 4 or own[0] == 1:
            array = array.sum(axis=1, dtype=jnp.promote_types(array.dtype, jnp.float32)).astype(array.dtype)
        return array.reshape(self.size, *own)


def _loop(function: Callable[..., Any], mapped: Sequence[bool], arrays: Sequence[Any]) -> Any:
    def one(slices: list[Any]) -> Any:
        left = iter(slices)
        return function(*(next(left) if m else array for m, array in zip(mapped, arrays)))

    return jax.lax.map(one, [array for m, array in zip(mapped, arrays) if m])


def looped(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, whose vmap rule computes one after another."""
    function = jax.custom_batching.custom_vmap(run)

    @function.def_vmap
    def rule(size: int, in_mapped: Sequence[bool], *arrays: Any) -> Any:
        results = _loop(function, in_mapped, arrays)
        return results, tuple(True for _ in results)

    return function


def with_vmap(
    run: Callable[..., Any], again: Callable[[Call], Callable[..., Any]], call: Call, results: Sequence[str]
) -> Callable[..., Any]:
    """`run`, which makes the arrays `results` of call.names, with a vmap rule.

    `again` gives the like function of another call.
    """
    function = jax.custom_batching.custom_vmap(run)

    @function.def_vmap
    def rule(size: int, in_mapped: Sequence[bool], *arrays: Any) -> Any:
        mapped = dict(zip(call.names, in_mapped))
        options = call.options
        loops = any(mapped.get(name) for name in _LOOPED) or "dsink" in results or call.functions is not None
        if options.layout == "thd" or options.dropout_p != 0.0 or loops:
            made = _loop(function, in_mapped, arrays)
        else:
            fold = Fold(call, size, dict(zip(call.names, arrays)), mapped)
            folded = (fold.array(name, "dbias" in results) for name in call.names)
            made = tuple(map(fold.result, results, again(call)(*folded)))
        return made, tuple(True for _ in results)

    return function
