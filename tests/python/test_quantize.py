"""quantize() and dequantize(): every format against ml_dtypes, kinds of arrays, experts, torch.compile and messages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from checking import Exporter
from torch.nn import functional

import tilewise

E4M3, E8M0, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn
BLOCKS = {
    "fp8_tensor": (0, 0),
    "fp8_row": (1, 0),
    "fp8_1x128": (1, 128),
    "fp8_128x128": (128, 128),
    "fp8_1x128_e8m0": (1, 128),
    "fp8_128x128_e8m0": (128, 128),
    "mxfp8": (1, 32),
    "mxfp4": (1, 32),
    "nvfp4": (1, 16),
}
ROUNDS = {"fp8_tensor", "fp8_row", "fp8_1x128", "fp8_128x128", "fp8_1x128_e8m0", "fp8_128x128_e8m0"}
FORMATS = pytest.mark.parametrize("format", BLOCKS)


def _numbers(rows, columns, dtype=np.float32, seed=0):
    """Rows of many magnitudes, among them zeros."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, columns)) * np.exp2(random.integers(-14, 6, (rows, 1)))
    x[random.random(x.shape) < 0.05] = 0
    x[-1] = 0
    return x.astype(dtype)


def _blocks(x, format):
    """Slices of x that share a scale, by their place."""
    rows, columns = (size or whole for size, whole in zip(BLOCKS[format], x.shape))
    for i, row in enumerate(range(0, x.shape[0], rows)):
        for j, column in enumerate(range(0, x.shape[1], columns)):
            yield (i, j), (slice(row, row + rows), slice(column, column + columns))


def _expected(x, format, power_of_two=False):
    """What docs/semantics.md says, in NumPy, narrow types by ml_dtypes: codes one by one, scales as f32, the factor."""
    x = x.astype(np.float32)
    element, largest = (E2M1, np.float32(6)) if format in ("mxfp4", "nvfp4") else (E4M3, np.float32(448))
    least = np.float32(2.0**-126)
    amax = np.abs(x).max(initial=0)
    factor = np.float32(1) if amax == 0 or format != "nvfp4" else max(amax / np.float32(2688), least)
    codes = np.zeros(x.shape, np.uint8)
    places = list(_blocks(x, format))
    scales = np.zeros([1 + max(place[axis] for place, _ in places) for axis in (0, 1)], np.float32)
    for place, block in places:
        amax = np.abs(x[block]).max()
        if format == "nvfp4":
            scale = np.minimum(amax / np.float32(6) / factor, np.float32(448))
            scale = np.maximum(scale.astype(E4M3).astype(np.float32), np.float32(2.0**-9))
        elif power_of_two or (BLOCKS[format][1] in (0, 128) and "e8m0" not in format):
            scale = np.float32(1) if amax == 0 else max(amax / np.float32(448), least)
            scale = np.exp2(np.ceil(np.log2(np.float64(scale)))).astype(np.float32) if power_of_two else scale
        else:
            exponent = -127 if amax == 0 else np.frexp(amax)[1] - 1 - (2 if element is E2M1 else 8)
            scale = np.ldexp(np.float32(1), max(exponent, -127))
        scales[place] = scale
        quotient = np.clip(x[block] / np.float32(scale * factor), -largest, largest)
        codes[block] = quotient.astype(element).view(np.uint8)
    return codes, scales, factor


def _codes(elements, format):
    """A byte for each element."""
    stored = np.asarray(elements).view(np.uint8)
    if format not in ("mxfp4", "nvfp4"):
        return stored
    return np.stack([stored & 15, stored >> 4], axis=-1).reshape(*stored.shape[:-1], -1)


@FORMATS
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_is_as_ml_dtypes_after_a_clamp(format, dtype, power_of_two):
    if power_of_two and format not in ROUNDS:
        pytest.skip("has one rule for its scales")
    for rows, columns in [(5, 256), (130, 48), (1, 2), (3, 300)]:
        x = _numbers(rows, columns, dtype)
        codes, scales, factor = _expected(x, format, power_of_two)
        results = tilewise.quantize(x, format, power_of_two)
        np.testing.assert_array_equal(_codes(results[0], format), codes)
        np.testing.assert_array_equal(results[1].astype(np.float32), scales)
        assert len(results) == (3 if format == "nvfp4" else 2)
        if format == "nvfp4":
            assert results[2] == factor and results[2].shape == ()


@FORMATS
def test_dequantize_is_the_exact_product(format):
    x = _numbers(9, 320)
    codes, scales, factor = _expected(x, format)
    elements, *stored = tilewise.quantize(x, format)
    element = E2M1 if format in ("mxfp4", "nvfp4") else E4M3
    expected = codes.view(element).astype(np.float64)
    for place, block in _blocks(x, format):
        expected[block] *= np.float64(scales[place]) * np.float64(factor)
    back = tilewise.dequantize(elements, stored[0], format, *stored[1:])
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, expected.astype(np.float32))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        narrow = tilewise.dequantize(elements, stored[0], format, *stored[1:], dtype=dtype)
        np.testing.assert_array_equal(narrow, back.astype(dtype))
        into = np.empty(x.shape, dtype)
        assert tilewise.dequantize(elements, stored[0], format, *stored[1:], out=into) is into
        np.testing.assert_array_equal(into, narrow)


@FORMATS
def test_torch_tensors_hold_the_same_bytes(format):
    x = _numbers(6, 256)
    arrays, tensors = tilewise.quantize(x, format), tilewise.quantize(torch.from_numpy(x), format)
    pairs = format in ("mxfp4", "nvfp4")
    scale = torch.float8_e4m3fn if format == "nvfp4" else torch.float32 if format in ROUNDS else torch.float8_e8m0fnu
    if "e8m0" in format:
        scale = torch.float8_e8m0fnu
    assert tensors[0].dtype == (torch.float4_e2m1fn_x2 if pairs else torch.float8_e4m3fn)
    assert tensors[1].dtype == scale
    for array, tensor in zip(arrays, tensors):
        np.testing.assert_array_equal(
            np.asarray(array).reshape(-1).view(np.uint8), tensor.reshape(-1).view(torch.uint8)
        )
    for dtype in (torch.float32, torch.bfloat16, "float16"):
        back = tilewise.dequantize(tensors[0], tensors[1], format, *tensors[2:], dtype=dtype)
        expected = tilewise.dequantize(arrays[0], arrays[1], format, *arrays[2:], dtype=dtype)
        np.testing.assert_array_equal(back.float().numpy(), expected.astype(np.float32))
    assert tilewise.dequantize(tensors[0], tensors[1], format, *tensors[2:]).dtype == torch.float32


@FORMATS
def test_bytes_stand_for_narrow_elements(format):
    results = tilewise.quantize(torch.from_numpy(_numbers(6, 256)), format)
    stored = [each if each.dtype == torch.float32 else each.view(torch.uint8) for each in results]
    expected = tilewise.dequantize(results[0], results[1], format, *results[2:])
    assert torch.equal(tilewise.dequantize(stored[0], stored[1], format, *stored[2:]), expected)
    exported = tilewise.dequantize(*(Exporter(each) for each in stored[:2]), format, *map(Exporter, stored[2:]))
    np.testing.assert_array_equal(np.asarray(exported), expected.numpy())


def test_other_arrays_get_bytes():
    x = torch.from_numpy(_numbers(4, 64))
    elements, scales = tilewise.quantize(Exporter(x), "mxfp4")
    expected = tilewise.quantize(x, "mxfp4")
    np.testing.assert_array_equal(np.asarray(elements), expected[0].view(torch.uint8).numpy())
    np.testing.assert_array_equal(np.asarray(scales), expected[1].view(torch.uint8).numpy())


@FORMATS
def test_each_expert_is_a_tensor_of_its_own(format):
    x = torch.from_numpy(np.stack([_numbers(6, 128, seed=seed) * 4**seed for seed in range(3)]))
    whole = tilewise.quantize(x, format)
    back = tilewise.dequantize(whole[0], whole[1], format, *whole[2:])
    for expert in range(3):
        alone = tilewise.quantize(x[expert], format)
        for all_of, one in zip(whole, alone):
            assert torch.equal(all_of[expert].reshape(-1).view(torch.uint8), one.reshape(-1).view(torch.uint8))
        assert torch.equal(back[expert], tilewise.dequantize(alone[0], alone[1], format, *alone[2:]))


@pytest.mark.parametrize("format", ["fp8_tensor", "fp8_128x128", "mxfp8", "mxfp4", "nvfp4"])
def test_linear_layers_take_it(format):
    w, x = torch.from_numpy(_numbers(7, 128)), torch.from_numpy(_numbers(5, 128, seed=1))
    elements, scales, *factor = tilewise.quantize(w, format)
    numbers = tilewise.dequantize(elements, scales, format, *factor)
    given = {"w_format": format, "w_scale": scales, "w_global_scale": factor[0] if factor else None}
    out = tilewise.linear(x, elements, **given)
    expected = functional.linear(x.double(), numbers.double())
    assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(("rows", "columns"), [(0, 32), (4, 0), (0, 0)])
@pytest.mark.parametrize("format", ["fp8_row", "fp8_1x128", "mxfp8", "mxfp4", "nvfp4"])
def test_no_elements_keep_their_shape(format, rows, columns):
    x = np.zeros((rows, columns), np.float32)
    expected = [array.shape for array in tilewise.quantize(x, format)]
    quantized = tilewise.quantize(torch.from_numpy(x), format)
    assert [tuple(tensor.shape) for tensor in quantized] == expected
    assert tuple(tilewise.dequantize(quantized[0], quantized[1], format, *quantized[2:]).shape) == (rows, columns)


def test_nan_and_infinities():
    x = np.ones((4, 64), np.float32)
    x[0, 3], x[1, 40], x[2, 5] = np.nan, np.inf, -np.inf
    elements, scales = tilewise.quantize(x, "mxfp4")
    assert scales.view(np.uint8)[0].tolist() == [255, 125]
    assert _codes(elements, "mxfp4")[0, :32].tolist() == [0] * 32
    back = tilewise.dequantize(elements, scales, "mxfp4")
    assert np.isnan(back[0, :32]).all() and (back[0, 32:] == 1).all()
    assert back[1, 40] == 1.5 and back[2, 5] == -1.5
    elements, scales = tilewise.quantize(x, "mxfp8")
    back = tilewise.dequantize(elements, scales, "mxfp8")
    assert np.isnan(back).sum() == 1 and np.isnan(back[0, 3])
    assert back[1, 40] == 1.75  # 448 / 256


def test_torch_compile_and_sizes_that_change():
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def there_and_back(x):
        elements, scales, factor = tilewise.quantize(x, "nvfp4")
        return tilewise.dequantize(elements, scales, "nvfp4", factor, dtype=torch.bfloat16), elements, scales

    for rows, columns in [(4, 32), (7, 96), (1, 48)]:
        x = torch.from_numpy(_numbers(rows, columns))
        elements, scales, factor = tilewise.quantize(x, "nvfp4")
        expected = tilewise.dequantize(elements, scales, "nvfp4", factor, dtype=torch.bfloat16)
        back, compiled_elements, compiled_scales = there_and_back(x)
        assert torch.equal(back, expected)
        assert torch.equal(compiled_elements.view(torch.uint8), elements.view(torch.uint8))
        assert torch.equal(compiled_scales.view(torch.uint8), scales.view(torch.uint8))


@pytest.mark.parametrize("format", ["fp8_row", "mxfp4", "nvfp4"])
def test_operators_are_what_torch_expects(format):
    x = torch.from_numpy(_numbers(4, 32))
    elements, scales, *factor = tilewise.quantize(x, format)
    torch.library.opcheck(torch.ops.tilewise.quantize.default, (x, format))
    # Of bytes, since torch's check multiplies what an operator reads.
    stored = [each if each.dtype == torch.float32 else each.view(torch.uint8) for each in (elements, scales)]
    torch.library.opcheck(torch.ops.tilewise.dequantize.default, (*stored, factor[0] if factor else None, format))


def test_has_no_gradient():
    x = torch.from_numpy(_numbers(4, 32)).requires_grad_()
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        tilewise.quantize(x, "mxfp4")
    with torch.no_grad():
        tilewise.quantize(x, "mxfp4")


@pytest.mark.parametrize(
    ("error", "sentence", "call"),
    [
        (ValueError, r"format: must be one of none, fp8_tensor, .*'mxfp6'", lambda x: tilewise.quantize(x, "mxfp6")),
        (ValueError, r"format: must be fp8_tensor, .* \(got none\)", lambda x: tilewise.quantize(x, "none")),
        (
            ValueError,
            r"power_of_two: must be false with format=mxfp4, which has one rule for its scales \(got true\)",
            lambda x: tilewise.quantize(x, "mxfp4", True),
        ),
        (
            ValueError,
            r"x: columns must be even with format=mxfp4, of which two share a byte \(got 63\)",
            lambda x: tilewise.quantize(x[:, :63], "mxfp4"),
        ),
        (
            ValueError,
            r"x: rank must be 2, \[rows, columns\] \(got 1, shape \[64\]\)",
            lambda x: tilewise.quantize(x[0], "mxfp4"),
        ),
        (
            ValueError,
            r"x: the last dimension must be contiguous, stride 1 \(got stride 64\)",
            lambda x: tilewise.quantize(x.T, "fp8_row"),
        ),
        (
            TypeError,
            r"x: dtype must be f32, bf16 or f16 \(got f64\)",
            lambda x: tilewise.quantize(x.astype(np.float64), "mxfp4"),
        ),
        (
            ValueError,
            r"scales: shape must be \[blocks of rows, blocks of columns\] = \[4, 2\] \(got \[4, 4\]\)",
            lambda x: tilewise.dequantize(tilewise.quantize(x, "mxfp4")[0], np.ones((4, 4), np.uint8), "mxfp4"),
        ),
        (
            ValueError,
            r"global_scale: must be given with format=nvfp4 \(got none\)",
            lambda x: tilewise.dequantize(*tilewise.quantize(x, "nvfp4")[:2], "nvfp4"),
        ),
        (
            TypeError,
            r"elements: dtype must be fp4_e2m1 \(got f32\)",
            lambda x: tilewise.dequantize(x, np.ones((4, 2), np.uint8), "mxfp4"),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_messages(error, sentence, call, kind):
    x = np.ones((4, 64), np.float32)
    if kind == "torch":
        if "f64" in sentence or "np.ones" in sentence or error is TypeError or "scales" in sentence:
            pytest.skip("made of NumPy's arrays")
        x = torch.from_numpy(x)
    with pytest.raises(error, match=f"^{sentence}"):
        call(x)
