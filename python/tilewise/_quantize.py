# quantize() and dequantize(). They hand over to the module of the arrays' kind.
"""Quantised numbers."""

from __future__ import annotations

from typing import Any, Optional, Union

from tilewise import _dispatch
from tilewise._arguments import dtype_name, flag, implementation_name
from tilewise._keywords import with_known_keywords
from tilewise._types import Array, ArrayT, BlockFormat

_PAIRS = ("mxfp4", "nvfp4")  # whose elements share bytes
_DTYPES = ("float32", "bfloat16", "float16")
_WHOLE = ("nvfp4",)  # of which the whole tensor has a scale besides


@with_known_keywords
def quantize(
    x: ArrayT, format: BlockFormat, power_of_two: bool = False, *, implementation: Optional[str] = None
) -> Union[tuple[ArrayT, ArrayT], tuple[ArrayT, ArrayT, ArrayT]]:
    """The elements and scales of x in a format of narrow numbers, as linear() and grouped_linear() take them.

    Scales follow OCP MX, NVIDIA's nvfp4, or are the greatest magnitude of a block / 448; elements are rounded to
    nearest even and saturate, infinities too. A NaN stays one: in its element, or where elements can be none in its
    block's scale. Has no gradient.

    Args:
        x: f32, bf16 or f16, [rows, columns] with columns contiguous, blocks along columns; or [num_experts, rows,
            columns], each expert quantised by itself.
        format: "fp8_tensor", "fp8_row", "fp8_1x128", "fp8_128x128", the last two with "_e8m0", "mxfp8", "mxfp4" or
            "nvfp4".
        power_of_two: Of fp8 but "mxfp8": each scale is the least power of two that is not smaller. Of the "_e8m0"
            formats, whose scales follow OCP MX without it, so that nothing saturates.
        implementation: Name of the implementation to use; None chooses by estimated cost.

    Returns:
        (elements, scales), of "nvfp4" (elements, scales, global_scale). elements have the shape of x; of "mxfp4" and
        "nvfp4" two share a byte, the lower column in the low half: [..., rows, columns / 2]. scales are [blocks of
        rows, blocks of columns], a size of 1 where a block has all. global_scale is one f32. With num_experts all of
        them have it first. Torch's dtypes are float8_e4m3fn, float4_e2m1fn_x2, float32 and float8_e8m0fnu, uint8 where
        torch has none; NumPy's those of ml_dtypes where it is installed, else uint8, and uint8 for pairs.

    Raises:
        ValueError, TypeError: An argument is wrong.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    columns = getattr(x, "shape", (0,))[-1:]
    if format in _PAIRS and columns and columns[0] % 2 != 0:
        raise ValueError(f"x: columns must be even with format={format}, of which two share a byte (got {columns[0]})")
    given = {"x": x, "format": format, "power_of_two": flag("power_of_two", power_of_two)}
    results = _call("quantize", given, implementation, ("elements", "scales", "global_scale"))
    return results if format in _WHOLE else results[:2]


@with_known_keywords
def dequantize(
    elements: ArrayT,
    scales: Array,
    format: BlockFormat,
    global_scale: Optional[Array] = None,
    *,
    dtype: object = None,
    out: Optional[Array] = None,
    implementation: Optional[str] = None,
) -> ArrayT:
    """The numbers that elements and scales stand for: the exact product rounded to f32, then to the dtype of out.

    Args:
        elements: As quantize() gives them: in fp8_e4m3, or pairs of fp4_e2m1 in a byte. Bytes (uint8) do.
        scales: Likewise, in f32, fp8_e8m0 or, of "nvfp4", fp8_e4m3; bytes do for the latter two.
        format: That of quantize().
        global_scale: With "nvfp4", f32.
        dtype: Of the result: float32, bfloat16 or float16, as a dtype of torch or NumPy or by name. None: float32.
        out: Where to write. None: a new array.
        implementation: Name of the implementation to use; None chooses by estimated cost.

    Returns:
        [rows, columns] or [num_experts, rows, columns].

    Raises:
        ValueError, TypeError: An argument is wrong, or shapes don't fit.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    given = {"elements": elements, "scales": scales, "global_scale": global_scale, "format": format}
    given["dtype"] = dtype_name("dtype", dtype, _DTYPES) or "none"
    (result,) = _call("dequantize", given, implementation, ("out",), out)
    return result  # type: ignore[no-any-return]


def _call(
    name: str, given: dict[str, Any], implementation: Any, outputs: tuple[str, ...], out: Any = None
) -> tuple[Any, ...]:
    given["implementation"] = implementation_name(implementation)
    there = {output: out if output == "out" else None for output in outputs}
    return _dispatch.call(name, given, there)
