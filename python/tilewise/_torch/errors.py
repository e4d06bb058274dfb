# What an operator's error was really about: torch turns every exception of a kernel into a
# RuntimeError, and says of tensors that are not dense only that no kernel is registered.
"""Errors of the torch operators under their right types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewise import _core
from tilewise._kinds import described


def raise_known(error: RuntimeError, **tensors: Any) -> None:
    """Raises what `error`, from an operator called with `tensors`, was about; returns where that is not known."""
    _core.rethrow_torch_error(str(error))
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and not _is_dense(tensor):
            raise TypeError(f"{name}: must be a dense tensor (got {described(tensor)})") from None


def _is_dense(tensor: Tensor) -> bool:
    return not tensor.is_nested and tensor.layout is torch.strided and not tensor.is_quantized
