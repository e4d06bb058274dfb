# Other libraries' attention over Tilewise, one module each, imported where they are first used: they need torch.
"""Drop-ins: other libraries' attention functions, with their own signatures and conventions."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from tilewise._public import lists_public_names

_MODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
__dir__ = lists_public_names(_MODULES)

if not TYPE_CHECKING:  # a type checker would take every name for one of the package's

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"tilewise.compat.{name}")
        raise AttributeError(f"module 'tilewise.compat' has no attribute {name!r}")
