"""merge() on a GPU: both passes against the formula in float64, more parts than a launch holds, captured graphs."""

import pytest
import torch
from cases import assert_close

import tilewise
from tilewise._torch import merge_formula

SHAPES = {"bshd": (2, 70, 3, 64), "sbhd": (70, 2, 3, 64), "bhsd": (2, 3, 70, 64), "thd": (70, 3, 64)}


def _draw(layout="bshd", parts=3, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(parts)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device="cuda")

    outs, lses = normal(parts, *SHAPES[layout]).to(dtype), normal(parts, *((3, 70) if layout == "thd" else (2, 3, 70)))
    lses[..., 1] = -torch.inf  # a row that saw nothing
    lses[0, ..., 2:9] = -torch.inf
    return outs, lses, normal(3)


def _check(outs, lses, sink, layout, results, gradients, dout, dlse):
    double = (outs.double(), lses.double(), sink.double())
    tolerance = 1e-5 if outs.dtype == torch.float32 else 2e-2
    expected = merge_formula.forward(*double, torch.float64, layout)
    assert_close(results[0], expected[0], tolerance)
    assert_close(results[1], expected[1], 1e-5, "softmax_lse")
    expected = merge_formula.backward(dout.double(), dlse.double(), *double, layout)
    for got, wanted, name in zip(gradients, expected, ("douts", "dlses", "dsink")):
        assert_close(got, wanted, tolerance if name == "douts" else 1e-4, name)


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [2, 16, 40])
@pytest.mark.parametrize("stacked", [False, True])
def test_both_passes(layout, dtype, parts, stacked):
    leaves = [tensor.requires_grad_() for tensor in _draw(layout, parts, dtype)]
    outs, lses, sink = leaves
    given = (outs, lses) if stacked else (list(outs.unbind()), list(lses.unbind()))
    results = tilewise.merge(*given, sink, layout=layout, implementation="cuda.sm80")
    dout, dlse = torch.randn_like(results[0]), torch.randn_like(results[1])
    gradients = torch.autograd.grad(results, leaves, (dout, dlse))
    _check(*(leaf.detach() for leaf in leaves), layout, results, gradients, dout, dlse)


def test_explain_chooses_the_kernels():
    assert tilewise.explain("merge device=cuda dtype=bf16 seqlen_q=64 head_dim_v=64").chosen == "cuda.sm80"


def test_float64_takes_the_formula():
    outs, lses, sink = (tensor.double() for tensor in _draw())
    out, lse = tilewise.merge(outs, lses, sink)
    expected = merge_formula.forward(outs, lses, sink, torch.float64, "bshd")
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])
    with pytest.raises(NotImplementedError, match="does not support f64"):
        tilewise.merge(outs, lses, sink, implementation="cuda.sm80")


@pytest.mark.parametrize("parts", [3, 40])  # 40 take a workspace
def test_captured(parts):
    outs, lses, sink = _draw(parts=parts)
    given = list(outs.unbind()), list(lses.unbind())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # kernels are loaded, and the stream has its workspace
        tilewise.merge(*given, sink)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out, lse = tilewise.merge(*given, sink)
    outs.copy_(torch.randn_like(outs))
    lses.add_(0.25 * torch.randn_like(lses))
    graph.replay()
    torch.cuda.synchronize()
    expected = tilewise.merge(*given, sink)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_streams():
    """On any other stream the call would read parts before the slow stream has written them."""
    fresh, lses, sink = _draw(parts=20)
    outs = torch.zeros_like(fresh)
    expected = tilewise.merge(fresh, lses, sink)
    tilewise.merge(list(outs), list(lses), sink)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        outs.copy_(fresh)
        out, _ = tilewise.merge(list(outs), list(lses), sink)
    stream.synchronize()
    assert_close(out, expected[0], 1e-2)
