# Derivatives that attention does not have are refused rather than dropped: tangents of forward-mode AD where the
# formulas are not asked, and gradients of what has none.
"""Refusing tensors whose derivatives would be lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._torch import private
from tilewise._torch.private import forward_ad

_fwd_grad_enabled = private.is_fwd_grad_enabled


def refuse_gradient(name: str, tensor: Optional[Tensor], reason: str = "") -> None:
    """Raises where `tensor` would need a gradient that there is none of, with a reason of the caller's own if given."""
    if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(reason or f"{name}: has no gradient; pass {name}.detach()")


def has_tangents(given: Iterable[Any]) -> bool:
    """Whether one of these is a dual tensor. Costs next to nothing outside of a dual level."""
    if forward_ad._current_level < 0 or not _fwd_grad_enabled():
        return False
    return any(isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None for value in given)


def refuse_tangents(given: Iterable[tuple[str, Any]]) -> None:
    """Raises where a tensor among the named arguments is a dual one. Costs next to nothing outside of a dual level."""
    if forward_ad._current_level < 0:
        return
    for name, value in given:
        if has_tangents((value,)):
            raise NotImplementedError(
                f"{name}: must be no dual tensor here, since forward AD goes through tilewise.attention() and merge() "
                "without torch.compile, by q, k, v, bias and sink, outs and lses (got one)"
            )
