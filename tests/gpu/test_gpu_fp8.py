# attention() on q, k and v in fp8 on a GPU beside the same call on the CPU, whose kernels tests/python compares with
# the formula. cuda.hopper alone takes it: other GPUs refuse it by name.
"""fp8 e4m3 forward on a GPU."""

import pytest
import torch
from gpu_support import run_on_gpu, to_gpu

import tilewise

FP8 = torch.float8_e4m3fn
hopper_only = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="only Hopper's kernels take fp8"
)


def _tensors(rows_q: int, rows_k: int, head_dim: int, heads_q: int = 8, heads_k: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(rows_q + rows_k + head_dim)
    shapes = ((rows_q, heads_q), (rows_k, heads_k), (rows_k, heads_k))
    return [torch.randn(2, rows, heads, head_dim).to(FP8) for rows, heads in shapes]


def _compare(*tensors: torch.Tensor, **options: object) -> None:
    expected, expected_lse = tilewise.attention(*tensors, return_lse=True, **options)
    out, lse = run_on_gpu(*tensors, **options)
    # P is rounded to e4m3 there, which has 4 significant bits, and wgmma's sums keep 13.
    torch.testing.assert_close(out.double(), expected.double(), rtol=0, atol=0.04 * float(expected.abs().max()))
    torch.testing.assert_close(lse, expected_lse, rtol=2e-3, atol=2e-3)


@hopper_only
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("rows", [(384, 384), (100, 517)])
def test_masks_and_sizes(head_dim, mask, rows):
    _compare(*_tensors(*rows, head_dim), mask=mask)


@hopper_only
@pytest.mark.parametrize("kind", ["number", "tensor", "head", "batch_head"])
def test_scales(kind):
    heads = {"q_scale": 8, "k_scale": 2, "v_scale": 2}
    make = {
        "number": lambda name: 0.5,
        "tensor": lambda name: torch.tensor(0.5),
        "head": lambda name: torch.rand(heads[name]) + 0.5,
        "batch_head": lambda name: torch.rand(2, 2) + 0.5,
    }[kind]
    _compare(*_tensors(200, 300, 128), mask="causal", **{name: make(name) for name in heads})


@hopper_only
@pytest.mark.parametrize(
    "options", [{"window": (100, 0)}, {"softcap": 5.0}, {"sink": torch.randn(8)}, {"alibi_slopes": torch.rand(8) / 16}]
)
def test_options(options):
    _compare(*_tensors(257, 257, 128), **options)


@hopper_only
def test_out_in_f16():
    q, k, v = _tensors(128, 128, 64)
    expected = tilewise.attention(q, k, v)
    out = torch.empty(expected.shape, dtype=torch.float16, device="cuda")
    assert tilewise.attention(*map(to_gpu, (q, k, v)), out=out) is out
    torch.testing.assert_close(out.cpu().double(), expected.double(), rtol=0, atol=0.04 * float(expected.abs().max()))


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9, reason="Hopper's kernels take fp8"
)
def test_other_gpus_refuse_it():
    with pytest.raises(NotImplementedError, match="fp8"):
        tilewise.attention(*map(to_gpu, _tensors(16, 16, 64)))
