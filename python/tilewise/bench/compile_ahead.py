"""Compiles many kernels at once, ahead of all timing: a compiler takes one processor for seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass(frozen=True)
class Compiled:
    """How long it took on how many processors, and what failed: (label, message)."""

    seconds: float
    cpus: int
    failures: tuple[tuple[str, str], ...]


def compile_all(
    jobs: Sequence[tuple[str, Callable[[], object]]], on_done: Callable[[str], object] = lambda label: None
) -> Compiled:
    """Runs the functions of (label, function) in parallel; `on_done` gets each label, from any thread.

    A failure is kept and not raised: it returns when the call itself is measured, and counts there.
    """
    cpus = len(os.sched_getaffinity(0))

    def run(job: tuple[str, Callable[[], object]]) -> str:
        label, function = job
        message = ""
        try:
            function()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            message = f"{type(error).__name__}: {error}"
        on_done(label)
        return message

    start = time.monotonic()
    with ThreadPoolExecutor(cpus) as pool:
        messages = list(pool.map(run, jobs))
    failures = tuple((label, message) for (label, _), message in zip(jobs, messages) if message)
    return Compiled(time.monotonic() - start, cpus, failures)
