# Derivatives that attention does not have are refused rather than dropped: tangents of forward-mode AD everywhere,
# and gradients of what has none.
"""Refusing tensors whose derivatives would be lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

_fwd_grad_enabled = torch._C._is_fwd_grad_enabled


def refuse_gradient(name: str, tensor: Optional[Tensor]) -> None:
    """Raises where `tensor` would need a gradient that there is none of."""
    if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"{name}: has no gradient; pass {name}.detach()")


def refuse_tangents(given: Iterable[tuple[str, Any]]) -> None:
    """Raises where a tensor among the named arguments is a dual one. Costs next to nothing outside of a dual level."""
    if forward_ad._current_level < 0 or not _fwd_grad_enabled():
        return
    for name, value in given:
        if isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise NotImplementedError(
                f"{name}: must be no dual tensor, since attention does not support forward AD (got one)"
            )
