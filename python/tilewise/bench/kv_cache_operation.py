"""The KV cache step as the command measures it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.contenders import RIVALS, Contender
from tilewise.bench.kv_cache_cases import APPENDS, CACHES, PAGE_SIZES, KvCase, default_shapes, parse_kv_shape
from tilewise.bench.kv_cache_contenders import KvTilewise, make_kv_rival
from tilewise.bench.operation import BenchOperation
from tilewise.bench.rows import Row
from tilewise.bench.runner import run_kv_case
from tilewise.bench.shapes import Shape


class KvCacheOperation(BenchOperation):
    """Cases are shapes by what caches hold, how they are paged, and whether keys are appended."""

    name = "kv_cache"
    described = "kv_cache: the KV cache step, in bf16"
    shapes_described = (
        "of a KV cache SEQLEN_K keys, those appended among them, and a /HEAD_DIM_V where values are columns of the keys"
    )
    rivals = gpu_rivals = RIVALS
    only_with_torch = True
    own = dict.fromkeys(("caches", "page_sizes", "appends"))
    probe = "kv_cache_attention seqlen_q=1 head_dim=64 capacity=64"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--caches",
            type=list_of(one_of(CACHES)),
            metavar="CACHES",
            help=f"of kv_cache: what caches hold, of {', '.join(CACHES)}, whose scales are for each head or for each"
            " token and head (default: all)",
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

    def settle(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        del parser
        for name, default in {"caches": CACHES, "page_sizes": PAGE_SIZES, "appends": APPENDS}.items():
            setattr(options, name, getattr(options, name) or list(default))

    def parse_shape(self, text: str) -> Shape:
        return parse_kv_shape(text)

    def default_shapes(self, device: str) -> list[Shape]:
        return default_shapes(device)

    def cases(self, options: argparse.Namespace) -> list[KvCase]:
        return [
            KvCase(shape, cache, page_size, append == "yes", threads, options.device)
            for threads in options.threads
            for shape in options.shapes
            for append in options.appends
            for cache in options.caches
            for page_size in options.page_sizes
        ]

    def ours(self) -> Contender[Any, Any]:
        return KvTilewise()

    def rival(self, name: str, device: str) -> Contender[Any, Any]:
        return make_kv_rival(name, device)

    def run(self, case: Any, contenders: Sequence[Any], settings: Any, on_step: Callable[[str], object]) -> list[Row]:
        return run_kv_case(case, contenders, settings, on_step=on_step)
