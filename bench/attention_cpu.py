"""Attention on the CPU beside torch's scaled_dot_product_attention, in one process with the same threads.

The project's headline table: head_dim {64, 128} x seqlen {256, 1024, 4096} x {full, causal}, 16 heads,
batch 1, forward and backward, bf16 and f32; one decode step against the memory's read bandwidth; and
the fraction of the processor's multiply-add peak. Results go to bench/results/ as JSON, and with
--write-docs into docs/benchmarks.md. See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report
from command_line import int_list, published_command, regex, subset_of
from machine import Ceilings, call_overhead, describe_machine, find_program, measure_ceilings, slug
from overhead import measure_overhead

from tilewise.bench.contenders import Tilewise, Torch
from tilewise.bench.runner import Row, Settings, ratio, run_case
from tilewise.bench.shapes import Case, Mask, Pass, Shape, traffic_bytes

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "bench" / "results"
DOCS = REPOSITORY / "docs" / "benchmarks.md"
PLOT = REPOSITORY / "docs" / "benchmarks_cpu.png"

NUM_HEADS = 16
HEAD_DIMS = (64, 128)
SEQLENS = (256, 1024, 4096)
QUICK_SEQLENS = (256, 1024)
MASKS: tuple[Mask, ...] = ("none", "causal")
PASSES: tuple[Pass, ...] = ("forward", "backward")
DTYPES = ("bf16", "f32")
FULL_DEFAULTS = {"threads": [1, 2], "min_time": 0.5, "samples": 5}
DECODE_SHAPE = Shape(batch_size=1, seqlen_q=1, seqlen_k=8192, num_heads_q=32, num_heads_k=8, head_dim=128)

EXIT_OK, EXIT_FAILURE = 0, 1


def main() -> int:
    options = parse_arguments()
    if options.from_json is not None:
        results = json.loads(options.from_json.read_text(encoding="utf-8"))
    else:
        results = measure_all(options)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(report.text(results))
    if options.from_json is None:
        print(f"\nwritten: {options.output}")
    if options.write_docs:
        report.plot(results, options.plot)
        report.write_section(DOCS, results, options.plot)
        print(f"written: {DOCS}, {options.plot}")
    failures = [row for row in results["rows"] + results["decode"] if row["status"] != "ok"]
    for row in failures:
        print(f"{row['library']}: {report.label(row)}: {row['status']}", file=sys.stderr)
    return EXIT_FAILURE if failures else EXIT_OK


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int_list, metavar="COUNTS", help="default: 1,2; with --quick 1")
    parser.add_argument("--dtypes", type=subset_of(DTYPES), default=list(DTYPES), help="default: bf16,f32")
    parser.add_argument("--passes", type=subset_of(PASSES), default=list(PASSES), help="default: forward,backward")
    parser.add_argument("--filter", type=regex, metavar="REGEX", help="only cases whose label it matches (see --list)")
    parser.add_argument("--list", action="store_true", help="print the labels of the cases and leave")
    parser.add_argument("--quick", action="store_true", help="seqlen up to 1024, short samples: too rough to publish")
    parser.add_argument("--min-time", type=float, help="seconds for each library and case (default: 0.5; quick 0.05)")
    parser.add_argument("--samples", type=int, help="samples for each library and case (default: 5; quick 3)")
    parser.add_argument("--no-accuracy", action="store_true", help="skip the comparison with the float64 reference")
    parser.add_argument("--no-decode", action="store_true", help="skip the decode step")
    parser.add_argument("--no-overhead", action="store_true", help="skip the cost of a call")
    parser.add_argument(
        "--ceilings", type=Path, metavar="PROGRAM", help="tilewise-ceilings, where it isn't found by itself"
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="title of this machine's section (default: the processor's name)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON results (default: in bench/results)")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="measure nothing: report an earlier run's results"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="write the section in docs/benchmarks.md and the plot"
    )
    parser.add_argument("--plot", type=Path, default=PLOT, metavar="FILE", help="default: docs/benchmarks_cpu.png")
    options = parser.parse_args()
    defaults = {"threads": [1], "min_time": 0.05, "samples": 3} if options.quick else FULL_DEFAULTS
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.min_time <= 0 or options.samples < 1:
        parser.error(f"--min-time and --samples: must be positive (got {options.min_time} and {options.samples})")
    if options.from_json is not None and not options.from_json.is_file():
        parser.error(f"argument --from-json: must be a file (got {str(options.from_json)!r})")
    if options.quick and options.write_docs:
        parser.error("argument --write-docs: must not be given with --quick, whose figures are too rough to publish")
    if options.list:
        print("\n".join(case_label(case) for case in all_cases(options)))
        sys.exit(EXIT_OK)
    if options.from_json is None:
        options.ceilings = options.ceilings or find_program("tilewise-ceilings")
        if options.ceilings is None or not options.ceilings.is_file():
            parser.error(
                f"argument --ceilings: must be the tilewise-ceilings program, built first (got {options.ceilings})"
            )
        options.machine_info = describe_machine(options.machine)
        options.output = options.output or RESULTS / f"attention_cpu_{slug(options.machine_info.name)}.json"
    return options


def all_cases(options: argparse.Namespace) -> Iterator[Case]:
    """In the order they are measured."""
    for threads in options.threads:
        for operation in options.passes:
            for dtype in options.dtypes:
                for head_dim in HEAD_DIMS:
                    for seqlen in QUICK_SEQLENS if options.quick else SEQLENS:
                        for mask in MASKS:
                            shape = Shape(1, seqlen, seqlen, NUM_HEADS, NUM_HEADS, head_dim)
                            # bhsd is what torch is fastest in; Tilewise takes any.
                            case = Case(shape, dtype, mask, operation, "bhsd", threads)
                            if options.filter is None or options.filter.search(case_label(case)):
                                yield case


def case_label(case: Case) -> str:
    return report.label({**dataclasses.asdict(case), **dataclasses.asdict(case.shape)})


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Everything the report needs, as plain JSON values."""
    settings = Settings(min_time=options.min_time, num_samples=options.samples, accuracy=not options.no_accuracy)
    contenders = [Tilewise(), Torch()]
    ceilings = {threads: measure_ceilings(options.ceilings, threads) for threads in options.threads}
    decode: list[Row] = []
    if not options.no_decode:
        for threads in options.threads:
            for dtype in options.dtypes:
                decode += show(run_decode(dtype, threads, ceilings[threads], settings))
            ceilings[threads] = ceilings[threads].best_of(measure_ceilings(options.ceilings, threads))
    rows: list[Row] = []
    for case in all_cases(options):
        rows += show(run_case(case, contenders, settings))
    for threads in options.threads:  # again at the end: the clock may have changed meanwhile
        ceilings[threads] = ceilings[threads].best_of(measure_ceilings(options.ceilings, threads))
    overhead: dict[str, Any] = {}
    if not options.no_overhead:
        program = find_program("tilewise-overhead")
        overhead = {"cpp": call_overhead(program) if program else [], "torch_us": measure_overhead()}
    return {
        "machine": dataclasses.asdict(options.machine_info),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": published_command("attention_cpu.py", sys.argv[1:]),
        "ceilings": [dataclasses.asdict(ceiling) for ceiling in ceilings.values()],
        "overhead": overhead,
        "decode": [dataclasses.asdict(row) for row in decode],
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def run_decode(dtype: str, threads: int, ceilings: Ceilings, settings: Settings) -> list[Row]:
    """One decode step over as many KV caches as the ceiling's buffer is large, so that each is read from memory."""
    case = Case(DECODE_SHAPE, dtype, "none", "forward", "bshd", threads)
    num_copies = max(2, -(-ceilings.read_bytes // traffic_bytes(case)))
    return run_case(case, [Tilewise(), Torch()], settings, num_copies)


def show(rows: list[Row]) -> list[Row]:
    """One line of progress on standard error for each finished case; the best samples help on a busy machine."""
    speeds = ", ".join(f"{row.library} {row.median_us:.0f} us {row.gflops:.1f} GFLOP/s" for row in rows)
    best = {row.library: row.best_us for row in rows}
    ratios = f"ratio {ratio(rows, 'torch'):.2f}, of best samples {best['torch'] / best['tilewise']:.2f}"
    print(f"{report.label(dataclasses.asdict(rows[0]))}: {speeds}, {ratios}", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
