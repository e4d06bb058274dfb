"""quantize() and dequantize() on a GPU: the CPU's bytes, captured graphs, and what explain() says."""

import pytest
import torch

import tilewise

FORMATS = [
    "fp8_tensor",
    "fp8_row",
    "fp8_1x128",
    "fp8_128x128",
    "fp8_1x128_e8m0",
    "fp8_128x128_e8m0",
    "mxfp8",
    "mxfp4",
    "nvfp4",
]


def _bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8).cpu()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(300, 1024), (3, 70, 514), (1, 16384)])
def test_bytes_are_the_cpus(format, dtype, shape):
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(shape, generator=generator, device="cuda")
    x *= torch.exp2(torch.randint(-12, 8, (*shape[:-1], 1), generator=generator, device="cuda"))
    x[..., 0, 5], x[..., 0, 40] = float("nan"), float("inf")
    x = x.to(dtype)
    for power_of_two in [False, True] if format.startswith("fp8") else [False]:
        results = tilewise.quantize(x, format, power_of_two, implementation="cuda.sm80")
        expected = tilewise.quantize(x.cpu(), format, power_of_two)
        for mine, theirs in zip(results, expected):
            assert mine.is_cuda and mine.dtype == theirs.dtype
            assert torch.equal(_bytes(mine), _bytes(theirs))
        back = tilewise.dequantize(results[0], results[1], format, *results[2:], dtype=dtype)
        wanted = tilewise.dequantize(expected[0], expected[1], format, *expected[2:], dtype=dtype)
        assert torch.equal(back.cpu().nan_to_num(1.25), wanted.nan_to_num(1.25))


def test_explain_chooses_the_kernel():
    assert tilewise.explain("quantize device=cuda format=mxfp4 rows=64 columns=64").chosen == "cuda.sm80"


def test_captured_graphs():
    x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
    tilewise.quantize(x, "nvfp4")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = tilewise.quantize(x, "nvfp4")
    x.mul_(-3)
    graph.replay()
    for mine, theirs in zip(results, tilewise.quantize(x, "nvfp4")):
        assert torch.equal(_bytes(mine), _bytes(theirs))
