"""What attention_gpu.py measures: the headline table's grid, fp8, few queries on many keys, a case for each option.

Pure values and arithmetic, but for num_copies(), which asks for the size of a GPU's cache.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewise.bench.gpu import CACHE_FACTOR, l2_bytes
from tilewise.bench.shapes import FP8, MASKS, Case, Mask, Pass, Shape, flops_of, pairs_of

HIDDEN_SIZE = 2048  # num_heads = HIDDEN_SIZE / head_dim
NUM_TOKENS = 16384  # batch_size = NUM_TOKENS / seqlen
HEAD_DIMS = (64, 128, 256)
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
QUICK_SEQLENS = (512, 4096)
FP8_SEQLENS = (2048, 8192, 16384)
DECODE_BATCHES, DECODE_KEYS = (1, 64), (4096, 16384)
CHUNKS, CHUNK_KEYS = (64, 512), 8192  # queries of one sequence's prefill on the keys that it has
OPTION_SEQLEN, OPTION_HEAD_DIM = 4096, 128
WINDOW_LEFT = 1024
MLA_HEADS, MLA_HEAD_DIM, MLA_HEAD_DIM_V = 16, 192, 128  # as DeepSeek's models train, and read their prompts
MLA_SEQLENS = (512, 1024, 2048, 4096, 8192)
ODD_HEAD_DIMS = (72, 80, 96)  # beside OPTION_HEAD_DIM, with as many heads
PLAIN, PACKED = "plain", "packed"  # what options are compared with; the one that has another shape beside it
SHORTEST, LONGEST = 64, 4096  # of packed sequences
EXTREME_SEQLEN = 8192
EXTREME_DEVIATION, WIDE_DEVIATION = 81.0, 9.0  # of scores, in nats: the former is compared with the latter
IN_GRAPH = ("decode", "chunk")


@dataclass(frozen=True)
class GpuCase:
    """A case, what it is there for and the passes that are measured on its tensors."""

    kind: str  # "grid", "mla", "fp8", "decode", "chunk", "extreme" or an option's name
    case: Case
    passes: tuple[Pass, ...]
    plain: Case | None = None  # what it is compared with: for an option, the call without it

    @property
    def shape(self) -> Shape:
        return self.case.shape

    @property
    def mask(self) -> str:
        return "causal" if self.case.mask == "causal" else "full"

    def on(self, device: str, operation: Pass | None = None) -> Case:
        """One pass of it, backward where that is measured, on a device by Tilewise's name."""
        last: Pass = "backward" if "backward" in self.passes else "forward"
        return replace(self.case, operation=operation or last, device=device)

    @property
    def in_graph(self) -> bool:
        """Short calls: timed by replays of a CUDA graph, on memory that the caches don't hold."""
        return self.kind in IN_GRAPH

    def label(self, operation: str) -> str:
        """What --filter matches: "forward grid d128 s4096 causal b4 h16"."""
        shape = self.shape
        seqlen = f"s{shape.seqlen_q}" if shape.seqlen_q == shape.seqlen_k else f"s{shape.seqlen_q}/{shape.seqlen_k}"
        heads = f"h{shape.num_heads_q}" if shape.num_heads_q == shape.num_heads_k else ""
        heads = heads or f"h{shape.num_heads_q}/{shape.num_heads_k}"
        return f"{operation} {self.kind} d{shape.head_dims()} {seqlen} {self.mask} b{shape.batch_size} {heads}"


def grid_cases(
    head_dims: Sequence[int] = HEAD_DIMS,
    seqlens: Sequence[int] = SEQLENS,
    passes: tuple[Pass, ...] = ("forward", "backward"),
    hidden_size: int = HIDDEN_SIZE,
    num_tokens: int = NUM_TOKENS,
) -> Iterator[GpuCase]:
    """head_dim x mask x seqlen at a fixed hidden size and number of tokens, as FlashAttention's papers have it."""
    for head_dim in head_dims:
        for causal in (False, True):
            for seqlen in seqlens:
                heads = hidden_size // head_dim
                shape = Shape(num_tokens // seqlen, seqlen, seqlen, heads, heads, head_dim)
                yield GpuCase("grid", Case(shape, "bf16", "causal" if causal else "none"), passes)


def mla_cases(
    seqlens: Sequence[int] = MLA_SEQLENS,
    passes: tuple[Pass, ...] = ("forward", "backward"),
    num_tokens: int = NUM_TOKENS,
) -> Iterator[GpuCase]:
    """MLA with its keys and values unfolded, causal: queries and keys that are wider than values."""
    for seqlen in seqlens:
        shape = Shape(num_tokens // seqlen, seqlen, seqlen, MLA_HEADS, MLA_HEADS, MLA_HEAD_DIM, MLA_HEAD_DIM_V)
        yield GpuCase("mla", Case(shape, "bf16", "causal"), passes)


def fp8_cases(
    head_dims: Sequence[int] = HEAD_DIMS,
    seqlens: Sequence[int] = FP8_SEQLENS,
    hidden_size: int = HIDDEN_SIZE,
    num_tokens: int = NUM_TOKENS,
) -> Iterator[GpuCase]:
    """The grid's long shapes with q, k and v in e4m3 and out in bf16, each beside the same in bf16."""
    for bf16 in grid_cases(head_dims, seqlens, ("forward",), hidden_size, num_tokens):
        yield GpuCase("fp8", replace(bf16.case, dtype=FP8), bf16.passes, bf16.case)


def decode_cases(batches: Sequence[int] = DECODE_BATCHES, keys: Sequence[int] = DECODE_KEYS) -> Iterator[GpuCase]:
    """One query, 32 query heads on 8 key heads."""
    for batch_size in batches:
        for seqlen_k in keys:
            shape = Shape(batch_size, 1, seqlen_k, 32, 8, OPTION_HEAD_DIM)
            yield GpuCase("decode", Case(shape, "bf16"), ("forward",))


def chunk_cases(chunks: Sequence[int] = CHUNKS, keys: int = CHUNK_KEYS) -> Iterator[GpuCase]:
    """A chunk of one sequence's prefill: heads as in decode_cases(), no mask, since torch's is aligned top-left."""
    for chunk in chunks:
        yield GpuCase("chunk", Case(Shape(1, chunk, keys, 32, 8, OPTION_HEAD_DIM), "bf16"), ("forward",))


def extreme_cases(seqlen: int, head_dim: int, hidden_size: int, num_tokens: int) -> Iterator[GpuCase]:
    """Scores so wide that a row's reference moves again and again, beside scores that leave it where it is."""
    heads = hidden_size // head_dim
    shape = Shape(num_tokens // seqlen, seqlen, seqlen, heads, heads, head_dim)
    for mask in MASKS:
        case = Case(shape, "bf16", mask, score_deviation=EXTREME_DEVIATION)
        yield GpuCase("extreme", case, ("forward",), replace(case, score_deviation=WIDE_DEVIATION))


def option_cases(
    passes: tuple[Pass, ...] = ("forward", "backward"),
    seqlen: int = OPTION_SEQLEN,
    head_dim: int = OPTION_HEAD_DIM,
    hidden_size: int = HIDDEN_SIZE,
    num_tokens: int = NUM_TOKENS,
) -> Iterator[GpuCase]:
    """Every option alone at one shape of the grid, after that shape without any; and head dims between powers of 2."""
    heads, batch_size = hidden_size // head_dim, num_tokens // seqlen
    shape = Shape(batch_size, seqlen, seqlen, heads, heads, head_dim)
    grouped = Shape(batch_size, seqlen, seqlen, heads, max(1, heads // 4), head_dim)
    lengths = packed_lengths(num_tokens, min(LONGEST, seqlen))
    packed = Shape(len(lengths), max(lengths), max(lengths), heads, heads, head_dim)
    options: list[tuple[str, Shape, dict[str, Any], tuple[Mask, ...]]] = [
        (PLAIN, shape, {}, MASKS),
        ("GQA", grouped, {}, ("causal",)),
        ("window", shape, {"window_left": min(WINDOW_LEFT, seqlen // 4)}, ("causal",)),
        ("ALiBi", shape, {"alibi": True}, MASKS),
        ("softcap", shape, {"softcap": 30.0}, MASKS),
        ("bias", shape, {"bias": "query[1,h,q,k]"}, MASKS),
        ("boolean", shape, {"bias": "bool[1,1,q,k]"}, ("none",)),
        ("dropout", shape, {"dropout_p": 0.1}, MASKS),
        (PACKED, packed, {"lengths": lengths}, ("causal",)),
    ]
    options += [(f"head_dim_{dim}", replace(shape, head_dim=dim), {}, MASKS) for dim in ODD_HEAD_DIMS if dim < head_dim]
    for kind, sizes, option, masks in options:
        for mask in masks:
            beside = of_equal_work(packed, lengths) if kind == PACKED else shape
            plain = None if kind == PLAIN else Case(beside, "bf16", mask)
            yield GpuCase(kind, Case(sizes, "bf16", mask, **option), passes, plain)
    if "backward" in passes:
        for mask in MASKS:
            plain = Case(shape, "bf16", mask)
            yield GpuCase("deterministic", replace(plain, deterministic=True), ("backward",), plain)


def packed_lengths(num_tokens: int, longest: int, seed: int = 0) -> tuple[int, ...]:
    """Random lengths from SHORTEST (less where there are fewer tokens) to `longest`, num_tokens in all."""
    generator, lengths, left = random.Random(seed), [], num_tokens
    while left > 0:
        lengths.append(min(left, generator.randint(min(SHORTEST, longest), longest)))
        left -= lengths[-1]
    return tuple(lengths)


def of_equal_work(packed: Shape, lengths: Sequence[int]) -> Shape:
    """A batch of as many tokens as packed sequences have, as near as may be, in sequences that are all as long as a
    token's is in the mean, sum(n^2) / sum(n): of as many pairs."""
    tokens = sum(lengths)
    batch_size = max(1, round(tokens**2 / sum(length**2 for length in lengths)))
    seqlen = round(tokens / batch_size)
    return replace(packed, batch_size=batch_size, seqlen_q=seqlen, seqlen_k=seqlen)


def pairs(case: GpuCase) -> float:
    """(query, key) pairs of one head that count, over the whole batch: seqlen² in full, half of it causal.

    A window is counted pair by pair; a decode step sees every key.
    """
    shape = case.shape
    if case.case.window_left >= 0:
        return float(pairs_of(case.case))
    squares = sum(length**2 for length in case.case.lengths) or shape.batch_size * shape.seqlen_q * shape.seqlen_k
    return squares / 2 if case.case.mask == "causal" else float(squares)


def flops(case: GpuCase, operation: Pass) -> float:
    """Multiplications and additions of those pairs."""
    return flops_of(case.shape, pairs(case), operation)


def num_copies(case: GpuCase, device: str) -> int:
    """Sets of tensors that calls go round over: in a graph, as many as leave nothing of each other in the cache."""
    if not case.in_graph:
        return 1
    return max(2, math.ceil(CACHE_FACTOR * l2_bytes(device) / case.case.traffic_bytes()))
