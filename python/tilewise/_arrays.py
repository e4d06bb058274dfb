# The way of arrays that are not torch tensors: NumPy (bfloat16 through ml_dtypes) and whatever
# exports DLPack. Results come back as the kind of array that q is.
"""Attention on NumPy and DLPack arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tilewise import _core
from tilewise._arguments import ARRAY_NAMES, Scalars, seed_value


def borrow(name: str, array: Any, writable: bool = False) -> _core.Array:
    """A view of `array` for the core; TypeError naming `name` where it cannot be had."""
    if isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return _core.Array(array.view(np.uint16), name, "bf16", writable)
    return _core.Array(array, name, "", writable)


def borrow_optional(name: str, array: Any, writable: bool = False) -> Optional[_core.Array]:
    return None if array is None else borrow(name, array, writable)


def empty_like_kind(like: Any, shape: Sequence[int], dtype: str) -> tuple[Any, _core.Array]:
    """A new array of `like`'s kind and the core's writable view of it. dtype: "f32" or that of `like`, ""."""
    if isinstance(like, np.ndarray):
        array = np.empty(shape, np.float32 if dtype == "f32" else like.dtype)
        return array, borrow("out", array, writable=True)
    memory = _core.empty(list(shape), dtype)
    if hasattr(like, "__array_namespace__"):
        array = like.__array_namespace__().from_dlpack(memory)
    else:
        array = memory if dtype == "bf16" else np.from_dlpack(memory)
    return array, borrow("out", memory, writable=True)


def options_of(scalars: Scalars, arrays: Sequence[Any], seed_and_offset: Any) -> _core.AttentionOptions:
    """The core's options; `arrays` are the optional arrays in ARRAY_NAMES' order."""
    borrowed = {name: borrow_optional(name, array) for name, array in zip(ARRAY_NAMES, arrays)}
    values = scalars._asdict()
    del values["implementation"]
    values["seed"] %= 2**64
    return _core.AttentionOptions(**values, **borrowed, seed_and_offset=borrow_optional("seed", seed_and_offset))


def split_seed(scalars: Scalars, seed: Any) -> tuple[Scalars, Any]:
    """An integer seed into the scalars, an array [2] of seed and offset beside them."""
    if seed is None:
        if scalars.dropout_p != 0.0:
            raise ValueError("seed: must be given with dropout on arrays that are not torch tensors (got None)")
        return scalars, None
    if hasattr(seed, "__dlpack__") and getattr(seed, "shape", ()) != ():
        return scalars, seed
    return scalars._replace(seed=seed_value(seed)), None


def attention(
    q: Any, k: Any, v: Any, out: Any, seed: Any, arrays: Sequence[Any], scalars: Scalars, return_lse: bool
) -> Any:
    """out, or (out, softmax_lse) where asked for."""
    scalars, seed_and_offset = split_seed(scalars, seed)
    options = options_of(scalars, arrays, seed_and_offset)
    views = borrow("q", q), borrow("k", k), borrow("v", v)
    out_shape, lse_shape = _core.output_shapes(*views, options)
    if out is None:
        out, out_view = empty_like_kind(q, out_shape, views[0].dtype)
    else:
        out_view = borrow("out", out, writable=True)
    lse, lse_view = empty_like_kind(q, lse_shape, "f32") if return_lse else (None, None)
    _core.attention_forward(*views, out_view, lse_view, options, scalars.implementation)
    return (out, lse) if return_lse else out


def merge(outs: Sequence[Any], lses: Sequence[Any], sink: Any, layout: str) -> tuple[Any, Any]:
    """(out, softmax_lse) of partial results."""
    out_views = [borrow(f"outs[{i}]", array) for i, array in enumerate(outs)]
    lse_views = [borrow(f"lses[{i}]", array) for i, array in enumerate(lses)]
    out, out_view = empty_like_kind(outs[0], out_views[0].shape, out_views[0].dtype)
    lse, lse_view = empty_like_kind(outs[0], lse_views[0].shape, "f32")
    _core.merge(out_views, lse_views, borrow_optional("sink", sink), out_view, lse_view, layout)
    return out, lse
