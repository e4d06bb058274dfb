"""linear() and grouped_linear() on a GPU: both passes against the CPU, every format, hostile offsets, graphs."""

import pytest
import torch
from cases import assert_close

import tilewise

FORMATS = [
    ("none", "fp8_128x128"),
    ("none", "mxfp4"),
    ("none", "nvfp4"),
    ("fp8_row", "fp8_row"),
    ("fp8_1x128", "fp8_128x128"),
    ("mxfp8", "mxfp8"),
    ("mxfp8", "mxfp4"),
]


def _drawn(*shape, dtype=torch.float32, seed=1):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 16, 77, 1024])
@pytest.mark.parametrize("transposed", [False, True])
def test_both_passes(dtype, tokens, transposed):
    n, k = 520, 1032
    w = _drawn(k, n, dtype=dtype, seed=2).t() if transposed else _drawn(n, k, dtype=dtype, seed=2)
    mine = [_drawn(tokens, k, dtype=dtype).requires_grad_(), (w / k**0.5).requires_grad_(), _drawn(n).requires_grad_()]
    theirs = [tensor.detach().double().cpu().requires_grad_() for tensor in mine]
    out = tilewise.linear(*mine, activation="silu", implementation="cuda.sm80")
    expected = tilewise.linear(*theirs, activation="silu")
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    assert_close(out.double().cpu(), expected.detach(), tolerance)
    derivative = torch.randn_like(out)
    out.backward(derivative)
    expected.backward(derivative.double().cpu())
    for own, other in zip(mine, theirs):
        assert_close(own.grad.double().cpu(), other.grad, 4 * tolerance)


@pytest.mark.parametrize(("x_format", "w_format"), FORMATS)
@pytest.mark.parametrize("tokens", [3, 300])
def test_formats(x_format, w_format, tokens):
    experts, n, k = 4, 384, 512
    x, w = _drawn(tokens, k, dtype=torch.bfloat16), _drawn(experts, n, k, dtype=torch.bfloat16, seed=2)
    rows = (x,) if x_format == "none" else tilewise.quantize(x, x_format)
    weights = tilewise.quantize(w, w_format)
    counts = torch.tensor([tokens // 3, 0, tokens // 2, 0], device="cuda", dtype=torch.int32)
    scales = {"x_scale": rows[1]} if len(rows) > 1 else {}
    scales |= dict(zip(["w_scale", "w_global_scale"], weights[1:]))

    def multiply(move, **options):
        return tilewise.grouped_linear(
            move(rows[0]),
            move(weights[0]),
            counts=move(counts),
            x_format=x_format,
            w_format=w_format,
            out_dtype=torch.float32,
            **{name: move(scale) for name, scale in scales.items()},
            **options,
        )

    out = multiply(lambda tensor: tensor, implementation="cuda.sm80")
    assert_close(out.cpu(), multiply(lambda tensor: tensor.cpu()), 1e-4)
    assert not out[tokens // 3 + tokens // 2 :].any()


def test_hostile_offsets_reach_nothing():
    x, w = _drawn(40, 64, dtype=torch.bfloat16), _drawn(3, 72, 64, dtype=torch.bfloat16)
    for offsets in ([0, 50, -3, 2**40], [-(2**62), 7, 7, 39], [2**62, 0, 0, 0]):
        numbers = torch.tensor(offsets, device="cuda")
        out = tilewise.grouped_linear(x, w, offsets=numbers, implementation="cuda.sm80")
        expected = tilewise.grouped_linear(x.cpu(), w.cpu(), offsets=numbers.cpu())
        assert_close(out.float().cpu(), expected.float(), 2e-2)


def test_captured_graphs_follow_the_offsets():
    x, w = _drawn(64, 128, dtype=torch.bfloat16), _drawn(4, 96, 128, dtype=torch.bfloat16)
    offsets = torch.tensor([0, 16, 32, 48, 64], device="cuda")
    tilewise.grouped_linear(x, w, offsets=offsets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tilewise.grouped_linear(x, w, offsets=offsets)
    offsets.copy_(torch.tensor([0, 64, 64, 64, 64]))
    graph.replay()
    assert torch.equal(out, tilewise.grouped_linear(x, w, offsets=offsets))


def test_explain_chooses_the_kernel():
    assert tilewise.explain("linear device=cuda dtype=f16 tokens=64 n=63 k=65").chosen == "cuda.sm80"
