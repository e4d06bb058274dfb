"""`python -m tilewise.bench`: Tilewise beside the installed attention libraries, over a grid of shapes.

Prints a table and geometric means, writes CSV, and ends with status 1 where a result was
wrong and 2 where an argument was.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tilewise.bench.arguments import cases_of, parse
from tilewise.bench.ceilings import measure_gpu_ceilings
from tilewise.bench.compile_ahead import compile_all
from tilewise.bench.contenders import CaseT, Contender, InputsT
from tilewise.bench.gpu import gpu_name
from tilewise.bench.operation import BenchOperation
from tilewise.bench.operations import OPERATIONS
from tilewise.bench.progress import Step, progress_bar
from tilewise.bench.rows import AnyCase, Row
from tilewise.bench.runner import Settings, gpu_settings
from tilewise.bench.tables import print_summary, print_table

EXIT_OK, EXIT_FAILURE = 0, 1  # argparse exits with 2 for usage

OnStep = Callable[[str], object]  # hears what is being done
Run = Callable[[AnyCase, OnStep], list[Row]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    options = parse(arguments, __doc__.split("\n")[0])
    try:
        from rich.console import Console
    except ImportError:
        print("tilewise.bench: needs rich (pip install rich)", file=sys.stderr)
        return EXIT_FAILURE
    console, messages = Console(), Console(stderr=True)
    cases = cases_of(options)
    settings = Settings(min_time=options.min_time, accuracy=not options.no_accuracy, seed=options.seed)
    if options.device != "cpu":
        settings = _on_gpu(settings, console, messages)
    measured = measure_all(cases, _runner(options, cases, settings, messages), options.csv, messages)
    print_table(console, measured)
    print_summary(console, measured)
    for row in (row for rows in measured for row in rows if not row.ok):
        _say(messages, f"{row.library}: {row.case}: {row.status}")
    return EXIT_FAILURE if any(row.failed for rows in measured for row in rows) else EXIT_OK


def _runner(options: argparse.Namespace, cases: Sequence[Any], settings: Settings, messages: Any) -> Run:
    """What runs a case of the operation, on the libraries that are installed."""
    operation = OPERATIONS[options.operation]
    ours = operation.ours()
    rivals = _installed((operation.rival(name, options.device) for name in options.compare), messages)
    if options.device != "cpu":
        compile_kernels(operation.compile_jobs(ours, cases), messages)
    return functools.partial(_run, operation, [ours, *rivals], settings)


def _installed(rivals: Iterable[Contender[CaseT, InputsT]], messages: Any) -> list[Contender[CaseT, InputsT]]:
    """Those that can be measured; the others are told."""
    found: list[Contender[CaseT, InputsT]] = []
    for rival in rivals:
        if reason := rival.missing():
            _say(messages, reason)
        else:
            found.append(rival)
    return found


def _run(
    operation: BenchOperation, contenders: Sequence[Any], settings: Settings, case: AnyCase, on_step: OnStep
) -> list[Row]:
    return operation.run(case, contenders, settings, on_step)


def compile_kernels(jobs: Sequence[tuple[str, Callable[[], object]]], messages: Any) -> None:
    """Every kernel that is compiled on first use, so that none is while anything is timed."""
    if not jobs:
        return
    with progress_bar(messages, len(jobs)) as step:
        step("compiling", 0)
        compiled = compile_all(jobs, lambda label: step(f"compiling: {label}", 1))
    _say(
        messages,
        f"kernels of {len(jobs)} cases compiled or loaded in {compiled.seconds:.1f} s on {compiled.cpus} processors,"
        f" {len(compiled.failures)} failed",
    )


def _on_gpu(settings: Settings, console: Any, messages: Any) -> Settings:
    """Settings for the GPU, whose name and ceilings head the table."""
    name = gpu_name()
    try:
        ceilings = measure_gpu_ceilings("cuda")
    except RuntimeError as error:  # such as too little memory for the copy: the table can do without
        _say(messages, f"ceilings not measured: {error}")
        ceilings = None
    rates = (
        f": torch reaches {ceilings.matmul_tflops:.0f} TFLOP/s in a bf16 matrix product and"
        f" {ceilings.copy_gb_per_s:.0f} GB/s in a copy"
        if ceilings
        else ""
    )
    _say(console, f"{name}{rates}")
    return gpu_settings(dataclasses.replace(settings, ceilings=ceilings, gpu=name))


def measure_all(cases: Sequence[AnyCase], run: Run, csv_file: Any, messages: Any) -> list[list[Row]]:
    """The rows of every case, each written to `csv_file` (None: to none) as soon as it is there."""
    measured: list[list[Row]] = []
    with contextlib.ExitStack() as stack:
        if csv_file is not None:
            stack.enter_context(contextlib.closing(csv_file))
        step = stack.enter_context(progress_bar(messages, len(cases)))
        for case in cases:
            step(str(case), 0)
            rows = run(case, functools.partial(_tell, step, case))
            step(str(case), 1)
            measured.append(rows)
            if csv_file is not None:
                csv_file.write(rows)
    return measured


def _tell(step: Step, case: AnyCase, doing: str) -> None:
    step(f"{case}: {doing}", 0)


def _say(console: Any, text: str) -> None:
    """A line as it is: what is in brackets in others' messages is no markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
