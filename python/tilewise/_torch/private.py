# Every name that torch does not promise and that is used here all the same, looked up in this one place, so that a
# release of torch that lacks one is refused with a sentence rather than with an AttributeError somewhere.
"""torch's private names."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any, NoReturn

import torch

_SUPPORTED = "2.6 to 2.15"  # up to the last whose own files have been looked through for them


def refuse(name: str) -> NoReturn:
    """ImportError that says which torch lacks which name."""
    raise ImportError(
        f"tilewise: torch {torch.__version__} has no {name}, which Tilewise needs; it knows torch {_SUPPORTED}: "
        "install one of those, or a newer Tilewise"
    ) from None


def name_of(path: str, module: str = "torch") -> Any:
    """What `path` leads to from a module. ImportError where torch has nothing there."""
    try:
        return reduce(getattr, path.split("."), importlib.import_module(module))
    except (AttributeError, ImportError):
        refuse(f"{module}.{path}")


# Below an autograd.Function that has taken their place, or to go on from a kernel of ours.
AutoDispatchBelowAutograd: Any = name_of("_C._AutoDispatchBelowAutograd")
ExcludeDispatchKeyGuard: Any = name_of("_C._ExcludeDispatchKeyGuard")
DispatchKeySet: Any = name_of("_C.DispatchKeySet")
autocast_keys: dict[str, Any] = {
    "cpu": name_of("_C.DispatchKey.AutocastCPU"),
    "cuda": name_of("_C.DispatchKey.AutocastCUDA"),
}
after_autograd_keyset: Any = name_of("_C._after_autograd_keyset")

# What surrounds a call. Eager calls ask each of them, so they are functions of C or plain attributes.
# A shortcut, without which calls ask after their own kind of device.
is_any_autocast_enabled: Any = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
are_transforms_active: Any = name_of("_C._are_functorch_transforms_active")  # vmap, grad and their kin
is_fwd_grad_enabled: Any = name_of("_C._is_fwd_grad_enabled")
forward_ad: Any = name_of("autograd.forward_ad")
name_of("autograd.forward_ad._current_level")  # read at every call: -1 outside of all dual levels


_FakeTensor: Any = name_of("FakeTensor", "torch._subclasses.fake_tensor")
_FunctionalTensor: Any = name_of("FunctionalTensor", "torch._subclasses.functional_tensor")

tree_leaves: Any = name_of("tree_leaves", "torch.utils._pytree")
tree_map_only: Any = name_of("tree_map_only", "torch.utils._pytree")


def has_values(tensor: torch.Tensor) -> bool:
    """Whether there are numbers behind a tensor: not on the meta device, and not where a compiler looks on."""
    return tensor.device.type != "meta" and not isinstance(tensor, (_FakeTensor, _FunctionalTensor))


def unguarded_apply(function: Any) -> Any:
    """apply() of an autograd.Function without its preparations for functorch transforms, under which it is never
    called."""
    apply = getattr(super(torch.autograd.Function, function), "apply", None)
    return apply or refuse("autograd.Function.apply of a base class")


def handle_of(operator: Any) -> Any:
    """What calling an operator calls, one Python frame less; the operator itself where torch has no such thing."""
    return getattr(operator, "_op", operator)


def of_jagged(tensor: Any, name: str) -> Any:
    """What a jagged tensor does not tell publicly: one of JAGGED_NAMES."""
    try:
        return getattr(tensor, name)
    except AttributeError:
        refuse(f"torch.nested._internal.nested_tensor.NestedTensor.{name}")


# The jagged dimension; shortest and longest sequence, None where torch does not know them yet; the longest as torch
# keeps it, and what computes it and keeps it there.
JAGGED_NAMES = ("_ragged_idx", "_maybe_min_seqlen", "_maybe_max_seqlen", "_max_seqlen_tensor", "_get_max_seqlen")
