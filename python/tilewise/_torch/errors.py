# What an operator's error was really about: torch turns every exception of a kernel into a
# RuntimeError, and says of tensors that are not dense only that no kernel is registered.
"""Errors of the torch operators under their right types."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tilewise import _core
from tilewise._kinds import form


def raise_known(error: RuntimeError, **tensors: Any) -> None:
    """Raises what `error`, from an operator called with `tensors`, was about; returns where that is not known."""
    _core.rethrow_torch_error(str(error))
    refuse_forms(**tensors)


def refuse_forms(**tensors: Any) -> None:
    """TypeError for a tensor that is not dense: nested, sparse, mkldnn's or quantized."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and form(tensor):
            like = "" if name == "q" or "q" not in tensors else " like q"
            raise TypeError(f"{name}: must be a dense tensor{like} (got {form(tensor)})") from None
