"""What TILEWISE_VLLM asks for, and which releases of vLLM are known."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

from tilewise import _core, _engines
from tilewise._engines import release_sentence

__all__ = ["announce", "refuse_meanings", "share_threads", "vllm_logger", "wanted"]

_WORDS = ("attention", "experts", "linear", "mla")
# Releases, and what is known of Tilewise in them.
_KNOWN = {
    "0.26": "with which it was tried on an H200",
    "0.32": "with which it is tested on CPUs",
    "0.33": "whose interface it was written against",
}


def wanted() -> set[str]:
    """The words of TILEWISE_VLLM. Raises ValueError for one that is none."""
    asked = os.environ.get("TILEWISE_VLLM", "")
    words = {word.strip() for word in asked.split(",")} - {""}
    for word in sorted(words.difference(_WORDS)):
        raise ValueError(f"TILEWISE_VLLM: must be of {', '.join(_WORDS)}, with commas between (got {word!r})")
    return words


def vllm_logger() -> Any:
    """One of vLLM's loggers, which are set up after plugins are loaded: till then only warnings are seen."""
    return importlib.import_module("vllm.logger").init_logger("vllm.tilewise")


@functools.cache
def announce(what: str) -> None:
    """Says in vLLM's log, once in a process, what Tilewise computes there, and what is known of this release."""
    version = str(importlib.import_module("vllm").__version__)
    vllm_logger().info("Tilewise computes %s; %s", what, release_sentence("vLLM", version, _KNOWN))


def share_threads() -> None:
    """On vLLM's CPU platform calls work on OpenMP's threads, which its own kernels leave spinning between a layer's
    parts. Each process that makes layers asks for it: a forked one has to again."""
    if importlib.import_module("vllm.platforms").current_platform.is_cpu():
        _core.share_openmp_threads(True)


refuse_meanings = functools.partial(_engines.refuse_meanings, "vLLM")
