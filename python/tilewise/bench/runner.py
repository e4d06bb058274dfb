"""Runs one case: prepares every contender, judges its results, times them interleaved.

Gives one Row for each contender, the unit of the CSV file and of the printed table.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewise.bench import device_timing, reference
from tilewise.bench.ceilings import GpuCeilings
from tilewise.bench.contenders import Contender, Unsupported, written_over_nan
from tilewise.bench.device_reference import Scoring, exact_attention
from tilewise.bench.device_timing import clock_of
from tilewise.bench.gpu import CacheFlush
from tilewise.bench.inputs import Inputs, make_inputs, to_reference
from tilewise.bench.reference import Accuracy
from tilewise.bench.shapes import Case, flops, traffic_bytes
from tilewise.bench.timing import Timing, measure

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


@dataclass(frozen=True)
class Row:
    """One measurement; the field names are the CSV's columns. Times in microseconds, NaN where not measured.

    `of_ceiling` is the least time that the GPU's ceilings allow for the work, by the median time.
    """

    library: str
    version: str
    implementation: str
    device: str
    gpu: str
    threads: int
    operation: str
    dtype: str
    mask: str
    layout: str
    batch_size: int
    seqlen_q: int
    seqlen_k: int
    num_heads_q: int
    num_heads_k: int
    head_dim: int
    median_us: float
    best_us: float
    gflops: float
    gb_per_s: float
    of_ceiling: float
    max_abs_err: float
    rel_l2_err: float
    status: str

    @property
    def ok(self) -> bool:
        """Measured, and its results are right."""
        return self.status == "ok"

    @property
    def failed(self) -> bool:
        """Its results are wrong or it raised: unlike a refusal, which is no failure."""
        return self.status.startswith("failed")


def run_case(
    case: Case,
    contenders: Sequence[Contender],
    settings: Settings,
    num_copies: int = 1,
    on_step: Callable[[str], object] = lambda step: None,
) -> list[Row]:
    """One row a contender, in their order.

    Timed calls go round over `num_copies` sets of tensors: enough of them, and the caches never
    hold what a call reads. The first set is the one whose results are judged. `on_step` hears what is being done.
    """
    on_step("reference")
    copies = [make_inputs(case, settings.seed + copy) for copy in range(num_copies)]
    expected = _reference(case, copies[0]) if settings.accuracy else []
    status: dict[str, str] = {}
    accuracy: dict[str, Accuracy] = {}
    calls: dict[str, Callable[[], object]] = {}
    for contender in contenders:
        name = contender.name
        accuracy[name] = Accuracy(math.nan, math.nan)
        contender.set_num_threads(case.threads)
        on_step(f"preparing {name}")  # which may compile: in a first call, ahead of all timed ones
        try:
            prepared = [contender.prepare(case, inputs) for inputs in copies]
            calls[name] = _round_robin([each.call for each in prepared])
            if settings.accuracy:
                judged = prepared[0].results() if case.device == "cpu" else written_over_nan(prepared[0])
                results = [to_reference(result, case.layout) for result in judged]
                accuracy[name] = reference.compare(results, expected, case.dtype)
        except Unsupported as reason:
            status[name] = f"unsupported: {reason}"
        except NotImplementedError as reason:
            status[name] = f"unsupported: {reason}"
        except (RuntimeError, ValueError, TypeError) as error:  # one library's failure must not end the table
            status[name] = f"failed: {type(error).__name__}: {error}"
        else:
            problem = accuracy[name].problem
            status[name] = f"failed: {problem}" if problem else "ok"
    sound = {name: call for name, call in calls.items() if status[name] == "ok"}
    on_step("timing")
    if settings.timer is not None:
        timings = settings.timer(sound)
    else:
        timings = measure(sound, settings.min_time, settings.num_samples)
    return [
        _row(case, contender, timings.get(contender.name), accuracy[contender.name], status[contender.name], settings)
        for contender in contenders
    ]


def gpu_settings(settings: Settings, device: str = "cuda") -> Settings:
    """`settings` for the GPU that torch calls `device`: events instead of the host's clock, and caches flushed
    before each timed call."""
    flush, clock = CacheFlush(device), clock_of(device)

    def timer(calls: Mapping[str, Callable[[], object]]) -> Mapping[str, Timing]:
        return device_timing.measure(calls, clock, settings.min_time, flush)

    return dataclasses.replace(settings, timer=timer)


def ratio(rows: Sequence[Row], library: str, base: str = "tilewise") -> float:
    """How many times faster `base` is than `library`; NaN where either was not measured."""
    medians = {row.library: row.median_us for row in rows if row.ok}
    return medians.get(library, math.nan) / medians.get(base, math.nan)


def _round_robin(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    if len(calls) == 1:
        return calls[0]
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _reference(case: Case, inputs: Inputs) -> list[reference.Array]:
    if case.device != "cpu":  # float64 takes seconds on a host, milliseconds on a GPU
        return _reference_on_gpu(case, inputs)
    q, k, v, dout = (to_reference(tensor, case.layout) for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout))
    causal = case.mask == "causal"
    if case.operation == "forward":
        return [reference.attention_forward(q, k, v, causal=causal)]
    return list(reference.attention_backward(q, k, v, dout, causal=causal))


def _reference_on_gpu(case: Case, inputs: Inputs) -> list[reference.Array]:
    tensors = (inputs.q, inputs.k, inputs.v, inputs.dout)
    if case.layout == "bhsd":
        tensors = tuple(tensor.transpose(1, 2) for tensor in tensors)
    exact = exact_attention(*tensors, Scoring(case.mask == "causal"), case.operation == "backward")
    return [to_reference(tensor, "bshd") for tensor in exact]


def _row(
    case: Case, contender: Contender, timing: Timing | None, accuracy: Accuracy, status: str, settings: Settings
) -> Row:
    median, best = (timing.median, timing.best) if timing else (math.nan, math.nan)
    work, traffic = flops(case), traffic_bytes(case)
    least = settings.ceilings.least_seconds(work, traffic) if settings.ceilings else math.nan
    return Row(
        library=contender.name,
        version=contender.version(),
        implementation="" if status.startswith("unsupported") else contender.implementation(case),
        device=case.device,
        gpu=settings.gpu,
        threads=case.threads,
        operation=case.operation,
        dtype=case.dtype,
        mask=case.mask,
        layout=case.layout,
        **dataclasses.asdict(case.shape),
        median_us=median * 1e6,
        best_us=best * 1e6,
        gflops=work / median / 1e9,
        gb_per_s=traffic / median / 1e9,
        of_ceiling=least / median,
        max_abs_err=accuracy.max_abs_err,
        rel_l2_err=accuracy.rel_l2_err,
        status=status,
    )


CSV_COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


class CsvFile:
    """Writes rows as they come, so that an interrupted run keeps what it has measured."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, CSV_COLUMNS)
        self._writer.writeheader()

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            values: dict[str, Any] = dataclasses.asdict(row)
            self._writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in values.items()})
        self._file.flush()

    def close(self) -> None:
        self._file.close()
