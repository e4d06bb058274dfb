# install(): which names are taken, and where others' packages stand in the way.
"""install()."""

from __future__ import annotations

import importlib
import sys

import torch

from tilewise.compat.flash_attn import _importing, _others, _transformers

_PACKAGE = _importing.FLASH_ATTN["flash_attn"]


def installed() -> bool:
    """Whether flash_attn is this package already."""
    return getattr(sys.modules.get("flash_attn"), "__name__", None) == _PACKAGE


def _refuse_to_shadow() -> None:
    origin = _others.other("flash_attn")
    if origin is not None:
        raise ImportError(
            f"flash_attn: there is one already, from {origin}; install(force=True) puts Tilewise's in its place"
        )


def install(force: bool = False, transformers: bool = False) -> None:
    """Makes imports of flash_attn and its modules resolve to Tilewise's in this process. Calling again is harmless.

    flash_attn_2_cuda, its extension module, becomes the raw passes; flash_attn_interface and flash_attn_3 become
    FlashAttention-3's, unless one is installed. importlib.metadata.version("flash_attn") answers the release whose
    interface this is. FlashAttention-4, which is installed as flash_attn.cute alone, stays what it is; without it
    flash_attn.cute is Tilewise's too. A module that Tilewise lacks is an ImportError that says so.

    Args:
        force: Take the place of a flash_attn and of a FlashAttention-3 that are installed or imported.
        transformers: Also make Hugging Face transformers take attn_implementation="flash_attention_2" where torch has
            no GPU, for which its checks are replaced; docs/migrating.md lists them.

    Raises:
        ImportError: There is a flash_attn, and `force` is False; or transformers is wanted and not installed.
    """
    if not installed():
        if not force:
            _refuse_to_shadow()
        _importing.serve(_importing.FLASH_ATTN)
        importlib.import_module(f"{_PACKAGE}._operators").register(force=True)
    if force or not any(_others.other(name) for name in _importing.FLASH_ATTN_3):
        _importing.serve(_importing.FLASH_ATTN_3)
    if transformers and not torch.cuda.is_available():
        _transformers.take_cpus()
