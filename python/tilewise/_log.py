# What Python decides about a call, beside the core's own lines: the dispatch log.
"""The dispatch log, TILEWISE_LOG=dispatch, for decisions that are made in Python."""

from __future__ import annotations

import os
import sys
import threading

_MOST_LINES = 1024  # remembered, after which an old decision may be said again
_lock = threading.Lock()
_said: dict[str, None] = {}


def wanted() -> bool:
    """Whether a line of the dispatch log would be printed."""
    return os.environ.get("TILEWISE_LOG") == "dispatch"


def dispatch(line: str) -> None:
    """Prints a decision to stderr, once, where TILEWISE_LOG=dispatch asks for it."""
    if not wanted():
        return
    with _lock:
        if line in _said:
            return
        if len(_said) >= _MOST_LINES:
            del _said[next(iter(_said))]
        _said[line] = None
    print(f"tilewise: {line}", file=sys.stderr, flush=True)
