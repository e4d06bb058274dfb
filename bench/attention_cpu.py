"""Attention on the CPU beside torch's scaled_dot_product_attention, in one process with the same threads.

The project's headline table: head_dim {64, 128} x seqlen {256, 1024, 4096} x {full, causal}, 16 heads,
batch 1, forward and backward, bf16 and f32; one decode step against the memory's read bandwidth; and
the fraction of the processor's multiply-add peak. Results go to bench/results/ as JSON, and with
--write-docs into docs/benchmarks. See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cpu_report
from command_line import (
    BUILDS,
    DOCS,
    EXIT_FAILURE,
    EXIT_OK,
    REPOSITORY,
    check_report,
    fill_in,
    published_command,
    read_results,
    report_parser,
    results_file,
    write_results,
)
from overhead import cpp_overhead, measure_overhead

from tilewise.bench.argument_types import integer, list_of, one_of, seconds
from tilewise.bench.ceilings import CpuCeilings, find_program, measure_cpu_ceilings
from tilewise.bench.contenders import Tilewise, Torch
from tilewise.bench.machine import describe_machine
from tilewise.bench.markdown import label
from tilewise.bench.rows import Row, ratio
from tilewise.bench.runner import Settings, run_case
from tilewise.bench.shapes import Case, Mask, Pass, Shape

PLOT = REPOSITORY / "docs" / "benchmarks_cpu.png"

NUM_HEADS = 16
HEAD_DIMS = (64, 128)
SEQLENS = (256, 1024, 4096)
QUICK_SEQLENS = (256, 1024)
MASKS: tuple[Mask, ...] = ("none", "causal")
DTYPES = ("bf16", "f32")
QUICK_DEFAULTS = {"threads": [1], "min_time": 0.05, "samples": 3}
FULL_DEFAULTS = {"threads": [1, 2], "min_time": 0.5, "samples": 5}
DECODE_SHAPE = Shape(batch_size=1, seqlen_q=1, seqlen_k=8192, num_heads_q=32, num_heads_k=8, head_dim=128)


def main() -> int:
    options = parse_arguments()
    if options.from_json is not None:
        results = read_results(options.from_json)
    else:
        results = measure_all(options)
        write_results(options.json, results)
    print(cpu_report.text(results))
    if options.from_json is None:
        print(f"\nwritten: {options.json}")
    if options.write_docs:
        cpu_report.plot(results, options.plot)
        cpu_report.write_section(DOCS, results, options.plot)
        print(f"written: {DOCS}, {options.plot}")
    failures = [row for row in results["rows"] + results["decode"] if row["status"] != "ok"]
    for row in failures:
        print(f"{row['library']}: {label(row)}: {row['status']}", file=sys.stderr)
    return EXIT_FAILURE if failures else EXIT_OK


def parse_arguments() -> argparse.Namespace:
    parser = report_parser(__doc__.split("\n")[0], "the processor's name", PLOT)
    parser.add_argument("--threads", type=list_of(integer(1)), metavar="COUNTS", help="default: 1,2; with --quick 1")
    parser.add_argument("--dtypes", type=list_of(one_of(DTYPES)), default=list(DTYPES), help="default: bf16,f32")
    parser.add_argument("--min-time", type=seconds, help="seconds for each library and case (default: 0.5; quick 0.05)")
    parser.add_argument("--samples", type=integer(1), help="samples for each library and case (default: 5; quick 3)")
    parser.add_argument("--no-decode", action="store_true", help="skip the decode step")
    parser.add_argument(
        "--ceilings", type=Path, metavar="PROGRAM", help="tilewise-ceilings, where it isn't found by itself"
    )
    options = parser.parse_args()
    check_report(parser, options)
    fill_in(options, QUICK_DEFAULTS if options.quick else FULL_DEFAULTS)
    if options.list:
        print("\n".join(case_label(case) for case in all_cases(options)))
        sys.exit(EXIT_OK)
    if options.from_json is None:
        options.ceilings = options.ceilings or find_program("tilewise-ceilings", BUILDS)
        if options.ceilings is None or not options.ceilings.is_file():
            parser.error(
                f"argument --ceilings: must be the tilewise-ceilings program, built first (got {options.ceilings})"
            )
        options.machine_info = describe_machine(options.machine)
        options.json = options.json or results_file("attention_cpu", options.machine_info.name)
    return options


def all_cases(options: argparse.Namespace) -> Iterator[Case]:
    """In the order they are measured."""
    seqlens = QUICK_SEQLENS if options.quick else SEQLENS
    for case in grid_cases(options.threads, options.passes, options.dtypes, seqlens):
        if options.filter is None or options.filter.search(case_label(case)):
            yield case


def grid_cases(
    thread_counts: Sequence[int],
    passes: Sequence[Pass],
    dtypes: Sequence[str] = DTYPES,
    seqlens: Sequence[int] = SEQLENS,
) -> Iterator[Case]:
    """The headline table's."""
    for threads in thread_counts:
        for operation in passes:
            for dtype in dtypes:
                for head_dim in HEAD_DIMS:
                    for seqlen in seqlens:
                        for mask in MASKS:
                            shape = Shape(1, seqlen, seqlen, NUM_HEADS, NUM_HEADS, head_dim)
                            # bhsd is what torch is fastest in; Tilewise takes any.
                            yield Case(shape, dtype, mask, operation, "bhsd", threads)


def decode_case(dtype: str, threads: int) -> Case:
    return Case(DECODE_SHAPE, dtype, "none", "forward", "bshd", threads)


def case_label(case: Case) -> str:
    return label(case.columns())


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Everything the report needs, as plain JSON values."""
    settings = Settings(min_time=options.min_time, num_samples=options.samples, accuracy=not options.no_accuracy)
    contenders = [Tilewise(), Torch()]
    ceilings = {threads: measure_cpu_ceilings(options.ceilings, threads) for threads in options.threads}
    decode: list[Row] = []
    if not options.no_decode:
        for threads in options.threads:
            for dtype in options.dtypes:
                decode += show(run_decode(dtype, threads, ceilings[threads], settings))
            ceilings[threads] = ceilings[threads].best_of(measure_cpu_ceilings(options.ceilings, threads))
    rows: list[Row] = []
    for case in all_cases(options):
        rows += show(run_case(case, contenders, settings))
    for threads in options.threads:  # again at the end: the clock may have changed meanwhile
        ceilings[threads] = ceilings[threads].best_of(measure_cpu_ceilings(options.ceilings, threads))
    overhead: dict[str, Any] = {}
    if not options.no_overhead:
        overhead = {"cpp": cpp_overhead("tilewise-overhead"), "torch_us": measure_overhead()}
    return {
        "machine": dataclasses.asdict(options.machine_info),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": published_command("attention_cpu.py", sys.argv[1:]),
        "ceilings": [dataclasses.asdict(ceiling) for ceiling in ceilings.values()],
        "overhead": overhead,
        "decode": [row.columns() for row in decode],
        "rows": [row.columns() for row in rows],
    }


def run_decode(dtype: str, threads: int, ceilings: CpuCeilings, settings: Settings) -> list[Row]:
    """One decode step over as many KV caches as the ceiling's buffer is large, so that each is read from memory."""
    case = decode_case(dtype, threads)
    num_copies = max(2, -(-ceilings.read_bytes // case.traffic_bytes()))
    return run_case(case, [Tilewise(), Torch()], settings, num_copies)


def show(rows: list[Row]) -> list[Row]:
    """One line of progress on standard error for each finished case; the best samples help on a busy machine."""
    speeds = ", ".join(f"{row.library} {row.median_us:.0f} us {row.gflops:.1f} GFLOP/s" for row in rows)
    best = {row.library: row.best_us for row in rows}
    ratios = f"ratio {ratio(rows, 'torch'):.2f}, of best samples {best['torch'] / best['tilewise']:.2f}"
    print(f"{label(rows[0].columns())}: {speeds}, {ratios}", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
