"""linear() and grouped_linear(): dtypes, dimensions, groups, formats, gradients, torch.compile and messages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from cases import assert_close
from checking import Exporter
from torch.nn import functional

import tilewise

ACTIVATIONS = {
    "identity": lambda x: x,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu_squared": lambda x: functional.relu(x) ** 2,
}
TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES)
OFFSETS = [0, 3, 3, 9]  # of 10 rows: an expert without rows, and a row of nobody


def _draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def _experts(dtype=torch.float32):
    """x [10, 24], w [3, 7, 24], bias [3, 7] and offsets."""
    return (
        _draw(10, 24, dtype=dtype),
        _draw(3, 7, 24, dtype=dtype, seed=1),
        _draw(3, 7, dtype=dtype, seed=2),
        torch.tensor(OFFSETS, dtype=torch.int32),
    )


def _one_by_one(x, w, bias, offsets):
    """Each expert's rows by torch's own linear layer."""
    out = x.new_zeros(x.shape[0], w.shape[1])
    parts = [out[: offsets[0]]]
    parts += [
        functional.linear(x[begin:end], w[e], None if bias is None else bias[e])
        for e, (begin, end) in enumerate(zip(offsets, offsets[1:]))
    ]
    return torch.cat([*parts, out[offsets[-1] :]])


@DTYPES
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_is_torchs(dtype, activation):
    x, w, bias = _draw(9, 40, dtype=dtype), _draw(13, 40, dtype=dtype, seed=1), _draw(13, dtype=dtype, seed=2)
    out = tilewise.linear(x, w, bias, activation=activation)
    expected = ACTIVATIONS[activation](functional.linear(x.double(), w.double(), bias.double()))
    assert out.dtype == dtype
    assert_close(out.double(), expected, TOLERANCES[dtype])
    transposed = tilewise.linear(x, w.t().contiguous().t(), bias, activation=activation)
    assert_close(transposed.double(), expected, TOLERANCES[dtype])


def test_leading_dimensions():
    x, w = _draw(2, 3, 5, 24), _draw(7, 24, seed=1)
    expected = functional.linear(x, w)
    assert_close(tilewise.linear(x, w), expected, 1e-5)
    assert_close(tilewise.linear(x[0, 0, 0], w), expected[0, 0, 0], 1e-5)
    out = torch.empty(2, 3, 5, 7)
    assert tilewise.linear(x, w, out=out).data_ptr() == out.data_ptr()
    assert_close(out, expected, 1e-5)
    assert tilewise.linear(x[:, :0], w).shape == (2, 0, 5, 7)
    with pytest.raises(ValueError, match=r"^out: must be contiguous where x is not \[tokens, k\]$"):
        tilewise.linear(x, w, out=torch.empty(5, 3, 2, 7).transpose(0, 2))
    with pytest.raises(ValueError, match=r"^out: rank must be 4, that of x \(got 2\)$"):
        tilewise.linear(x, w, out=torch.empty(30, 7))


@pytest.mark.parametrize("out_dtype", [torch.float16, "f16", np.float16, np.dtype("float16")])
def test_out_dtype(out_dtype):
    x, w = _draw(4, 24, dtype=torch.bfloat16), _draw(7, 24, dtype=torch.bfloat16, seed=1)
    assert tilewise.linear(x, w, out_dtype=out_dtype).dtype == torch.float16
    array = tilewise.linear(x.float().numpy(), w.float().numpy(), out_dtype=out_dtype)
    assert array.dtype == np.float16


def test_out_decides_the_dtype():
    x, w = _draw(4, 24, dtype=torch.bfloat16), _draw(7, 24, dtype=torch.bfloat16, seed=1)
    out = torch.empty(4, 7)
    assert tilewise.linear(x, w, out=out) is out
    assert_close(out, functional.linear(x.float(), w.float()), 1e-5)
    with pytest.raises(TypeError, match=r"^out: dtype must be out_dtype, bf16 \(got f32\)$"):
        tilewise.linear(x, w, out=out, out_dtype=torch.bfloat16)


@DTYPES
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_grouped_linear_is_each_experts_own(dtype, integers):
    x, w, bias, offsets = _experts(dtype)
    expected = _one_by_one(x.double(), w.double(), bias.double(), OFFSETS)
    out = tilewise.grouped_linear(x, w, offsets.to(integers), bias)
    assert_close(out.double(), expected, TOLERANCES[dtype])
    assert torch.equal(out[9], torch.zeros(7, dtype=dtype))
    counts = (offsets[1:] - offsets[:-1]).to(integers)
    assert torch.equal(tilewise.grouped_linear(x, w, bias=bias, counts=counts), out)
    by_inputs = w.transpose(1, 2).contiguous().transpose(1, 2)  # as some checkpoints hold them
    assert_close(tilewise.grouped_linear(x, by_inputs, offsets, bias).double(), expected, TOLERANCES[dtype])


@pytest.mark.parametrize("wrong", [[0, 8, 2, 10], [-5, 3, 2**31 - 1, 1], [2**31 - 1, 0, 1, 2], [-(2**31), -1, 11, 12]])
def test_wrong_offsets_are_clamped(wrong):
    x, w, bias, _ = _experts()
    clamped = np.maximum.accumulate(np.clip(wrong, 0, 10)).tolist()
    out = tilewise.grouped_linear(x, w, torch.tensor(wrong, dtype=torch.int32), bias)
    assert_close(out, _one_by_one(x, w, bias, clamped), 1e-5)


def test_arrays_that_are_no_tensors():
    x, w, bias, offsets = (tensor.numpy() for tensor in _experts())
    expected = tilewise.grouped_linear(*(torch.from_numpy(array) for array in (x, w, offsets, bias)))
    out = tilewise.grouped_linear(x, w, offsets, bias)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, expected.numpy())
    exported = tilewise.grouped_linear(Exporter(x), Exporter(w), Exporter(offsets), Exporter(bias))
    np.testing.assert_array_equal(np.asarray(exported), out)
    bf16 = ml_dtypes.bfloat16
    assert tilewise.linear(x.astype(bf16), w[0].astype(bf16)).dtype == bf16


def _quantised(w, element, columns):
    """(elements, scales by powers of two, the numbers that both stand for) of blocks along the last dimension."""
    blocks = w.unflatten(-1, (-1, columns))
    scale = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - (2 if element == "fp4" else 8))
    if element == "fp4":
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        codes = ((blocks / scale).abs().unsqueeze(-1) - grid).abs().argmin(-1)
        numbers = grid[codes] * blocks.sign() * scale
        codes = (codes + 8 * (blocks < 0)).flatten(-2).to(torch.uint8)
        stored = codes[..., 0::2] + 16 * codes[..., 1::2]
    else:
        stored = (blocks / scale).to(torch.float8_e4m3fn)
        numbers = (stored.float() * scale).flatten(-2).unflatten(-1, (-1, columns))
        stored = stored.flatten(-2).view(torch.uint8)
    return stored, scale.squeeze(-1), numbers.flatten(-2)


@pytest.mark.parametrize("experts", [0, 3])
def test_mxfp4_weights_as_checkpoints_store_them(experts):
    w = _draw(*((experts,) if experts else ()), 7, 64, seed=1)
    stored, scale, numbers = _quantised(w, "fp4", 32)
    exponents = (torch.log2(scale) + 127).to(torch.uint8)
    x = _draw(10, 64, dtype=torch.bfloat16)
    given = {"w_format": "mxfp4", "w_scale": exponents, "out_dtype": torch.float32}
    offsets = torch.tensor(OFFSETS)
    call = tilewise.linear if experts == 0 else lambda x, w, **more: tilewise.grouped_linear(x, w, offsets, **more)
    expected = functional.linear(x.float(), numbers) if experts == 0 else _one_by_one(x.float(), numbers, None, OFFSETS)
    out = call(x, stored, **given)
    assert_close(out, expected, 1e-5)
    typed = {**given, "w_scale": exponents.view(torch.float8_e8m0fnu)}
    assert torch.equal(call(x, stored.view(torch.float4_e2m1fn_x2), **typed), out)


def test_fp8_rows_by_channels():
    x, w = _draw(2, 5, 64), _draw(7, 64, seed=1)
    stored_x, scale_x, numbers_x = _quantised(x, "fp8", 64)
    stored_w, scale_w, numbers_w = _quantised(w, "fp8", 64)
    fp8 = torch.float8_e4m3fn
    given = {"x_format": "fp8_row", "w_format": "fp8_row"}
    out = tilewise.linear(stored_x.view(fp8), stored_w.view(fp8), x_scale=scale_x, w_scale=scale_w, **given)
    assert out.dtype == torch.bfloat16
    assert_close(out.float(), functional.linear(numbers_x, numbers_w), 1e-2)
    short = tilewise.linear(
        stored_x.view(fp8), stored_w.view(fp8), x_scale=scale_x[..., 0], w_scale=scale_w[..., 0], **given
    )
    assert torch.equal(short, out)
    narrow = ml_dtypes.float8_e4m3fn
    array = tilewise.linear(
        stored_x.numpy().view(narrow), stored_w.numpy(), x_scale=scale_x.numpy(), w_scale=scale_w.numpy(), **given
    )
    np.testing.assert_array_equal(array.astype(np.float32), out.float().numpy())


def test_scales_of_whole_tensors():
    fp8 = torch.float8_e4m3fn
    x, w = _draw(10, 24).to(fp8), _draw(3, 7, 24, seed=1).to(fp8)
    scales = torch.tensor([0.5, 2.0, 3.0])
    given = {"x_format": "fp8_tensor", "w_format": "fp8_tensor", "out_dtype": torch.float32}
    out = tilewise.grouped_linear(x, w, torch.tensor(OFFSETS), x_scale=torch.tensor(0.25), w_scale=scales, **given)
    expected = _one_by_one(0.25 * x.float(), w.float() * scales[:, None, None], None, OFFSETS)
    assert_close(out, expected, 1e-5)
    one = tilewise.linear(x, w[2], x_scale=torch.tensor([0.25]), w_scale=torch.tensor(3.0), **given)
    assert_close(one, functional.linear(0.25 * x.float(), 3.0 * w[2].float()), 1e-5)


@pytest.mark.parametrize("activation", ["identity", "silu", "gelu", "gelu_tanh"])
def test_gradients_are_right(activation):
    x, w, bias, offsets = _experts(torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (x, w, bias)]
    assert torch.autograd.gradcheck(
        lambda x, w, bias: tilewise.grouped_linear(x, w, offsets, bias, activation=activation), inputs
    )


@DTYPES
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_torchs(dtype, activation):
    inputs = [_draw(9, 40, dtype=dtype), _draw(13, 40, dtype=dtype, seed=1), _draw(13, dtype=dtype, seed=2)]
    own = [tensor.clone().requires_grad_() for tensor in inputs]
    theirs = [tensor.double().requires_grad_() for tensor in inputs]
    dout = _draw(9, 13, dtype=dtype, seed=3)
    tilewise.linear(*own, activation=activation).backward(dout)
    ACTIVATIONS[activation](functional.linear(*theirs)).backward(dout.double())
    for mine, other in zip(own, theirs):
        assert mine.grad.dtype == dtype
        assert_close(mine.grad.double(), other.grad, 2 * TOLERANCES[dtype])


def test_gradients_of_some_inputs_and_of_nobodys_rows():
    x, w, _, offsets = _experts()
    w.requires_grad_()
    tilewise.grouped_linear(x, w, offsets).sum().backward()  # an expanded gradient
    assert torch.equal(w.grad[1], torch.zeros(7, 24))
    assert_close(w.grad[0], x[:3].sum(0).expand(7, 24), 1e-5)
    x.requires_grad_()
    tilewise.grouped_linear(x, w.detach(), offsets).sum().backward()
    assert torch.equal(x.grad[9], torch.zeros(24))


def test_gradient_through_quantised_weights():
    w = _draw(7, 64, seed=1)
    stored, scale, numbers = _quantised(w, "fp4", 32)
    x = _draw(5, 64).requires_grad_()
    exponents = (torch.log2(scale) + 127).to(torch.uint8)
    tilewise.linear(x, stored, w_format="mxfp4", w_scale=exponents).sum().backward()
    assert_close(x.grad, numbers.sum(0).expand(5, 64), 1e-5)


def test_torch_compile_and_opcheck():
    x, w, bias, offsets = _experts()
    inputs = [tensor.requires_grad_() for tensor in (x, w, bias)]

    def layer(x, w, bias):
        return tilewise.grouped_linear(x, w, offsets, bias, activation="silu")

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    out, expected = compiled(*inputs), layer(*inputs)
    assert torch.equal(out, expected)
    for mine, other in zip(torch.autograd.grad(out.sum(), inputs), torch.autograd.grad(expected.sum(), inputs)):
        assert torch.equal(mine, other)
    nothing = (None, None, None)
    torch.library.opcheck(torch.ops.tilewise.linear.default, (x, w, bias, *nothing, offsets, None))
    dout = _draw(10, 7, seed=3)
    torch.library.opcheck(
        torch.ops.tilewise.linear_backward.default,
        (*(tensor.detach() for tensor in inputs), None, None, offsets, None, dout, True, True, True),
    )


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"w": torch.zeros(7, 23)}, ValueError, r"w: shape must be \[n, k\] = \[7, 24\] \(got \[7, 23\]\)"),
        ({"w": torch.zeros(7, 24).half()}, TypeError, r"w: dtype must be f32 \(got f16\)"),
        ({"bias": torch.zeros(8)}, ValueError, r"bias: shape must be \[n\] = \[7\] \(got \[8\]\)"),
        ({"w_format": "mxfp8"}, TypeError, r"w: dtype must be fp8_e4m3 \(got f32\)"),
        ({"w_format": "mxfp9"}, ValueError, r"w_format: must be one of none, .*did you mean mxfp8\? \(got 'mxfp9'\)"),
        ({"w_scale": torch.ones(1, 1)}, ValueError, r"w_scale: excludes w_format=none \(got both\)"),
        ({"activation": "swish"}, ValueError, r"activation: must be one of 'identity', .* \(got 'swish'\)"),
        ({"out_dtype": torch.int32}, ValueError, r"out_dtype: must be one of f32, .* \(got 'int32'\)"),
        ({"w": np.zeros((7, 24), np.float32)}, TypeError, r"w: must be a torch tensor like x \(got ndarray\)"),
        ({"weight": 1}, TypeError, r"linear\(\) got an unexpected keyword argument 'weight'; .*"),
    ],
)
def test_messages(change, error, sentence):
    given = {"x": torch.zeros(5, 24), "w": torch.zeros(7, 24), **change}
    with pytest.raises(error, match=f"^{sentence}$"):
        tilewise.linear(**given)


def test_messages_of_groups():
    x, w, _, offsets = _experts()
    with pytest.raises(ValueError, match=r"^offsets: must be given, or counts \(got neither\)$"):
        tilewise.grouped_linear(x, w)
    with pytest.raises(ValueError, match=r"^counts: excludes offsets \(got both\)$"):
        tilewise.grouped_linear(x, w, offsets, counts=offsets[1:])
    with pytest.raises(ValueError, match=r"^x: rank must be 2, \[tokens, k\] \(got 3\)$"):
        tilewise.grouped_linear(x[None], w, offsets)
    with pytest.raises(TypeError, match=r"^offsets: dtype must be i32 or i64 \(got f32\)$"):
        tilewise.grouped_linear(x, w, offsets.float())
    with pytest.raises(ValueError, match=r"^implementation: must name an implementation: .* \(got 'one'\)$"):
        tilewise.grouped_linear(x, w, offsets, implementation="one")
