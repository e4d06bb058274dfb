"""Decode steps over KV caches on a GPU: grouped heads and MLA's, lengths of any mix, bf16 and fp8, by pages or not.

A figure is that of a replayed CUDA graph, which holds one step on each of as many caches as exceed the last-level cache
fourfold, divided by the steps: keys come from memory, and the host takes no part. Results go to bench/results/ as JSON,
and with --write-docs into docs/benchmarks. See bench/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import decode_report
from command_line import (
    DOCS,
    EXIT_FAILURE,
    EXIT_OK,
    add_device,
    add_report,
    check_device,
    check_report,
    kept_results,
    published_command,
    results_file,
)
from decode_cases import FORMS, Step, lengths, steps_of

import tilewise
from tilewise.bench import reference
from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.ceilings import GpuCeilings, measure_gpu_ceilings
from tilewise.bench.compile_ahead import compile_all
from tilewise.bench.device_timing import clock_of, graph_of, measure
from tilewise.bench.gpu import gpu_kind, l2_bytes
from tilewise.bench.inputs import TORCH_DTYPES, normal_values, poisoned_like
from tilewise.bench.kv_cache_cases import CACHES
from tilewise.bench.kv_cache_inputs import taken
from tilewise.bench.machine import describe_gpu
from tilewise.bench.markdown import Json
from tilewise.bench.timing import Timing

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 0.1  # of one row
LARGEST = 448.0  # of fp8 e4m3


def main() -> int:
    options = parse_arguments()
    results = kept_results(options, lambda: empty_results(options), lambda results: measure_all(options, results))
    print(decode_report.text(results))
    if options.from_json is None:
        print(f"\nwritten: {options.json}")
    if options.write_docs:
        decode_report.write_section(DOCS, results)
        print(f"written: {DOCS}")
    failures = [row for row in results["rows"] if row["status"] != "ok"]
    for row in failures:
        print(f"{row['label']}: {row['status']}", file=sys.stderr)
    return EXIT_FAILURE if failures else EXIT_OK


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--forms", type=list_of(one_of(tuple(FORMS))), default="gqa,mla", help="default: gqa,mla")
    own = "; ".join(f"{name} {form.steps}" for name, form in FORMS.items())
    parser.add_argument(
        "--steps", type=list_of(lengths), metavar="LIST", help=f"SEQUENCESxKEYS[+...],... (default: {own})"
    )
    own = "; ".join(f"{name} {','.join(form.caches)}" for name, form in FORMS.items())
    parser.add_argument("--caches", type=list_of(one_of(CACHES)), help=f"of {', '.join(CACHES)} (default: {own})")
    parser.add_argument("--page-sizes", type=list_of(integer(0)), default="0,16,64", help="0: contiguous")
    parser.add_argument("--dtypes", type=list_of(one_of(("bf16", "f16"))), default="bf16", help="of queries")
    parser.add_argument("--num-splits", type=list_of(integer(0)), default="0", help="0: the schedule's own")
    parser.add_argument("--capacities", type=list_of(integer(0)), default="0", help="of each sequence; 0: the longest")
    parser.add_argument("--implementation", metavar="NAME", help="default: the cheapest that accepts")
    add_report(parser, "the GPU's name")
    add_device(parser)
    options = parser.parse_args()
    check_report(parser, options)
    if options.from_json is None:
        check_device(parser, options)
        options.machine_info = describe_gpu(options.device, options.machine)
        options.json = options.json or results_file("decode_gpu", options.machine_info.name)
    return options


def wanted_steps(options: argparse.Namespace) -> list[Step]:
    which = (options.steps, options.caches, options.page_sizes, options.dtypes, options.num_splits, options.capacities)
    return [step for form_name in options.forms for step in steps_of(form_name, *which)]


def empty_results(options: argparse.Namespace) -> Json:
    """What measure_all() fills, as plain JSON values: everything the report needs."""
    return {
        "machine": dataclasses.asdict(options.machine_info),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": published_command("decode_gpu.py", sys.argv[1:]),
        "ceilings": {},
        "compiled_ahead": {},
        "rows": [],
    }


def measure_all(options: argparse.Namespace, results: Json) -> None:
    """A line of progress on standard error for each step."""
    steps, forced = wanted_steps(options), options.implementation
    kind = "cpu" if options.device == "cpu" else gpu_kind()
    ceilings = measure_gpu_ceilings(options.device)
    results["ceilings"] = dataclasses.asdict(ceilings)
    warm_up = partial(tilewise.warmup, implementation=forced)
    compiled = compile_all([(step.label(), partial(warm_up, step.problem_text(kind))) for step in steps])
    for label, message in compiled.failures:
        print(f"not compiled ahead: {label}: {message}", file=sys.stderr)
    results["compiled_ahead"] = {"seconds": compiled.seconds, "cpus": compiled.cpus}
    for step in steps:
        row = measured(step, options.device, forced, ceilings)
        row["implementation"] = tilewise.explain(step.problem_text(kind), implementation=forced).chosen or ""
        results["rows"].append(row)
        figures = f"{row['median_us']:.1f} us, {row['gb_per_s']:.0f} GB/s" if row["median_us"] else row["status"]
        print(f"{row['label']}: {figures}", file=sys.stderr, flush=True)


def measured(step: Step, device: str, implementation: Optional[str], ceilings: GpuCeilings) -> Json:
    """The row of a step. Results of the first and the longest sequence are compared before anything is timed."""
    timing: Optional[Timing] = None
    error: Optional[float] = None
    try:
        calls, error = prepared(step, device, implementation)
        replay = calls[0] if device == "cpu" else graph_of(calls)
        timing = measure({"step": replay}, clock_of(device), SECONDS)["step"]
        timing = timing.divided_by(1 if device == "cpu" else len(calls))
        status = "ok"
    except (RuntimeError, NotImplementedError) as problem:  # one step's failure must not end the table
        status = f"failed: {type(problem).__name__}: {problem}"
    seconds = timing.median if timing else math.inf
    products, least = (
        step.flops() / ceilings.matmul_tflops / 1e12,
        ceilings.least_seconds(step.flops(), step.traffic_bytes()),
    )
    return {
        "label": step.label(),
        "form": step.form_name,
        "keys": step.name,
        "capacity": step.capacity,
        "cache": step.cache,
        "page_size": step.page_size,
        "queries": step.dtype,
        "num_splits": step.num_splits,
        "median_us": seconds * 1e6 if timing else None,
        "best_us": timing.best * 1e6 if timing else None,
        "gb_per_s": step.traffic_bytes() / seconds / 1e9 if timing else None,
        "tflops": step.flops() / seconds / 1e12 if timing else None,
        "of_ceiling": least / seconds if timing else None,
        "products_bound": products == least,
        "rel_l2_err": error,
        "status": status,
    }


def prepared(step: Step, device: str, implementation: Optional[str]) -> tuple[list[Callable[[], object]], float]:
    """A call on each of as many caches as leave nothing of each other behind, and the error of the first.

    Raises RuntimeError where its results are wrong.
    """
    import torch

    form, dtype = step.form, getattr(torch, TORCH_DTYPES[step.dtype])
    cache_seqlens = torch.tensor(step.lengths, dtype=torch.int32, device=device)
    options: dict[str, Any] = {"implementation": implementation, "head_dim_v": form.head_dim_v if form.mla else None}
    if step.num_splits:
        options["num_splits"] = step.num_splits
    calls: list[Callable[[], object]] = []
    error = math.nan
    for copy in range(step.copies(l2_bytes(device))):
        q = normal_values(copy, device)((len(step.lengths), 1, form.num_heads_q, form.head_dim)).to(dtype)
        tensors, block_table = make_cache(step, device, copy)
        out = poisoned_like(q[..., : form.head_dim_v].contiguous())
        arguments = {**tensors, "cache_seqlens": cache_seqlens, "block_table": block_table, "out": out, **options}
        calls.append(partial(tilewise.kv_cache_attention, q, **arguments))
        if copy == 0:
            calls[0]()
            which = sorted({0, step.lengths.index(max(step.lengths))})
            expected = [exact(step, q, tensors, block_table, index) for index in which]
            results = [out[index].double().cpu().numpy() for index in which]
            accuracy = reference.compare(results, expected, step.dtype)
            if accuracy.problem:
                raise RuntimeError(accuracy.problem)
            error = accuracy.rel_l2_err
    return calls, error


def make_cache(step: Step, device: str, seed: int) -> tuple[dict[str, Any], Optional[Tensor]]:
    """Keys and values as kv_cache_attention() takes them, and the table of pages in random order."""
    import torch

    form, draw = step.form, normal_values(seed, device)
    batch = len(step.lengths)
    places, block_table = (batch, step.places()), None
    if step.page_size:
        pages = step.pages()
        places = (sum(pages), step.page_size)
        order = torch.randperm(places[0], generator=torch.Generator().manual_seed(seed)).int().split(pages)
        block_table = torch.zeros(batch, -(-step.places() // step.page_size), dtype=torch.int32)
        for row, own in zip(block_table, order):
            row[: len(own)] = own
        block_table = block_table.to(device)
    tensors: dict[str, Any] = {"v_cache": None}
    for name, width in (("k", form.head_dim),) if form.mla else (("k", form.head_dim), ("v", form.head_dim_v)):
        values = draw((*places, form.num_heads_k, width))
        if step.cache == "bf16":
            tensors[f"{name}_cache"] = values.bfloat16()
            continue
        scaled = (*places, form.num_heads_k) if step.cache == "fp8_token" else (form.num_heads_k,)
        tensors[f"{name}_scale"] = draw(scaled).abs().add(1.0).div(64.0)
        tensors[f"{name}_cache"] = values.mul(64.0).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return tensors, block_table


def exact(step: Step, q: Tensor, tensors: dict[str, Any], block_table: Optional[Tensor], index: int) -> reference.Array:
    """float64 [1, heads, head_dim_v] of one sequence."""
    import torch

    form, keys = step.form, step.lengths[index]
    pick = index if block_table is None else block_table[index, : -(-keys // step.page_size)].long()

    def rows(name: str) -> Any:
        cache = tensors[f"{name}_cache"]
        values = taken(cache, pick).reshape(-1, *cache.shape[2:])[:keys].double()
        scale = tensors.get(f"{name}_scale")
        if scale is None:
            return values
        return (
            values
            * (scale[pick].reshape(-1, form.num_heads_k)[:keys] if scale.dim() > 1 else scale)[..., None].double()
        )

    group = q[index, 0].double().unflatten(0, (form.num_heads_k, -1))
    weights = (torch.einsum("hgd,jhd->hgj", group, rows("k")) / math.sqrt(form.head_dim)).softmax(-1)
    values = rows("k")[..., : form.head_dim_v] if form.mla else rows("v")
    out: reference.Array = torch.einsum("hgj,jhd->hgd", weights, values).flatten(0, 1)[None].cpu().numpy()
    return out


if __name__ == "__main__":
    sys.exit(main())
