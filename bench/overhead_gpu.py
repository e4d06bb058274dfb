"""What a call on a GPU costs beside the kernel: compiling it, loading it, planning it, and the host's part of a call.

First calls are measured in processes of their own with a fresh kernel cache, on two processors where there are more;
host times by bursts of launches on a tiny problem, the device being waited for between bursts. Results go to
bench/results/ as JSON, and with --write-docs into docs/benchmarks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from command_line import (
    DOCS,
    add_device,
    add_report,
    check_device,
    check_report,
    published_command,
    read_results,
    results_file,
    write_results,
)
from overhead import cpp_overhead, expert_calls, function_calls, gradient_calls
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import tilewise
from tilewise.bench.argument_types import integer, list_of
from tilewise.bench.machine import describe_gpu
from tilewise.bench.timing import measure_bursts

Json = dict[str, Any]
Call = Callable[[], object]

HEAD_DIMS = (64, 128, 256)
QUICK_HEAD_DIMS = (128,)
COMPILE_CPUS = 2
LOADS = 3  # processes that load the compiled kernels; their median counts
BURST, BURSTS = 100, 31  # calls: well within the depth of a stream's queue
CALLS_IN_GRAPH = 20
CHILD_SECONDS = 240


def main() -> int:
    options = parse_arguments()
    if options.first_call is not None:
        print(json.dumps(time_first_calls(options.device, options.first_call)))
        return 0
    if options.from_json is not None:
        results = read_results(options.from_json)
    else:
        machine = describe_gpu(options.device, options.machine)
        results = {
            "machine": dataclasses.asdict(machine),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "command": published_command("overhead_gpu.py", sys.argv[1:]),
            "overhead": measure_overhead(options.device, options.quick, options.head_dims),
        }
        write_results(options.json or results_file("overhead_gpu", machine.name), results)
    from overhead_report import text, write_section

    print(text(results))
    if options.write_docs:
        write_section(DOCS, results)
        print(f"written: {DOCS}")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_device(parser)
    parser.add_argument("--head-dims", type=list_of(integer(1)), help="of the kernels compiled (default: 64,128,256)")
    parser.add_argument("--quick", action="store_true", help="one head_dim, fewer samples: too rough to publish")
    parser.add_argument("--first-call", type=int, metavar="HEAD_DIM", help=argparse.SUPPRESS)
    add_report(parser, "the GPU's name")
    options = parser.parse_args()
    check_report(parser, options)
    if options.from_json is None:
        check_device(parser, options)
    return options


def measure_overhead(device: str, quick: bool = False, head_dims: Sequence[int] | None = None) -> Json:
    """All of it, as plain JSON values. Without the program tilewise-overhead-gpu its lines are left out."""
    chosen = head_dims or (QUICK_HEAD_DIMS if quick else HEAD_DIMS)
    cpp = cpp_overhead("tilewise-overhead-gpu") if device != "cpu" else []
    if not cpp and device != "cpu":
        print("tilewise-overhead-gpu is not built (TILEWISE_BUILD_BENCH=ON): C++ lines are left out", file=sys.stderr)
    bursts = 5 if quick else BURSTS
    return {
        "first_calls": [first_calls(device, head_dim, 1 if quick else LOADS) for head_dim in chosen],
        "cpp": cpp,
        "calls_us": {**host_times(device, bursts), **graph_times(device, bursts)},
    }


def first_calls(device: str, head_dim: int, loads: int = LOADS) -> Json:
    """Seconds until the kernels of a call are ready: with nothing in the cache, then by new processes from it."""
    with tempfile.TemporaryDirectory() as folder:
        cold = run_child(device, head_dim, folder)
        cached = [run_child(device, head_dim, folder) for _ in range(loads)]
    return {
        "head_dim": head_dim,
        "cpus": cold["cpus"],
        "cold_s": cold["seconds"],
        "cached_s": {name: statistics.median(run["seconds"][name] for run in cached) for name in cold["seconds"]},
    }


def run_child(device: str, head_dim: int, cache_folder: str) -> Json:
    """time_first_calls() in a process of its own. Raises RuntimeError with its words where it fails."""
    # The driver's own cache of compiled PTX must not help; Tilewise's is the one that is measured.
    environment = {**os.environ, "TILEWISE_CACHE_DIR": cache_folder, "CUDA_CACHE_DISABLE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--device", device, "--first-call", str(head_dim)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])}: exit status {result.returncode}\n{result.stderr[-2000:]}")
    timed: Json = json.loads(result.stdout.strip().splitlines()[-1])
    return timed


def time_first_calls(device: str, head_dim: int) -> Json:
    """Seconds of this process's first preparation of a forward kernel, then of a backward pass, bf16 and causal."""
    cpus = sorted(os.sched_getaffinity(0))[:COMPILE_CPUS]
    os.sched_setaffinity(0, cpus)
    q, k, v = (torch.zeros(1, 1024, 16, head_dim, device=device, dtype=torch.bfloat16) for _ in range(3))
    synchronize(device)  # the context is torch's to make
    tiny = torch.zeros(1, 1, 1, 8)
    tilewise.attention(tiny, tiny, tiny)  # imports and registers the torch operators, on the CPU
    seconds = {}
    for name in ("forward", "backward"):
        leaves = [tensor.requires_grad_(name == "backward") for tensor in (q, k, v)]
        start = time.perf_counter()
        tilewise.warmup(*leaves, mask="causal")
        seconds[name] = time.perf_counter() - start
    return {"cpus": len(cpus), "seconds": seconds}


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def host_times(device: str, bursts: int = BURSTS) -> dict[str, float]:
    """Median microseconds of host time of each call, of Tilewise and of torch on the same tensors."""
    shape = (1, 16, 1, 64)
    q, k, v, dout = (torch.randn(shape, device=device, dtype=torch.float32).bfloat16() for _ in range(4))
    calls = {
        "Tilewise, torch operator, no gradient": lambda: tilewise.attention(q, k, v),
        **gradient_calls("Tilewise, torch operator", tilewise.attention, q, k, v, dout),
    }
    # One head, so that the same memory is [batch, heads, seqlen, head_dim] too.
    views = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    calls["torch, no gradient"] = lambda: scaled_dot_product_attention(*views)
    calls.update(gradient_calls("torch", scaled_dot_product_attention, *views, dout.transpose(1, 2)))
    calls.update(function_calls(device))
    calls.update(expert_calls(device))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return {name: host_time(call, device, bursts) for name, call in calls.items()}


def host_time(call: Call, device: str, bursts: int) -> float:
    """Median over bursts of the microseconds of one call, without the wait for the device after each burst."""
    return 1e6 * measure_bursts(call, bursts, BURST, partial(synchronize, device)).median


def graph_times(device: str, bursts: int = BURSTS) -> dict[str, float]:
    """Host time of replaying a CUDA graph of one call, and the device's time of each call in a graph of many."""
    if device == "cpu":
        return {}
    q, k, v = (torch.randn(1, 16, 1, 64, device=device, dtype=torch.float32).bfloat16() for _ in range(3))
    tilewise.warmup(q, k, v)
    single, many = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    for graph, count in ((single, 1), (many, CALLS_IN_GRAPH)):
        with torch.cuda.graph(graph):
            for _ in range(count):
                tilewise.attention(q, k, v)

    def replay_and_wait() -> None:
        for _ in range(10):
            many.replay()
        torch.cuda.synchronize()

    whole = measure_bursts(replay_and_wait, bursts, 1).median / (10 * CALLS_IN_GRAPH)
    return {
        "CUDA graph of one Tilewise call, host's part of a replay": host_time(single.replay, device, bursts),
        f"CUDA graph of {CALLS_IN_GRAPH} Tilewise calls, whole time of each": 1e6 * whole,
    }


if __name__ == "__main__":
    sys.exit(main())
