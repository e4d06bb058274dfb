# `import flash_attn` resolving to this package: its modules stand in sys.modules under flash_attn's names.
"""install()."""

from __future__ import annotations

import importlib
import importlib.util
import sys

_PACKAGE = "tilewise.compat.flash_attn"
_MODULES = ("", ".bert_padding", ".flash_attn_interface", ".layers", ".layers.rotary")


def installed() -> bool:
    """Whether flash_attn is this package already."""
    return getattr(sys.modules.get("flash_attn"), "__name__", None) == _PACKAGE


def _refuse_to_shadow() -> None:
    module = sys.modules.get("flash_attn")
    if module is None and importlib.util.find_spec("flash_attn") is None:
        return
    spec = importlib.util.find_spec("flash_attn") if module is None else getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or "an unknown place"
    raise ImportError(
        f"flash_attn: there is one already, from {origin}; install(force=True) puts Tilewise's in its place"
    )


def install(force: bool = False) -> None:
    """Makes `import flash_attn` and its modules resolve to Tilewise's in this process. Calling again is harmless.

    flash_attn_2_cuda, its extension module, becomes the raw passes.

    Args:
        force: Take the place of a flash_attn that is installed or imported.

    Raises:
        ImportError: There is one, and `force` is False.
    """
    if installed():
        return
    if not force:
        _refuse_to_shadow()
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]
    for suffix in _MODULES:
        sys.modules[f"flash_attn{suffix}"] = importlib.import_module(f"{_PACKAGE}{suffix}")
    sys.modules["flash_attn_2_cuda"] = importlib.import_module(f"{_PACKAGE}._raw")
    importlib.import_module(f"{_PACKAGE}._operators").register(force=True)
