"""Arguments of `python -m tilewise.bench`, and the cases they ask for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tilewise
from tilewise.bench.argument_types import integer, list_of, one_of, seconds
from tilewise.bench.contenders import CPU_RIVALS, RIVALS
from tilewise.bench.gpu import gpu_kind, refusal
from tilewise.bench.inputs import NUMPY_DTYPES, has_torch
from tilewise.bench.kv_cache_cases import APPENDS, CACHES, PAGE_SIZES, KvCase, default_shapes, parse_kv_shape
from tilewise.bench.rows import CsvFile
from tilewise.bench.shapes import DTYPES, FP8, LAYOUTS, MASKS, SHAPE_FORM, Case, Shape, default_grid

OPERATIONS = ("attention", "kv_cache")
DEVICES = ("cpu", "cuda")
GPU_DTYPES = ["bf16", "f16"]
_KV_PROBLEM = "kv_cache_attention seqlen_q=1 head_dim=64 capacity=64"
# Of options that belong to one operation, the defaults; the other one refuses them.
_ATTENTION_ONLY = {"dtypes": None, "masks": None, "layout": None, "backward": False}
_KV_CACHE_ONLY = {"caches": CACHES, "page_sizes": PAGE_SIZES, "appends": APPENDS}


def parse(arguments: Sequence[str] | None, description: str) -> argparse.Namespace:
    """The options, all checked; leaves the program with status 2 where one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tilewise.bench", description=description)
    _add_what(parser)
    _add_kv_cache(parser)
    _add_how(parser)
    options = parser.parse_args(arguments)
    _settle_operation(parser, options)
    if options.backward and not has_torch():
        parser.error("argument --backward: needs torch's autograd (torch is not installed)")
    if options.backward and FP8 in (options.dtypes or ()):
        parser.error(f"argument --dtypes: must have a backward pass with --backward (got {FP8!r})")
    if options.device == "cpu":
        options.dtypes = options.dtypes or _cpu_dtypes()
        options.threads = options.threads or [1]
    else:
        _settle_gpu(parser, options)
    _check_cases(parser, options)
    if options.csv is not None:  # opened last, so that another bad argument leaves the file alone
        try:
            options.csv = CsvFile(Path(options.csv))
        except OSError as error:
            parser.error(f"argument --csv: must be a file that can be written (got {options.csv!r}: {error.strerror})")
    return options


def _add_what(parser: argparse.ArgumentParser) -> None:
    """The libraries and the cases."""
    parser.add_argument(
        "--compare",
        type=list_of(one_of(CPU_RIVALS)),
        default=list(RIVALS),
        metavar="LIBRARIES",
        help=f"comma-separated, of {', '.join(CPU_RIVALS)} (default: {','.join(RIVALS)}; what is missing is named"
        " and left out)",
    )
    parser.add_argument(
        "--shapes",
        metavar="SHAPES",
        help=f"comma-separated {SHAPE_FORM} (default: a grid of 27); of a KV cache"
        " SEQLEN_K keys, those appended among them, and a /HEAD_DIM_V where values are columns of the keys",
    )
    parser.add_argument(
        "--dtypes",
        type=list_of(_dtype),
        metavar="DTYPES",
        help=f"comma-separated, of {', '.join(DTYPES)} (default: {','.join(_cpu_dtypes())};"
        f" with --device cuda {','.join(GPU_DTYPES)})",
    )
    parser.add_argument(
        "--masks",
        type=list_of(one_of(MASKS)),
        metavar="MASKS",
        help="comma-separated, of none, causal (default: both)",
    )
    parser.add_argument("--layout", type=one_of(LAYOUTS), help="memory layout: bshd (default) or bhsd")
    parser.add_argument("--backward", action="store_true", help="time the backward pass instead of the forward one")


def _add_kv_cache(parser: argparse.ArgumentParser) -> None:
    """What the KV cache step is measured with, beside shapes."""
    parser.add_argument(
        "--operation",
        type=one_of(OPERATIONS),
        default="attention",
        help="attention (default), or kv_cache: the KV cache step, in bf16",
    )
    parser.add_argument(
        "--caches",
        type=list_of(one_of(CACHES)),
        metavar="CACHES",
        help=f"of kv_cache: what caches hold, of {', '.join(CACHES)}, whose scales are for each head or for each token"
        " and head (default: all)",
    )
    parser.add_argument(
        "--page-sizes",
        type=list_of(integer(0)),
        metavar="SIZES",
        help="of kv_cache: 0 is a contiguous cache (default: 0,16,256)",
    )
    parser.add_argument(
        "--appends",
        type=list_of(one_of(APPENDS)),
        metavar="WORDS",
        help="of kv_cache: whether the queries' own keys are appended by the call, of no, yes (default: both)",
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    """The device, the time to spend and what becomes of the results."""
    parser.add_argument(
        "--device",
        type=one_of(DEVICES),
        default="cpu",
        help="cpu (default), or cuda: the GPU that torch calls so, AMD's too",
    )
    parser.add_argument(
        "--threads",
        type=list_of(integer(1, 1024)),
        metavar="COUNTS",
        help="comma-separated numbers of CPU threads, the same for every library (default: 1)",
    )
    parser.add_argument(
        "--min-time",
        type=seconds,
        default=0.2,
        metavar="SECONDS",
        help="time each library on each case for about this long (default: 0.2); on a GPU 5 to 200 calls",
    )
    parser.add_argument("--no-accuracy", action="store_true", help="skip the float64 reference and the error columns")
    parser.add_argument("--seed", type=integer(0), default=0, help="of the random tensors (default: 0)")
    parser.add_argument("--csv", metavar="FILE", help="also write every measurement as CSV")


def _settle_operation(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses options of the other operation, and fills the defaults in."""
    on_cache = options.operation == "kv_cache"
    for name, unset in (_ATTENTION_ONLY if on_cache else dict.fromkeys(_KV_CACHE_ONLY)).items():
        if (given := getattr(options, name)) != unset:
            flag = "--" + name.replace("_", "-")
            parser.error(f"argument {flag}: must be left out with --operation {options.operation} (got {given!r})")
    if on_cache and not has_torch():
        parser.error("argument --operation: kv_cache needs torch (torch is not installed)")
    if on_cache and (other := set(options.compare) - set(RIVALS)):
        parser.error(
            f"argument --compare: must be of {', '.join(RIVALS)} with --operation kv_cache (got {', '.join(other)!r})"
        )
    for name, default in (_KV_CACHE_ONLY if on_cache else {"masks": MASKS}).items():
        setattr(options, name, getattr(options, name) or list(default))
    options.layout = options.layout or "bshd"
    defaults = (lambda: default_shapes(options.device)) if on_cache else default_grid
    parse_shapes: Callable[[str], list[Any]] = list_of(parse_kv_shape if on_cache else Shape.parse)
    try:
        options.shapes = defaults() if options.shapes is None else parse_shapes(options.shapes)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --shapes: {error}")


def _settle_gpu(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses what there is no GPU for, and fills the defaults in. `options.device` becomes Tilewise's name for it."""
    kind, on_cache = gpu_kind(), options.operation == "kv_cache"
    if reason := refusal(kind, "bf16", _KV_PROBLEM) if on_cache else refusal(kind):
        parser.error(
            f"argument --device: must be cpu where there is no GPU to measure on (got {options.device!r}: {reason})"
        )
    if options.threads is not None:
        parser.error(f"argument --threads: must be left out with --device cuda (got {options.threads})")
    options.device, options.threads = kind, [1]
    for name in options.compare:
        if name not in RIVALS:
            parser.error(f"argument --compare: must be of {', '.join(RIVALS)} with --device cuda (got {name!r})")
    options.dtypes = options.dtypes or list(GPU_DTYPES)
    for dtype in options.dtypes if not on_cache else ():
        if reason := refusal(kind, dtype):
            parser.error(f"argument --dtypes: must be of those that run on the GPU (got {dtype!r}: {reason})")


def _check_cases(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuses sizes that Tilewise refuses, in its own words, and those whose tensors this machine has no room for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # for a GPU too: the results are judged here
    for case in cases_of(options):
        shape = str(case.shape)
        try:
            tilewise.explain(case.problem_text())
        except (ValueError, NotImplementedError) as error:
            parser.error(f"argument --shapes: must be of sizes that Tilewise takes (got {shape!r}: {error})")
        if (needed := case.traffic_bytes()) > memory:
            parser.error(
                f"argument --shapes: must fit the {memory / 1e9:.0f} GB of memory here"
                f" (got {shape!r}: {needed / 1e9:.0f} GB of tensors in {case.dtype})"
            )


def _cpu_dtypes() -> list[str]:
    return ["bf16", "f32"] if has_torch() else ["f32", "f16"]


def cases_of(options: argparse.Namespace) -> list[Any]:
    """Everything that is to be measured, in this order: cases of one operation."""
    if options.operation == "kv_cache":
        return [
            KvCase(shape, cache, page_size, append == "yes", threads, options.device)
            for threads in options.threads
            for shape in options.shapes
            for append in options.appends
            for cache in options.caches
            for page_size in options.page_sizes
        ]
    return [
        Case(shape, dtype, mask, "backward" if options.backward else "forward", options.layout, threads, options.device)
        for threads in options.threads
        for dtype in options.dtypes
        for mask in options.masks
        for shape in options.shapes
    ]


def _dtype(text: str) -> str:
    name = one_of(DTYPES)(text)
    if not has_torch() and name not in NUMPY_DTYPES:
        raise argparse.ArgumentTypeError(f"{name} needs torch, which is not installed (got {text!r})")
    return name
