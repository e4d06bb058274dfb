# Other packages that are called flash_attn: flash_attn 2 itself, and FlashAttention-4, which puts its one package
# flash_attn.cute into a folder flash_attn without a module of its own, and shares that name with whoever else has it.
"""What is installed under flash_attn's names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pkgutil import extend_path
from typing import Any, Optional

CUTE = "flash_attn.cute"


def _is_ours(thing: Any) -> bool:
    name = getattr(thing, "__module__", None) or getattr(thing, "__name__", "")
    return str(name).startswith("tilewise.")


def _spec(name: str, path: Optional[Sequence[str]] = None) -> Optional[ModuleSpec]:
    """What the finders of Python and of other packages, editable ones too, know of a module."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None or _is_ours(type(finder)) else find(name, path)
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


def other(name: str) -> Optional[str]:
    """Where another module of this name is imported from or would be; None where there is none, or a folder without a
    module of its own, which leaves the name to others."""
    module = sys.modules.get(name)
    if module is not None:
        if _is_ours(module):
            return None
        spec = getattr(module, "__spec__", None)
        is_folder = spec is not None and spec.origin is None and hasattr(module, "__path__")
        return None if is_folder else getattr(spec, "origin", None) or "an unknown place"
    found = _spec(name)
    return None if found is None else found.origin


def cute_spec(name: str, path: Optional[Sequence[str]]) -> Optional[ModuleSpec]:
    """FlashAttention-4's module flash_attn.cute, or one below it on its parent's path, where it is installed."""
    if name == CUTE:
        return _spec(CUTE, list(extend_path([], "flash_attn")))
    package = sys.modules.get(CUTE)
    return None if package is None or _is_ours(package) else _spec(name, path)


def modules_below(top: str) -> list[str]:
    """Names of `top` and its modules that are imported and not to be kept: FlashAttention-4's are."""
    names = [name for name in sys.modules if name.partition(".")[0] == top]
    package = sys.modules.get(CUTE)
    if package is None or _is_ours(package):
        return names
    return [name for name in names if name != CUTE and not name.startswith(f"{CUTE}.")]
