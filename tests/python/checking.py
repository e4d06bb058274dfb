# Results and gradients of a call against the float64 formulas, whatever device the call runs on.
"""Shared by the tests of results on the CPU (here) and on GPUs (tests/gpu)."""

from typing import Any, Callable

import torch
from cases import assert_close, in_float64
from formulas import Call, dense

DIFFERENTIABLE = ("bias", "sink")


def leaves_of(tensors: list[torch.Tensor], options: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Fresh leaves of q, k, v and the differentiable options, and the options holding them."""
    options = dict(options)
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    for name in DIFFERENTIABLE:
        if name in options and options[name].dtype != torch.bool:
            options[name] = options[name].detach().clone().requires_grad_()
            leaves.append(options[name])
    return leaves, options


def check_gradients(
    out: torch.Tensor, leaves: Any, exact_out: torch.Tensor, exact_leaves: Any, tolerance: float
) -> None:
    """Compares dq, dk and dv of a random dout; `tolerance` is that of out."""
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, leaves, dout)
    exact = torch.autograd.grad(exact_out, exact_leaves, dout.double())
    for name, gradient, expected in zip(("dq", "dk", "dv"), gradients, exact):
        assert_close(gradient, expected, 2 * tolerance, name)


class Exporter:
    """An array of no library that Tilewise knows: a DLPack producer, over a torch tensor's memory, and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class Namespaced(Exporter):
    """A DLPack producer that belongs to an array library, one that copies what it imports."""

    def __array_namespace__(self) -> Any:
        return Namespaced

    @staticmethod
    def from_dlpack(memory: Any) -> "Namespaced":
        return Namespaced(torch.from_dlpack(memory).clone())


def check(tensors: list[torch.Tensor], options: dict[str, Any], run: Callable[..., Any], tolerance: float) -> None:
    """Compares out, lse and all gradients of run(q, k, v, **options) with the formulas. All tensors are on the CPU."""
    leaves, given = leaves_of(tensors, options)
    out, lse = run(*leaves[:3], **given)
    exact_leaves, exact_options = leaves_of([tensor.double() for tensor in tensors], in_float64(options))
    exact_out, exact_lse = dense(Call(**exact_options), *exact_leaves[:3])
    assert_close(out, exact_out, tolerance)
    lse_tolerance = tolerance if lse.dtype == torch.float64 else max(tolerance / 4, 2e-5)
    assert_close(lse, exact_lse, lse_tolerance, "softmax_lse")
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    dlse = torch.where(torch.isfinite(exact_lse), dlse, 0.0).to(lse.dtype)
    gradients = torch.autograd.grad((out, lse), leaves, (dout, dlse))
    exact = torch.autograd.grad((exact_out, exact_lse), exact_leaves, (dout.double(), dlse.double()))
    names = ["dq", "dk", "dv", *(f"d{name}" for name in DIFFERENTIABLE if given.get(name) is not None)]
    for name, gradient, expected in zip(names, gradients, exact):
        assert_close(gradient, expected, 2 * tolerance, name)
