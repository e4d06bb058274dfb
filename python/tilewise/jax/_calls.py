# One custom call of XLA: what a call is while JAX traces it, the types of its results, and what its attributes say.
# Names of targets, arrays and attributes are those that the extension module reads.
"""Calls of the extension module from traced code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import jax
import numpy as np

from tilewise import _arrays, _core
from tilewise._options import Options
from tilewise.jax._functions import Functions, core_values

DTYPES = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "float8_e4m3fn": "fp8_e4m3",
}
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k")
_NUMBERS = ("softmax_scale", "softcap", "dropout_p", "q_scale_value", "k_scale_value", "v_scale_value")
_INTEGERS = ("window_left", "window_right", "max_seqlen_q", "max_seqlen_k")
_FLAGS = tuple(name for name, value in Options._field_defaults.items() if isinstance(value, bool))


class Call(NamedTuple):
    """A call but for its arrays; hashable, so that JAX compiles once for equal ones."""

    options: Options  # None in place of arrays
    names: tuple[str, ...]  # of the arrays: q, k, v and those among the options that are given
    functions: Optional[Functions] = None  # of scores


@jax.tree_util.register_static
class Wanted(tuple[str, ...]):
    """Names of the arrays whose gradients are asked for: nothing that JAX traces."""


class Result(NamedTuple):
    """An array that a call writes."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


def planned(name: str, array: Any) -> _core.Array:
    """`array` as the core's checks see it: shape and dtype, and contents where they are read."""
    shape = list(array.shape)
    if name == "seed_and_offset":  # four 32-bit words here
        return _core.Array.planned("seed", [2], "i64")
    if name in _LENGTHS and array.dtype == np.int32:  # 0 is right for every length
        return _core.Array(np.zeros(shape, np.int32), name)
    return _core.Array.planned(name, shape, DTYPES.get(array.dtype.name, array.dtype.name))


def _core_call(call: Call, arrays: Sequence[Any]) -> tuple[_core.Array, _core.Array, _core.Array, Any]:
    """q, k, v and the options for the core's checks."""
    views = {name: planned(name, array) for name, array in zip(call.names, arrays)}
    values = call.options._asdict()
    del values["implementation"]
    q, k, v = (views.pop(name) for name in "qkv")
    values |= core_values(call.functions, views)
    return q, k, v, _core.AttentionOptions(**{**values, **views})


def check_implementation(call: Call, arrays: Sequence[Any], return_lse: bool) -> None:
    """ValueError where the implementation that the caller wishes does not exist."""
    if call.options.implementation is not None:
        q, k, v, options = _core_call(call, arrays)
        _core.explain_forward(q, k, v, None, return_lse, options, call.options.implementation, 0)


def forward_results(call: Call, arrays: Sequence[Any]) -> tuple[Result, Result]:
    """out and softmax_lse. Checks the whole call: ValueError or TypeError in the core's words."""
    q, k, v, options = _core_call(call, arrays)
    out, lse = _core.output_shapes(q, k, v, options)
    out_dtype = jax.numpy.bfloat16 if _arrays.out_dtype(q) == "bf16" else arrays[0].dtype
    lse_dtype = np.float64 if _arrays.lse_dtype(q) == "f64" else np.float32
    return Result("out", tuple(out), out_dtype), Result("softmax_lse", tuple(lse), lse_dtype)


def attributes_of(call: Call) -> dict[str, Any]:
    """Options in 64 bits, whatever JAX's own default is; those that are None are left out."""
    options, functions = call.options, call.functions or Functions()
    values = options._asdict()
    attributes: dict[str, Any] = {name: np.bool_(values[name]) for name in _FLAGS}
    for names, kind in ((_NUMBERS, np.float64), (_INTEGERS, np.int64)):
        attributes |= {name: kind(values[name]) for name in names if values[name] is not None}
    attributes |= {"block_rows": np.int64(functions.block_rows), "block_keys": np.int64(functions.block_keys)}
    texts = {"score_mod": functions.score_mod, "mask_mod": functions.mask_mod, "layout": options.layout}
    return {**attributes, **texts, "implementation": options.implementation or ""}


def _type(result: Result, like: Any) -> jax.ShapeDtypeStruct:
    """The result's type: inside a shard_map it differs between the devices that `like` differs between."""
    own = jax.typeof(like)
    kind = getattr(own, "manual_axis_type", None)
    if kind is None or not kind.varying:
        return jax.ShapeDtypeStruct(result.shape, result.dtype)
    whole = jax.sharding.PartitionSpec(*[None] * len(result.shape))
    sharding = jax.sharding.NamedSharding(own.sharding.mesh, whole)
    return jax.ShapeDtypeStruct(result.shape, result.dtype, sharding=sharding, manual_axis_type=kind)


def alike(arrays: list[Any]) -> list[Any]:
    """Inside a shard_map all arrays as differing between the same devices, which a custom call asks for."""
    kinds = [getattr(jax.typeof(array), "manual_axis_type", None) for array in arrays]
    axes = [frozenset() if kind is None else kind.varying for kind in kinds]
    union = frozenset().union(*axes)
    missing = [tuple(sorted(union - own, key=str)) for own in axes]
    return [jax.lax.pcast(array, m, to="varying") if m else array for array, m in zip(arrays, missing)]


def custom_call(
    target: str, attributes: dict[str, Any], names: Sequence[str], results: Sequence[Result], refusal: str
) -> Callable[..., Any]:
    """The function that makes `results` of arrays with these names, in their order, as a tuple.

    Differentiating it is refused in those words.
    """

    def run(*arrays: Any) -> tuple[Any, ...]:
        call = jax.ffi.ffi_call(target, tuple(_type(result, arrays[0]) for result in results))
        written = call(
            *arrays,
            arguments=" ".join(names),
            results=" ".join(result.name for result in results),
            **attributes,
        )
        return tuple(written)

    opaque = jax.custom_jvp(run)

    @opaque.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(refusal)

    return opaque


NO_DERIVATIVE = (
    "tilewise.jax.attention: JAX traces for a derivative that the kernels do not have: they have one reverse pass, "
    "which jax.grad and jax.vjp use, but no forward mode (jax.jvp, jax.jacfwd, jax.hessian) and no derivative of their "
    'gradients; with implementation="jax" the call is made of jax.numpy\'s operations, which JAX differentiates in '
    "every way, at the cost of the score matrix"
)
