# Attention on torch tensors: the torch operators behind an autograd.Function in eager mode, the
# operators alone (with their registered autograd) where a compiler or a transform looks on.
"""The torch side of attention() and merge(). Importing this registers the torch operators."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from tilewise import _attention, _core
from tilewise._arguments import ARRAY_NAMES, Scalars, seed_value
from tilewise._torch import autocast, autograd, batching, fake, operators  # noqa: F401 (they register rules)
from tilewise._torch.merging import merge as merge
from tilewise._torch.operators import registered_by as registered_by

# True under vmap, grad and their kin, which must see the operators themselves.
_transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active


def _check_tensors(q: Tensor, k: Any, v: Any, out: Any, arrays: Sequence[Any]) -> None:
    for name, value in (("k", k), ("v", v), ("out", out), *zip(ARRAY_NAMES, arrays)):
        if not isinstance(value, Tensor) and (value is not None or name in ("k", "v")):
            kind = type(value)
            raise TypeError(f"{name}: must be a torch tensor like q (got {kind.__module__}.{kind.__qualname__})")
    slopes = arrays[2]
    if slopes is not None and slopes.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError("alibi_slopes: has no gradient; pass alibi_slopes.detach()")


def _seeded(q: Tensor, seed: Any, scalars: Scalars) -> tuple[Any, Scalars]:
    """(tensor of seed and offset or None, scalars with an integer seed)."""
    if isinstance(seed, Tensor):
        return seed, scalars
    if seed is not None:
        return None, scalars._replace(seed=seed_value(seed))
    if scalars.dropout_p == 0.0:
        return None, scalars
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=q.device), scalars


def attention(
    q: Tensor, k: Any, v: Any, out: Any, seed: Any, arrays: Sequence[Any], scalars: Scalars, return_lse: bool
) -> Any:
    """out, or (out, softmax_lse); see tilewise.attention. `arrays` are in ARRAY_NAMES' order."""
    _check_tensors(q, k, v, out, arrays)
    bias, sink, *others = arrays
    if torch.is_autocast_enabled(q.device.type):
        q, k, v, bias = autocast.cast(q, k, v, bias, torch.get_autocast_dtype(q.device.type))
    seed_and_offset, scalars = _seeded(q, seed, scalars)
    rest = (*others, seed_and_offset, *scalars)
    needs_grad = torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (sink is not None and sink.requires_grad)
    )
    if out is not None:
        if needs_grad:
            raise ValueError("out: cannot be given with inputs that require gradients")
        lse = _run(operators.forward_out, q, k, v, out, bias, sink, *rest)
    elif torch.compiler.is_compiling() or _transforming():
        out, lse = operators.forward(q, k, v, bias, sink, *rest)
    elif needs_grad:
        out, lse = _run(autograd.AttentionFunction.apply, q, k, v, bias, sink, rest)
    else:
        with autograd.below_autograd():
            out, lse = _run(operators.forward, q, k, v, bias, sink, *rest)
    return (out, lse) if return_lse else out


def _run(function: Callable[..., Any], *args: Any) -> Any:
    """Calls an operator and gives its errors the types they have everywhere else."""
    try:
        return function(*args)
    except RuntimeError as error:
        _core.rethrow_torch_error(str(error))
        raise


_attention._torch_backend = sys.modules[__name__]
