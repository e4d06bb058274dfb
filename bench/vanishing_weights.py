"""Attention on the CPU where weights vanish: masks of -100, ALiBi, sharp scores, beside the same call on plain ones.

Weights below the smallest normal number are 0 to kernels; one that computed with them would take tens of times as long.
The ratio is of processor time on one thread, the least of several runs, which take turns.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from command_line import EXIT_FAILURE, EXIT_OK

import tilewise
from tilewise.bench.argument_types import integer

SEQLEN, NUM_HEADS, HEAD_DIM = 512, 4, 64
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
LARGEST_RATIO = 1.3
Call = Callable[[], object]
Options = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=integer(1), default=7, help="runs of each call (default: 7)")
    parser.add_argument(
        "--implementation", action="append", help="time this one (repeatable; default: whatever is chosen)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    tilewise.set_num_threads(1)
    largest = 0.0
    for name in options.implementation or [None]:
        for label, ratio in measure(name, options.samples):
            print(f"{name or 'default':16s} {label:44s} {ratio:5.2f}")
            largest = max(largest, ratio)
    print(f"largest ratio {largest:.2f}, of {LARGEST_RATIO} allowed")
    return EXIT_OK if largest <= LARGEST_RATIO else EXIT_FAILURE


def cases() -> dict[str, tuple[Options, Options]]:
    """Options of a call whose weights vanish, and of the plain one."""
    mask = torch.zeros(1, 1, SEQLEN, SEQLEN)
    mask[..., ::2] = -100.0  # as shifted windows mark pairs of different regions
    slopes = torch.tensor([2.0**-i for i in range(1, NUM_HEADS + 1)])
    scale = 1 / math.sqrt(HEAD_DIM)
    return {
        "mask of -100": ({"bias": mask}, {"bias": mask * 0}),
        "ALiBi": ({"alibi_slopes": slopes}, {"alibi_slopes": slopes * 1e-3}),
        "scores of deviation 25": ({"softmax_scale": 25 * scale}, {"softmax_scale": scale}),
    }


def measure(implementation: str | None, samples: int) -> Iterator[tuple[str, float]]:
    """Ratios of forward and backward passes; dtypes that an implementation refuses are left out."""
    for dtype_name, dtype in DTYPES.items():
        torch.manual_seed(0)
        q, k, v, dout = (torch.randn(1, SEQLEN, NUM_HEADS, HEAD_DIM, dtype=dtype) for _ in range(4))
        try:
            tilewise.attention(q, k, v, implementation=implementation)
        except NotImplementedError:
            continue
        for name, pair in cases().items():
            yield f"{dtype_name} forward, {name}", ratio([forward(q, k, v, implementation, o) for o in pair], samples)
            calls = [backward(dout, q, k, v, implementation, o) for o in pair]
            yield f"{dtype_name} backward, {name}", ratio(calls, samples)


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, implementation: str | None, options: Options) -> Call:
    return lambda: tilewise.attention(q, k, v, implementation=implementation, **options)


def backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, implementation: str | None, options: Options
) -> Call:
    out, lse = tilewise.attention(q, k, v, implementation=implementation, return_lse=True, **options)
    return lambda: tilewise.attention_backward(dout, q, k, v, out, lse, implementation=implementation, **options)


def ratio(calls: list[Call], samples: int) -> float:
    """Of the first call's time to the second's."""
    best = [math.inf, math.inf]
    for _ in range(samples + 1):
        for n, call in enumerate(calls):
            start = time.process_time()
            call()
            best[n] = min(best[n], time.process_time() - start)
    return best[0] / best[1]


if __name__ == "__main__":
    raise SystemExit(main())
