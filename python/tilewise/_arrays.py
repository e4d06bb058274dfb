# The way of arrays that are not torch tensors: NumPy (bfloat16 through ml_dtypes) and whatever
# exports DLPack. Results come back as the kind of array that q is.
"""Attention on NumPy and DLPack arrays."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from tilewise import _calls, _core
from tilewise._arguments import seed_value
from tilewise._kinds import type_name
from tilewise._options import (
    ARRAY_NAMES,
    DEFAULT_TAIL,
    DROPOUT_IN_TAIL,
    NO_ARRAYS,
    Options,
    wanted_gradients,
    with_seed,
)
from tilewise._threads import torch_threads

if TYPE_CHECKING:
    from tilewise._block_mask import BlockMask
    from tilewise._functions import Functions

BLOCK_MASK_NAMES = ("block_counts", "block_indices", "full_block_counts", "full_block_indices")
BYTE_DTYPES = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "float8_e8m0fnu": "fp8_e8m0"}  # of ml_dtypes
ELEMENT_DTYPES = ("f32", "bf16", "f16", "f64")  # those of results
RESULT_DTYPES = (*ELEMENT_DTYPES, "i32", "i64", "u8")  # and of results that are indices, or bytes
NARROW_DTYPES = {ours: theirs for theirs, ours in BYTE_DTYPES.items()}
PAIRS = "fp4_e2m1"  # of which two share a byte, where ml_dtypes takes one for each


def borrow(name: str, array: Any, writable: bool = False) -> _core.Array:
    """A view of `array` for the core; TypeError naming `name` where it cannot be had."""
    if isinstance(array, _core.Array):
        return array
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)  # importing it would take 30 ms
    if masked is not None and isinstance(array, masked):
        raise TypeError(f"{name}: must not be masked, the mask would be ignored (got {type_name(array)})")
    if writable:
        _refuse_immutable(name, array)
    if isinstance(array, np.ndarray) and array.dtype.isbuiltin != 1:  # a name takes a microsecond to make
        if array.dtype.name == "bfloat16" and array.dtype.isnative:
            return _core.Array(array.view(np.uint16), name, "bf16", writable)
        if byte := BYTE_DTYPES.get(array.dtype.name):
            return _core.Array(array.view(np.uint8), name, byte, writable)
    return _core.Array(array, name, "", writable)


def _refuse_immutable(name: str, array: Any) -> None:
    """Some libraries' arrays never change, which they do not say through DLPack."""
    for library, kind in (("jax", "Array"), ("tensorflow", "Tensor")):
        immutable = getattr(sys.modules.get(library), kind, None)
        if immutable is not None and isinstance(array, immutable):
            raise TypeError(f"{name}: must be a writable array (got {library}.{kind}, which is immutable)")


def borrow_optional(name: str, array: Any, writable: bool = False) -> Optional[_core.Array]:
    return None if array is None else borrow(name, array, writable)


def empty_for(
    like: Any, shape: Sequence[int], dtype: str, view: Optional[_core.Array] = None
) -> tuple[Any, _core.Array]:
    """Memory of a new array of `like`'s kind and the core's writable view of it.

    dtype: One of RESULT_DTYPES, a narrow one, or that of `like`. Narrow elements are ml_dtypes' where NumPy has them,
    else bytes, and pairs of them always are.

    `view`: of `like`, whose device the new array shares; None for the CPU. once_written() makes the memory an array.
    """
    if dtype == PAIRS:
        shape, dtype = [*shape[:-1], (shape[-1] + 1) // 2], "u8"
    if isinstance(like, np.ndarray):
        memory: Any = np.empty(shape, _numpy_dtype(dtype) or like.dtype)
    else:
        # An array of another dtype is refused before anybody looks at what was to be written.
        stored = "u8" if dtype in NARROW_DTYPES else dtype if dtype in RESULT_DTYPES else "f32"
        memory = _core.empty(list(shape), stored, view)
    return memory, borrow("out", memory, writable=True)


def _numpy_dtype(dtype: str) -> Any:
    """NumPy's dtype for one of RESULT_DTYPES or a narrow one; None for another."""
    if dtype in NARROW_DTYPES:
        try:
            return getattr(importlib.import_module("ml_dtypes"), NARROW_DTYPES[dtype], np.uint8)
        except ModuleNotFoundError:
            return np.uint8
    if dtype == "bf16":
        try:
            return importlib.import_module("ml_dtypes").bfloat16
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "out: bfloat16 beside NumPy needs the package ml_dtypes; another out_dtype, or out, does without"
            ) from None
    known = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8}
    return known.get(dtype)


def once_written(like: Any, memory: Any, view: _core.Array) -> Any:
    """What empty_for() gave for `like` as an array of its kind.

    Not before it is written: a library may copy what it imports, or take it for unchangeable.
    """
    if isinstance(like, np.ndarray):
        return memory
    library = _library(like)
    if library is not None:
        return library.from_dlpack(memory)
    return memory if view.dtype == "bf16" or view.device != "cpu" else np.from_dlpack(memory)


def lse_dtype(q: _core.Array) -> str:
    """The dtype of softmax_lse beside this q (or out)."""
    return "f64" if q.dtype == "f64" else "f32"


def out_dtype(q: _core.Array) -> str:
    """The dtype of a new out beside this q."""
    return "bf16" if q.dtype == "fp8_e4m3" else q.dtype


def _library(array: Any) -> Any:
    """The module whose from_dlpack makes arrays of this kind; None where there is none."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    package = sys.modules.get(type(array).__module__.partition(".")[0])
    return package if hasattr(package, "from_dlpack") else None


def cupy_stream(array: Any) -> Optional[int]:
    """The current stream of a CuPy array's library; None for other arrays, which say nothing of streams."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(array, cupy.ndarray):
        return None
    stream: int = cupy.cuda.get_current_stream().ptr
    return stream


def core_options(
    options: Options, functions: Optional[Functions] = None, dtables: Sequence[Optional[_core.Array]] = ()
) -> _core.AttentionOptions:
    """The core's options, with the arrays borrowed; dtables, where gradients of tables go, are already."""
    values = options._asdict()
    del values["implementation"]
    values["seed"] %= 2**64
    for name in (*ARRAY_NAMES, "seed_and_offset"):
        values[name] = borrow_optional("seed" if name == "seed_and_offset" else name, values[name])
    if functions is not None:
        values |= functions._asdict()
        values["tables"] = [borrow(f"table{i}", table) for i, table in enumerate(functions.tables)]
        values["dtables"] = dtables
        values |= block_mask_options(values.pop("block_mask"), borrow)
    return _core.AttentionOptions(**values)


def block_mask_options(mask: Optional[BlockMask], borrow_one: Callable[[str, Any], Any]) -> dict[str, Any]:
    """What the core takes of a block mask, if there is one."""
    if mask is None:
        return {}
    rows, keys = mask.block_size
    lists = [borrow_one(name, array) for name, array in zip(BLOCK_MASK_NAMES, mask.arrays())]
    return {"block_mask": lists, "block_rows": rows, "block_keys": keys}


def call_options(head: Any, arrays: Any, tail: Any, seed: Any) -> Options:
    """Options of a call on arrays that cannot draw a seed themselves; arrays and tail may be None as defaults."""
    arrays, tail = arrays or NO_ARRAYS, tail or DEFAULT_TAIL
    if seed is None:
        if tail[DROPOUT_IN_TAIL] != 0.0:
            raise ValueError("seed: must be given with dropout on arrays that are not torch tensors (got None)")
    elif hasattr(seed, "__dlpack__") and getattr(seed, "shape", ()) != ():
        return Options._make((*head, *arrays, seed, *tail))
    else:
        tail = with_seed(tail, seed_value(seed))
    return Options._make((*head, *arrays, None, *tail))


def attention(
    q: Any, k: Any, v: Any, out: Any, options: Options, return_lse: bool, functions: Optional[Functions] = None
) -> Any:
    """out, or (out, softmax_lse) where asked for."""
    borrowed = core_options(options, functions)
    views = borrow("q", q), borrow("k", k), borrow("v", v)
    out_shape, lse_shape = _core.output_shapes(*views, borrowed)
    fresh_out = out is None
    if fresh_out:
        memory, out_view = empty_for(q, out_shape, out_dtype(views[0]), views[0])
    else:
        out_view = borrow("out", out, writable=True)
    lse_view: Optional[_core.Array] = None
    if return_lse:
        lse, lse_view = empty_for(q, lse_shape, lse_dtype(views[0]), views[0])
    stream = cupy_stream(q)
    _core.attention_forward(
        *views, out_view, lse_view, borrowed, options.implementation or "", torch_threads(), fresh_out, stream or 0
    )
    if stream is None:  # whoever reads the result on another stream finds it there
        _core.synchronize(out_view)
    if fresh_out:
        out = once_written(q, memory, out_view)
    return out if lse_view is None else (out, once_written(q, lse, lse_view))


def attention_backward(
    tensors: dict[str, Any], gradients: Any, options: Options, functions: Optional[Functions] = None
) -> list[Any]:
    """(dq, dk, dv, dbias, dsink), None where not wanted. `tensors`: dout, dlse, q, k, v, out, softmax_lse by name."""
    borrowed = core_options(options, functions)
    views: dict[str, Any] = {
        name: borrow_optional(name, array) if name == "dlse" else borrow(name, array) for name, array in tensors.items()
    }
    _core.output_shapes(views["q"], views["k"], views["v"], borrowed, True)  # for its checks, before allocations
    inputs = {"dq": tensors["q"], "dk": tensors["k"], "dv": tensors["v"], "dbias": options.bias, "dsink": options.sink}
    likes = {name: borrow_optional(name, array) for name, array in inputs.items()}
    wanted = wanted_gradients(gradients, options, likes["dbias"] is not None and likes["dbias"].dtype == "bool")
    memories: dict[str, Any] = {}
    outputs: dict[str, Any] = dict.fromkeys(inputs)
    for (name, like), want in zip(likes.items(), wanted):
        if want and like is not None:
            memories[name], outputs[name] = empty_for(inputs[name], like.shape, like.dtype, like)
    stream = cupy_stream(tensors["q"])
    _core.attention_backward(
        **views,
        **outputs,
        options=borrowed,
        implementation=options.implementation or "",
        torch_threads=torch_threads(),
        stream=stream or 0,
    )
    if stream is None:
        _core.synchronize(views["q"])
    return [
        once_written(inputs[name], memories[name], view) if name in memories else None for name, view in outputs.items()
    ]


def _borrow_all(described: _calls.Tensor, value: Any) -> Any:
    """The views of an argument that is one array, a list of them or None."""
    name, written = described.name, described.written
    if not described.list:
        return borrow_optional(name, value, written)
    if isinstance(value, (list, tuple)):
        return [borrow(f"{name}[{i}]", each, written) for i, each in enumerate(value)]
    return [] if value is None else [borrow(name, value, written)]


def call(operation: str, given: dict[str, Any], out: dict[str, Any], unwanted: Collection[str] = ()) -> tuple[Any, ...]:
    """The outputs of an operation that is stated by a schema, in its order, None where `unwanted`.

    given: Its inputs, fields, choices and implementation by name. out: Outputs that there are, or None.
    """
    kind = _calls.CALLS[operation]
    arrays = {**given, **out}
    for tensor in kind.inputs:
        if arrays[tensor.name] is None and not tensor.optional:
            raise TypeError(f"{tensor.name}: must be an array (got None)")
    views = {tensor.name: _borrow_all(tensor, arrays.get(tensor.name)) for tensor in (*kind.inputs, *kind.outputs)}
    fields = {field.name: given[field.name] for field in kind.fields}
    model, model_view = given[kind.inputs[0].name], views[kind.inputs[0].name]
    if isinstance(model_view, list):
        model, model_view = model[0] if isinstance(model, (list, tuple)) else model, model_view[0]
    memories: dict[str, Any] = {}
    for output in _calls.planned_outputs(operation, given, **views, **fields):
        if views[output.name] is None and output.name not in unwanted:
            memories[output.name], views[output.name] = empty_for(model, output.shape, output.dtype, model_view)
    stream = cupy_stream(model)
    _calls.run(operation, given["implementation"], torch_threads(), stream or 0, **views, **fields)
    if stream is None:
        _core.synchronize(model_view)
    return tuple(
        once_written(model, memories[name], views[name]) if name in memories else out.get(name)
        for name in (tensor.name for tensor in kind.outputs)
    )
