# Pages with left padding: rows of pages are pages of one row, and a table of rows can begin where the padding ends. No
# key is copied.
"""Paged caches whose sequences begin later than their first page."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from tilewise._kv_cache import in_order
from tilewise._torch import kv_cache
from tilewise.compat.flash_attn.layers.rotary import apply_rotary_emb


class Rows(NamedTuple):
    """Caches as pages of one row each, the table of a sequence's rows behind its padding, and how many are in use."""

    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    cache_seqlens: Tensor


def _rows_apart(pages: Tensor) -> int:
    """How many rows lie from one page to the next, those of other tensors in the same storage included.

    Raises:
        NotImplementedError: That is no whole number.
    """
    num_pages, page_size = pages.shape[:2]
    if num_pages <= 1 or page_size <= 1:
        return page_size
    apart, remainder = divmod(pages.stride(0), pages.stride(1))
    if remainder:
        raise NotImplementedError(
            "cache_leftpad: must come with pages that lie a whole number of rows apart "
            f"(got strides {pages.stride(0)} and {pages.stride(1)})"
        )
    return apart


def _as_rows(pages: Tensor, apart: int) -> Tensor:
    num_pages, page_size = pages.shape[:2]
    step = pages.stride(0) if page_size <= 1 else pages.stride(1)
    rows = max(num_pages - 1, 0) * apart + page_size
    return pages.as_strided((rows, 1, *pages.shape[2:]), (step, step, *pages.stride()[2:]))


def without_leftpad(k_pages: Tensor, v_pages: Tensor, block_table: Tensor, leftpad: Tensor, seqlens: Tensor) -> Rows:
    """The same keys without their left padding.

    Args:
        leftpad: int32 [batch_size], rows to skip at the start of a sequence.
        seqlens: int32 [batch_size], rows in use, those included.
    """
    apart, page_size = _rows_apart(k_pages), k_pages.shape[1]
    if _rows_apart(v_pages) != apart:
        raise NotImplementedError(
            "cache_leftpad: must come with pages of keys and of values that lie equally far apart"
        )
    room = block_table.shape[1] * page_size
    places = torch.arange(room, device=block_table.device) + leftpad[:, None]
    places = places.clamp(0, max(room - 1, 0))
    rows = block_table.long().gather(1, places // page_size) * apart + places % page_size
    used = (seqlens - leftpad).to(torch.int32)
    return Rows(_as_rows(k_pages, apart), _as_rows(v_pages, apart), rows.to(torch.int32), used)


class Rotary(NamedTuple):
    """Tables, or None twice; their pairs; whether queries stand behind one another, not all at the first new place."""

    cos: Optional[Tensor]
    sin: Optional[Tensor]
    interleaved: bool
    local: bool


def appended(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    rotary: Rotary,
    seqlens: Tensor,
    block_table: Tensor,
) -> Tensor:
    """Appends k and v, if there are any, to the pages, which as rows may overlap where they interleave and so cannot be
    written then. Returns the queries, rotated as the keys are."""
    if k is None or v is None:
        return q
    cos, sin, interleaved, local = rotary
    arrays = in_order(rotary_cos=cos, rotary_sin=sin, cache_seqlens=seqlens, block_table=block_table)
    with torch.no_grad():
        numbers = {"rotary_interleaved": interleaved and cos is not None}
        kv_cache.append(k_pages, v_pages, k, v, arrays, numbers, None)
        if cos is None or sin is None:
            return q
        if local:
            return apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=seqlens)
        each, places = q.flatten(0, 1).unsqueeze(1), seqlens.repeat_interleave(q.shape[1])
        return apply_rotary_emb(each, cos, sin, interleaved, seqlen_offsets=places).view_as(q)
