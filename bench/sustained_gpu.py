"""What a GPU sustains: each call for a while by itself, call after call, beside cuDNN and beside the call without an
option.

attention_gpu.py has calls of all libraries alternate, so that all run at one clock, that of a card that rests while
slower ones run. Here each runs at the clock that its own power allows, for most of a second. The cases
are those of attention_gpu.py's grid, options and fp8. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from attention_gpu import compile_cases, kind_of
from command_line import EXIT_FAILURE, EXIT_OK, PASSES, add_device
from gpu_cases import (
    HEAD_DIMS,
    HIDDEN_SIZE,
    NUM_TOKENS,
    OPTION_HEAD_DIM,
    OPTION_SEQLEN,
    PLAIN,
    SEQLENS,
    GpuCase,
    flops,
    fp8_cases,
    grid_cases,
    option_cases,
    passes_of,
)
from plain_beside import PlainBeside
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewise.bench.argument_types import integer, list_of, one_of, regex, seconds
from tilewise.bench.contenders import Contender, Tilewise
from tilewise.bench.device_timing import Clock, clock_of, sustain
from tilewise.bench.gpu import gpu_name, refusal
from tilewise.bench.gpu_contenders import TorchCudnn
from tilewise.bench.inputs import Inputs, make_inputs
from tilewise.bench.markdown import table
from tilewise.bench.runner import Settings, run_on
from tilewise.bench.shapes import Case, Pass
from tilewise.bench.timing import Timing, geometric_mean

KINDS = ("grid", "options", "fp8")
FP8_SEQLEN = 8192
Rates = dict[str, float]  # TFLOP/s by what was measured: "tilewise", "torch_cudnn", "plain"


def main() -> int:
    options = parse_arguments()
    device = kind_of(options.device)
    if options.device == "cuda" and (reason := refusal(device)):
        print(f"sustained_gpu.py: {reason}", file=sys.stderr)
        return EXIT_FAILURE
    clock = clock_of(options.device)
    wanted = list(wanted_passes(options))
    compile_cases(Tilewise(), [case for case, _ in wanted], options.device)
    print(gpu_name() if options.device == "cuda" else "none: measured on the CPU")
    measured: list[tuple[GpuCase, Pass, Rates]] = []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for case, operation in wanted:
            # Who comes first changes from case to case.
            order = (1, -1)[len(measured) % 2]
            rates = measure_case(case, operation, device, clock, options, order)
            print(case.label(operation), *(f"{name} {rate:.0f}" for name, rate in rates.items()), file=sys.stderr)
            measured.append((case, operation, rates))
    print("\n" + report(measured))
    return EXIT_OK


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=list_of(one_of(KINDS)), default=list(KINDS), help=f"default: {','.join(KINDS)}")
    parser.add_argument(
        "--passes", type=list_of(one_of(PASSES)), default=list(PASSES), help="default: forward,backward"
    )
    parser.add_argument("--filter", type=regex, metavar="REGEX", help="only cases whose label it matches")
    parser.add_argument("--seconds", type=seconds, default=0.8, help="of each call in a turn (default: 0.8)")
    parser.add_argument("--turns", type=integer(1), default=1, help="of each case (default: 1)")
    add_device(parser)
    parser.add_argument("--tokens", type=integer(1), default=NUM_TOKENS, help="batch x seqlen (default: 16384)")
    parser.add_argument("--hidden", type=integer(1), default=HIDDEN_SIZE, help="heads x head_dim (default: 2048)")
    return parser.parse_args(arguments)


def wanted_passes(options: argparse.Namespace) -> Iterator[tuple[GpuCase, Pass]]:
    passes, hidden, tokens = tuple(options.passes), options.hidden, options.tokens
    head_dims = [head_dim for head_dim in HEAD_DIMS if hidden % head_dim == 0] or [hidden]
    cases: list[GpuCase] = []
    if "grid" in options.kinds:
        cases += grid_cases(head_dims, [seqlen for seqlen in SEQLENS if tokens % seqlen == 0], passes, hidden, tokens)
    if "options" in options.kinds:
        cases += option_cases(passes, min(OPTION_SEQLEN, tokens), min(OPTION_HEAD_DIM, hidden), hidden, tokens)
    if "fp8" in options.kinds and "forward" in passes:
        cases += fp8_cases(head_dims, [min(FP8_SEQLEN, tokens)], hidden, tokens)
    return passes_of([case for case in cases if case.kind != PLAIN], options.filter)


def measure_case(
    case: GpuCase, operation: Pass, device: str, clock: Clock, options: argparse.Namespace, order: int
) -> Rates:
    """Beside the call without its option, or of the grid's cases beside cuDNN. Whoever fails is named, and left out."""

    def timer(calls: Mapping[str, Callable[[], object]]) -> Mapping[str, Timing]:
        return sustain({name: calls[name] for name in list(calls)[::order]}, clock, options.seconds, options.turns)

    tilewise = Tilewise()
    plain = PlainBeside(case.plain, case.passes, device, tilewise) if case.plain else None
    rivals: list[Contender[Case, Inputs]] = [] if plain else [TorchCudnn()]
    settings = Settings(timer=plain.beside(timer, operation) if plain else timer)
    inputs = make_inputs(case.on(device), seed=0)
    rows = run_on([inputs], case.on(device, operation), [tilewise, *rivals], settings, None)
    for row in rows:
        if not row.ok:
            print(f"{row.library}: {case.label(operation)}: {row.status}", file=sys.stderr)
    rates = {row.library: flops(case, operation) / row.median_us / 1e6 for row in rows if row.ok}
    return {**rates, "plain": plain.tflops[operation]} if plain else rates


def report(measured: Sequence[tuple[GpuCase, Pass, Rates]]) -> str:
    grid = [entry for entry in measured if not entry[0].plain]
    options = [entry for entry in measured if entry[0].plain]
    parts = []
    if grid:
        parts += ["TFLOP/s sustained beside cuDNN:", grid_table(grid)]
        parts += [summary(operation, grid) for operation in PASSES]
    if options:
        parts += ["TFLOP/s sustained beside the call without the option, in bf16:", options_table(options)]
    return "\n\n".join(part for part in parts if part)


def number(rates: Mapping[str, float], name: str) -> str:
    return f"{rates[name]:.0f}" if name in rates else "-"


def ratio(rates: Mapping[str, float], beside: str) -> float | None:
    return rates["tilewise"] / rates[beside] if {"tilewise", beside} <= set(rates) else None


def ratio_text(rates: Mapping[str, float], beside: str) -> str:
    value = ratio(rates, beside)
    return "-" if value is None else f"{value:.2f}"


def grid_table(measured: Sequence[tuple[GpuCase, Pass, Rates]]) -> str:
    header = ["pass", "head_dim", "mask", "seqlen", "Tilewise", "cuDNN", "beside it"]
    lines = []
    for case, operation, rates in measured:
        place = [operation, str(case.shape.head_dim), case.mask, str(case.shape.seqlen_q)]
        lines.append(
            [*place, number(rates, "tilewise"), number(rates, "torch_cudnn"), ratio_text(rates, "torch_cudnn")]
        )
    return table(header, lines)


def summary(operation: Pass, measured: Sequence[tuple[GpuCase, Pass, Rates]]) -> str:
    """Mean and least ratio; empty where cuDNN was not there."""
    ratios = {
        case.label(operation): value
        for case, of_pass, rates in measured
        if of_pass == operation and (value := ratio(rates, "torch_cudnn")) is not None
    }
    if not ratios:
        return ""
    least = min(ratios, key=lambda label: ratios[label])
    mean = geometric_mean(list(ratios.values()))
    return f"{operation}: {mean:.3f} times cuDNN's speed in the geometric mean, at least {ratios[least]:.3f} ({least})"


def options_table(measured: Sequence[tuple[GpuCase, Pass, Rates]]) -> str:
    header = ["option", "head_dim", "mask", "pass", "Tilewise", "without", "of it"]
    lines = []
    for case, operation, rates in measured:
        place = [case.kind, str(case.shape.head_dim), case.mask, operation]
        lines.append([*place, number(rates, "tilewise"), number(rates, "plain"), ratio_text(rates, "plain")])
    return table(header, lines)


if __name__ == "__main__":
    sys.exit(main())
