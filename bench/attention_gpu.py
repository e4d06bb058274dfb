"""Attention on a GPU beside torch's FlashAttention-2 and cuDNN, in one process, forward and backward, bf16.

The headline table: hidden size 2048, batch x seqlen = 16384, head_dim {64, 128, 256} x seqlen {512 .. 16384} x
{full, causal}; head dims of MLA; long shapes in fp8; decode steps against the memory's bandwidth, and chunks of a
prefill; a case for each option, and one of extreme scores, beside the same without; and what a call costs. Calls of all
libraries alternate, or each library's follow each other (--timing). Results go to bench/results/ as JSON, and with
--write-docs into docs/benchmarks. See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gpu_report
from command_line import (
    DOCS,
    EXIT_FAILURE,
    EXIT_OK,
    REPOSITORY,
    add_device,
    check_device,
    check_report,
    fill_in,
    kept_results,
    published_command,
    report_parser,
    results_file,
)
from gpu_cases import (
    EXTREME_SEQLEN,
    FP8_SEQLENS,
    HEAD_DIMS,
    HIDDEN_SIZE,
    MLA_SEQLENS,
    NUM_TOKENS,
    OPTION_HEAD_DIM,
    OPTION_SEQLEN,
    PLAIN,
    QUICK_SEQLENS,
    SEQLENS,
    GpuCase,
    chunk_cases,
    decode_cases,
    extreme_cases,
    flops,
    fp8_cases,
    grid_cases,
    mla_cases,
    num_copies,
    option_cases,
)
from overhead_gpu import measure_overhead
from plain_beside import PlainBeside
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewise.bench.argument_types import integer, list_of, one_of, seconds
from tilewise.bench.ceilings import measure_gpu_ceilings
from tilewise.bench.compile_ahead import compile_all
from tilewise.bench.contenders import Contender, Tilewise
from tilewise.bench.device_timing import Sustained, clock_of, measure, measure_runs
from tilewise.bench.expected import FewHeads, few_heads
from tilewise.bench.gpu import gpu_kind
from tilewise.bench.gpu_contenders import TorchCudnn, TorchFlash
from tilewise.bench.inputs import Inputs, make_inputs
from tilewise.bench.machine import describe_gpu
from tilewise.bench.markdown import ratio_of
from tilewise.bench.rows import Row
from tilewise.bench.runner import Settings, Timer, run_on
from tilewise.bench.shapes import Case, Pass

PLOT = REPOSITORY / "docs" / "benchmarks_gpu.png"
KINDS = ("grid", "mla", "fp8", "decode", "chunk", "options", "extreme")
CONTENDERS: dict[str, type[Contender[Case, Inputs]]] = {each.name: each for each in (TorchFlash, TorchCudnn)}
# Seconds for each library, case and pass; and of all of them, past which samples get as few as they can.
FULL_DEFAULTS = {"seqlens": list(SEQLENS), "seconds": 0.2, "limit": 200.0}
QUICK_DEFAULTS = {"seqlens": list(QUICK_SEQLENS), "seconds": 0.04, "limit": 45.0}
SUSTAINED_SECONDS = 0.8

Json = dict[str, Any]


def main() -> int:
    options = parse_arguments()
    results = kept_results(options, lambda: empty_results(options), lambda results: measure_all(options, results))
    print(gpu_report.text(results))
    if options.from_json is None:
        print(f"\nwritten: {options.json}")
    if options.write_docs:
        picture = gpu_report.plot(results, options.plot)
        gpu_report.write_section(DOCS, results, options.plot if picture else None)
        print(f"written: {DOCS}" + (f", {options.plot}" if picture else "; no plot, as matplotlib is missing"))
    failures = [row for row in results["rows"] if row["status"].startswith("failed")]
    for row in failures:
        print(f"{row['library']}: {row['label']}: {row['status']}", file=sys.stderr)
    if problem := results["overhead"].get("failed"):
        print(f"cost of a call: {problem}", file=sys.stderr)
    return EXIT_FAILURE if failures or problem else EXIT_OK


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = report_parser(__doc__.split("\n")[0], "the GPU's name", PLOT)
    add_device(parser)
    parser.add_argument("--implementation", metavar="NAME", help="Tilewise's, such as cuda.sm80 (default: its choice)")
    parser.add_argument("--kinds", type=list_of(one_of(KINDS)), default=list(KINDS), help=f"default: {','.join(KINDS)}")
    parser.add_argument("--head-dims", type=list_of(integer(1)), default=list(HEAD_DIMS), help="default: 64,128,256")
    parser.add_argument("--seqlens", type=list_of(integer(1)), help="default: 512 .. 16384; with --quick 512,4096")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="batch x seqlen (default: 16384)")
    parser.add_argument("--hidden", type=int, default=HIDDEN_SIZE, help="heads x head_dim (default: 2048)")
    parser.add_argument(
        "--beside",
        type=list_of(one_of(tuple(CONTENDERS))),
        default=list(CONTENDERS),
        help=f"default: {','.join(CONTENDERS)}",
    )
    parser.add_argument(
        "--timing",
        type=one_of(tuple(gpu_report.TIMINGS)),
        default="turns",
        help="calls of all libraries alternate, those of each come in short runs, or each call for --seconds by itself:"
        f" {', '.join(gpu_report.TIMINGS)} (default: turns)",
    )
    parser.add_argument(
        "--seconds", type=seconds, help="for each library, case and pass (default: 0.2; quick 0.04; sustained 0.8)"
    )
    parser.add_argument("--limit", type=seconds, help="seconds for all cases in turns (default: 200; quick 45)")
    options = parser.parse_args(arguments)
    check_report(parser, options)
    check_timing(parser, options)
    fill_in(options, QUICK_DEFAULTS if options.quick else FULL_DEFAULTS)
    check_shapes(parser, options)
    if options.list:
        print("\n".join(case.label(operation) for case, operation in wanted_passes(options)))
        sys.exit(EXIT_OK)
    if options.from_json is None:
        check_device(parser, options)
        options.machine_info = describe_gpu(options.device, options.machine)
        options.json = options.json or results_file(results_name(options.timing), options.machine_info.name)
    return options


def check_timing(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Judges what goes with a way of timing, and fills in its default."""
    if options.limit is not None and options.timing != "turns":
        parser.error(
            f"argument --limit: must go with --timing turns, whose samples it makes fewer (got {options.timing!r})"
        )
    if options.seconds is not None and options.timing == "runs":
        parser.error("argument --seconds: must not be given with --timing runs, whose calls are counted")
    if options.timing == "sustained":
        fill_in(options, {"seconds": SUSTAINED_SECONDS})


def results_name(timing: str) -> str:
    return "attention_gpu" if timing == "turns" else f"attention_gpu_{timing}"


def check_shapes(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for seqlen in options.seqlens:
        if options.tokens % seqlen:
            parser.error(f"argument --seqlens: must divide --tokens {options.tokens} (got {seqlen})")
    for head_dim in options.head_dims:
        if options.hidden % head_dim:
            parser.error(f"argument --head-dims: must divide --hidden {options.hidden} (got {head_dim})")


def all_cases(options: argparse.Namespace) -> Iterator[GpuCase]:
    """In the order they are measured."""
    passes, kinds, hidden, tokens = tuple(options.passes), options.kinds, options.hidden, options.tokens
    small, head_dim = options.device == "cpu", min(OPTION_HEAD_DIM, hidden)
    if "grid" in kinds:
        yield from grid_cases(options.head_dims, options.seqlens, passes, hidden, tokens)
    if "mla" in kinds:
        yield from mla_cases([seqlen for seqlen in options.seqlens if seqlen in MLA_SEQLENS or small], passes, tokens)
    if "options" in kinds:
        yield from option_cases(passes, min(OPTION_SEQLEN, tokens), head_dim, hidden, tokens)
    if "forward" not in passes:
        return
    if "extreme" in kinds:
        yield from extreme_cases(min(EXTREME_SEQLEN, tokens), head_dim, hidden, tokens)
    if "fp8" in kinds:
        seqlens = list(dict.fromkeys(min(seqlen, tokens) for seqlen in FP8_SEQLENS))
        yield from fp8_cases(options.head_dims, seqlens, hidden, tokens)
    if "decode" in kinds:
        yield from decode_cases((1, 2), (64,)) if small else decode_cases()
    if "chunk" in kinds:
        yield from chunk_cases((4,), 64) if small else chunk_cases()


def wanted_passes(options: argparse.Namespace) -> Iterator[tuple[GpuCase, Pass]]:
    for case in all_cases(options):
        for operation in case.passes:
            if options.filter is None or options.filter.search(case.label(operation)):
                yield case, operation


def empty_results(options: argparse.Namespace) -> Json:
    """What measure_all() fills, as plain JSON values: everything the report needs."""
    return {
        "machine": dataclasses.asdict(options.machine_info),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "timing": options.timing,
        "command": published_command("attention_gpu.py", sys.argv[1:]),
        "ceilings": {},
        "compiled_ahead": {},
        "overhead": {},
        "rows": [],
    }


def measure_all(options: argparse.Namespace, results: Json) -> None:
    tilewise = Tilewise(options.implementation)
    contenders = [tilewise, *(CONTENDERS[name]() for name in options.beside)]
    timer_of = timers(options)
    wanted: dict[GpuCase, list[Pass]] = {}
    for case, operation in wanted_passes(options):
        wanted.setdefault(case, []).append(operation)
    ceilings = measure_gpu_ceilings(options.device)
    results["ceilings"] = dataclasses.asdict(ceilings)
    results["compiled_ahead"] = compile_cases(tilewise, list(wanted), options.device)
    end = time.monotonic() + options.limit
    left = sum(len(operations) for operations in wanted.values())
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for case, operations in wanted.items():
            # A pass takes about four times one library's samples: three libraries, warm-up and reference.
            budget = min(options.seconds, max(0.0, (end - time.monotonic()) / left / 4))
            results["rows"] += measure_case(case, operations, contenders, options, timer_of(budget))
            left -= len(operations)
    results["ceilings"] = dataclasses.asdict(ceilings.best_of(measure_gpu_ceilings(options.device)))
    if not options.no_overhead:
        try:
            results["overhead"] = measure_overhead(options.device, quick=options.quick)
        except (RuntimeError, subprocess.SubprocessError) as error:  # the tables are worth more than a clean end
            results["overhead"] = {"failed": f"{type(error).__name__}: {error}"}


def timers(options: argparse.Namespace) -> Callable[[float], Timer]:
    """What times the calls of a case, by the seconds that each has if calls alternate."""
    clock = clock_of(options.device)
    if options.timing == "turns":
        return lambda budget: partial(measure, clock=clock, seconds=budget)
    timer: Timer = partial(measure_runs, clock=clock) if options.timing == "runs" else Sustained(clock, options.seconds)
    return lambda budget: timer


def kind_of(device: str) -> str:
    """Tilewise's name for what torch calls `device`."""
    return "cpu" if device == "cpu" else gpu_kind()


def compile_cases(tilewise: Tilewise, cases: Sequence[GpuCase], device: str) -> Json:
    """Compiles every kernel that the cases need, in parallel; how long that took on how many processors."""
    beside = [GpuCase(PLAIN, case.plain, case.passes) for case in cases if case.plain]
    every = dict.fromkeys((*cases, *beside))
    compiled = compile_all([(case.label(""), partial(tilewise.warm_up, case.on(kind_of(device)))) for case in every])
    for label, message in compiled.failures:
        print(f"not compiled ahead: {label}: {message}", file=sys.stderr)
    return {"seconds": compiled.seconds, "cpus": compiled.cpus}


def measure_case(
    case: GpuCase,
    operations: Sequence[Pass],
    contenders: Sequence[Contender[Case, Inputs]],
    options: argparse.Namespace,
    timer: Timer,
) -> list[Json]:
    """One row for each library and pass; inputs and reference are shared by all of them. Tilewise is the first."""
    on_device = case.on(kind_of(options.device))
    copies = [make_inputs(on_device, seed) for seed in range(num_copies(case, options.device))]
    unread = FewHeads(on_device, [])  # that it is finite
    expected = unread if options.no_accuracy else few_heads(on_device, copies[0], "backward" in case.passes)
    plain = PlainBeside(case.plain, case.passes, on_device.device, contenders[0]) if case.plain else None
    rows: list[Json] = []
    for operation in operations:
        settings = Settings(timer=plain.beside(timer, operation) if plain else timer)
        measured = run_on(copies, case.on(on_device.device, operation), contenders, settings, expected)
        rows += show([row_json(case, row, plain) for row in measured])
    return rows


def row_json(case: GpuCase, row: Row, plain: PlainBeside | None = None) -> Json:
    """None where a figure is missing: JSON knows no NaN. plain_*: what Tilewise is compared with, in the same turns."""
    operation: Pass = row.case.operation
    figures = {
        "median_us": row.median_us,
        "best_us": row.best_us,
        "tflops": flops(case, operation) / row.median_us / 1e6,
        "gb_per_s": row.gb_per_s,
        "max_abs_err": row.max_abs_err,
        "rel_l2_err": row.rel_l2_err,
    }
    return {
        "library": row.library,
        "implementation": row.implementation if row.ok else "",
        "label": case.label(operation),
        "kind": case.kind,
        "operation": operation,
        "mask": case.mask,
        **case.shape.columns(),
        **{name: None if math.isnan(value) else value for name, value in figures.items()},
        "plain_tflops": plain.tflops.get(operation) if plain else None,
        "plain_shape": str(plain.case.shape) if plain else None,
        "status": row.status,
    }


def show(rows: list[Json]) -> list[Json]:
    """One line of progress on standard error for each finished pass."""
    speeds = [
        f"{row['library']} {row['median_us']:.1f} us {row['tflops']:.1f} TFLOP/s" if row["median_us"] else row["status"]
        for row in rows
    ]
    ratios = [f"{ratio:.2f}" for rival in gpu_report.RIVALS if (ratio := ratio_of(rows, rival))]
    print(
        f"{rows[0]['label']}: {', '.join(speeds)}" + (f", ratio {' and '.join(ratios)}" if ratios else ""),
        file=sys.stderr,
        flush=True,
    )
    return rows


if __name__ == "__main__":
    sys.exit(main())
