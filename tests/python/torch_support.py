# What the tests of the torch operators share.
"""Gradients of a function at given tensors, comparison of tuples, a recorder of operator calls."""

from typing import Any, Callable

import torch
from cases import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tilewise._options import Options

# Changes nothing where nothing is dropped, but that the operator with all options is called.
ALL_OPTIONS = {"seed": torch.zeros(2, dtype=torch.int64)}


def options_with(**options: Any) -> Options:
    """The operators' options with some changed."""
    return Options()._replace(**options)


def gradients(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(results, gradients) of the function at fresh leaves, for the same random dout at every call."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(0)
    return results, torch.autograd.grad(results, leaves, [torch.randn_like(part) for part in results])


def assert_same(first: Any, second: Any, tolerance: float = 1e-6) -> None:
    """Compares two sequences of tensors."""
    assert len(first) == len(second)
    for a, b in zip(first, second):
        assert_close(a, b, tolerance)


class Recorder(TorchDispatchMode):
    """Remembers the arguments of every operator that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] = args
        return func(*args, **(kwargs or {}))
