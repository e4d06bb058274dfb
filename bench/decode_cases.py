"""What decode_gpu.py measures: forms of attention, and steps of one query a sequence over caches of any lengths.

Pure values and arithmetic.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewise.bench.gpu import CACHE_FACTOR

Lengths = tuple[str, tuple[int, ...]]  # as they are written, and one by one


@dataclass(frozen=True)
class Form:
    """Heads and their sizes, and what is measured of them by default. MLA's values are the keys' first columns."""

    title: str
    num_heads_q: int
    num_heads_k: int
    head_dim: int
    head_dim_v: int
    mla: bool
    steps: str
    caches: tuple[str, ...]

    def row_bytes(self, cache: str) -> int:
        """Of one token in a cache: its keys and values, with their scales."""
        element = 2 if cache == "bf16" else 1
        width = self.head_dim + (0 if self.mla else self.head_dim_v)
        scales = (4 if self.mla else 8) if cache == "fp8_token" else 0
        return self.num_heads_k * (width * element + scales)


GQA_STEPS = "1x4096,1x16384,64x8192,1x131072+63x1024"
MLA_STEPS = "1x4096,16x4096,64x4096,64x8192,1x32768+63x1024"
FORMS: Mapping[str, Form] = {
    "gqa": Form("Grouped heads", 32, 8, 128, 128, False, GQA_STEPS, ("bf16", "fp8_head")),
    "mla": Form("MLA", 128, 1, 576, 512, True, MLA_STEPS, ("bf16",)),
}


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
    form_name: str = "gqa"

    @property
    def form(self) -> Form:
        return FORMS[self.form_name]

    def label(self) -> str:
        """What progress and failures call it."""
        pages = f"pages of {self.page_size}" if self.page_size else "contiguous"
        return f"{self.form_name} {self.name} {self.cache} {pages} {self.dtype}"

    def places(self) -> int:
        """Of a sequence, which is all that a schedule knows of its length; at least those of the longest."""
        return max(self.capacity, *self.lengths)

    def pages(self) -> list[int]:
        """How many each sequence's keys fill."""
        return [-(-keys // self.page_size) for keys in self.lengths]

    def bf16_flops(self) -> float:
        """Those that take as long in bf16, whose products the GPU's ceiling is of."""
        return self.flops()

    def traffic_bytes(self) -> int:
        """What must move at least: each key and value once, with its scales, and q and out."""
        queries = len(self.lengths) * self.form.num_heads_q * (self.form.head_dim + self.form.head_dim_v) * 2
        return sum(self.lengths) * self.form.row_bytes(self.cache) + queries

    def flops(self) -> float:
        """Of both products."""
        return 2.0 * sum(self.lengths) * self.form.num_heads_q * (self.form.head_dim + self.form.head_dim_v)

    def copies(self, cache_bytes: int) -> int:
        """Caches to go round, so that none is left in a last-level cache of that size."""
        return max(2, math.ceil(CACHE_FACTOR * cache_bytes / self.traffic_bytes()))

    def problem_text(self, device: str) -> str:
        """One line that `tilewise explain` reads; `device` by Tilewise's name."""
        form = self.form
        text = (
            f"kv_cache_attention device={device} dtype={self.dtype} batch_size={len(self.lengths)} seqlen_q=1 append=0"
            f" num_heads_q={form.num_heads_q} num_heads_k={form.num_heads_k} head_dim={form.head_dim}"
            f" head_dim_v={form.head_dim_v} mla={int(form.mla)} cache_seqlens=1"
        )
        if self.page_size:
            most = -(-self.places() // self.page_size)
            text += f" page_size={self.page_size} num_pages={sum(self.pages())} max_pages_per_seq={most}"
        else:
            text += f" capacity={self.places()}"
        if self.cache != "bf16":
            text += f" cache_dtype=fp8_e4m3 scales={self.cache.partition('_')[2]}"
        return text + (f" num_splits={self.num_splits}" if self.num_splits else "")


def lengths(text: str) -> Lengths:
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


def steps_of(
    form_name: str,
    steps: Sequence[Lengths] | None = None,
    caches: Sequence[str] | None = None,
    page_sizes: Sequence[int] = (0, 16, 64),
    dtypes: Sequence[str] = ("bf16",),
    num_splits: Sequence[int] = (0,),
    capacities: Sequence[int] = (0,),
) -> Iterator[Step]:
    """All of these together, but for what can't be. None: the form's own."""
    form = FORMS[form_name]
    for name, all_lengths in steps or map(lengths, form.steps.split(",")):
        for cache in caches or form.caches:
            for page_size in page_sizes:
                if not page_size and len(set(all_lengths)) > 1:
                    continue  # a contiguous cache has room for the longest in every row
                for capacity in capacities:
                    for dtype in dtypes:
                        if cache == "bf16" and dtype != "bf16":
                            continue  # caches have the type of queries, or fp8
                        for splits in num_splits:
                            yield Step(name, all_lengths, cache, page_size, dtype, splits, capacity, form_name)
