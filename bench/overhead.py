"""What one call of the torch operator costs beside the arithmetic: a tiny problem, without and with gradients.

Beside it torch's own scaled_dot_product_attention on the same tensors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from command_line import BUILDS
from torch.nn.functional import scaled_dot_product_attention

import tilewise
from tilewise.bench.argument_types import seconds
from tilewise.bench.ceilings import find_program
from tilewise.bench.timing import measure

Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--min-time", type=seconds, default=1.0, help="seconds for each line (default: 1)")
    options = parser.parse_args()
    for name, microseconds in measure_overhead(options.min_time).items():
        print(f"{name:40s} {microseconds:8.2f} us")


def measure_overhead(min_time: float = 1.0) -> dict[str, float]:
    """Least microseconds of each call in 200 samples, on one thread; `min_time` is in seconds, for each.

    What the machine does besides can only add to a few microseconds of one thread.
    """
    torch.set_num_threads(1)
    timings = measure({**tilewise_calls(), **torch_calls()}, min_time, num_samples=200)
    return {name: timing.best * 1e6 for name, timing in timings.items()}


def cpp_overhead(name: str) -> list[dict[str, Any]]:
    """Nanoseconds of the parts of C++ calls, which the program `name` measures; empty where it is not built."""
    program = find_program(name, BUILDS)
    if program is None:
        return []
    result = subprocess.run([program, "--json"], check=True, capture_output=True, text=True, timeout=120)
    measured: list[dict[str, Any]] = json.loads(result.stdout)
    return measured


def tilewise_calls() -> dict[str, Call]:
    """[batch, seqlen, heads, head_dim] = [1, 1, 1, 8]."""
    q, k, v, dout = (torch.randn(1, 1, 1, 8) for _ in range(4))
    return {
        "tilewise, no gradient": lambda: tilewise.attention(q, k, v),
        **gradient_calls("tilewise", tilewise.attention, q, k, v, dout),
    }


def torch_calls() -> dict[str, Call]:
    q, k, v, dout = (torch.randn(1, 1, 1, 8) for _ in range(4))
    return {
        "torch, no gradient": lambda: scaled_dot_product_attention(q, k, v),
        **gradient_calls("torch", scaled_dot_product_attention, q, k, v, dout),
    }


def gradient_calls(name: str, attention: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> dict[str, Call]:
    """The forward call that records a graph, alone and with the backward pass it records."""
    *inputs, dout = tensors
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs)
    return {
        f"{name}, forward with gradient": lambda: attention(*leaves),
        f"{name}, forward and backward": lambda: torch.autograd.grad(attention(*leaves), leaves, dout),
    }


if __name__ == "__main__":
    main()
