# `import flash_attn` resolving to this package: its modules stand in sys.modules under flash_attn's names.
"""install()."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

from tilewise.compat.flash_attn import _metadata, _transformers

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


def install(force: bool = False, transformers: bool = False) -> None:
    """Makes `import flash_attn` and its modules resolve to Tilewise's in this process. Calling again is harmless.

    flash_attn_2_cuda, its extension module, becomes the raw passes. Where torch has a GPU, the distribution's metadata
    is found too, as importlib.metadata.version("flash-attn"), by which libraries know that it is there.

    Args:
        force: Take the place of a flash_attn that is installed or imported.
        transformers: Also make Hugging Face transformers take attn_implementation="flash_attention_2" where torch has
            no GPU, for which its checks are replaced; docs/migrating.md lists them.

    Raises:
        ImportError: There is a flash_attn, and `force` is False; or transformers is wanted and not installed.
    """
    if not installed():
        if not force:
            _refuse_to_shadow()
        _put_modules()
    has_gpu = torch.cuda.is_available()
    if has_gpu or transformers:
        _metadata.make_findable()
    if transformers and not has_gpu:
        _transformers.take_cpus()


def _put_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]
    for suffix in _MODULES:
        sys.modules[f"flash_attn{suffix}"] = importlib.import_module(f"{_PACKAGE}{suffix}")
    sys.modules["flash_attn_2_cuda"] = importlib.import_module(f"{_PACKAGE}._raw")
    importlib.import_module(f"{_PACKAGE}._operators").register(force=True)
