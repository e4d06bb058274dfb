# tilewise.compat.flash_attn_3 on a GPU beside the same calls on the CPU.
"""The drop-in for FlashAttention-3 on a GPU."""

from typing import Any

import pytest
import torch
from flash_attn_3_cases import CASES, FP8, check
from gpu_support import to_gpu

from tilewise.compat import flash_attn_3


def _both(function: Any, *tensors: Any, error: float = 0.0, **options: Any) -> None:
    """Compares function(*tensors, **options) of CPU tensors with the same on the GPU, caches included. `error`: more
    that is allowed, as a part of the greatest result."""
    copies = [tensor.clone() if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors]
    expected = function(*copies, **options)
    there = [to_gpu(tensor) for tensor in tensors]
    out = function(*there, **{name: to_gpu(value) for name, value in options.items()})
    atol = 2e-2 + error * float(expected.abs().max())
    torch.testing.assert_close(out.cpu(), expected, rtol=3e-2, atol=atol)
    for one, other in zip(there, copies):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one.cpu().view(torch.uint8), other.view(torch.uint8))


def _descales() -> dict[str, torch.Tensor]:
    return {name: torch.rand(2, 2) + 0.5 for name in ("q_descale", "k_descale", "v_descale")}


def test_fp8_with_descales():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, rows, heads, 64).to(torch.float8_e4m3fn) for rows, heads in ((3, 8), (96, 2), (96, 2)))
    new = [torch.randn(2, 3, 2, 64).to(torch.float8_e4m3fn) for _ in range(2)]
    lengths = torch.tensor([40, 7], dtype=torch.int32)
    _both(flash_attn_3.flash_attn_with_kvcache, q, k, v, *new, cache_seqlens=lengths, causal=True, **_descales())


@pytest.mark.parametrize("dim", [64, 40])
def test_fp8_without_a_cache(dim):
    """By Hopper's kernels where they take the head_dim, which round weights to e4m3; elsewhere by a cache."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, rows, heads, dim).to(torch.float8_e4m3fn) for rows, heads in ((200, 8), (96, 2), (96, 2)))
    _both(flash_attn_3.flash_attn_func, q, k, v, error=0.04, **_descales())


hopper_only = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="only Hopper's kernels take fp8"
)


def _marked(case: Any) -> Any:
    """Packed sequences in fp8 have no other implementation."""
    return pytest.param(case, marks=hopper_only if case.dtype == FP8 and case.form == "varlen" else ())


@pytest.mark.parametrize("case", map(_marked, CASES), ids=[str(case) for case in CASES])
def test_pairs_of_arguments(case):
    check(flash_attn_3, case, "cuda", fp8_error=0.04)


@hopper_only
def test_packed_fp8():
    torch.manual_seed(0)
    q, k, v = (torch.randn(rows, heads, 64).to(torch.float8_e4m3fn) for rows, heads in ((90, 8), (300, 2), (300, 2)))
    starts = torch.tensor([0, 40, 90], dtype=torch.int32), torch.tensor([0, 100, 300], dtype=torch.int32)
    _both(flash_attn_3.flash_attn_varlen_func, q, k, v, *starts, 50, 200, error=0.04, causal=True, **_descales())


def test_latent_pages():
    torch.manual_seed(0)
    cache = torch.randn(4, 16, 1, 576).to(torch.bfloat16)
    table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    q, qv = torch.randn(2, 1, 16, 64).to(torch.bfloat16), torch.randn(2, 1, 16, 512).to(torch.bfloat16)
    k, v = torch.randn(2, 1, 1, 64).to(torch.bfloat16), torch.randn(2, 1, 1, 512).to(torch.bfloat16)

    def step(pages: torch.Tensor, *others: torch.Tensor, **options: Any) -> Any:
        return flash_attn_3.flash_attn_with_kvcache(
            others[0], pages[..., 512:], pages[..., :512], *others[1:], cache_seqlens=20, causal=True, **options
        )

    _both(step, cache, q, k, v, qv, page_table=table)
