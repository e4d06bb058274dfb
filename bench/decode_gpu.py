"""Decode steps over KV caches on a GPU: lengths of any mix, caches in bf16 and fp8, contiguous and in pages.

A figure is that of a replayed CUDA graph, which holds one step on each of as many caches as exceed the last-level cache
fourfold, divided by the steps: keys come from memory, and the host takes no part. See bench/README.md.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from command_line import DEVICES, EXIT_FAILURE, EXIT_OK, check_device

import tilewise
from tilewise.bench import reference
from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.device_timing import clock_of, graph_of, measure
from tilewise.bench.gpu import CACHE_FACTOR, l2_bytes
from tilewise.bench.inputs import normal_values, poisoned_like
from tilewise.bench.kv_cache_cases import CACHES
from tilewise.bench.kv_cache_inputs import taken
from tilewise.bench.machine import describe_gpu
from tilewise.bench.markdown import table

if TYPE_CHECKING:
    from torch import Tensor

NUM_HEADS_Q, NUM_HEADS_K, HEAD_DIM = 32, 8, 128
STEPS = "1x4096,1x16384,64x8192,1x131072+63x1024"
SECONDS = 0.1  # of one row
LARGEST = 448.0  # of fp8 e4m3
HEADER = ("keys", "capacity", "cache", "pages", "queries", "num_splits", "us", "GB/s", "relative error")


@dataclass(frozen=True)
class Step:
    """One query of each sequence on as many keys as `lengths` has, in a cache with room for `capacity` of each.

    num_splits 0: the schedule's own.
    """

    name: str
    lengths: tuple[int, ...]
    cache: str
    page_size: int
    dtype: str
    num_splits: int = 0
    capacity: int = 0

    def places(self) -> int:
        """Of a sequence, which is all that a schedule knows of its length; at least those of the longest."""
        return max(self.capacity, *self.lengths)

    def traffic_bytes(self) -> int:
        """What must move at least: each key and value once, with its scales, and q and out."""
        element, scale = (2, 0) if self.cache == "bf16" else (1, 4 if self.cache == "fp8_token" else 0)
        keys = sum(self.lengths) * NUM_HEADS_K * 2 * (HEAD_DIM * element + scale)
        return keys + len(self.lengths) * NUM_HEADS_Q * HEAD_DIM * 2 * 2

    def copies(self, cache_bytes: int) -> int:
        """Caches to go round, so that none is left in a last-level cache of that size."""
        return max(2, math.ceil(CACHE_FACTOR * cache_bytes / self.traffic_bytes()))


def lengths(text: str) -> tuple[str, tuple[int, ...]]:
    """argparse type: "1x131072+63x1024", which is one sequence of 131,072 keys and 63 of 1,024."""
    all_lengths: list[int] = []
    try:
        for part in text.split("+"):
            count, _, keys = part.partition("x")
            if min(int(count), int(keys)) < 1:
                raise ValueError
            all_lengths += [int(keys)] * int(count)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must look like 1x131072+63x1024 (got {text!r})") from None
    return text, tuple(all_lengths)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--steps", type=list_of(lengths), default=STEPS, metavar="LIST", help=f"SEQUENCESxKEYS[+...],... ({STEPS})"
    )
    parser.add_argument(
        "--caches", type=list_of(one_of(CACHES)), default="bf16,fp8_head", help=f"of {', '.join(CACHES)}"
    )
    parser.add_argument("--page-sizes", type=list_of(integer(0)), default="0,16,64", help="0: contiguous")
    parser.add_argument("--dtypes", type=list_of(one_of(("bf16", "f16"))), default="bf16", help="of queries")
    parser.add_argument("--num-splits", type=list_of(integer(0)), default="0", help="0: the schedule's own")
    parser.add_argument("--capacities", type=list_of(integer(0)), default="0", help="of each sequence; 0: the longest")
    parser.add_argument("--implementation", metavar="NAME", help="default: the cheapest that accepts")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--device", type=one_of(DEVICES), default="cuda", help='"cpu" only tries the benchmark itself')
    options = parser.parse_args()
    check_device(parser, options)
    return options


def make_cache(step: Step, device: str, seed: int) -> tuple[dict[str, Any], Optional[Tensor]]:
    """Keys and values as kv_cache_attention() takes them, and the table of pages in random order."""
    import torch

    draw = normal_values(seed, device)
    batch = len(step.lengths)
    places, block_table = (batch, step.places()), None
    if step.page_size:
        pages = [-(-keys // step.page_size) for keys in step.lengths]
        places = (sum(pages), step.page_size)
        order = torch.randperm(places[0], generator=torch.Generator().manual_seed(seed)).int().split(pages)
        block_table = torch.zeros(batch, -(-step.places() // step.page_size), dtype=torch.int32)
        for row, own in zip(block_table, order):
            row[: len(own)] = own
        block_table = block_table.to(device)
    tensors: dict[str, Any] = {}
    for name in "kv":
        values = draw((*places, NUM_HEADS_K, HEAD_DIM))
        if step.cache == "bf16":
            tensors[f"{name}_cache"] = values.bfloat16()
            continue
        scaled = (*places, NUM_HEADS_K) if step.cache == "fp8_token" else (NUM_HEADS_K,)
        tensors[f"{name}_scale"] = draw(scaled).abs().add(1.0).div(64.0)
        tensors[f"{name}_cache"] = values.mul(64.0).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return tensors, block_table


def exact(step: Step, q: Tensor, tensors: dict[str, Any], block_table: Optional[Tensor], index: int) -> reference.Array:
    """float64 [1, heads, head_dim] of one sequence."""
    import torch

    keys = step.lengths[index]
    pick = index if block_table is None else block_table[index, : -(-keys // step.page_size)].long()

    def rows(name: str) -> Any:
        values = taken(tensors[f"{name}_cache"], pick).reshape(-1, NUM_HEADS_K, HEAD_DIM)[:keys].double()
        scale = tensors.get(f"{name}_scale")
        if scale is None:
            return values
        return values * (scale[pick].reshape(-1, NUM_HEADS_K)[:keys] if scale.dim() > 1 else scale)[..., None].double()

    group = q[index, 0].double().unflatten(0, (NUM_HEADS_K, -1))
    weights = (torch.einsum("hgd,jhd->hgj", group, rows("k")) / math.sqrt(HEAD_DIM)).softmax(-1)
    out: reference.Array = torch.einsum("hgj,jhd->hgd", weights, rows("v")).flatten(0, 1)[None].cpu().numpy()
    return out


def measured(step: Step, device: str, implementation: Optional[str]) -> dict[str, Any]:
    """The row of a step. Results of the first and the longest sequence are compared before anything is timed."""
    import torch

    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[step.dtype]
    cache_seqlens = torch.tensor(step.lengths, dtype=torch.int32, device=device)
    calls: list[Callable[[], object]] = []
    error = math.nan
    for copy in range(step.copies(l2_bytes(device))):
        q = normal_values(copy, device)((len(step.lengths), 1, NUM_HEADS_Q, HEAD_DIM)).to(dtype)
        tensors, block_table = make_cache(step, device, copy)
        arguments = {**tensors, "cache_seqlens": cache_seqlens, "block_table": block_table, "out": poisoned_like(q)}
        arguments |= {"implementation": implementation} | ({"num_splits": step.num_splits} if step.num_splits else {})
        calls.append(partial(tilewise.kv_cache_attention, q, **arguments))
        if copy == 0:
            calls[0]()
            checked = sorted({0, step.lengths.index(max(step.lengths))})
            results = [arguments["out"][index].double().cpu().numpy() for index in checked]
            accuracy = reference.compare(
                results, [exact(step, q, tensors, block_table, index) for index in checked], step.dtype
            )
            if accuracy.problem:
                raise RuntimeError(f"{step}: {accuracy.problem}")
            error = accuracy.rel_l2_err
    replay = calls[0] if device == "cpu" else graph_of(calls)
    timing = measure({"step": replay}, clock_of(device), SECONDS)["step"]
    seconds = timing.median / (1 if device == "cpu" else len(calls))
    return {
        "keys": step.name,
        "capacity": str(step.places()),
        "cache": step.cache,
        "pages": str(step.page_size or "contiguous"),
        "queries": step.dtype,
        "num_splits": str(step.num_splits or "own"),
        "us": f"{seconds * 1e6:.1f}",
        "GB/s": f"{step.traffic_bytes() / seconds / 1e9:.0f}",
        "relative error": f"{error:.1e}",
    }


def steps_of(options: argparse.Namespace) -> list[Step]:
    return [
        Step(name, all_lengths, cache, page_size, dtype, num_splits, capacity)
        for name, all_lengths in options.steps
        for cache in options.caches
        for page_size in options.page_sizes
        for capacity in options.capacities
        # A contiguous cache has room for the longest in every row.
        if page_size or len(set(all_lengths)) == 1
        for dtype in options.dtypes
        if cache != "bf16" or dtype == "bf16"  # caches have the type of queries, or fp8
        for num_splits in options.num_splits
    ]


def report(rows: Sequence[dict[str, Any]], device: str, csv_file: Optional[Path]) -> None:
    machine = describe_gpu(device)
    print(f"{machine.gpu}; {machine.versions}\n")
    print(table(HEADER, [[row[name] for name in HEADER] for row in rows]))
    if csv_file is None:
        return
    with csv_file.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    options = parse_arguments()
    rows: list[dict[str, Any]] = []
    try:
        rows.extend(measured(step, options.device, options.implementation) for step in steps_of(options))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILURE
    finally:
        report(rows, options.device, options.csv)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
