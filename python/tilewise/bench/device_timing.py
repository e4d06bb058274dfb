"""Fair timing of several functions on a GPU between events: of calls that alternate, in runs, or sustained.

On the CPU, where only the logic of a benchmark is tried, a host clock takes the events' place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tilewise.bench.timing import Timing, no_garbage_collection, turn_by_turn

MIN_SAMPLES, MAX_SAMPLES = 5, 200
WARMUP_CALLS = 3
RUN_UNTIMED, RUN_SAMPLES, RUN_CALLS = 12, 20, 3  # calls ahead of a run's samples, samples, calls of each


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


def measure_runs(calls: Mapping[str, Callable[[], object]], clock: Clock) -> dict[str, Timing]:
    """Times each function's calls by themselves, some untimed ahead of them, in two rounds of opposite order.

    The first round's last function is the second one's first. A run of some 50 ms is too short for a GPU at its power
    limit to come to the clock of this function's own power, and begins at that of the run before.
    """
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    with no_garbage_collection():
        for name in (*names, *reversed(names)):
            for _ in range(RUN_UNTIMED):
                calls[name]()
            marks = [_marked(calls[name], clock, RUN_CALLS) for _ in range(RUN_SAMPLES)]
            clock.wait()
            samples[name] += [clock.seconds(*pair) / RUN_CALLS for pair in marks]
    return {name: Timing(tuple(times)) for name, times in samples.items()}


class Sustained:
    """Times each function call after call for `seconds`; who comes first changes from one use to the next.

    Of that the second half counts: a GPU at its power limit has the clock by then that this function's power allows,
    if it is about a second. In turns of 0.2 s an H200 still had the clock for what came before (8% of the time); where
    single calls alternate, as measure() has them, all run at one clock, for the mean of their power.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds, self._order = clock, seconds, 1

    def __call__(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
        names = list(calls)[:: self._order]
        self._order = -self._order
        with no_garbage_collection():
            timings = {name: Timing((self._time(calls[name]),)) for name in names}
        return {name: timings[name] for name in calls}

    def _time(self, call: Callable[[], object]) -> float:
        call()
        self._clock.wait()
        rounds = max(MIN_SAMPLES, int(self._seconds / 2 / max(self._mean(call, MIN_SAMPLES), 1e-7)))
        for _ in range(rounds):
            call()
        return self._mean(call, rounds)

    def _mean(self, call: Callable[[], object], calls: int) -> float:
        marks = _marked(call, self._clock, calls)
        self._clock.wait()
        return self._clock.seconds(*marks) / calls


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


def _marked(call: Callable[[], object], clock: Clock, calls: int) -> tuple[Any, Any]:
    first = clock.mark()
    for _ in range(calls):
        call()
    return first, clock.mark()


def _timed(call: Callable[[], object], clock: Clock, before: Callable[[], object]) -> tuple[Any, Any]:
    before()
    return _marked(call, clock, 1)
