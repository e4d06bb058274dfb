"""Runs one case: prepares every contender, judges its results, times them interleaved.

Gives one Row for each contender, the unit of the CSV file and of the printed table.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewise.bench import reference
from tilewise.bench.contenders import Contender, Unsupported
from tilewise.bench.inputs import Inputs, make_inputs, to_reference
from tilewise.bench.reference import Accuracy
from tilewise.bench.shapes import Case, flops, traffic_bytes
from tilewise.bench.timing import measure


@dataclass(frozen=True)
class Settings:
    """How to measure. `min_time` is in seconds, for each contender and case."""

    min_time: float = 0.2
    num_samples: int = 5
    accuracy: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """One measurement; the field names are the CSV's columns. Times in microseconds, NaN where not measured."""

    library: str
    version: str
    implementation: str
    device: str
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


def run_case(case: Case, contenders: Sequence[Contender], settings: Settings, num_copies: int = 1) -> list[Row]:
    """One row a contender, in their order.

    Timed calls go round over `num_copies` sets of tensors: enough of them, and the caches never
    hold what a call reads. The first set is the one whose results are judged.
    """
    copies = [make_inputs(case, settings.seed + copy) for copy in range(num_copies)]
    expected = _reference(case, copies[0]) if settings.accuracy else []
    status: dict[str, str] = {}
    accuracy: dict[str, Accuracy] = {}
    calls: dict[str, Callable[[], object]] = {}
    for contender in contenders:
        name = contender.name
        accuracy[name] = Accuracy(math.nan, math.nan)
        contender.set_num_threads(case.threads)
        try:
            prepared = [contender.prepare(case, inputs) for inputs in copies]
            calls[name] = _round_robin([each.call for each in prepared])
            if settings.accuracy:
                results = [to_reference(result, case.layout) for result in prepared[0].results()]
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
    timings = measure(sound, settings.min_time, settings.num_samples)
    rows = []
    for contender in contenders:
        timing = timings.get(contender.name)
        median, best = (timing.median, timing.best) if timing else (math.nan, math.nan)
        rows.append(_row(case, contender, median, best, accuracy[contender.name], status[contender.name]))
    return rows


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
    q, k, v, dout = (to_reference(tensor, case.layout) for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout))
    causal = case.mask == "causal"
    if case.operation == "forward":
        return [reference.attention_forward(q, k, v, causal=causal)]
    return list(reference.attention_backward(q, k, v, dout, causal=causal))


def _row(case: Case, contender: Contender, median: float, best: float, accuracy: Accuracy, status: str) -> Row:
    return Row(
        library=contender.name,
        version=contender.version(),
        implementation=contender.implementation(case),
        device="cpu",
        threads=case.threads,
        operation=case.operation,
        dtype=case.dtype,
        mask=case.mask,
        layout=case.layout,
        **dataclasses.asdict(case.shape),
        median_us=median * 1e6,
        best_us=best * 1e6,
        gflops=flops(case) / median / 1e9,
        gb_per_s=traffic_bytes(case) / median / 1e9,
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
