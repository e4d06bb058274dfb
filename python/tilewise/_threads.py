# The number of CPU threads: the rule is the core's; here stands where torch's own number comes from.
"""set_num_threads and get_num_threads."""

from __future__ import annotations

import sys
from typing import Optional

from tilewise import _core
from tilewise._arguments import integer


def torch_threads() -> int:
    """torch.get_num_threads() in a program that has imported torch, else 0."""
    ask = getattr(sys.modules.get("torch"), "get_num_threads", None)  # None too while torch is being imported
    return 0 if ask is None else int(ask())


def set_num_threads(num_threads: Optional[int]) -> None:
    """Makes the calls that follow use at most this many CPU threads, on arrays of every kind.

    This holds until torch.get_num_threads() gives another number than it does now (in a program that imports torch
    later: than at the first call after that). Never more than TILEWISE_NUM_THREADS threads are used. Results do not
    depend on it.

    Args:
        num_threads: 1 to 1024. None, or 0, restores the default: as many as torch.get_num_threads() says in a
            program that has imported torch, else as many as there are processors for the process.

    Raises:
        ValueError, TypeError: num_threads is no such number.
    """
    _core.set_num_threads(0 if num_threads is None else integer("num_threads", num_threads), torch_threads())


def get_num_threads() -> int:
    """How many CPU threads the next call uses at most, on arrays of any kind.

    Raises:
        ValueError: TILEWISE_NUM_THREADS is not a number from 1 to 1024.
    """
    return _core.get_num_threads(torch_threads())
