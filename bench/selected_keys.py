"""Attention over selected keys, forward and backward: many heads on one key, beside dense attention over as many keys.

Every query selects its own keys at random. Dense attention over as many keys has the same products and no indices, so
that the share of its rate is what gathering, and adding to gradients, leave. Times are the least of several runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import tilewise
from tilewise.bench.argument_types import integer, list_of, one_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=one_of(("cpu", "cuda")), default="cuda", help="default: cuda")
    parser.add_argument("--queries", type=integer(1), default=4096, help="default: 4096")
    parser.add_argument("--keys", type=integer(1), default=32768, help="default: 32768")
    parser.add_argument("--top-k", type=integer(1), default=2048, help="default: 2048")
    parser.add_argument("--heads", type=list_of(integer(1)), default=[16, 128], help="default: 16,128")
    parser.add_argument("--head-dims", type=list_of(integer(1)), default=[64, 128, 192], help="default: 64,128,192")
    parser.add_argument("--samples", type=integer(1), default=5, help="runs of each call (default: 5)")
    options = parser.parse_args()
    print(f"{'heads':>5s} {'dim':>4s} {'forward ms':>11s} {'TFLOP/s':>8s} {'of dense':>8s}", end="")
    print(f" {'backward ms':>12s} {'TFLOP/s':>8s} {'of dense':>8s}")
    for heads in options.heads:
        for head_dim in options.head_dims:
            row = measure(heads, head_dim, options)
            print(f"{heads:5d} {head_dim:4d} {row[0]:11.3f} {row[1]:8.1f} {row[2]:8.2f}", end="")
            print(f" {row[3]:12.3f} {row[4]:8.1f} {row[5]:8.2f}")
    return 0


def least_ms(call: Callable[[], object], device: str, samples: int) -> float:
    """Milliseconds of a call, the least of some, after one that compiles."""
    call()
    times: list[float] = []
    for _ in range(samples):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


def measure(heads: int, head_dim: int, options: argparse.Namespace) -> list[float]:
    """Of both passes: ms, TFLOP/s and the share of dense attention's rate."""
    dim_v, on = min(head_dim, 128), options.device
    rows = (options.queries, options.keys)

    def drawn(count: int, own_heads: int, dim: int) -> torch.Tensor:
        return torch.randn(1, count, own_heads, dim, device=on, dtype=torch.bfloat16, requires_grad=True)

    q, k, v = drawn(rows[0], heads, head_dim), drawn(rows[1], 1, head_dim), drawn(rows[1], 1, dim_v)
    short_k, short_v = (t.detach()[:, : options.top_k].clone().requires_grad_() for t in (k, v))
    indices = torch.randint(0, rows[1], (1, rows[0], 1, options.top_k), device=on, dtype=torch.int32)
    dout = torch.randn(1, rows[0], heads, dim_v, device=on, dtype=torch.bfloat16)
    results: list[float] = []
    flops = 2.0 * rows[0] * heads * options.top_k * (head_dim + dim_v)
    selected = tilewise.attention(q, k, v, key_indices=indices)
    dense = tilewise.attention(q, short_k, short_v)
    calls: list[tuple[float, Callable[[], object], Callable[[], object]]] = [
        (
            flops,
            lambda: tilewise.attention(q, k, v, key_indices=indices),
            lambda: tilewise.attention(q, short_k, short_v),
        ),
        (
            2.5 * flops,
            lambda: torch.autograd.grad(selected, (q, k, v), dout, retain_graph=True),
            lambda: torch.autograd.grad(dense, (q, short_k, short_v), dout, retain_graph=True),
        ),
    ]
    for work, ours, others in calls:
        ms, dense_ms = (least_ms(call, on, options.samples) for call in (ours, others))
        results += [ms, 1e-9 * work / ms, dense_ms / ms]
    return results


if __name__ == "__main__":
    raise SystemExit(main())
