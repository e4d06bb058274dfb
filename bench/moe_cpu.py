"""Expert layers on the CPU beside transformers' own, of the same modules with the same weights.

transformers' class of experts computes by "tilewise", by "grouped_mm", which is its default, and by "eager", in turn,
and tilewise.moe with the same weights in mxfp4 beside them. Routings are drawn anew, and weights come from memory. The
least time of a few rounds counts. Results are first compared with what the class computes in fp32. Rates stand beside
the machine's, multiply-adds and reads, which are measured before and after.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

import benchmarks_page
import torch
import transformers
from command_line import BUILDS, EXIT_OK, published_command
from moe_inputs import LAYERS, Layer

import tilewise
import tilewise.transformers
from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.ceilings import CpuCeilings, find_program, measure_cpu_ceilings
from tilewise.bench.machine import describe_machine, versions
from tilewise.bench.markdown import table
from tilewise.bench.timing import turn_by_turn
from tilewise.transformers import experts

NAMES = {"qwen": "Qwen3-30B-A3B", "gpt_oss": "gpt-oss-20b"}
OURS, THEIRS = "tilewise", ("grouped_mm", "eager")
NARROW: Final = "mxfp4"
ROUTINGS = 8  # in turn
CHECKED = 4  # tokens
LONG_SECONDS = 10.0  # of a call whose first one is as good as another
WORST_ERROR = 1e-2  # of out in bf16, relative, in the norm: h is rounded before
COLUMNS = ["layer", "tokens", "Tilewise", "grouped_mm", "eager", "beside the better"]
COLUMNS += ["GB/s", "of reads", "GFLOP/s", "of the peak", "mxfp4", "bf16 beside mxfp4"]

Call = Callable[[], torch.Tensor]


@dataclass
class Tokens:
    """Rows and their routings, of which each call takes the next."""

    x: torch.Tensor
    routings: Iterator[tuple[torch.Tensor, torch.Tensor]]
    touched: float  # experts of a call, in the mean

    @classmethod
    def draw(cls, layer: Layer, count: int) -> Tokens:
        routings, touched = [], 0.0
        for _ in range(ROUTINGS):
            weights, ids = torch.rand(count, layer.experts).topk(layer.top_k)
            routings.append((ids, (weights / weights.sum(-1, keepdim=True)).bfloat16()))
            touched += ids.unique().numel() / ROUTINGS
        return cls(torch.randn(count, layer.hidden).bfloat16(), itertools.cycle(routings), touched)


def module_of(name: str, num_experts: int) -> Any:
    """transformers' experts of that layer, without numbers."""
    layer = LAYERS[name]
    sizes = {"hidden_size": layer.hidden, "num_experts_per_tok": layer.top_k}
    build: Any
    config: Any
    if name == "qwen":
        from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig as QwenConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

        config = QwenConfig(num_experts=num_experts, moe_intermediate_size=layer.intermediate, **sizes)
        build = Qwen3MoeExperts
    else:
        from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

        config = GptOssConfig(num_local_experts=num_experts, intermediate_size=layer.intermediate, **sizes)
        build = GptOssExperts
    with torch.device("meta"):
        module = build(config)
    return module.requires_grad_(False)


def drawn(name: str) -> Any:
    """The layer's module with random weights in bf16."""
    layer = LAYERS[name]
    module = module_of(name, layer.experts).bfloat16().to_empty(device="cpu")
    for parameter in module.parameters():
        for expert in parameter:
            expert.copy_(torch.randn(expert.shape) * layer.hidden**-0.5)
    return module


def by_rows(module: Any) -> tuple[torch.Tensor, ...]:
    """Both weights with the summed dimension last."""
    return tuple(w.transpose(1, 2) if module.is_transposed else w for w in experts.matrices(module))


def module_call(module: Any, implementation: str, tokens: Tokens) -> Call:
    def call() -> torch.Tensor:
        module.config._experts_implementation = implementation
        out: torch.Tensor = module(tokens.x, *next(tokens.routings))
        return out

    return call


def narrow_call(module: Any, weights: list[Any], tokens: Tokens) -> Call:
    """weights: both of the module's in mxfp4, elements and scales."""
    (first, first_scale), (down, down_scale) = weights
    quantised = {"w_format": NARROW, "gate_up_scale": first_scale, "down_scale": down_scale}
    return lambda: experts.call(module, tokens.x, *next(tokens.routings), first, down, quantised)


def check(name: str, module: Any, narrow: list[Any], tokens: Tokens) -> None:
    """Ends the program where a few tokens' results are not those of the class in fp32."""
    ids, weights = next(tokens.routings)
    few = Tokens(tokens.x[:CHECKED], itertools.repeat((ids[:CHECKED], weights[:CHECKED])), 0)
    used, places = ids[:CHECKED].unique(return_inverse=True)
    exact = module_of(name, len(used)).to_empty(device="cpu")
    for parameter, of_all in zip(exact.parameters(), module.parameters(), strict=True):
        parameter.copy_(of_all[used])
    calls = {OURS: module_call(module, OURS, few)}
    calls |= {theirs: module_call(module, theirs, few) for theirs in THEIRS}
    calls[NARROW] = narrow_call(module, narrow, few)
    exact.config._experts_implementation = "eager"
    for implementation, call in calls.items():
        if implementation == NARROW:
            for weight, codes in zip(by_rows(exact), narrow, strict=True):
                elements, scales = (part.view(torch.uint8)[used].view(part.dtype) for part in codes)
                weight.copy_(tilewise.dequantize(elements, scales, NARROW))
        expected = exact(few.x.float(), places, weights[:CHECKED].float())
        error = ((call().float() - expected).norm() / expected.norm()).item()
        if not error <= WORST_ERROR:
            sys.exit(f"{NAMES[name]}, {implementation}: error must be at most {WORST_ERROR} (got {error:.2e})")


def least_seconds(calls: dict[str, Call], rounds: int, clock: Callable[[], float], threads: int) -> dict[str, float]:
    """Of each call, all of them in turn. One that takes seconds is called once."""
    best = dict.fromkeys(calls, float("inf"))
    for name in turn_by_turn(list(calls), rounds):
        if LONG_SECONDS < best[name] < float("inf"):
            continue
        start = clock()
        calls[name]()
        best[name] = min(best[name], (clock() - start) / threads)
    return best


def row_of(name: str, tokens: Tokens, best: dict[str, float], ceilings: CpuCeilings) -> list[str]:
    layer, count = LAYERS[name], len(tokens.x)
    ours, both = best[OURS], 3 * layer.hidden * layer.intermediate
    read = 2 * tokens.touched * both / ours / 1e9
    rate = 2 * count * layer.top_k * both / ours / 1e9
    theirs = [best[peer] for peer in THEIRS if peer in best]

    def ms(peer: str) -> str:
        return f"{best[peer] * 1e3:.1f}" if peer in best else "-"

    peak = ceilings.peak_gflops["bf16"]
    cells = [NAMES[name], str(count), ms(OURS), *map(ms, THEIRS), f"{min(theirs) / ours:.2f}" if theirs else "-"]
    cells += [f"{read:.1f}", f"{read / ceilings.read_gb_per_s:.0%}", f"{rate:.1f}", f"{rate / peak:.0%}"]
    return [*cells, ms(NARROW), f"{ours / best[NARROW]:.2f}" if NARROW in best else "-"]


def report(rows: list[list[str]], ceilings: CpuCeilings, options: argparse.Namespace) -> tuple[str, str]:
    """The machine's name, and facts and table in Markdown."""
    machine = describe_machine(options.machine)
    date = datetime.now(timezone.utc).date().isoformat()
    clock = ", time of the processor, since other programs ran" if options.busy else ""
    facts = [
        f"processor: {machine.processor}; {machine.instruction_sets}; last-level cache {machine.last_level_cache}",
        f"versions: {versions(f'transformers {transformers.__version__}')}",
        f"ceilings, {options.threads} thread: {ceilings.peak_gflops['bf16']:.1f} GFLOP/s of fp32 multiply-adds or bf16"
        f" ones, {ceilings.read_gb_per_s:.1f} GB/s read",
        f"command: `{published_command('moe_cpu.py', sys.argv[1:])}` ({date})",
    ]
    title = (
        f"The whole expert layer in bf16, {options.threads} thread, ms, the least of {options.rounds} rounds{clock}:"
    )
    lines = ["\n".join(f"- {fact}" for fact in facts), title, table(COLUMNS, rows)]
    return machine.name, "\n\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=list_of(one_of(tuple(NAMES))), default=list(NAMES), help="default: both")
    parser.add_argument(
        "--tokens", type=list_of(integer(1)), default=[1, 16, 512, 16384], help="default: 1,16,512,16384"
    )
    parser.add_argument("--beside", type=integer(0), default=512, help="peers up to so many tokens (default: 512)")
    parser.add_argument("--narrow", type=integer(0), default=16, help="mxfp4 up to so many tokens (default: 16)")
    parser.add_argument("--threads", type=integer(1), default=1, help="default: 1")
    parser.add_argument("--rounds", type=integer(1), default=5, help="calls of each (default: 5)")
    parser.add_argument("--busy", action="store_true", help="count the processor's time by threads, not the clock's")
    parser.add_argument("--machine", metavar="NAME", help="title of this machine's section (default: the processor's)")
    parser.add_argument("--write-docs", action="store_true", help="keep it in docs/benchmarks, and make the page anew")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    program = find_program("tilewise-ceilings", BUILDS)
    if program is None:
        sys.exit("tilewise-ceilings: must be in the build or on PATH (got none)")
    torch.set_num_threads(options.threads)
    tilewise.set_num_threads(options.threads)
    torch.manual_seed(1)
    clock = time.process_time if options.busy else time.perf_counter
    ceilings = measure_cpu_ceilings(program, options.threads, options.busy)
    measured: list[tuple[str, Tokens, dict[str, float]]] = []
    with torch.inference_mode():
        for name in options.layers:
            module = drawn(name)
            narrow = [tilewise.quantize(w.contiguous(), NARROW) for w in by_rows(module)]
            for count in options.tokens:
                tokens = Tokens.draw(LAYERS[name], count)
                check(name, module, narrow, tokens)
                peers = (OURS, *THEIRS) if count <= options.beside else (OURS,)
                calls = {peer: module_call(module, peer, tokens) for peer in peers}
                if count <= options.narrow:
                    calls[NARROW] = narrow_call(module, narrow, tokens)
                best = least_seconds(calls, options.rounds, clock, options.threads)
                print(NAMES[name], count, {peer: f"{1e3 * best[peer]:.1f} ms" for peer in best}, flush=True)
                measured.append((name, tokens, best))
    ceilings = ceilings.best_of(measure_cpu_ceilings(program, options.threads, options.busy))
    heading, text = report([row_of(*case, ceilings) for case in measured], ceilings, options)
    print(text)
    if options.write_docs:
        benchmarks_page.publish("experts_cpu", heading, text)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
