"""Hopper's expert layers (src/device/moe/sm90) beside torch's grouped_mm, bf16 or with quantised weights.

Each configuration is compiled by NVRTC, compared with fp32 arithmetic on random data, and timed in turns with the layer
made of torch.nn.functional.grouped_mm as transformers has it: captured graphs of calls whose routings are drawn anew,
so that weights come from memory. --library adds tilewise.moe itself: with TILEWISE_FORCE=cuda.sm80 the portable
kernels. --compile-only DIR leaves machine code there, which --kernels DIR takes. Needs torch
and an NVIDIA GPU of sm_90, and NVRTC where there is no machine code yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_inputs import LAYERS, AnyWeights, Call, QuantisedWeights, Weights
from moe_kernels import (
    FORMATS,
    SORTS,
    CombineConfig,
    Decode,
    DecodeConfig,
    GatherConfig,
    GatherParams,
    Kernel,
    LayerConfig,
    ManyRows,
    ScaledConfig,
    ScaledRows,
    Sort,
    compiled,
)

if TYPE_CHECKING:
    import torch

AnyKernel = Decode | ManyRows | ScaledRows
BYTES_PER_SECOND, FLOPS = 4.2e12, 780e12  # of the floor
WORST_ERROR = 6e-3  # of out in bf16, relative, in the norm: h and each part are rounded before


def grouped_layer(w: Weights, call: Call) -> Callable[[], Any]:
    """As transformers' "grouped_mm" experts have it."""
    import torch

    up_t, down_t = w.gate_up.transpose(-2, -1), w.down.transpose(-2, -1)
    tokens, top_k = call.ids.shape

    def layer() -> None:
        flat = call.ids.reshape(-1)
        order = torch.argsort(flat)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device="cuda")
        counts = torch.histc(flat.float(), bins=w.layer.experts, min=0, max=w.layer.experts - 1)
        offsets = torch.cumsum(counts, 0, dtype=torch.int32)
        rows = call.x[order // top_k]
        gate, up = torch._grouped_mm(rows, up_t, offs=offsets).chunk(2, -1)
        parts = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down_t, offs=offsets)
        parts = parts * call.weights.reshape(-1)[order, None]
        call.out.copy_(parts[back].view(tokens, top_k, -1).sum(1))

    return layer


def library_layer(w: AnyWeights, call: Call, scales_rows: bool) -> Callable[[], Any]:
    """tilewise.moe, by whichever implementation it chooses; scales_rows: of x in fp8."""
    import tilewise

    if isinstance(w, Weights):
        return lambda: tilewise.moe(call.x, call.ids, call.weights, w.gate_up, w.down)
    name: Any = "fp8_128x128" if w.gate_up.name == "fp8" else w.gate_up.name
    x = call.x
    rows: dict[str, Any] = {}
    if scales_rows:
        x, scales = call.quantised_rows()
        rows = {"x_format": "fp8_1x128", "h_format": "fp8_1x128", "x_scale": scales}
    return lambda: tilewise.moe(
        x,
        call.ids,
        call.weights,
        w.gate_up.elements,
        w.down.elements,
        w_format=name,
        gate_up_scale=w.gate_up.scales,
        down_scale=w.down.scales,
        gate_up_global_scale=w.gate_up.factors,
        down_global_scale=w.down.factors,
        **rows,
    )


def error_of(kernel: AnyKernel, w: Any, call: Call) -> float:
    """Relative, in the norm; infinite where runs differ in a bit or something is not written."""
    import torch

    run, runs = kernel.layer(w, call, False), []
    for _ in range(3):
        call.out.fill_(float("nan"))
        run()
        runs.append(call.out.clone())
    torch.cuda.synchronize()
    if not all(torch.equal(run.view(torch.int16), runs[0].view(torch.int16)) for run in runs):
        return float("inf")
    reference = call.reference(w, isinstance(kernel, ScaledRows))
    error = float(((runs[0].float() - reference).norm() / reference.norm().clamp_min(1e-30)).item())
    return error if error == error else float("inf")


def floor_of(w: AnyWeights, calls: list[Call]) -> float:
    """Seconds of a call: of the weights that it touches, or of its operations."""
    expert = 3 * w.layer.intermediate * w.layer.hidden
    touched = statistics.mean(float(call.ids.unique().numel()) for call in calls)
    moved = touched * expert * w.element_bytes / BYTES_PER_SECOND
    return float(max(moved, calls[0].ids.numel() * expert * 2 / FLOPS))


def graph_of(runs: list[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    import torch

    runs[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph


def seconds_of(ways: dict[str, list[Callable[[], Any]]], samples: int, pause: float) -> dict[str, list[float]]:
    """Of a call, in turns; each sample is a graph of all calls, after a pause."""
    import torch

    graphs = {name: graph_of(runs) for name, runs in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(samples + 1):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            time.sleep(pause)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn > 0:
                seconds[name].append(begin.elapsed_time(end) / 1e3 / len(ways[name]))
    return seconds


def kernel_microseconds(call: Callable[[], Any]) -> list[float]:
    """Of each launch of a call, as CUPTI sees them, the last of three times."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    events = sorted(profile.events() or [], key=lambda event: event.time_range.start)
    times = [round(event.device_time_total, 1) for event in events if event.device_time_total > 0]
    return times[len(times) // 3 * 2 :]


def measure(name: str, tokens: int, w: Any, kernels: list[AnyKernel], options: argparse.Namespace) -> dict[str, Any]:
    layer, fine = w.layer, []
    for kernel in kernels:
        errors = [error_of(kernel, w, Call.draw(layer, tokens, skewed)) for skewed in (False, True)]
        print(f"{name} {tokens} {kernel.config.name}: errors {errors[0]:.2e} {errors[1]:.2e}", flush=True)
        if max(errors) < WORST_ERROR:
            fine.append(kernel)
    if options.check_only:
        return {}
    count = 24 if tokens <= 4 else 8 if tokens <= 512 else 2
    calls = [Call.draw(layer, tokens) for _ in range(count)]
    floor = floor_of(w, calls)
    ways = {
        f"{k.config.name}{' pdl' if pdl else ''}": [k.layer(w, call, pdl) for call in calls]
        for k in fine
        for pdl in (False, True)
    }
    if options.kernels_apart:
        for kernel in fine:
            print(f"  {kernel.config.name}: {kernel_microseconds(kernel.layer(w, calls[0], False))}", flush=True)
    if options.library:
        ways["tilewise.moe"] = [library_layer(w, call, options.scaled_rows) for call in calls]
    if options.peers and isinstance(w, Weights):
        ways["grouped_mm"] = [grouped_layer(w, call) for call in calls]
    seconds = seconds_of(ways, options.samples, options.pause)
    print(f"{name} {tokens} tokens: floor {floor * 1e6:.1f} us, {count} calls")
    for way, of in sorted(seconds.items(), key=lambda item: statistics.median(item[1])):
        middle = statistics.median(of)
        print(
            f"  {way:36} {middle * 1e6:8.1f} us ({min(of) * 1e6:.1f} to {max(of) * 1e6:.1f})  {middle / floor:.2f} x",
            flush=True,
        )
    return {"floor": floor, "seconds": seconds}


CONFIGS = (
    DecodeConfig(8, 1, 22, 64),
    DecodeConfig(8, 1, 6, 128, consumers=2),
    DecodeConfig(16, 4, 12, 64, consumers=2, tokens=(16, 16)),
    DecodeConfig(64, 0, 9, 64, consumers=2, tokens=(64, 512)),
    DecodeConfig(64, 0, 5, 64, consumers=2, row_blocks=2, tokens=(64, 512)),
    LayerConfig(192, 5, tokens=(512, 512)),
    LayerConfig(256, 4),
    LayerConfig(256, 4, held_experts=8),
)


def quantised(weights: int, tokens: tuple[int, int], ids: int, *shape: int) -> DecodeConfig:
    """block_n, stages, windows of scales, warpgroups and row blocks of each."""
    block_n, stages, windows, consumers, row_blocks = shape
    depth = 128 if FORMATS[weights] == "fp8" else 256
    return DecodeConfig(
        block_n, ids, stages, depth, consumers, row_blocks, tokens=tokens, weights=weights, scale_windows=windows
    )


QUANTISED_CONFIGS = (
    quantised(1, (1, 8), 1, 8, 17, 4, 1, 1),
    quantised(1, (1, 8), 1, 8, 10, 4, 2, 1),
    quantised(1, (1, 8), 1, 8, 5, 3, 2, 2),
    quantised(1, (1, 8), 1, 8, 7, 3, 3, 1),
    quantised(1, (9, 16), 4, 16, 8, 4, 2, 1),
    quantised(1, (9, 16), 4, 16, 4, 4, 2, 2),
    quantised(1, (16, 256), 0, 16, 8, 4, 2, 1),
    quantised(1, (16, 256), 0, 16, 4, 4, 2, 2),
    quantised(1, (16, 256), 0, 16, 6, 2, 3, 1),
    quantised(1, (16, 512), 0, 32, 6, 4, 2, 1),
    quantised(1, (16, 512), 0, 32, 5, 2, 3, 1),
    quantised(1, (16, 512), 0, 32, 4, 2, 2, 2),
    quantised(1, (64, 512), 0, 64, 4, 3, 2, 1),
    quantised(2, (1, 8), 1, 8, 9, 6, 2, 1),
    quantised(2, (9, 16), 4, 16, 7, 6, 2, 1),
    quantised(2, (16, 512), 0, 32, 5, 6, 2, 1),
    quantised(3, (1, 8), 1, 8, 21, 5, 1, 1),
    quantised(3, (1, 8), 1, 8, 11, 3, 2, 1),
    quantised(3, (1, 8), 1, 8, 5, 2, 2, 2),
    quantised(3, (9, 16), 4, 16, 10, 3, 2, 1),
    quantised(3, (16, 512), 0, 16, 10, 3, 2, 1),
    quantised(3, (16, 512), 0, 32, 8, 3, 2, 1),
    quantised(3, (16, 512), 0, 32, 4, 2, 2, 2),
    quantised(3, (64, 512), 0, 64, 6, 3, 2, 1),
)


SCALED_CONFIGS = (ScaledConfig(), ScaledConfig(8))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="qwen,mixtral", help="default: qwen,mixtral")
    parser.add_argument("--tokens", default="1,16,64,512", help="default: 1,16,64,512")
    parser.add_argument("--weights", default="bf16", choices=FORMATS, help="default: bf16")
    parser.add_argument("--scaled-rows", action="store_true", help="rows of x in fp8 beside such weights")
    parser.add_argument("--filter", default="", help="only configurations whose name contains it")
    parser.add_argument("--samples", type=int, default=20, help="of each, default: 20")
    parser.add_argument("--pause", type=float, default=0.01, metavar="SECONDS", help="before a sample, default: 0.01")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave torch's layer out")
    parser.add_argument("--library", action="store_true", help="time tilewise.moe too")
    parser.add_argument("--kernels-apart", action="store_true", help="time each launch of a call too")
    parser.add_argument("--kernels", type=Path, metavar="DIR", help="where machine code is kept")
    parser.add_argument("--compile-only", type=Path, metavar="DIR", help="compile into this folder and leave")
    parser.add_argument("--check-only", action="store_true", help="compare with fp32 and leave, as for sanitizers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go")
    options = parser.parse_args()
    weights_format = FORMATS.index(options.weights)
    every = [c for c in QUANTISED_CONFIGS if c.weights == weights_format] if weights_format else CONFIGS
    configs = tuple(c for c in every if options.filter in c.name)
    scaled = tuple(c for c in SCALED_CONFIGS if options.scaled_rows and options.filter in c.name)
    if options.scaled_rows:
        configs = ()
    products = [product for c in scaled for product in c.products()]
    code = compiled(
        (*SORTS, GatherConfig(), CombineConfig(), *configs, *products), options.compile_only or options.kernels
    )
    if options.compile_only:
        return 0
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("moe_gpu.py: needs an NVIDIA GPU of sm_90, which torch does not see", file=sys.stderr)
        return 1
    torch.zeros(1, device="cuda")
    torch.manual_seed(options.samples)
    sort = Sort(code)
    gather = Kernel(GatherConfig(), code["gather"], GatherParams)
    kernels: list[AnyKernel] = [ScaledRows(c, code, sort, gather) for c in scaled]
    kernels += [
        ManyRows(c, code[c.name], sort, gather) if isinstance(c, LayerConfig) else Decode(c, code[c.name], sort)
        for c in configs
    ]
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in options.layers.split(","):
        layer = LAYERS[name]
        weights = QuantisedWeights.draw(layer, options.weights) if weights_format else Weights.draw(layer)
        for tokens in (int(text) for text in options.tokens.split(",")):
            fit = [kernel for kernel in kernels if kernel.serves(LAYERS[name], tokens)]
            results[f"{name} {tokens}"] = measure(name, tokens, weights, fit, options)
        del weights
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
