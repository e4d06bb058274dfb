"""The cases of estimates.py: every shape of the benchmarks, each with the function that measures it.

A case is measured as its benchmark does it, but for the CPU, where the least of several short calls counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import attention_cpu
import gpu_cases
from gpu_cases import GpuCase

import tilewise
from tilewise.bench import device_timing
from tilewise.bench.contenders import Tilewise
from tilewise.bench.gpu import CacheFlush, gpu_kind
from tilewise.bench.inputs import make_inputs
from tilewise.bench.runner import in_turn
from tilewise.bench.shapes import MASKS, Case, Pass, default_grid

CPU_DTYPES, GPU_DTYPES = ("bf16", "f32"), ("bf16", "f16")
FEWEST_CALLS = 2  # beside the first one
DECODE_BYTES = 2**28  # of keys and values on the CPU: more than caches hold


@dataclass(frozen=True)
class Times:
    """Microseconds, and the implementation that took or would take them."""

    implementation: str
    estimated_us: float
    measured_us: float


@dataclass(frozen=True)
class Job:
    """A case, its place in the table of a benchmark, and what measures it; `warm_up` compiles what it needs."""

    bench: str
    operation: str
    row: str
    column: str
    run: Callable[[], Times]
    warm_up: Callable[[], object]

    @property
    def label(self) -> str:
        return f"{self.bench}: {self.row}, {self.column}"


def timed(explanation: tilewise.Explanation, seconds: float) -> Times:
    """`seconds` beside what the chosen implementation of `explanation` was thought to take."""
    (chosen,) = (row for row in explanation.rows if row.chosen)
    return Times(chosen.implementation, chosen.estimated_us, seconds * 1e6)


def grid_of(passes: Sequence[Pass], dtypes: Sequence[str], threads: int, device: str) -> Iterator[Case]:
    """The default grid of `python -m tilewise.bench`."""
    for shape in default_grid():
        for mask in MASKS:
            for operation in passes:
                for dtype in dtypes:
                    yield Case(shape, dtype, mask, operation, "bshd", threads, device)


def case_job(bench: str, case: Case, run: Callable[[], Times]) -> Job:
    """In a row for the shape without its head_dim and the mask, and a column for the rest."""
    row = str(case.shape).rpartition("x")[0] + (" causal" if case.mask == "causal" else "")
    column = f"{case.operation} {case.dtype} d{case.shape.head_dim}"
    if case.device == "cpu":
        column += f" t{case.threads}"
    return Job(bench, case.operation, row, column, run, partial(Tilewise().warm_up, case))


def cpu_jobs(passes: Sequence[Pass], thread_counts: Sequence[int], seconds: float, busy: bool) -> Iterator[Job]:
    def jobs(bench: str, cases: Iterable[Case], copied_bytes: int = 0) -> Iterator[Job]:
        for case in cases:
            yield case_job(bench, case, partial(run_on_cpu, case, seconds, busy, copied_bytes))

    for threads in thread_counts:
        yield from jobs("attention_cpu.py", attention_cpu.grid_cases([threads], passes, CPU_DTYPES))
        if "forward" in passes:
            decode = [attention_cpu.decode_case(dtype, threads) for dtype in CPU_DTYPES]
            yield from jobs("attention_cpu.py, decode", decode, DECODE_BYTES)
        yield from jobs("tilewise.bench", grid_of(passes, CPU_DTYPES, threads, "cpu"))


def run_on_cpu(case: Case, seconds: float, busy: bool, copied_bytes: int = 0) -> Times:
    """The least of several calls: other programs can only add to it. They go round over tensors of `copied_bytes`.

    `busy`: what counts is processor time, shared among the threads, which others' turns on a processor don't add to.
    """
    clock, shared = (time.process_time, case.threads) if busy else (time.perf_counter, 1)
    library = Tilewise()
    library.set_num_threads(case.threads)
    copies = max(1, -(-copied_bytes // case.traffic_bytes()))
    calls = [library.prepare(case, make_inputs(case, seed)).call for seed in range(copies)]
    calls[0]()
    least, done, end = math.inf, 0, time.perf_counter() + seconds
    while done < FEWEST_CALLS or time.perf_counter() < end:
        start = clock()
        calls[done % copies]()
        least, done = min(least, (clock() - start) / shared), done + 1
    return timed(library.explanation(case), least)


def gpu_jobs(passes: Sequence[Pass], seconds: float) -> Iterator[Job]:
    every, kind = tuple(passes), gpu_kind()
    for case in gpu_cases.grid_cases(passes=every):
        yield from headline_jobs("attention_gpu.py", case, f"s{case.shape.seqlen_q} {case.mask}", seconds)
    for case in gpu_cases.option_cases(every):
        yield from headline_jobs("attention_gpu.py, options", case, f"{case.kind} {case.mask}", seconds)
    for case in gpu_cases.decode_cases() if "forward" in passes else ():
        row = f"b{case.shape.batch_size} s{case.shape.seqlen_k}"
        yield from headline_jobs("attention_gpu.py, decode", case, row, seconds)
    for grid_case in grid_of(passes, GPU_DTYPES, 1, kind):
        yield case_job("tilewise.bench", grid_case, partial(run_on_gpu, grid_case, seconds))


def headline_jobs(bench: str, case: GpuCase, row: str, seconds: float) -> Iterator[Job]:
    for operation in case.passes:
        run, warm_up = partial(run_headline, case, operation, seconds), partial(Tilewise().warm_up, case.on(gpu_kind()))
        yield Job(bench, operation, row, f"{operation} d{case.shape.head_dim}", run, warm_up)


def run_headline(headline: GpuCase, operation: Pass, seconds: float) -> Times:
    """As attention_gpu.py does it: a call between events, or a graph of calls on more keys than the cache holds."""
    library, case = Tilewise(), headline.on(gpu_kind(), operation)
    copies = [make_inputs(case, seed) for seed in range(gpu_cases.num_copies(headline, case.torch_device))]
    prepared = in_turn([library.prepare(case, inputs) for inputs in copies], case.device)
    timing = device_timing.measure({library.name: prepared.call}, device_timing.clock_of(case.torch_device), seconds)
    return timed(library.explanation(case), timing[library.name].median / prepared.calls)


def run_on_gpu(case: Case, seconds: float) -> Times:
    """As `python -m tilewise.bench` does it: between events, caches flushed before each call."""
    library = Tilewise()
    prepared = library.prepare(case, make_inputs(case))
    clock, flush = device_timing.clock_of(case.torch_device), CacheFlush(case.torch_device)
    timing = device_timing.measure({library.name: prepared.call}, clock, seconds, flush)
    return timed(library.explanation(case), timing[library.name].median)
