# How close a drop-in's results are to the exact ones: no further than twice what the library it stands in for is,
# computed in the same precision, gradients three times.
"""The rule that drop-ins' results are held to."""

from typing import Any, Optional

import torch


def _one_ulp(exact: torch.Tensor, dtype: torch.dtype) -> float:
    largest = exact.abs().max().item() if exact.numel() else 0.0
    return torch.finfo(dtype).eps * largest


def assert_as_close(
    got: Any, other: Any, exact: Any, factor: float = 2.0, name: str = "out", dtype: Optional[torch.dtype] = None
) -> None:
    """|got - exact| <= factor * |other - exact| + 1e-5 + one ulp of the largest |exact|, the largest errors compared.

    `other` is the same-precision result of another library, `exact` that in float64. The ulp is that of `dtype`, or
    of what was got; two of them where `dtype` is the narrower: rounding out moves a whole row's gradients alike, by
    more than one ulp of the largest where values add up, and nothing rounds that away.
    """
    assert got.shape == exact.shape, name
    got64, other64 = got.detach().double().cpu(), other.detach().double().cpu()
    exact = exact.detach().cpu()
    if exact.numel() == 0:
        return
    error, allowed = (got64 - exact).abs().max().item(), (other64 - exact).abs().max().item()
    ulps = 2 if dtype is not None and torch.finfo(dtype).eps > torch.finfo(got.dtype).eps else 1
    bound = factor * allowed + 1e-5 + ulps * _one_ulp(exact, dtype or got.dtype)
    assert error <= bound, f"{name}: error {error:.3g} is above {bound:.3g} (the other's is {allowed:.3g})"


def assert_all_as_close(got: Any, other: Any, exact: Any) -> None:
    """(out, gradients) of one call each, as results_of() gives them. Gradients in f32 of a call in half precision (of a
    mask, say) are computed from its out, which is rounded to that."""
    assert_as_close(got[0], other[0], exact[0])
    assert len(got[1]) == len(other[1]) == len(exact[1])
    for index, triple in enumerate(zip(got[1], other[1], exact[1])):
        assert_as_close(*triple, factor=3.0, name=f"gradient {index}", dtype=got[0].dtype)


def results_of(function: Any, tensors: Any, seed: int = 0) -> Any:
    """(out, gradients) of function(*leaves) for a random dout, the same for every dtype; leaves are where floating."""
    leaves = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    out = function(*leaves)
    generator = torch.Generator().manual_seed(seed)
    dout = torch.randn(out.shape, generator=generator, dtype=torch.float64).bfloat16().to(out)
    return out, torch.autograd.grad(out, [leaf for leaf in leaves if leaf.requires_grad], dout)
