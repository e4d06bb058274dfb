# linear() and grouped_linear(). They bring their arguments to the core's shapes, and hand over to the module of the
# arrays' kind.
"""Linear layers."""

from __future__ import annotations

import math
from typing import Any, Optional

from tilewise import _dispatch
from tilewise._arguments import flag, implementation_name, named
from tilewise._calls import CALLS
from tilewise._keywords import with_known_keywords
from tilewise._types import Activation, Array, ArrayT, BlockFormat

_ACTIVATIONS = {name: name for field in CALLS["linear"].fields if field.name == "activation" for name in field.names}
_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}


@with_known_keywords
def linear(
    x: ArrayT,
    w: Array,
    bias: Optional[Array] = None,
    *,
    activation: Activation = "identity",
    x_format: BlockFormat = "none",
    w_format: BlockFormat = "none",
    x_scale: Optional[Array] = None,
    w_scale: Optional[Array] = None,
    w_global_scale: Optional[Array] = None,
    out_dtype: object = None,
    out: Optional[Array] = None,
    batch_invariant: bool = False,
    implementation: Optional[str] = None,
) -> ArrayT:
    """A linear layer: activation(x wᵀ + bias), summed in fp32 (f64 of f64) and rounded once.

    Torch tensors have autograd (x, w and bias that are not quantised) and torch.compile.

    Args:
        x: [..., k], k contiguous, in f32, bf16, f16 or f64; or in fp8_e4m3 with an x_format.
        w: [n, k] in the dtype of x, with k or n contiguous, as weights lie in checkpoints; or with a w_format its
            elements in fp8_e4m3, or two of fp4_e2m1 in each byte along k. Bytes (uint8) do in place of both.
        bias: [n] in f32, bf16 or f16 (f64 of f64).
        activation: "identity", "silu", "gelu" (with erf), "gelu_tanh", "relu" or "relu_squared".
        x_format: How x is quantised: "fp8_tensor", "fp8_row", "fp8_1x128", "fp8_1x128_e8m0" or "mxfp8". Needs a
            w_format.
        w_format: How w is: "fp8_tensor", "fp8_row", "fp8_128x128", "fp8_128x128_e8m0", "mxfp8", "mxfp4", "nvfp4", ...
        x_scale: With x_format, f32 or fp8_e8m0 (or its bytes): [..., blocks of k]. One number of "fp8_tensor", of any
            shape; of "fp8_row" [...] does.
        w_scale: Likewise with w_format: [blocks of n, blocks of k], of nvfp4 in fp8_e4m3 (or its bytes).
        w_global_scale: With nvfp4, one f32.
        out_dtype: Of the result: float32, bfloat16 or float16, as a dtype of torch or NumPy or by name. None: that of
            x, bfloat16 where x is quantised.
        out: Where to write, [..., n]; refused for inputs that require gradients. None: a new array.
        batch_invariant: A row's result does not depend on which other rows there are.
        implementation: Name of the implementation to use; None chooses by estimated cost.

    Returns:
        [..., n].

    Raises:
        ValueError, TypeError: An argument is wrong, or shapes don't fit.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    given = {"x": x, "w": w, "bias": bias, "offsets": None, "counts": None}
    given |= {"x_scale": x_scale, "w_scale": w_scale, "w_global_scale": w_global_scale}
    return _call(given, activation, x_format, w_format, out_dtype, out, batch_invariant, implementation)  # type: ignore[no-any-return]


@with_known_keywords
def grouped_linear(
    x: ArrayT,
    w: Array,
    offsets: Optional[Array] = None,
    bias: Optional[Array] = None,
    *,
    counts: Optional[Array] = None,
    activation: Activation = "identity",
    x_format: BlockFormat = "none",
    w_format: BlockFormat = "none",
    x_scale: Optional[Array] = None,
    w_scale: Optional[Array] = None,
    w_global_scale: Optional[Array] = None,
    out_dtype: object = None,
    out: Optional[Array] = None,
    batch_invariant: bool = False,
    implementation: Optional[str] = None,
) -> ArrayT:
    """linear() of rows by expert: those of expert e are x[offsets[e] : offsets[e + 1]], with weights w[e].

    Groups may be of any size and empty, and nothing is padded. Rows outside all groups are written 0. The numbers stay
    on x's device and are not looked at here: offsets that fall or leave [0, tokens] are clamped, negative counts are 0.

    Args:
        x: [tokens, k], otherwise as linear() takes it.
        w: [num_experts, n, k], likewise.
        offsets: int32 or int64 [num_experts + 1]; or counts.
        bias: [num_experts, n].
        counts: int32 or int64 [num_experts], rows of each expert one after another, instead of offsets.
        activation: As of linear().
        x_format: As of linear().
        w_format: As of linear().
        x_scale: As of linear().
        w_scale: [num_experts, blocks of n, blocks of k]. Of "fp8_tensor" [num_experts] does, of "fp8_row"
            [num_experts, n].
        w_global_scale: With nvfp4, f32 [num_experts].
        out_dtype: As of linear().
        out: Where to write, [tokens, n]; refused for inputs that require gradients. None: a new array.
        batch_invariant: As of linear().
        implementation: Name of the implementation to use; None chooses by estimated cost.

    Returns:
        [tokens, n].

    Raises:
        ValueError, TypeError: An argument is wrong, or shapes don't fit.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    if offsets is None and counts is None:
        raise ValueError("offsets: must be given, or counts (got neither)")
    given = {"x": x, "w": w, "bias": bias, "offsets": offsets, "counts": counts}
    given |= {"x_scale": x_scale, "w_scale": w_scale, "w_global_scale": w_global_scale}
    return _call(given, activation, x_format, w_format, out_dtype, out, batch_invariant, implementation)  # type: ignore[no-any-return]


def _call(
    given: dict[str, Any],
    activation: Any,
    x_format: Any,
    w_format: Any,
    out_dtype: Any,
    out: Any,
    batch_invariant: Any,
    implementation: Any,
) -> Any:
    named("activation", activation, _ACTIVATIONS)
    x = given["x"]
    shape = tuple(getattr(x, "shape", ()))
    given["x_scale"] = _x_scale(given["x_scale"], x_format, len(shape))
    given["w_scale"] = _w_scale(given["w_scale"], w_format, len(getattr(given["w"], "shape", ())))
    stacked = len(shape) > 2 or len(shape) == 1
    if stacked:
        if given["offsets"] is not None or given["counts"] is not None:
            raise ValueError(f"x: rank must be 2, [tokens, k] (got {len(shape)})")
        given["x"] = _rows("x", x, len(shape))
        if out is not None:
            if not _is_contiguous(out):
                raise ValueError("out: must be contiguous where x is not [tokens, k]")
            out = _rows("out", out, len(shape))
    given |= {"activation": activation, "x_format": x_format, "w_format": w_format}
    given |= {"out_dtype": _dtype_name(out_dtype), "batch_invariant": flag("batch_invariant", batch_invariant)}
    given["implementation"] = implementation_name(implementation)
    (result,) = _dispatch.call("linear", given, {"out": out})
    return result.reshape(*shape[:-1], result.shape[-1]) if stacked else result


def _rows(name: str, array: Any, rank: int) -> Any:
    """[..., size] as [rows, size]."""
    if len(array.shape) != rank:
        raise ValueError(f"{name}: rank must be {rank}, that of x (got {len(array.shape)})")
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _is_contiguous(array: Any) -> bool:
    if hasattr(array, "is_contiguous"):
        return bool(array.is_contiguous())
    return bool(getattr(getattr(array, "flags", None), "c_contiguous", True))


def _x_scale(scale: Any, x_format: Any, rank: int) -> Any:
    """[rows, blocks of k], of scales that have x's leading dimensions, with or without one of size 1 at the end."""
    shape = getattr(scale, "shape", None)
    if shape is None or not hasattr(scale, "reshape"):
        return scale
    if x_format == "fp8_tensor":
        return scale.reshape(1, 1) if math.prod(shape) == 1 else scale
    if x_format == "fp8_row" and len(shape) == rank - 1:
        return scale.reshape(math.prod(shape), 1)
    return _rows("x_scale", scale, rank) if rank != 2 else scale


def _w_scale(scale: Any, w_format: Any, rank: int) -> Any:
    """[num_experts, blocks of n, blocks of k] or the last two, of scales without dimensions of size 1 at the end."""
    shape = getattr(scale, "shape", None)
    if shape is None or not hasattr(scale, "reshape"):
        return scale
    if w_format == "fp8_tensor" and rank == 2 and math.prod(shape) == 1:
        return scale.reshape(1, 1)
    if w_format == "fp8_tensor" and rank == 3 and len(shape) == 1:
        return scale.reshape(shape[0], 1, 1)
    if w_format == "fp8_row" and len(shape) == rank - 1:
        return scale.reshape(*shape, 1)
    return scale


def _dtype_name(dtype: Any) -> str:
    """As the core calls it; anything else as it calls itself, for the core to refuse."""
    if dtype is None:
        return "none"
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.removeprefix("torch.")
    return _DTYPES.get(name, name)
