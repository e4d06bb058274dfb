"""How long a GPU takes to find which tiles of a mask are hidden, whole or mixed.

Documents of 2k to 8k tokens, ids on the device: by the launch before attention, which torch's profiler times alone
beside the host's share of a whole call, and by tilewise.block_mask, blocks of 128. Nothing waits for the device.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile

import tilewise
from tilewise.bench.argument_types import integer, list_of
from tilewise.expression import Traced

HEAD_DIM = 64


def document_ids(tokens: int) -> torch.Tensor:
    """int32 [1, tokens] on the GPU: lengths drawn from 2k to 8k."""
    lengths = torch.randint(2048, 8193, (tokens // 2048 + 1,), generator=torch.Generator().manual_seed(1))
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)[None, :tokens].int().cuda()


def masks(tokens: int) -> dict[str, tuple[str, list[torch.Tensor]]]:
    """Text of mask_mod and its tensors, by name."""
    ids = document_ids(tokens)
    return {
        "documents": ("table0[b, q_idx] == table0[b, kv_idx]", [ids]),
        "documents, causal": ("(table0[b, q_idx] == table0[b, kv_idx]) & (kv_idx <= q_idx)", [ids]),
        "window of 4096 and prefix": ("(abs(q_idx - kv_idx) < 4096) | (kv_idx < 1024)", []),
        "not decided by bounds": ("(q_idx - kv_idx) % 3 != 1", []),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=list_of(integer(1)), default=[16384, 131072], help="default: 16384,131072")
    parser.add_argument("--samples", type=integer(1), default=5, help="calls of each (default: 5)")
    options = parser.parse_args()
    head = f"{'launch us':>10s} {'host us':>8s} {'block_mask us':>14s} {'host us':>8s}"
    print(f"{'mask':32s} {'tokens':>8s} {head}")
    for tokens in options.tokens:
        for name, (text, tables) in masks(tokens).items():
            launch, host = measure(text, tables, tokens, options.samples)
            made, of_host = measure_made(text, tables, tokens, options.samples)
            print(f"{name:32s} {tokens:8d} {launch:10.1f} {host:8.1f} {made:14.1f} {of_host:8.1f}")
    return 0


def measure(text: str, tables: list[torch.Tensor], tokens: int, samples: int) -> tuple[float, float]:
    """Microseconds of the launch, the least of some calls, and of the host's for a call, their median."""
    q = torch.randn(1, tokens, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    mask_mod = Traced("mask_mod", text.replace(" ", ""), tuple(tables))

    def call() -> object:
        return tilewise.attention(q, q, q, mask_mod=mask_mod)

    call()
    torch.cuda.synchronize()
    host = []
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(samples):
            start = time.perf_counter()
            call()
            host.append(1e6 * (time.perf_counter() - start))
            torch.cuda.synchronize()
    launches = [event.device_time for event in found.events() if "mask_tiles" in event.name]
    if not launches:
        raise RuntimeError(f"{text}: no launch of mask_tiles was seen")
    return min(launches), statistics.median(host)


def measure_made(text: str, tables: list[torch.Tensor], tokens: int, samples: int) -> tuple[float, float]:
    """Microseconds that the device is busy with a block mask, and of the host's, each the median."""
    mask_mod = Traced("mask_mod", text.replace(" ", ""), tuple(tables))

    def call() -> object:
        return tilewise.block_mask(mask_mod, tokens, tokens, batch_size=1, device="cuda")

    call()
    torch.cuda.synchronize()
    host, busy = [], []
    for _ in range(samples):
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            start = time.perf_counter()
            call()
            host.append(1e6 * (time.perf_counter() - start))
            torch.cuda.synchronize()
        busy.append(sum(event.device_time for event in found.events()))
    return statistics.median(busy), statistics.median(host)


if __name__ == "__main__":
    raise SystemExit(main())
