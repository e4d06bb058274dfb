# `import flash_attn` resolving to Tilewise: a finder on sys.meta_path makes each name another one of a module that is
# imported on first use. What is not there is said to be missing here, not in flash_attn.
"""Modules under flash_attn's names."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional

from tilewise.compat.flash_attn import _metadata, _others

_COMPAT = "tilewise.compat"
# Names that install() serves, and what they stand for.
FLASH_ATTN = {"flash_attn": f"{_COMPAT}.flash_attn", "flash_attn_2_cuda": f"{_COMPAT}.flash_attn._raw"}
FLASH_ATTN_3 = {
    "flash_attn_interface": f"{_COMPAT}.flash_attn_3.flash_attn_interface",
    "flash_attn_3": f"{_COMPAT}.flash_attn_3",
}
_DISTRIBUTIONS = {"flash_attn": _metadata.FLASH_ATTN, "flash_attn_3": _metadata.FLASH_ATTN_3}


class _Alias(importlib.abc.Loader):
    """Puts the module that a name stands for under that name."""

    def __init__(self, target: str) -> None:
        self.target = target

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.target)


class _Finder(importlib.abc.MetaPathFinder):
    """Knows the names that are served, and the distributions that go with them."""

    def __init__(self) -> None:
        self.served: dict[str, str] = {}

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Optional[ModuleSpec]:
        """An alias's; or, for a module that is missing below a name that is served, an error.

        Raises:
            ModuleNotFoundError: Tilewise has no such module.
        """
        top, _, below = name.partition(".")
        if top not in self.served:
            return None
        if name == _others.CUTE or name.startswith(f"{_others.CUTE}."):
            spec = _others.cute_spec(name, path)
            if spec is not None:
                return spec
        real = f"{self.served[top]}.{below}" if below else self.served[top]
        hidden = any(part.startswith("_") for part in below.split("."))
        spec = None if hidden else _spec_of(real)
        if spec is None:
            raise ModuleNotFoundError(
                f"No module named {name!r}: Tilewise stands in for {top} here and has no such module; "
                "docs/migrating.md lists what it has",
                name=name,
            )
        return ModuleSpec(
            name, _Alias(real), origin=spec.origin, is_package=spec.submodule_search_locations is not None
        )

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """Those of what is served."""
        for top, distribution in _DISTRIBUTIONS.items():
            if top in self.served and distribution.is_asked_for(getattr(context, "name", None)):
                yield distribution

    def invalidate_caches(self) -> None:
        """There are none."""


def _spec_of(name: str) -> Optional[ModuleSpec]:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


_finder = _Finder()


def serve(names: dict[str, str]) -> None:
    """Makes imports of these names and of modules below them resolve to what they stand for."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)  # before those of packages whose place is taken
    cute = sys.modules.get(_others.CUTE)
    for name, target in names.items():
        for imported in _others.modules_below(name):
            del sys.modules[imported]
        _finder.served[name] = target
        module = importlib.import_module(target)
        sys.modules[name] = module
    if cute is not None and _others.CUTE in sys.modules:
        sys.modules["flash_attn"].cute = cute  # type: ignore[attr-defined]
    importlib.invalidate_caches()
    _metadata.forget_absence()
