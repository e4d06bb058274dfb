"""What is measured: shapes, cases (a shape with dtype, mask, pass and options), their work, and the default grid.

Pure values and arithmetic; nothing here imports a tensor library.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal, Optional

Mask = Literal["none", "causal"]
Pass = Literal["forward", "backward"]
Layout = Literal["bshd", "bhsd"]

BYTES_PER_ELEMENT = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "fp8_e4m3": 1}
DTYPES = tuple(BYTES_PER_ELEMENT)
FP8 = "fp8_e4m3"  # of q, k and v alone, forward only: out is bf16
MASKS: tuple[Mask, ...] = ("none", "causal")
LAYOUTS: tuple[Layout, ...] = ("bshd", "bhsd")

SHAPE_FORM = "BATCHxSEQLEN[/SEQLEN_K]xHEADS[/HEADS_K]xHEAD_DIM[/HEAD_DIM_V]"
_SHAPE_PATTERN = re.compile(r"(\d+)x(\d+)(?:/(\d+))?x(\d+)(?:/(\d+))?x(\d+)(?:/(\d+))?")


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention call, named as in docs/semantics.md."""

    batch_size: int
    seqlen_q: int
    seqlen_k: int
    num_heads_q: int
    num_heads_k: int
    head_dim: int
    head_dim_v: Optional[int] = None  # None: as head_dim

    @property
    def value_columns(self) -> int:
        """Of v and out."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    def __str__(self) -> str:
        seqlen = f"{self.seqlen_q}" if self.seqlen_q == self.seqlen_k else f"{self.seqlen_q}/{self.seqlen_k}"
        heads = (
            f"{self.num_heads_q}" if self.num_heads_q == self.num_heads_k else f"{self.num_heads_q}/{self.num_heads_k}"
        )
        return f"{self.batch_size}x{seqlen}x{heads}x{self.head_dims()}"

    def head_dims(self) -> str:
        """As parse() reads them: "192/128", or one for both."""
        return f"{self.head_dim}" if self.head_dim_v is None else f"{self.head_dim}/{self.head_dim_v}"

    def columns(self) -> dict[str, int]:
        """Of a row that is measured."""
        return {**dataclasses.asdict(self), "head_dim_v": self.value_columns}

    @staticmethod
    def parse(text: str) -> Shape:
        """Reads SHAPE_FORM, e.g. 1x1/8192x32/8x128 or 4x4096x16x192/128.

        Raises ValueError with the expectation and the text.
        """
        match = _SHAPE_PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"must look like {SHAPE_FORM} (got {text!r})")
        batch_size, seqlen_q, seqlen_k, num_heads_q, num_heads_k, head_dim, head_dim_v = (
            int(part) if part else None for part in match.groups()
        )
        assert batch_size is not None and seqlen_q is not None and num_heads_q is not None and head_dim is not None
        shape = Shape(
            batch_size,
            seqlen_q,
            seqlen_q if seqlen_k is None else seqlen_k,
            num_heads_q,
            num_heads_q if num_heads_k is None else num_heads_k,
            head_dim,
            head_dim_v,
        )
        shape.check(text)
        return shape

    def check(self, text: str) -> None:
        """Raises ValueError where the sizes make no attention problem worth timing."""
        for name in ("batch_size", "seqlen_q", "seqlen_k", "num_heads_q", "num_heads_k", "head_dim", "head_dim_v"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be >= 1 (got {text!r})")
        if self.num_heads_q % self.num_heads_k:
            raise ValueError(
                f"num_heads_q must be a multiple of num_heads_k (got {self.num_heads_q}/{self.num_heads_k} in {text!r})"
            )
        if self.seqlen_q > self.seqlen_k:  # causal rows without a key mean different things to different libraries
            raise ValueError(f"seqlen_q must be <= seqlen_k (got {self.seqlen_q}/{self.seqlen_k} in {text!r})")


@dataclass(frozen=True)
class Case:
    """One point of a grid: what every library is asked to compute."""

    shape: Shape
    dtype: str
    mask: Mask = "none"
    operation: Pass = "forward"
    layout: Layout = "bshd"
    threads: int = 1
    device: str = "cpu"  # or a kind of GPU, "cuda" or "hip"
    window_left: int = -1
    softcap: float = 0.0
    dropout_p: float = 0.0
    bias: str = ""  # as in a problem's text: "query[1,h,q,k]" has q's dtype, "bool[1,1,q,k]" hides keys
    alibi: bool = False
    deterministic: bool = False
    lengths: tuple[int, ...] = ()  # of packed sequences; the shape has their number and the longest, twice
    score_deviation: float = 1.0  # of scores in nats: q and k are drawn wider by its square root

    @property
    def torch_device(self) -> str:
        """What torch calls the device: AMD's GPUs too are "cuda"."""
        return "cpu" if self.device == "cpu" else "cuda"

    @property
    def out_dtype(self) -> str:
        """Of out and its gradient."""
        return "bf16" if self.dtype == FP8 else self.dtype

    @property
    def rows_q(self) -> int:
        """Queries of one head in all sequences."""
        return sum(self.lengths) or self.shape.batch_size * self.shape.seqlen_q

    @property
    def rows_k(self) -> int:
        """Keys of one head in all sequences."""
        return sum(self.lengths) or self.shape.batch_size * self.shape.seqlen_k

    def __str__(self) -> str:
        return f"{self.operation} {self.shape} {self.dtype} {self.mask}"

    @property
    def tokens(self) -> int:
        """Speed is that of the arithmetic here."""
        return 0

    def cells(self) -> dict[str, str]:
        """Of the printed table."""
        return {"shape": str(self.shape), "dtype": self.dtype, "mask": self.mask}

    def group(self) -> str:
        """Cases of one geometric mean."""
        return f"{self.dtype} mask={self.mask}"

    def problem_text(self) -> str:
        """See problem_text()."""
        return problem_text(self)

    def flops(self) -> float:
        """Multiplications and additions of the visible work."""
        return flops_of(self.shape, pairs_of(self), self.operation)

    def bf16_flops(self) -> float:
        """Those that take as long in bf16, whose products the GPU's ceiling is of."""
        return self.flops() / 2 if self.dtype == FP8 else self.flops()

    def traffic_bytes(self) -> int:
        """Bytes that must move at least: each input read once and each output written once.

        forward: q, k, v; out. backward: q, k, v, out, dout; dq, dk, dv. The fp32 LSE counts once in either.
        """
        shape, element, of_out = self.shape, BYTES_PER_ELEMENT[self.dtype], BYTES_PER_ELEMENT[self.out_dtype]
        query = shape.head_dim * element + shape.value_columns * of_out
        key = (shape.head_dim + shape.value_columns) * element
        times = 1 if self.operation == "forward" else 2  # forward reads q beside out, backward has two of each
        tensors = self.rows_q * shape.num_heads_q * query + self.rows_k * shape.num_heads_k * key
        return times * tensors + 4 * self.rows_q * shape.num_heads_q

    def columns(self) -> dict[str, Any]:
        """Of a row that is measured."""
        which = ("threads", "operation", "dtype", "mask", "layout")
        return {**{name: getattr(self, name) for name in which}, **self.shape.columns()}


def problem_text(case: Case) -> str:
    """The case as one line that `tilewise explain` and `tilewise bench` read."""
    shape = case.shape
    if case.lengths:
        rows = (
            f"layout=thd batch_size={shape.batch_size} max_seqlen_q={shape.seqlen_q} max_seqlen_k={shape.seqlen_k}"
            f" total_q={case.rows_q} total_k={case.rows_k} clear_rest=1"
        )
    else:
        rows = f"layout={case.layout} batch_size={shape.batch_size} seqlen_q={shape.seqlen_q} seqlen_k={shape.seqlen_k}"
    text = (
        f"attention_{case.operation} device={case.device} dtype={case.dtype} {rows}"
        f" num_heads_q={shape.num_heads_q} num_heads_k={shape.num_heads_k} head_dim={shape.head_dim} mask={case.mask}"
    )
    if shape.head_dim_v is not None:
        text += f" head_dim_v={shape.head_dim_v}"
    if case.window_left >= 0:
        text += f" window_left={case.window_left}"
    if case.softcap:
        text += f" softcap={case.softcap}"
    if case.dropout_p:
        text += f" dropout_p={case.dropout_p} seed_tensor=1"
    if case.bias:
        text += f" bias={case.bias}"
    if case.alibi:
        text += " alibi_slopes=[h]"
    if case.deterministic:
        text += " deterministic=1"
    return text


def visible_pairs(seqlen_q: int, seqlen_k: int, mask: Mask) -> int:
    """(query, key) pairs that count, bottom-right alignment."""
    if mask == "none":
        return seqlen_q * seqlen_k
    if seqlen_q > seqlen_k:  # the first rows see nothing
        return seqlen_k * (seqlen_k + 1) // 2
    return seqlen_q * (seqlen_k - seqlen_q) + seqlen_q * (seqlen_q + 1) // 2


def pairs_of(case: Case) -> int:
    """Visible pairs of one head, in all sequences. A window is counted for as many queries as keys."""
    shape = case.shape
    if case.lengths:
        return sum(visible_pairs(length, length, case.mask) for length in case.lengths)
    pairs = visible_pairs(shape.seqlen_q, shape.seqlen_k, case.mask)
    if case.window_left >= 0:
        hidden = max(0, shape.seqlen_q - case.window_left - 1)  # queries with keys beyond the window's reach
        pairs -= hidden * (hidden + 1) // 2
    return shape.batch_size * pairs


def flops_of(shape: Shape, pairs: float, operation: Pass) -> float:
    """Multiplications and additions of so many (query, key) pairs of each query head.

    forward: the products S and O, 2 * (head_dim + head_dim_v) a pair. backward: S, dQ and dK, dP and dV.
    """
    of_keys, of_values = (1, 1) if operation == "forward" else (3, 2)
    return 2.0 * shape.num_heads_q * pairs * (of_keys * shape.head_dim + of_values * shape.value_columns)


def default_grid() -> list[Shape]:
    """27 shapes: short, grouped heads, long, chunked prefill and decode, each at three head dims."""
    rows = [
        (8, 128, 128, 16, 16),
        (4, 256, 256, 16, 16),
        (2, 512, 512, 16, 16),
        (2, 512, 512, 32, 8),
        (1, 1024, 1024, 16, 2),
        (1, 2048, 2048, 8, 8),
        (1, 4096, 4096, 2, 2),
        (1, 64, 4096, 16, 4),
        (4, 1, 4096, 32, 8),
    ]
    return [Shape(*row, head_dim) for row in rows for head_dim in (64, 96, 128)]
