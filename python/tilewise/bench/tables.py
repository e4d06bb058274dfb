"""What `python -m tilewise.bench` prints: the table of all rows and the geometric means below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewise.bench.rows import Row, ratio
from tilewise.bench.timing import geometric_mean

_ANY_WIDTH = 1000
_RATIO = "ratio: time of the other library / time of tilewise"


def print_table(console: Any, measured: Sequence[Sequence[Row]]) -> None:
    """One line a row, the rows of a case below each other; TFLOP/s and no threads where all ran on a GPU."""
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table

    on_gpu = all(row.case.device != "cpu" for rows in measured for row in rows)
    with_ceiling = any(math.isfinite(row.of_ceiling) for rows in measured for row in rows)
    caption = _RATIO + "; of ceiling: least time that the arithmetic or the traffic takes / time" * with_ceiling
    table = Table(box=box.SIMPLE_HEAD, caption=caption, pad_edge=False, padding=(0, 1, 0, 0))
    titles = list(measured[0][0].case.cells()) if measured else []
    for title in (*titles, *(() if on_gpu else ("threads",))):
        table.add_column(title, no_wrap=True)
    for title in ("library", "kernel"):
        table.add_column(title, no_wrap=True)
    ceiling = ("of ceiling",) if with_ceiling else ()
    by_tokens = any(row.case.tokens for rows in measured for row in rows)
    speed = "tokens/s" if by_tokens else "TFLOP/s" if on_gpu else "GFLOP/s"
    for title in ("median us", speed, "GB/s", *ceiling, "max abs err", "rel L2 err", "ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    for rows in measured:
        for index, row in enumerate(rows):
            threads = () if on_gpu else (str(row.case.threads),)
            case = (*row.case.cells().values(), *threads)
            rate = row.tokens_per_s if by_tokens else row.gflops / 1e3 if on_gpu else row.gflops
            share = (_percent(row.of_ceiling),) if with_ceiling else ()
            table.add_row(
                *(case if index == 0 else ("",) * len(case)),
                row.library,
                row.implementation,
                *(_number(row.median_us), _number(rate), _number(row.gb_per_s), *share),
                *(f"{row.max_abs_err:.1e}", f"{row.rel_l2_err:.1e}"),
                "" if row.library == "tilewise" else _number(ratio(rows, row.library)),
            )
    # As wide as it must be, on a narrow terminal too: a line that folds is better than a number cut short.
    unbounded = console.options.update(width=_ANY_WIDTH)
    console.width = max(console.width, Measurement.get(console, unbounded, table).maximum)
    console.print(table)


def print_summary(console: Any, measured: Sequence[Sequence[Row]]) -> None:
    """How many times as fast Tilewise is, for each library, group of cases and number of threads."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for rows in measured:
        for row in rows:
            relative = ratio(rows, row.library)
            if row.library != "tilewise" and math.isfinite(relative):
                groups.setdefault((row.library, row.case.group(), row.case.threads), []).append(relative)
    on_gpu = all(row.case.device != "cpu" for rows in measured for row in rows)
    for (library, group, threads), ratios in groups.items():
        on_threads = "" if on_gpu else f" threads={threads}"
        console.print(
            f"{library} {group}{on_threads}: tilewise is {geometric_mean(ratios):.2f} times as fast"
            f" (geometric mean of {len(ratios)}; least {min(ratios):.2f})",
            highlight=False,
            soft_wrap=True,
        )


def _number(value: float) -> str:
    """Three or more significant digits, no exponent."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%" if math.isfinite(fraction) else "-"
