# flash_attn.layers.rotary: the rotary embedding of queries and keys outside of a cache, in plain torch operations with
# gradients.
"""RotaryEmbedding, apply_rotary_emb and its forms for packed tensors."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from tilewise.compat.flash_attn._plain import refuse
from tilewise.compat.flash_attn.layers._rotation import overwritten, table_rows, turned

__all__ = [
    "ApplyRotaryEmb",
    "ApplyRotaryEmbKV_",
    "ApplyRotaryEmbQKV_",
    "RotaryEmbedding",
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
    "rotate_half",
]

_Offsets = Union[int, Tensor]


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Each pair (a, b) of x's last dimension as (-b, a)."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotates the first columns of x in the dtypes that come, without fp32 in between.

    Args:
        x: [batch_size, seqlen, num_heads, head_dim].
        cos, sin: [seqlen, rotary_dim / 2] or [batch_size, seqlen, rotary_dim / 2].
        interleaved: Pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2).
    """
    dim = 2 * cos.shape[-1]
    assert dim <= x.shape[-1], f"rotary_dim must be <= headdim (got {dim} and {x.shape[-1]})"
    columns = [table.repeat_interleave(2, -1) if interleaved else torch.cat([table, table], -1) for table in (cos, sin)]
    of_heads = [table.unsqueeze(-2) for table in columns]
    part = x[..., :dim]
    return torch.cat([part * of_heads[0] + rotate_half(part, interleaved) * of_heads[1], x[..., dim:]], dim=-1)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: _Offsets = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> Tensor:
    """Rotates the first rotary_dim columns of x, in fp32 and rounded once; the others stay.

    Args:
        x: [batch_size, seqlen, num_heads, head_dim], or packed [total, num_heads, head_dim] with cu_seqlens.
        cos, sin: [rows, rotary_dim / 2], row p for position p.
        interleaved: Pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2).
        inplace: Whether to write into x and return it; a tensor equal to it where autograd forbids that, as of a leaf.
        seqlen_offsets: int or integer [batch_size], the position of each sequence's first row.
        cu_seqlens: int32 [batch_size + 1].
        max_seqlen: Longest packed sequence; must be given with cu_seqlens.

    Returns:
        As x, with a gradient for x.

    Raises:
        AssertionError: Shapes do not fit, or the tables lack a position. Offsets that lie on a GPU are read under
            TILEWISE_CHECK=1 alone; without it rows past the tables become NaN there, and within torch.compile.
    """
    of_rows = table_rows(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen)
    new = turned(x, *of_rows, interleaved)
    dim = new.shape[-1]
    if inplace:
        return overwritten(x, ((..., slice(0, dim)), new))
    return new if dim == x.shape[-1] else torch.cat([new, x[..., dim:]], dim=-1)


apply_rotary_emb_func = apply_rotary_emb


def _heads(qkv: Tensor, num_heads_q: Optional[int]) -> tuple[Any, Any]:
    """Where the queries and the keys of qkv stand."""
    if qkv.dim() == 5:
        assert qkv.shape[2] == 3, f"qkv must have shape (batch, seqlen, 3, nheads, headdim) (got {tuple(qkv.shape)})"
        return (..., 0, slice(None)), (..., 1, slice(None))
    assert qkv.dim() == 4, f"qkv must have 4 or 5 dimensions (got {qkv.dim()})"
    assert num_heads_q is not None, "num_heads_q must be given with qkv of 4 dimensions"
    keys, odd = divmod(qkv.shape[2] - num_heads_q, 2)
    words = f"qkv must have num_heads_q + 2 * num_heads_k heads (got {qkv.shape[2]} of which {num_heads_q} are queries)"
    assert keys >= 0 and odd == 0, words
    return (..., slice(0, num_heads_q)), (..., slice(num_heads_q, num_heads_q + keys))


def _turned_part(qkv: Tensor, index: Any, tables: tuple[Tensor, Tensor], interleaved: bool, offsets: _Offsets) -> Any:
    """(index, new values) of some heads of qkv."""
    heads = qkv[(*index, slice(None))]
    new = turned(heads, *table_rows(heads, *tables, offsets), interleaved)
    return (*index, slice(0, new.shape[-1])), new


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Optional[Tensor] = None,
    sin_k: Optional[Tensor] = None,
    interleaved: bool = False,
    seqlen_offsets: _Offsets = 0,
    num_heads_q: Optional[int] = None,
) -> Tensor:
    """Rotates queries and keys of qkv in place.

    Args:
        qkv: [batch_size, seqlen, 3, num_heads, head_dim], or with num_heads_q [batch_size, seqlen, num_heads_q +
            2 * num_heads_k, head_dim].
        cos, sin: [rows, rotary_dim / 2]. cos_k, sin_k: those of the keys where they have their own.
        interleaved, seqlen_offsets: As apply_rotary_emb's.

    Returns, Raises:
        As apply_rotary_emb with inplace=True.
    """
    queries, keys = _heads(qkv, num_heads_q)
    tables_k = (cos if cos_k is None else cos_k), (sin if sin_k is None else sin_k)
    of_queries = _turned_part(qkv, queries, (cos, sin), interleaved, seqlen_offsets)
    return overwritten(qkv, of_queries, _turned_part(qkv, keys, tables_k, interleaved, seqlen_offsets))


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: _Offsets = 0
) -> Tensor:
    """Rotates the keys of kv [batch_size, seqlen, 2, num_heads_k, head_dim] in place; see apply_rotary_emb_qkv_."""
    fits = kv.dim() == 5 and kv.shape[2] == 2
    assert fits, f"kv must have shape (batch, seqlen, 2, nheads, headdim) (got {tuple(kv.shape)})"
    return overwritten(kv, _turned_part(kv, (..., 0, slice(None)), (cos, sin), interleaved, seqlen_offsets))


class ApplyRotaryEmb:
    """apply_rotary_emb under the name of flash_attn's autograd function."""

    apply = staticmethod(apply_rotary_emb)


class ApplyRotaryEmbQKV_:  # noqa: N801 - flash_attn's name
    """apply_rotary_emb_qkv_ under the name of flash_attn's autograd function."""

    apply = staticmethod(apply_rotary_emb_qkv_)


class ApplyRotaryEmbKV_:  # noqa: N801 - flash_attn's name
    """apply_rotary_emb_kv_ under the name of flash_attn's autograd function."""

    apply = staticmethod(apply_rotary_emb_kv_)


def _of_inference(table: Tensor) -> bool:
    """Whether autograd cannot keep the table; a compiler that looks on makes its own, and cannot ask."""
    return not torch.compiler.is_compiling() and table.is_inference()


class RotaryEmbedding(torch.nn.Module):
    """Rotary position embedding, whose tables grow with the longest sequence that has come.

    Its buffers are not in state_dict().

    Args:
        dim: Columns that are rotated.
        base: Of the frequencies, base ** (-2i / dim).
        interleaved: Pairs are (2i, 2i + 1), not (i, i + dim / 2).
        scale_base: With one, queries grow and keys shrink with their position (xPos).
        pos_idx_in_fp32: Positions are fp32 always, as in flash_attn 2.8; False, which earlier ones took, is refused.
    """

    inv_freq: Tensor
    scale: Optional[Tensor]

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: Optional[float] = None,
        device: Any = None,
        *,
        pos_idx_in_fp32: bool = True,
    ) -> None:
        if not pos_idx_in_fp32:
            raise refuse("pos_idx_in_fp32", "True", pos_idx_in_fp32)
        super().__init__()
        self.dim, self.base = dim, float(base)
        self.interleaved, self.scale_base = interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", None if scale_base is None else self._compute_scale(device), persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Optional[Tensor] = None
        self._sin_cached: Optional[Tensor] = None
        self._cos_k_cached: Optional[Tensor] = None
        self._sin_k_cached: Optional[Tensor] = None

    def _columns(self, device: Any) -> Tensor:
        return torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)

    def _compute_inv_freq(self, device: Any = None) -> Tensor:
        return 1.0 / (self.base ** (self._columns(device) / self.dim))

    def _compute_scale(self, device: Any = None) -> Tensor:
        return (self._columns(device) + 0.4 * self.dim) / (1.4 * self.dim)

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Optional[torch.dtype] = None) -> None:
        """Makes tables for positions below `seqlen`, unless there are some. They are computed in fp32, from buffers
        that are computed anew where a model's cast has rounded them."""
        cos = self._cos_cached
        usable = cos is not None and seqlen <= self._seq_len_cached and (cos.device, cos.dtype) == (device, dtype)
        if usable and cos is not None and not (self.training and _of_inference(cos)):
            return
        self._seq_len_cached = seqlen
        exact = self.inv_freq.dtype == torch.float32
        inv_freq = self.inv_freq.to(device) if exact else self._compute_inv_freq(device)
        places = torch.arange(seqlen, device=device, dtype=torch.float32)
        angles = places[:, None] * inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None or self.scale_base is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        scale = self.scale.to(device) if self.scale.dtype == torch.float32 else self._compute_scale(device)
        growth = scale ** ((places - seqlen // 2) / self.scale_base)[:, None]
        self._cos_cached, self._sin_cached = (cos * growth).to(dtype), (sin * growth).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / growth).to(dtype), (sin / growth).to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Optional[Tensor] = None,
        seqlen_offset: _Offsets = 0,
        max_seqlen: Optional[int] = None,
        num_heads_q: Optional[int] = None,
    ) -> Any:
        """Rotates queries and keys in place.

        Args:
            qkv: [batch_size, seqlen, 3, num_heads, head_dim], or [batch_size, seqlen, num_heads_q + 2 * num_heads_k,
                head_dim] with num_heads_q; with kv the queries alone, [batch_size, seqlen, num_heads, head_dim].
            kv: [batch_size, seqlen, 2, num_heads_k, head_dim].
            seqlen_offset: int or integer [batch_size], the position of each sequence's first row.
            max_seqlen: Tables reach so far; must be given where seqlen_offset is a tensor and none are there yet.

        Returns:
            qkv, or (q, kv).
        """
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, device=qkv.device, dtype=qkv.dtype)
        elif not isinstance(seqlen_offset, Tensor):
            self._update_cos_sin_cache(qkv.shape[1] + seqlen_offset, device=qkv.device, dtype=qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        if cos is None or sin is None:
            raise ValueError("max_seqlen: must be given with the first seqlen_offset that is a tensor (got None)")
        scaled = self.scale is not None
        cos_k, sin_k = (self._cos_k_cached, self._sin_k_cached) if scaled else (cos, sin)
        assert cos_k is not None and sin_k is not None
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q=num_heads_q
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, inplace=True, seqlen_offsets=seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
