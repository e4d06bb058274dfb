"""Attention over the paged cache of transformers' continuous batching.

Keys and values are appended and read where they lie. A layer's cache is pages of `tokens_per_page` tokens, one page of
keys and one of values for each block of a request; blocks are what tables name. Sliding layers keep each request's
last `sliding_window` tokens as a ring, token t at place t % sliding_window of the request's blocks.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

import tilewise

__all__ = ["PagedStep", "attend"]


@dataclass(frozen=True)
class _Places:
    """Where a step's sequences lie in the cache of one kind of layer; all but the int is on the device.

    cache_seqlens does not count the new keys, but for rings: these are appended to first, at their slots.
    """

    block_table: torch.Tensor  # int32 [sequences, blocks], -1 and anything else where no key is needed
    cache_seqlens: torch.Tensor  # int32 [sequences]
    cu_seqlens_q: torch.Tensor | None  # None: one token each
    max_seqlen_q: int
    slots: torch.Tensor | None = None  # int64 [tokens], block * tokens_per_page + place


@dataclass(frozen=True)
class _Sequences:
    """What transformers says of a step's sequences to layers of one kind."""

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    read_index: torch.Tensor  # int64, rows of the layer's keys in order of time; empty where nothing was cached before
    write_index: torch.Tensor  # int64 [tokens]
    block_table: torch.Tensor | None  # int32 [sequences, blocks], in pages; of steps in which each has one new token
    position_ids: torch.Tensor | None


class PagedStep:
    """What all layers of one step share, made when the first of a kind asks for it.

    Tables are computed on the device. A step that is captured in a graph runs twice, the first time to compile
    kernels, and what is computed then is no part of the graph: it counts for nothing while the stream is captured.
    """

    def __init__(self, padded: bool) -> None:
        self.padded = padded  # whether tokens that belong to no sequence follow the others
        self._found: dict[tuple[int, bool], _Places | _Sequences] = {}

    def places(self, allocator: Any, given: dict[str, Any]) -> _Places | _Sequences:
        """Where the sequences lie for the allocator's layers; where chunks meet a ring, only what they are."""
        key = allocator.index, _is_capturing(given["cu_seq_lens_q"])
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _find_places(allocator, _sequences(allocator, given), self.padded)
        return found


def _sequences(allocator: Any, given: dict[str, Any]) -> _Sequences:
    named = given.get("block_table") is not None
    return _Sequences(
        cu_seqlens_q=given["cu_seq_lens_q"],
        cu_seqlens_k=given["cu_seq_lens_k"][allocator.layer_type],
        max_seqlen_q=given["max_length_q"],
        max_seqlen_k=given["max_length_k"][allocator.layer_type],
        read_index=given["read_index"][allocator.index],
        write_index=given["write_index"][allocator.index],
        block_table=given["block_table"][allocator.index] if named else None,
        position_ids=given.get("position_ids"),
    )


def _find_places(allocator: Any, s: _Sequences, padded: bool) -> _Places | _Sequences:
    if s.block_table is not None:
        return _named_places(allocator, s, s.block_table)
    if allocator.layer_type == "sliding_attention":
        # A graph of padded steps is replayed with chunks and without.
        return s if padded else _ring_places(allocator, s) or s
    return _indexed_places(allocator, s, padded)


def _is_capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _lengths(cu_seqlens: torch.Tensor) -> torch.Tensor:
    return cu_seqlens[1:] - cu_seqlens[:-1]


def _named_places(allocator: Any, s: _Sequences, block_table: torch.Tensor) -> _Places:
    """From a table that transformers made. Padding has no keys, and so a length of -1: a sequence without a cache."""
    pages_between_blocks = allocator.block_physical_stride // allocator.tokens_per_page
    table = block_table.div(pages_between_blocks, rounding_mode="floor")
    return _Places(table, _lengths(s.cu_seqlens_k) - 1, None, 1)


def _indexed_places(allocator: Any, s: _Sequences, padded: bool) -> _Places:
    """From the index of each token. Where nothing was cached before, every token is new, and only written."""
    only_new = s.read_index.numel() == 0
    index, starts = (s.write_index, s.cu_seqlens_q) if only_new else (s.read_index, s.cu_seqlens_k)
    size = int(allocator.tokens_per_page)
    firsts = torch.arange(0, max(s.max_seqlen_k, 1), size, device=index.device)
    at = (starts[:-1, None] + firsts).clamp(max=index.numel() - 1)
    table = index[at].div(allocator.block_physical_stride, rounding_mode="floor").to(torch.int32)
    cached = _lengths(s.cu_seqlens_k) - _lengths(s.cu_seqlens_q)
    one_each = not padded and s.max_seqlen_q == 1
    return _Places(table, cached, None if one_each else s.cu_seqlens_q, s.max_seqlen_q)


def _ring_places(allocator: Any, s: _Sequences) -> _Places | None:
    """Of rings to which every sequence appends one token, which overwrites one that none of them sees any more.

    The queries see all of a ring then, and the order of its keys makes no difference.
    """
    if s.max_seqlen_q != 1 or s.read_index.numel() == 0:
        return None
    if s.position_ids is None or s.position_ids.shape[:-1] != (1,):
        return None
    window, size, stride = allocator.sliding_window, allocator.tokens_per_page, allocator.block_physical_stride
    lengths = _lengths(s.cu_seqlens_k)
    firsts = torch.arange(0, min(s.max_seqlen_k, window), size, device=s.read_index.device)
    # How many steps ago the token at a block's first place was written; the newest is in write_index alone.
    age = (s.position_ids[0, :, None] - firsts) % window
    at = (s.cu_seqlens_k[1:, None] - 1 - age).clamp(min=0)
    rows = torch.where(age == 0, s.write_index[:, None], s.read_index[at])
    table = rows.div(stride, rounding_mode="floor").to(torch.int32)
    slots = s.write_index.div(stride, rounding_mode="floor") * size + s.write_index % stride
    return _Places(table, lengths, None, 1, slots)


# Of each allocator, (keys, values) of its layers as [blocks, tokens_per_page, num_heads_k, head_dim].
_page_views: weakref.WeakKeyDictionary[Any, dict[int, tuple[torch.Tensor, torch.Tensor]]] = weakref.WeakKeyDictionary()


def _pages(allocator: Any, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views that share no element: the allocator's own do, since they step over pages, whosever those are."""
    views = _page_views.get(allocator)
    if views is None:
        shape = (allocator.num_key_value_heads, allocator.head_dim)
        pages = allocator.cache_tensor.view(-1, len(allocator.layer_indices), 2, allocator.tokens_per_page, *shape)
        views = {index: (pages[:, i, 0], pages[:, i, 1]) for i, index in enumerate(allocator.layer_indices)}
        _page_views[allocator] = views
    return views[layer]


def _attend_each_token(
    places: _Places, tensors: tuple[torch.Tensor, ...], pages: tuple[torch.Tensor, torch.Tensor],
    options: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """Of sequences with one token each."""
    q, k, v = (x.permute(2, 0, 1, 3) for x in tensors)
    lengths, table = places.cache_seqlens, places.block_table
    out: torch.Tensor
    if places.slots is None:
        out = tilewise.kv_cache_attention(
            q, *pages, k, v, cache_seqlens=lengths, block_table=table, mask="causal", **options
        )
    else:
        tilewise.append_kv(*pages, k.squeeze(1), v.squeeze(1), slots=places.slots)
        out = tilewise.kv_cache_attention(q, *pages, cache_seqlens=lengths, block_table=table, **options)
    return out.transpose(0, 1)


def _attend_chunks(
    s: _Sequences, window: int, tensors: tuple[torch.Tensor, ...], out: torch.Tensor | None, options: dict[str, Any]
) -> torch.Tensor:
    """Of sliding layers, over keys that transformers took out of the ring before new ones overwrote them."""
    result: torch.Tensor = tilewise.attention(
        *tensors, layout="thd", mask="causal", window=(window - 1, -1), out=out, cu_seqlens_q=s.cu_seqlens_q,
        cu_seqlens_k=s.cu_seqlens_k, max_seqlen_q=s.max_seqlen_q, max_seqlen_k=s.max_seqlen_k, **options,
    )  # fmt: skip
    return result


# The caches are mutated behind views, which a compiler would answer by copies of all of the cache.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(
    layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any],
    given: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """A layer's attention in a step of continuous batching, appending its keys and values to the cache.

    query: [1, num_heads_q, tokens, head_dim]; key, value: [1, num_heads_k, tokens, head_dim], rotated. options:
    softmax_scale and what else tilewise.kv_cache_attention calls so. given: what transformers' manager gives to
    attention functions, `cache` among it. Returns [1, tokens, num_heads_q, head_dim].
    """
    cache, step = given["cache"], given["tilewise_step"]
    allocator = cache.layer_to_allocator[layer]
    places = step.places(allocator, given)
    if isinstance(places, _Places) and places.cu_seqlens_q is None:
        return _attend_each_token(places, (query, key, value), _pages(allocator, layer), options)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    # Rows of no sequence are left as they are, and must not be what some earlier program wrote there.
    out = torch.zeros_like(q, memory_format=torch.contiguous_format) if step.padded else None
    result: torch.Tensor
    if isinstance(places, _Places):
        result = tilewise.kv_cache_attention(
            q, *_pages(allocator, layer), k, v, cache_seqlens=places.cache_seqlens, block_table=places.block_table,
            cu_seqlens_q=places.cu_seqlens_q, max_seqlen_q=places.max_seqlen_q, mask="causal", out=out, **options,
        )  # fmt: skip
        return result.unsqueeze(0)
    k, v = (x[0].transpose(0, 1) for x in cache.update(key, value, layer, dict(given)))
    return _attend_chunks(places, allocator.sliding_window, (q, k, v), out, options).unsqueeze(0)
