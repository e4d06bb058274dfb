# A fixed set of calls on every implementation that is on hand: the bits of what docs/semantics.md promises to be the
# same in every run, and how far from the reference the rest is.
"""Golden outputs of small calls."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from compare import Entries, Entry, exactly
from torch import Tensor

import tilewise

NAME = "results"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
REFERENCE = "reference"
# The case that does not ask for deterministic gradients, those whose bits are free then, and how far their error may
# grow.
FREE, FREE_GRADIENTS, MOST_GROWTH = ("dropout",), ("dq", "dbias", "dsink"), 1.5


class Shape(NamedTuple):
    """Sizes of an attention call."""

    seqlen_q: int
    seqlen_k: int
    head_dim: int = 64
    head_dim_v: int = 64
    batch_size: int = 2
    heads_q: int = 4
    heads_k: int = 2


class Numbers:
    """Random tensors that are the same with every version of NumPy and torch, and on every machine."""

    def __init__(self, seed: int, dtype: torch.dtype, device: str) -> None:
        self.random, self.dtype, self.device = np.random.RandomState(seed), dtype, device

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers, in the case's dtype unless another is named."""
        values = self.random.standard_normal(shape).astype(np.float32)
        return torch.from_numpy(values).to(self.device, dtype or self.dtype)

    def integers(self, *values: int) -> Tensor:
        """These, as lengths and tables are."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)


Call = Callable[[Numbers, str], dict[str, Tensor]]


def attention(shape: Shape, options: Callable[[Numbers], dict[str, Any]], deterministic: bool = True) -> Call:
    """A forward pass, and a backward pass by those who have one; the options are made anew for each call, of the same
    numbers."""

    def call(numbers: Numbers, implementation: str) -> dict[str, Tensor]:
        batch, s = shape.batch_size, shape
        q = numbers.normal(batch, s.seqlen_q, s.heads_q, s.head_dim)
        k = numbers.normal(batch, s.seqlen_k, s.heads_k, s.head_dim)
        v = numbers.normal(batch, s.seqlen_k, s.heads_k, s.head_dim_v)
        dout = numbers.normal(batch, s.seqlen_q, s.heads_q, s.head_dim_v)
        given = options(numbers)
        if given.get("layout") == "thd":
            q, k, v, dout = (x.flatten(0, 1) for x in (q, k, v, dout))
        out, lse = tilewise.attention(q, k, v, return_lse=True, implementation=implementation, **given)
        try:
            gradients = tilewise.attention_backward(
                dout, q, k, v, out, lse, deterministic=deterministic, implementation=implementation, **given
            )
        except NotImplementedError:
            return {"out": out, "lse": lse}
        named = {name: value for name, value in gradients._asdict().items() if value is not None}
        return {"out": out, "lse": lse} | named

    return call


def merge(numbers: Numbers, implementation: str) -> dict[str, Tensor]:
    """Three parts."""
    outs = [numbers.normal(2, 40, 4, 64) for _ in range(3)]
    lses = [numbers.normal(2, 4, 40, dtype=torch.float32) for _ in range(3)]
    out, lse = tilewise.merge(outs, lses, implementation=implementation)
    return {"out": out, "lse": lse}


def pages(numbers: Numbers, implementation: str) -> dict[str, Tensor]:
    """A step that rotates, appends to pages and attends."""
    k_cache, v_cache = (numbers.normal(16, 16, 2, 64) for _ in range(2))
    q, k, v = numbers.normal(2, 3, 4, 64), numbers.normal(2, 3, 2, 64), numbers.normal(2, 3, 2, 64)
    table = numbers.integers(*numbers.random.permutation(16)).view(2, 8)
    angles = numbers.normal(128, 32, dtype=torch.float32)
    out, lse = tilewise.kv_cache_attention(
        q,
        k_cache,
        v_cache,
        k,
        v,
        rotary_cos=angles.cos(),
        rotary_sin=angles.sin(),
        cache_seqlens=numbers.integers(100, 41),
        block_table=table,
        mask="causal",
        num_splits=1,
        return_lse=True,
        implementation=implementation,
    )
    return {"out": out, "lse": lse, "k_cache": k_cache, "v_cache": v_cache}


CASES: dict[str, Call] = {
    "full": attention(Shape(48, 48), lambda _: {}),
    "causal": attention(Shape(40, 70, 128, 128), lambda _: {"mask": "causal"}),
    "window-softcap": attention(Shape(50, 50), lambda _: {"window": (12, 3), "softcap": 5.0}),
    "biased": attention(
        Shape(33, 47),
        lambda numbers: {
            "bias": numbers.normal(1, 4, 33, 47, dtype=torch.float32),
            "alibi_slopes": numbers.normal(4, dtype=torch.float32).abs(),
            "sink": numbers.normal(4, dtype=torch.float32),
        },
    ),
    "dropout": attention(Shape(40, 40), lambda _: {"dropout_p": 0.25, "seed": 7}, deterministic=False),
    "packed": attention(
        Shape(30, 30),
        lambda numbers: {
            "layout": "thd",
            "mask": "causal",
            "cu_seqlens_q": numbers.integers(0, 17, 60),
            "cu_seqlens_k": numbers.integers(0, 25, 60),
            "max_seqlen_q": 43,
            "max_seqlen_k": 35,
        },
    ),
    "padded": attention(
        Shape(32, 48),
        lambda numbers: {"seqused_k": numbers.integers(40, 9), "leftpad_k": numbers.integers(3, 20), "mask": "causal"},
    ),
    "odd-dims": attention(Shape(21, 35, 80, 48), lambda _: {}),
    "decode": attention(Shape(1, 300), lambda _: {}),
    "merge": merge,
    "pages": pages,
}


def digest(tensor: Tensor) -> str:
    """Of the bytes, in order."""
    return hashlib.sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def error_of(found: Tensor, reference: Tensor) -> float:
    """Relative, in the root mean square, of what is finite in the reference."""
    want, have = reference.double().cpu(), found.double().cpu()
    seen = want.isfinite()
    scale = want[seen].square().mean().sqrt().item() or 1.0
    return float(f"{(have - want)[seen].square().mean().sqrt().item() / scale:.3g}")


# A problem of the case's operation, where it is not attention.
PROBLEMS = {
    "merge": "merge parts=3 head_dim_v=64 seqlen_q=40",
    "pages": "kv_cache_attention seqlen_q=3 head_dim=64 capacity=128 cache_seqlens=1",
}


def implementations(case: str) -> list[str]:
    """The names of the dispatch table's rows for the case's operation."""
    problem = PROBLEMS.get(case, "attention_forward seqlen_q=64 head_dim=64")
    return [row.implementation for row in tilewise.explain(problem).rows]


def devices() -> list[str]:
    """torch's; it calls AMD's GPUs cuda too."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def runner(implementation: str, device: str) -> str:
    """What an entry is called by: parts of the keys and tiles go by a GPU's size, and bits with them, so each model of
    GPU has entries of its own."""
    return f"{implementation}@{torch.cuda.get_device_name().replace(' ', '_')}" if device == "cuda" else implementation


def outputs(case: str, dtype: str, implementation: str, device: str) -> dict[str, Tensor] | None:
    """What a call gives, None where the implementation refuses it."""
    numbers = Numbers(zlib.crc32(case.encode()), DTYPES[dtype], device)
    try:
        return CASES[case](numbers, implementation)
    except NotImplementedError:
        return None


def entries_of(case: str, dtype: str) -> Iterator[tuple[str, Entry]]:
    """One for each implementation that accepts the case."""
    references = outputs(case, dtype, REFERENCE, "cpu")
    assert references is not None
    for device in devices():
        for name in implementations(case):
            if (found := outputs(case, dtype, name, device)) is not None:
                values = {key: [digest(value), error_of(value, references[key])] for key, value in found.items()}
                yield f"{case} {dtype} {runner(name, device)}", values


def find() -> Entries:
    """Every entry that can be made here."""
    entries: dict[str, Entry] = {}
    for case in CASES:
        for dtype in DTYPES:
            entries |= dict(entries_of(case, dtype))
        print(f"golden: results of {case}", flush=True)
    return entries


def on_hand(key: str, found: Entries) -> bool:
    """Whether the implementation of an entry ran anything here, on that GPU; else its processor or GPU is missing."""
    return any(other.split()[-1] == key.split()[-1] for other in found)


def differs(key: str, field: str, before: Any, now: Any) -> str:
    """Bits count; but of gradients that are free to differ from run to run the error alone does."""
    if before is None or now is None:
        return exactly(key, field, before, now)
    (bits, error), (other_bits, other_error) = before, now
    if key.split()[0] in FREE and field in FREE_GRADIENTS:
        grown = other_error > MOST_GROWTH * error
        return f"{field} is less exact: error {error:g} -> {other_error:g}" if grown else ""
    return "" if bits == other_bits else f"{field} has other bits (error {error:g} -> {other_error:g})"
