"""The backend's name in SGLang, and which releases are known."""

from __future__ import annotations

import functools
import importlib
import logging

from tilewise import _engines

__all__ = ["BACKEND", "announce", "refuse_meanings", "sglang_logger"]

BACKEND = "tilewise"
# Releases, and what is known of Tilewise in them.
_KNOWN = {"0.5.23": "with whose classes it is tested on CPUs"}

refuse_meanings = functools.partial(_engines.refuse_meanings, "SGLang")


def sglang_logger() -> logging.Logger:
    """One of SGLang's loggers."""
    return logging.getLogger("sglang.tilewise")


@functools.cache
def announce() -> None:
    """Says in SGLang's log, once in a process, what Tilewise computes there, and what is known of this release."""
    version = str(importlib.import_module("sglang").__version__)
    sglang_logger().info("Tilewise computes attention; %s", _engines.release_sentence("SGLang", version, _KNOWN))
