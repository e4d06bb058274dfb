"""Arguments of `python -m tilewise.bench`, and the cases they ask for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilewise
from tilewise.bench.argument_types import integer, list_of, one_of, seconds
from tilewise.bench.contenders import CPU_RIVALS, RIVALS
from tilewise.bench.gpu import gpu_kind, refusal
from tilewise.bench.inputs import has_torch
from tilewise.bench.operation import BenchOperation
from tilewise.bench.operations import OPERATIONS
from tilewise.bench.rows import CsvFile
from tilewise.bench.shapes import SHAPE_FORM

DEVICES = ("cpu", "cuda")


def parse(arguments: Sequence[str] | None, description: str) -> argparse.Namespace:
    """The options, all checked; leaves the program with status 2 where one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tilewise.bench", description=description)
    _add_what(parser)
    for operation in OPERATIONS.values():
        operation.add_arguments(parser)
    _add_how(parser)
    options = parser.parse_args(arguments)
    operation = OPERATIONS[options.operation]
    _settle_operation(parser, options, operation)
    if options.device == "cpu":
        options.threads = options.threads or [1]
    else:
        _settle_gpu(parser, options, operation)
    _check_cases(parser, options)
    if options.csv is not None:  # opened last, so that another bad argument leaves the file alone
        try:
            options.csv = CsvFile(Path(options.csv))
        except OSError as error:
            parser.error(f"argument --csv: must be a file that can be written (got {options.csv!r}: {error.strerror})")
    return options


def _add_what(parser: argparse.ArgumentParser) -> None:
    """The operation, the libraries and the shapes."""
    parser.add_argument(
        "--operation",
        type=one_of(tuple(OPERATIONS)),
        default=next(iter(OPERATIONS)),
        help=", or ".join(operation.described for operation in OPERATIONS.values()),
    )
    parser.add_argument(
        "--compare",
        type=list_of(one_of(CPU_RIVALS)),
        default=list(RIVALS),
        metavar="LIBRARIES",
        help=f"comma-separated, of {', '.join(CPU_RIVALS)} (default: {','.join(RIVALS)}; what is missing is named"
        " and left out)",
    )
    parser.add_argument(
        "--shapes",
        metavar="SHAPES",
        help=f"comma-separated {SHAPE_FORM} " + "; ".join(each.shapes_described for each in OPERATIONS.values()),
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    """The device, the time to spend and what becomes of the results."""
    parser.add_argument(
        "--device",
        type=one_of(DEVICES),
        default="cpu",
        help="cpu (default), or cuda: the GPU that torch calls so, AMD's too",
    )
    parser.add_argument(
        "--threads",
        type=list_of(integer(1, 1024)),
        metavar="COUNTS",
        help="comma-separated numbers of CPU threads, the same for every library (default: 1)",
    )
    parser.add_argument(
        "--min-time",
        type=seconds,
        default=0.2,
        metavar="SECONDS",
        help="time each library on each case for about this long (default: 0.2); on a GPU 5 to 200 calls",
    )
    parser.add_argument("--no-accuracy", action="store_true", help="skip the float64 reference and the error columns")
    parser.add_argument("--seed", type=integer(0), default=0, help="of the random tensors (default: 0)")
    parser.add_argument("--csv", metavar="FILE", help="also write every measurement as CSV")


def _settle_operation(parser: argparse.ArgumentParser, options: argparse.Namespace, operation: BenchOperation) -> None:
    """Refuses options of the other operations, and fills the defaults in."""
    for other in OPERATIONS.values():
        for name, unset in other.own.items() if other is not operation else ():
            if (given := getattr(options, name)) != unset:
                flag = "--" + name.replace("_", "-")
                parser.error(f"argument {flag}: must be left out with --operation {operation.name} (got {given!r})")
    if operation.only_with_torch and not has_torch():
        parser.error(f"argument --operation: {operation.name} needs torch (torch is not installed)")
    if unknown := set(options.compare) - set(operation.rivals):
        parser.error(
            f"argument --compare: must be of {', '.join(operation.rivals)} with --operation {operation.name}"
            f" (got {', '.join(sorted(unknown))!r})"
        )
    operation.settle(parser, options)
    parse_shapes = list_of(operation.parse_shape)
    try:
        if options.shapes is None:
            options.shapes = operation.default_shapes(options.device)
        else:
            options.shapes = parse_shapes(options.shapes)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --shapes: {error}")


def _settle_gpu(parser: argparse.ArgumentParser, options: argparse.Namespace, operation: BenchOperation) -> None:
    """Refuses what there is no GPU for, and fills the defaults in. `options.device` becomes Tilewise's name for it."""
    kind = gpu_kind()
    if reason := refusal(kind) if operation.probe is None else refusal(kind, "bf16", operation.probe):
        parser.error(
            f"argument --device: must be cpu where there is no GPU to measure on (got {options.device!r}: {reason})"
        )
    if options.threads is not None:
        parser.error(f"argument --threads: must be left out with --device cuda (got {options.threads})")
    options.device, options.threads = kind, [1]
    for name in options.compare:
        if name not in operation.gpu_rivals:
            parser.error(
                f"argument --compare: must be of {', '.join(operation.gpu_rivals)} with --device cuda (got {name!r})"
            )
    for dtype in operation.gpu_dtypes(options):
        if reason := refusal(kind, dtype):
            parser.error(f"argument --dtypes: must be of those that run on the GPU (got {dtype!r}: {reason})")


def _check_cases(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses sizes that Tilewise refuses, in its own words, and those whose tensors this machine has no room for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # for a GPU too: the results are judged here
    for case in cases_of(options):
        shape = str(case.shape)
        try:
            tilewise.explain(case.problem_text())
        except (ValueError, NotImplementedError) as error:
            parser.error(f"argument --shapes: must be of sizes that Tilewise takes (got {shape!r}: {error})")
        if (needed := case.traffic_bytes()) > memory:
            parser.error(
                f"argument --shapes: must fit the {memory / 1e9:.0f} GB of memory here"
                f" (got {shape!r}: {needed / 1e9:.0f} GB of tensors in {case.dtype})"
            )


def cases_of(options: argparse.Namespace) -> list[Any]:
    """Everything that is to be measured, in this order: cases of one operation."""
    return OPERATIONS[options.operation].cases(options)
