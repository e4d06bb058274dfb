"""Fair timing of several functions: interleaved samples, medians, equal numbers of samples.

Samples of the contenders alternate, so that a drift of the clock frequency or a busy
neighbour hits all of them alike.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# Long enough for another library's spinning worker threads to fall asleep before the next one is timed.
SETTLE_SECONDS = 0.005

# Calls up to this long are repeated once untimed after the pause, so that sleeping workers don't count.
SHORT_CALL_SECONDS = 0.02

WARMUP_BURSTS = 2


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, one entry for each sample."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)

    def divided_by(self, calls: int) -> Timing:
        """Of one call, where each sample is of that many."""
        return self if calls == 1 else Timing(tuple(sample / calls for sample in self.samples))


def measure(
    calls: Mapping[str, Callable[[], object]], min_time: float = 0.2, num_samples: int = 5
) -> dict[str, Timing]:
    """Times every function: `num_samples` samples each, of together at least about `min_time` seconds.

    A sample is the mean over as many calls as fill its share of `min_time`.
    """
    repeats = {name: _repeats(call, min_time / num_samples) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name in turn_by_turn(list(calls), num_samples):
        samples[name].append(_sample(calls[name], *repeats[name]))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def turn_by_turn(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Every name once a round, each round from another one on, while garbage collection is off."""
    with no_garbage_collection():
        for turn in range(rounds):
            first = turn % len(names) if names else 0
            yield from (*names[first:], *names[:first])


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Puts the collector back as it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def measure_bursts(
    call: Callable[[], object], bursts: int, calls: int, settle: Callable[[], object] = lambda: None
) -> Timing:
    """Samples of a call that returns before its work is done: each the mean over `calls` calls, behind an untimed
    `settle`, which waits for what the ones before it have queued."""
    samples = []
    with no_garbage_collection():
        for _ in range(WARMUP_BURSTS + bursts):
            settle()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            samples.append((time.perf_counter() - start) / calls)
    settle()
    return Timing(tuple(samples[WARMUP_BURSTS:]))


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers. Raises ValueError for none at all or one that isn't positive."""
    if not values:
        raise ValueError("geometric_mean: needs at least one value")
    if not all(value > 0.0 and math.isfinite(value) for value in values):
        raise ValueError(f"geometric_mean: every value must be positive and finite (got {list(values)})")
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def _repeats(call: Callable[[], object], seconds: float) -> tuple[int, bool]:
    """How many calls fill `seconds`, and whether one is short. Its own calls are the warm-up."""
    call()
    start = time.perf_counter()
    call()
    elapsed = max(time.perf_counter() - start, 1e-9)
    return max(1, math.ceil(seconds / elapsed)), elapsed < SHORT_CALL_SECONDS


def _sample(call: Callable[[], object], repeats: int, short: bool) -> float:
    time.sleep(SETTLE_SECONDS)
    if short:
        call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
