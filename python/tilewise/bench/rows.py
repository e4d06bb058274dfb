"""One measurement of one library on one case: the unit of the CSV file and of the printed table."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar


class AnyCase(Protocol):
    """What is asked of a case of whatever operation."""

    @property
    def device(self) -> str:
        """ "cpu", or Tilewise's name for a kind of GPU."""

    @property
    def threads(self) -> int:
        """Of the CPU."""

    @property
    def tokens(self) -> int:
        """That a call makes; 0 where they are not what it is about."""

    def cells(self) -> dict[str, str]:
        """What says in the printed table which case it is."""

    def group(self) -> str:
        """What cases of one geometric mean have in common."""

    def problem_text(self) -> str:
        """One line that `tilewise explain` reads."""

    def flops(self) -> float:
        """Multiplications and additions that count."""

    def bf16_flops(self) -> float:
        """Those that take as long in bf16, whose products the GPU's ceiling is of."""

    def traffic_bytes(self) -> int:
        """Bytes that must move at least."""

    def columns(self) -> dict[str, Any]:
        """Its fields in a row of the CSV file, but for the device."""


AnyCaseT = TypeVar("AnyCaseT", bound=AnyCase)


@dataclass(frozen=True)
class Row:
    """Times in microseconds, NaN where not measured.

    `of_ceiling` is the least time that the GPU's ceilings allow for the work, by the median time.
    """

    library: str
    version: str
    implementation: str
    gpu: str
    case: Any
    median_us: float
    best_us: float
    gflops: float
    gb_per_s: float
    of_ceiling: float
    max_abs_err: float
    rel_l2_err: float
    status: str

    @property
    def tokens_per_s(self) -> float:
        """NaN where not measured; 0 where tokens are not what the case is about."""
        return float(self.case.tokens / (self.median_us * 1e-6))

    @property
    def ok(self) -> bool:
        """Measured, and its results are right."""
        return self.status == "ok"

    @property
    def failed(self) -> bool:
        """Its results are wrong or it raised: unlike a refusal, which is no failure."""
        return self.status.startswith("failed")

    def columns(self) -> dict[str, Any]:
        """As a row of the CSV file, and of the scripts' JSON."""
        which = ("library", "version", "implementation")
        tokens = {"tokens_per_s": self.tokens_per_s} if self.case.tokens else {}
        measured = ("median_us", "best_us", "gflops", "gb_per_s", "of_ceiling", "max_abs_err", "rel_l2_err", "status")
        return {
            **{name: getattr(self, name) for name in which},
            "device": self.case.device,
            "gpu": self.gpu,
            **self.case.columns(),
            **{name: getattr(self, name) for name in measured},
            **tokens,
        }


def ratio(rows: Sequence[Row], library: str, base: str = "tilewise") -> float:
    """How many times faster `base` is than `library`; NaN where either was not measured."""
    medians = {row.library: row.median_us for row in rows if row.ok}
    return medians.get(library, math.nan) / medians.get(base, math.nan)


class CsvFile:
    """Writes rows of one operation as they come, so that an interrupted run keeps what it has measured."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer: Any = None

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            columns = row.columns()
            if self._writer is None:
                self._writer = csv.DictWriter(self._file, list(columns))
                self._writer.writeheader()
            self._writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in columns.items()})
        self._file.flush()

    def close(self) -> None:
        self._file.close()
