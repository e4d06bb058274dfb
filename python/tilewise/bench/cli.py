"""`python -m tilewise.bench`: Tilewise beside the installed attention libraries, over a grid of shapes.

Prints a table and geometric means, writes CSV, and ends with status 1 where a result was
wrong and 2 where an argument was.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tilewise.bench.contenders import RIVALS, Contender, Tilewise, make_rival
from tilewise.bench.inputs import NUMPY_DTYPES, has_torch
from tilewise.bench.runner import CsvFile, Row, Settings, ratio, run_case
from tilewise.bench.shapes import DTYPES, LAYOUTS, MASKS, Case, Shape, default_grid
from tilewise.bench.timing import geometric_mean

PLAIN_WIDTH = 120  # columns of a table that goes into a file or a pipe

EXIT_OK, EXIT_FAILURE = 0, 1  # argparse exits with 2 for usage

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = _parse(arguments)
    try:
        from rich.console import Console
    except ImportError:
        print("tilewise.bench: needs rich (pip install rich)", file=sys.stderr)
        return EXIT_FAILURE
    console, messages = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    contenders: list[Contender] = [Tilewise()]
    for name in options.compare:
        rival = make_rival(name)
        reason = rival.missing()
        if reason:
            messages.print(reason, highlight=False, soft_wrap=True)
        else:
            contenders.append(rival)
    cases = _cases(options)
    settings = Settings(min_time=options.min_time, accuracy=not options.no_accuracy, seed=options.seed)
    measured: list[list[Row]] = []
    with contextlib.ExitStack() as stack:
        csv_file = stack.enter_context(contextlib.closing(options.csv)) if options.csv else None
        for case in stack.enter_context(_progress(messages, cases)):
            rows = run_case(case, contenders, settings)
            measured.append(rows)
            if csv_file is not None:
                csv_file.write(rows)
    _print_table(console, measured)
    _print_summary(console, measured)
    for row in (row for rows in measured for row in rows if not row.ok):
        shape = Shape(row.batch_size, row.seqlen_q, row.seqlen_k, row.num_heads_q, row.num_heads_k, row.head_dim)
        messages.print(
            f"{row.library}: {row.operation} {shape} {row.dtype} {row.mask}: {row.status}",
            highlight=False,
            soft_wrap=True,
        )
    return EXIT_FAILURE if any(row.failed for rows in measured for row in rows) else EXIT_OK


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tilewise.bench", description=__doc__.split("\n")[0])
    default_dtypes = ["bf16", "f32"] if has_torch() else list(NUMPY_DTYPES)
    parser.add_argument(
        "--compare",
        type=_list_of(_one_of(RIVALS)),
        default=list(RIVALS),
        metavar="LIBRARIES",
        help=f"comma-separated, of {', '.join(RIVALS)} (default: all; what is missing is named and left out)",
    )
    parser.add_argument(
        "--shapes",
        type=_list_of(Shape.parse),
        default=default_grid(),
        metavar="SHAPES",
        help="comma-separated BATCHxSEQLEN[/SEQLEN_K]xHEADS[/HEADS_K]xHEAD_DIM (default: a grid of 27)",
    )
    parser.add_argument(
        "--dtypes",
        type=_list_of(_dtype),
        default=default_dtypes,
        metavar="DTYPES",
        help=f"comma-separated, of {', '.join(DTYPES)} (default: {','.join(default_dtypes)})",
    )
    parser.add_argument(
        "--masks",
        type=_list_of(_one_of(MASKS)),
        default=list(MASKS),
        metavar="MASKS",
        help="comma-separated, of none, causal (default: both)",
    )
    parser.add_argument("--layout", type=_one_of(LAYOUTS), default="bshd", help="memory layout: bshd (default) or bhsd")
    parser.add_argument(
        "--threads",
        type=_list_of(_thread_count),
        default=[1],
        metavar="COUNTS",
        help="comma-separated numbers of threads, the same for every library (default: 1)",
    )
    parser.add_argument("--backward", action="store_true", help="time the backward pass instead of the forward one")
    parser.add_argument(
        "--min-time",
        type=_positive_seconds,
        default=0.2,
        metavar="SECONDS",
        help="time each library on each case for at least about this long (default: 0.2)",
    )
    parser.add_argument("--no-accuracy", action="store_true", help="skip the float64 reference and the error columns")
    parser.add_argument("--seed", type=_seed, default=0, help="of the random tensors (default: 0)")
    parser.add_argument("--csv", metavar="FILE", help="also write every measurement as CSV")
    parser.add_argument("--device", type=_device, default="cpu", help="cpu: the GPU backends are yet to come")
    options = parser.parse_args(arguments)
    if options.backward and not has_torch():
        parser.error("argument --backward: needs torch's autograd (torch is not installed)")
    if options.csv is not None:  # opened last, so that another bad argument leaves the file alone
        try:
            options.csv = CsvFile(Path(options.csv))
        except OSError as error:
            parser.error(f"argument --csv: must be a file that can be written (got {options.csv!r}: {error.strerror})")
    return options


def _cases(options: argparse.Namespace) -> list[Case]:
    return [
        Case(shape, dtype, mask, "backward" if options.backward else "forward", options.layout, threads)
        for threads in options.threads
        for dtype in options.dtypes
        for mask in options.masks
        for shape in options.shapes
    ]


@contextlib.contextmanager
def _progress(console: Any, cases: Sequence[Case]) -> Iterator[Iterator[Case]]:
    """A progress bar around the cases, silent where standard error is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Two refreshes a second: the bar's own thread must not disturb what is being timed.
    with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=2) as bar:
        task = bar.add_task("", total=len(cases))

        def walk() -> Iterator[Case]:
            for case in cases:
                bar.update(task, description=str(case))
                yield case
                bar.advance(task)

        yield walk()


def _print_table(console: Any, measured: Sequence[Sequence[Row]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        caption="ratio: time of the other library / time of tilewise",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for title in ("shape", "dtype", "mask", "threads"):
        table.add_column(title, no_wrap=True)
    for title in ("library", "median us", "GFLOP/s", "GB/s", "max abs err", "rel L2 err", "ratio"):
        table.add_column(title, justify="left" if title == "library" else "right", no_wrap=True)
    for rows in measured:
        for index, row in enumerate(rows):
            shape = Shape(row.batch_size, row.seqlen_q, row.seqlen_k, row.num_heads_q, row.num_heads_k, row.head_dim)
            case_cells = (str(shape), row.dtype, row.mask, str(row.threads)) if index == 0 else ("",) * 4
            speed = (_number(row.median_us), _number(row.gflops), _number(row.gb_per_s))
            errors = (f"{row.max_abs_err:.1e}", f"{row.rel_l2_err:.1e}")
            relative = "" if row.library == "tilewise" else _number(ratio(rows, row.library))
            table.add_row(*case_cells, row.library, *speed, *errors, relative)
    console.print(table)


def _print_summary(console: Any, measured: Sequence[Sequence[Row]]) -> None:
    groups: dict[tuple[str, str, int, str], list[float]] = {}
    for rows in measured:
        for row in rows:
            relative = ratio(rows, row.library)
            if row.library != "tilewise" and math.isfinite(relative):
                groups.setdefault((row.library, row.dtype, row.threads, row.mask), []).append(relative)
    for (library, dtype, threads, mask), ratios in groups.items():
        console.print(
            f"{library} {dtype} mask={mask} threads={threads}: tilewise is {geometric_mean(ratios):.2f} times as fast"
            f" (geometric mean of {len(ratios)}; least {min(ratios):.2f})",
            highlight=False,
            soft_wrap=True,
        )


def _number(value: float) -> str:
    """Three or more significant digits, no exponent."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _list_of(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    def parse_list(text: str) -> list[T]:
        try:
            values = [parse(part.strip()) for part in text.split(",") if part.strip()]
        except ValueError as error:  # argparse would hide a ValueError's sentence
            raise argparse.ArgumentTypeError(str(error)) from error
        if not values:
            raise argparse.ArgumentTypeError(f"must name at least one value (got {text!r})")
        return values

    return parse_list


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)} (got {text!r})")
        return text

    return parse


def _dtype(text: str) -> str:
    name = _one_of(DTYPES)(text)
    if not has_torch() and name not in NUMPY_DTYPES:
        raise argparse.ArgumentTypeError(f"{name} needs torch, which is not installed (got {text!r})")
    return name


def _thread_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"must be an integer in [1, 1024] (got {text!r})")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer >= 0 (got {text!r})")
    return int(text)


def _positive_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= 3600.0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds in (0, 3600] (got {text!r})")
    return value


def _device(text: str) -> str:
    if text != "cpu":
        raise argparse.ArgumentTypeError(f"must be cpu, the one device with kernels so far (got {text!r})")
    return text
