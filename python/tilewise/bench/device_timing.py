"""Fair timing of several functions on a GPU: interleaved samples between events, medians.

On the CPU, where only the logic of a benchmark is tried, a host clock takes the events' place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tilewise.bench.timing import Timing, turn_by_turn

MIN_SAMPLES, MAX_SAMPLES = 5, 200
WARMUP_CALLS = 3


class Clock(Protocol):
    """Marks moments in the order of the device's work."""

    def mark(self) -> Any: ...
    def wait(self) -> None: ...
    def seconds(self, first: Any, second: Any) -> float: ...


class EventClock:
    """CUDA events on the current stream."""

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        import torch

        torch.cuda.synchronize()

    def seconds(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3


class HostClock:
    """For work that is done when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def wait(self) -> None:
        pass

    def seconds(self, first: float, second: float) -> float:
        return second - first


def clock_of(device: str) -> Clock:
    """Of "cpu", or of any GPU."""
    return HostClock() if device == "cpu" else EventClock()


def measure(
    calls: Mapping[str, Callable[[], object]],
    clock: Clock,
    seconds: float,
    before_each: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """Times one call at a time, turn by turn, for about `seconds` for each function.

    `before_each` runs untimed ahead of every timed call: a CacheFlush, where the data would stay in the cache.
    """
    for call in calls.values():
        for _ in range(WARMUP_CALLS):
            call()
    once = {name: _timed(call, clock, before_each) for name, call in calls.items()}
    clock.wait()
    longest = max((clock.seconds(*marks) for marks in once.values()), default=0.0)
    rounds = max(MIN_SAMPLES, min(MAX_SAMPLES, int(seconds / max(longest, 1e-7))))
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for call in calls.values():  # work for the device, while the host runs ahead of it
        call()
    for name in turn_by_turn(list(calls), rounds):
        marks[name].append(_timed(calls[name], clock, before_each))
    clock.wait()
    return {name: Timing(tuple(clock.seconds(*pair) for pair in pairs)) for name, pairs in marks.items()}


def sustain(calls: Mapping[str, Callable[[], object]], clock: Clock, seconds: float, turns: int) -> dict[str, Timing]:
    """Times each function call after call for `seconds`, in as many turns of all of them.

    Of a turn the second half counts: a GPU at its power limit has the clock by then that this function's power allows,
    if a turn is about a second. In turns of 0.2 s an H200 still had the clock for what came before (8% of the time);
    where single calls alternate, as measure() has them, all run at one clock, for the mean of their power.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name in turn_by_turn(list(calls), turns):
        samples[name].append(_sustained(calls[name], clock, seconds))
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def graph_of(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """One CUDA graph of all calls, so that the host takes no part in their time; replays it when called."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # first calls may allocate, load and tune
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    replay: Callable[[], object] = graph.replay
    return replay


def _sustained(call: Callable[[], object], clock: Clock, seconds: float) -> float:
    call()
    clock.wait()
    rounds = max(MIN_SAMPLES, int(seconds / 2 / max(_mean(call, clock, MIN_SAMPLES), 1e-7)))
    for _ in range(rounds):
        call()
    return _mean(call, clock, rounds)


def _mean(call: Callable[[], object], clock: Clock, calls: int) -> float:
    first = clock.mark()
    for _ in range(calls):
        call()
    last = clock.mark()
    clock.wait()
    return clock.seconds(first, last) / calls


def _timed(call: Callable[[], object], clock: Clock, before: Callable[[], object]) -> tuple[Any, Any]:
    before()
    first = clock.mark()
    call()
    return first, clock.mark()
