"""MLA's decoding over selected keys on the GPU that is here, beside the same step over as many keys that lie together.

Caches are more than L2 holds, and calls go round over several. Results are compared with a gathered product in float64
first. Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

import tilewise
from tilewise.bench.argument_types import integer

HEADS, HEAD_DIM, HEAD_DIM_V = 128, 576, 512
WORST_ERROR = 1e-2  # relative, in the norm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sequences", type=integer(1), default=64, help="default: 64")
    parser.add_argument("--keys", type=integer(1), default=32768, help="of each sequence's cache, default: 32768")
    parser.add_argument("--top-k", type=integer(1), default=2048, help="default: 2048")
    parser.add_argument("--samples", type=integer(1), default=20, help="default: 20")
    options = parser.parse_args()
    torch.manual_seed(0)
    batch, keys, top_k = options.sequences, options.keys, options.top_k
    q = torch.randn(batch, 1, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    cache = torch.randn(batch, keys, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    whole = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    few = torch.full((batch,), top_k, dtype=torch.int32, device="cuda")
    drawn = [
        torch.stack([torch.randperm(keys, device="cuda")[:top_k] for _ in range(batch)])[:, None, None, :].int()
        for _ in range(4)
    ]
    starts = [part * top_k for part in range(min(keys // top_k, len(drawn)))]

    def selected(turn: int) -> torch.Tensor:
        indices = drawn[turn % len(drawn)]
        return tilewise.kv_cache_attention(
            q, cache, None, cache_seqlens=whole, head_dim_v=HEAD_DIM_V, key_indices=indices
        )

    def together(turn: int) -> torch.Tensor:
        start = starts[turn % len(starts)]
        return tilewise.kv_cache_attention(
            q, cache[:, start : start + top_k], None, cache_seqlens=few, head_dim_v=HEAD_DIM_V
        )

    error = error_of(selected(0), q, cache, drawn[0])
    print(f"error {error:.1e}")
    if not error < WORST_ERROR:
        return 1
    times = {name: microseconds(call, options.samples) for name, call in (("selected", selected), ("dense", together))}
    print(
        f"{batch} sequences, {top_k} of {keys} keys: {times['selected']:.1f} us; {top_k} keys that lie together "
        f"{times['dense']:.1f} us; {times['selected'] / times['dense']:.2f} times"
    )
    return 0


def error_of(out: torch.Tensor, q: torch.Tensor, cache: torch.Tensor, indices: torch.Tensor) -> float:
    """Of a few sequences."""
    few = min(2, q.shape[0])
    rows = torch.stack([cache[b, indices[b, 0, 0].long(), 0] for b in range(few)]).double()
    scores = torch.einsum("bhd,bkd->bhk", q[:few, 0].double(), rows) * HEAD_DIM**-0.5
    expected = torch.einsum("bhk,bkd->bhd", scores.softmax(-1), rows[..., :HEAD_DIM_V])
    return float((out[:few, 0].double() - expected).norm() / expected.norm())


def microseconds(call: Callable[[int], torch.Tensor], samples: int) -> float:
    """The median of samples of eight calls."""
    call(0)
    times = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        call(0)  # whose launch the next ones' queue behind
        start.record()
        for turn in range(8):
            call(turn)
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / 8)
    return statistics.median(times)


if __name__ == "__main__":
    raise SystemExit(main())
