"""The KV cache step as it is measured: shapes, what the cache holds and how, the work, and the default grid.

Pure values and arithmetic; nothing here imports a tensor library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewise.bench.shapes import Shape, flops_of, visible_pairs

# bf16, or fp8 e4m3 with a scale for each head, or for each token and head.
CACHES = ("bf16", "fp8_head", "fp8_token")
PAGE_SIZES = (0, 16, 256)  # 0: contiguous
APPENDS = ("no", "yes")
_MANY = {"cpu": 16}  # sequences of a large batch; 64 on a GPU


def parse_kv_shape(text: str) -> Shape:
    """Reads a Shape's form: seqlen_q queries of each sequence on seqlen_k keys, those that are appended among them.

    With a head_dim_v the values are the first columns of the keys (MLA's form), e.g. 16x1/8192x128/1x576/512. Raises
    ValueError with the expectation and the text.
    """
    shape = Shape.parse(text)
    if shape.value_columns > shape.head_dim:
        raise ValueError(f"head_dim_v must be in [1, head_dim] (got {text!r})")
    return shape


@dataclass(frozen=True)
class KvCase:
    """One step: what every library is asked to compute. Queries, new keys and results are bf16."""

    shape: Shape
    cache: str = "bf16"
    page_size: int = 0
    append: bool = False
    threads: int = 1
    device: str = "cpu"  # or a kind of GPU, "cuda" or "hip"

    @property
    def dtype(self) -> str:
        """Of queries and results, by which results are judged."""
        return "bf16"

    @property
    def torch_device(self) -> str:
        """What torch calls the device: AMD's GPUs too are "cuda"."""
        return "cpu" if self.device == "cpu" else "cuda"

    @property
    def mla(self) -> bool:
        """Whether there is no cache of values."""
        return self.shape.head_dim_v is not None

    @property
    def head_dim_v(self) -> int:
        """Of the values and results."""
        return self.shape.value_columns

    @property
    def pages(self) -> int:
        """Of each sequence."""
        return -(-self.shape.seqlen_k // self.page_size) if self.page_size else 0

    @property
    def tokens(self) -> int:
        """Queries, of which a decode step makes a token each."""
        return self.shape.batch_size * self.shape.seqlen_q

    def __str__(self) -> str:
        where = f"page_size={self.page_size}" if self.page_size else "contiguous"
        return f"kv_cache {self.shape} {self.cache} {where}{' append' if self.append else ''}"

    def cells(self) -> dict[str, str]:
        """Of the printed table."""
        paging = str(self.page_size) if self.page_size else "contiguous"
        return {
            "shape": str(self.shape),
            "cache": self.cache,
            "pages": paging,
            "append": "yes" if self.append else "no",
        }

    def group(self) -> str:
        """Cases of one geometric mean."""
        return f"cache={self.cache} pages={self.cells()['pages']}"

    def problem_text(self) -> str:
        """One line that `tilewise explain` reads."""
        s = self.shape
        text = (
            f"kv_cache_attention device={self.device} dtype=bf16 batch_size={s.batch_size} seqlen_q={s.seqlen_q}"
            f" append={int(self.append)} num_heads_q={s.num_heads_q} num_heads_k={s.num_heads_k}"
            f" head_dim={s.head_dim} head_dim_v={self.head_dim_v} mla={int(self.mla)}"
        )
        if self.page_size:
            text += f" page_size={self.page_size} num_pages={s.batch_size * self.pages} max_pages_per_seq={self.pages}"
        else:
            text += f" capacity={s.seqlen_k}"
        if self.cache != "bf16":
            text += f" cache_dtype=fp8_e4m3 scales={self.cache.partition('_')[2]}"
        return text + " cache_seqlens=1" + (" mask=causal" if s.seqlen_q > 1 else "")

    def flops(self) -> float:
        """Multiplications and additions."""
        s = self.shape
        pairs = s.batch_size * visible_pairs(s.seqlen_q, s.seqlen_k, "causal")
        return flops_of(s, pairs, "forward")

    def bf16_flops(self) -> float:
        """Those that take as long in bf16, whose products the GPU's ceiling is of."""
        return self.flops()

    def traffic_bytes(self) -> int:
        """Bytes that must move at least: q, out and every key and value once, with their scales; the new ones are read
        and written too."""
        s = self.shape
        query_like = 2 * self.tokens * s.num_heads_q * (s.head_dim + self.head_dim_v)
        width = s.head_dim + (0 if self.mla else self.head_dim_v)
        element = 2 if self.cache == "bf16" else 1
        scale = (4 if self.mla else 8) if self.cache == "fp8_token" else 0
        row = s.num_heads_k * (width * element + scale)
        new = self.tokens * (2 * s.num_heads_k * width + row) if self.append else 0
        old = self.tokens if self.append else 0  # keys that are written, and need not be read again
        return query_like + (s.batch_size * s.seqlen_k - old) * row + new

    def columns(self) -> dict[str, Any]:
        """Of a row that is measured."""
        which = {"threads": self.threads, "operation": "kv_cache", "dtype": self.dtype, "cache": self.cache}
        return {**which, "page_size": self.page_size, "append": int(self.append), **self.shape.columns()}


def default_shapes(device: str) -> list[Shape]:
    """Decoding one sequence and many, a chunk of prefill, and MLA's form of decoding."""
    batches = (1, _MANY.get(device, 64))
    decode = [Shape(batch_size, 1, 8192, 32, 8, 128) for batch_size in batches]
    mla = [Shape(batch_size, 1, 8192, 128, 1, 576, 512) for batch_size in batches]
    return [*decode, Shape(1, 64, 4096, 32, 8, 128), *mla]
