"""Runs one case: prepares every contender, judges its results, times them interleaved.

Gives one Row for each contender. Cases of any operation are run so: run_on() knows none.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from tilewise.bench import device_timing
from tilewise.bench.ceilings import GpuCeilings
from tilewise.bench.contenders import Contender, InputsT, Prepared, Unsupported, written_over_nan
from tilewise.bench.device_timing import clock_of
from tilewise.bench.expected import Expected, whole_result
from tilewise.bench.gpu import CacheFlush
from tilewise.bench.inputs import Inputs, make_inputs
from tilewise.bench.kv_cache_cases import KvCase
from tilewise.bench.kv_cache_inputs import KvInputs, few_sequences, make_kv_inputs
from tilewise.bench.reference import Accuracy
from tilewise.bench.rows import AnyCaseT, Row
from tilewise.bench.shapes import Case
from tilewise.bench.timing import Timing, measure

KV_BYTES = 2**28  # that steps on a CPU go round over: more than caches hold
MOST_KV_COPIES = 16

# Times calls by name; what it does before and between them is its own affair.
Timer = Callable[[Mapping[str, Callable[[], object]]], Mapping[str, Timing]]


@dataclass(frozen=True)
class Settings:
    """How to measure. `min_time` is in seconds, for each contender and case.

    `timer`: None takes `num_samples` samples by the host's clock, which is right for the CPU alone.
    `ceilings`: of the GPU, where they are known; `gpu`: its name, for the rows.
    """

    min_time: float = 0.2
    num_samples: int = 5
    accuracy: bool = True
    seed: int = 0
    timer: Timer | None = None
    ceilings: GpuCeilings | None = None
    gpu: str = ""


def run_case(
    case: Case,
    contenders: Sequence[Contender[Case, Inputs]],
    settings: Settings,
    num_copies: int = 1,
    on_step: Callable[[str], object] = lambda step: None,
) -> list[Row]:
    """run_on() on `num_copies` sets of tensors of one attention case, against the whole float64 result."""
    on_step("reference")
    copies = [make_inputs(case, settings.seed + copy) for copy in range(num_copies)]
    expected = whole_result(case, copies[0]) if settings.accuracy else None
    return run_on(copies, case, contenders, settings, expected, on_step)


def run_kv_case(
    case: KvCase,
    contenders: Sequence[Contender[KvCase, KvInputs]],
    settings: Settings,
    on_step: Callable[[str], object] = lambda step: None,
) -> list[Row]:
    """run_on() on the tensors of one KV cache step, against float64 results of its first and last sequence.

    A processor's cache would hold what a short step reads, so there steps go round over several copies, as they would
    over a model's layers. On a GPU the timer flushes the cache.
    """
    on_step("reference")
    count = min(MOST_KV_COPIES, -(-KV_BYTES // case.traffic_bytes())) if case.device == "cpu" else 1
    copies = [make_kv_inputs(case, settings.seed + copy) for copy in range(count)]
    expected = few_sequences(case, copies[0]) if settings.accuracy else None
    return run_on(copies, case, contenders, settings, expected, on_step)


def run_on(
    copies: Sequence[InputsT],
    case: AnyCaseT,
    contenders: Sequence[Contender[AnyCaseT, InputsT]],
    settings: Settings,
    expected: Optional[Expected],
    on_step: Callable[[str], object] = lambda step: None,
) -> list[Row]:
    """One row a contender, in their order.

    Timed calls go round over `copies` of the tensors: enough of them, and the caches never hold what a call reads.
    On a GPU they do so in one CUDA graph. The first copy is the one whose results are judged, unless `expected` is
    None. `on_step` hears what is being done.
    """
    status: dict[str, str] = {}
    accuracy: dict[str, Accuracy] = {}
    prepared: dict[str, Prepared] = {}
    for contender in contenders:
        name = contender.name
        accuracy[name] = Accuracy(math.nan, math.nan)
        if case.device == "cpu":
            contender.set_num_threads(case.threads)
        on_step(f"preparing {name}")  # which may compile: in a first call, ahead of all timed ones
        try:
            prepared[name] = in_turn([contender.prepare(case, inputs) for inputs in copies], case.device)
            if expected is not None:
                on_gpu = case.device != "cpu"
                accuracy[name] = expected.judge(
                    written_over_nan(prepared[name]) if on_gpu else prepared[name].results()
                )
        except (Unsupported, NotImplementedError) as reason:
            status[name] = f"unsupported: {reason}"
        except (RuntimeError, ValueError, TypeError) as error:  # one library's failure must not end the table
            refused = "No available kernel" in str(error)  # torch's refusal
            status[name] = f"unsupported: {error}" if refused else f"failed: {type(error).__name__}: {error}"
        else:
            problem = accuracy[name].problem
            status[name] = f"failed: {problem}" if problem else "ok"
    sound = {name: each for name, each in prepared.items() if status[name] == "ok"}
    on_step("timing")
    timings = _time(sound, settings)
    return [
        _row(case, contender, timings.get(contender.name), accuracy[contender.name], status[contender.name], settings)
        for contender in contenders
    ]


def in_turn(copies: Sequence[Prepared], device: str) -> Prepared:
    """The calls of all copies as one: a graph of them on a GPU, else the next one each time."""
    if len(copies) == 1:
        return copies[0]
    calls = [each.call for each in copies]
    if device != "cpu":
        return Prepared(device_timing.graph_of(calls), copies[0].results, len(calls))
    turns = itertools.cycle(calls)
    return Prepared(lambda: next(turns)(), copies[0].results)


def _time(prepared: Mapping[str, Prepared], settings: Settings) -> dict[str, Timing]:
    """Of one call each."""
    calls = {name: each.call for name, each in prepared.items()}
    if settings.timer is not None:
        timings = settings.timer(calls)
    else:
        timings = measure(calls, settings.min_time, settings.num_samples)
    return {name: timing.divided_by(prepared[name].calls) for name, timing in timings.items()}


def gpu_settings(settings: Settings, device: str = "cuda") -> Settings:
    """`settings` for the GPU that torch calls `device`: events instead of the host's clock, and caches flushed
    before each timed call."""
    flush, clock = CacheFlush(device), clock_of(device)

    def timer(calls: Mapping[str, Callable[[], object]]) -> Mapping[str, Timing]:
        return device_timing.measure(calls, clock, settings.min_time, flush)

    return dataclasses.replace(settings, timer=timer)


def _row(
    case: AnyCaseT,
    contender: Contender[AnyCaseT, InputsT],
    timing: Optional[Timing],
    accuracy: Accuracy,
    status: str,
    settings: Settings,
) -> Row:
    median, best = (timing.median, timing.best) if timing else (math.nan, math.nan)
    work, traffic = case.flops(), case.traffic_bytes()
    least = settings.ceilings.least_seconds(case.bf16_flops(), traffic) if settings.ceilings else math.nan
    return Row(
        library=contender.name,
        version=contender.version(),
        implementation="" if status.startswith("unsupported") else contender.implementation(case),
        gpu=settings.gpu,
        case=case,
        median_us=median * 1e6,
        best_us=best * 1e6,
        gflops=work / median / 1e9,
        gb_per_s=traffic / median / 1e9,
        of_ceiling=least / median,
        max_abs_err=accuracy.max_abs_err,
        rel_l2_err=accuracy.rel_l2_err,
        status=status,
    )
