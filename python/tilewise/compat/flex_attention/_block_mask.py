# A BlockMask as tilewise.attention takes it: its lists, mask_mod alone where they are known to say nothing else, or,
# where they are of no size that the core takes, one expression of a table of blocks and mask_mod.
"""What a BlockMask lets through."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from tilewise._block_mask import BlockMask as GivenMask
from tilewise.compat._routing import RefusedCall
from tilewise.compat.flex_attention._functions import traced
from tilewise.expression import Traced, TraceError

MOST_ELEMENTS = 2**28  # of a mask that is evaluated element by element
_HIDDEN, _PARTIAL, _FULL = range(3)


class Call(NamedTuple):
    """What a call is to its mask."""

    batch_size: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int
    device: torch.device


def visible(block_mask: BlockMask, call: Call) -> dict[str, Any]:
    """The options of tilewise.attention that let through what the mask does."""
    mask_mod = block_mask.mask_mod
    if getattr(mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise RefusedCall("block_mask: was made by slicing another, so its mask_mod must be set (got none)")
    try:
        own = traced("mask_mod", mask_mod, call.device)
    except TraceError as error:
        return {"bias": _evaluated(block_mask, call, error)}
    if _is_all_said(block_mask, own, call):
        return {} if own.text == "True" else {"mask_mod": own}
    given = _given(block_mask, own, call)
    if given is not None:
        return {"block_mask": given}
    return {"mask_mod": traced("mask_mod", _within_blocks(block_mask, call), call.device)}


_kept_given: weakref.WeakKeyDictionary[BlockMask, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def _given(block_mask: BlockMask, mask_mod: Traced, call: Call) -> Optional[GivenMask]:
    """Its lists as the core takes them; None where they are of other sizes, or blocks of other lengths."""
    lists = _lists(block_mask)
    kinds = (call, *block_mask.BLOCK_SIZE, *[None if each is None else (each.shape, each.dtype) for each in lists])
    kept = _kept_given.get(block_mask)
    if kept is None or kept[0] != kinds or any(one is not other for one, other in zip(kept[1], lists)):
        kept = _kept_given[block_mask] = kinds, lists, _fit(lists, *block_mask.BLOCK_SIZE, call)
    rows, keys = block_mask.BLOCK_SIZE
    counts, indices, full_counts, full_indices = lists
    return GivenMask(mask_mod, counts, indices, full_counts, full_indices, (rows, keys)) if kept[2] else None


def _fit(lists: tuple[Any, ...], rows: int, keys: int, call: Call) -> bool:
    """Whether the core takes lists of blocks."""
    given = lists if lists[2] is not None and lists[3] is not None else lists[:2]
    sizes = (call.batch_size, call.num_heads)
    wanted = (-(-call.seqlen_q // rows), -(-call.seqlen_k // keys))
    fit = rows % 16 == keys % 16 == 0 and len({tensor.shape[:2] for tensor in given}) == 1
    for tensor, rank in zip(given, (3, 4, 3, 4)):
        fit = fit and tensor.dim() == rank and tensor.dtype == torch.int32
        fit = fit and tuple(tensor.shape[2:]) == wanted[: rank - 2]
        fit = fit and all(own in (1, whole) for own, whole in zip(tensor.shape[:2], sizes))
    return fit


def _lists(block_mask: BlockMask) -> tuple[Any, ...]:
    """Counts and indices of partial blocks, and of full ones, which may be None."""
    return (
        block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks, block_mask.full_kv_indices,
    )  # fmt: skip


def _within_blocks(block_mask: BlockMask, call: Call) -> Callable[..., Any]:
    """mask_mod where the tables ask for it."""
    states = _states(block_mask, call)
    lead_b, lead_h = states.shape[:2]
    rows, columns = block_mask.BLOCK_SIZE
    mask_mod = block_mask.mask_mod

    def within_blocks(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        own_b = 0 if lead_b == 1 else b if lead_b >= call.batch_size else b % lead_b  # as torch's kernels have it
        own_h = 0 if lead_h == 1 else h if lead_h >= call.num_heads else h % lead_h
        state = states[own_b, own_h, q_idx // rows, kv_idx // columns]
        return (state == _FULL) | ((state == _PARTIAL) & mask_mod(b, h, q_idx, kv_idx))

    return within_blocks


def _evaluated(block_mask: BlockMask, call: Call, why: TraceError) -> Tensor:
    """The whole mask of a mask_mod that can't be traced: bool [batch_size, num_heads, seqlen_q, seqlen_k]."""
    sizes = call[:4]
    elements = call.batch_size * call.num_heads * call.seqlen_q * call.seqlen_k
    if elements > MOST_ELEMENTS:
        raise NotImplementedError(
            f"block_mask: a mask_mod that can't be traced is evaluated for up to {MOST_ELEMENTS} scores "
            f"(got {elements}): {why}"
        ) from why
    return create_mask(_within_blocks(block_mask, call), *sizes, call.device).to(torch.bool)


# --- the tables ---


class _Seen(NamedTuple):
    """Tensors as they were: versions are None where one counts none, as those of inference mode. `sizes` is what else
    was there."""

    tensors: tuple[Optional[Tensor], ...]
    versions: Optional[tuple[int, ...]]
    sizes: tuple[int, ...] = ()

    def are_still(self, others: _Seen) -> bool:
        if self.versions is None or self[1:] != others[1:]:
            return False
        return all(one is other or _is_same_memory(one, other) for one, other in zip(self.tensors, others.tensors))


def _is_same_memory(one: Optional[Tensor], other: Optional[Tensor]) -> bool:
    """A tensor of one number is looked up through a view that each trace makes."""
    if one is None or other is None:
        return False
    same = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
    return same and one.data_ptr() == other.data_ptr()


def _seen(tensors: tuple[Optional[Tensor], ...], *sizes: int) -> _Seen:
    try:
        versions = tuple([tensor._version for tensor in tensors if tensor is not None])
    except RuntimeError:  # of inference mode
        return _Seen(tensors, None, sizes)
    return _Seen(tensors, versions, sizes)


def _lists_of(block_mask: BlockMask) -> _Seen:
    return _seen(_lists(block_mask), *block_mask.BLOCK_SIZE, *block_mask.seq_lengths)


_kept_states: weakref.WeakKeyDictionary[BlockMask, tuple[_Seen, Tensor]] = weakref.WeakKeyDictionary()


def _states(block_mask: BlockMask, call: Call) -> Tensor:
    """u8 [batch_size or less, num_heads or less, rows of blocks, columns of blocks]: which blocks are listed how."""
    lists = _lists_of(block_mask)
    kept = _kept_states.get(block_mask)
    if kept is not None and kept[0].are_still(lists):
        return kept[1]
    columns = -(-call.seqlen_k // block_mask.BLOCK_SIZE[1])
    rows = -(-call.seqlen_q // block_mask.BLOCK_SIZE[0])
    partial_count, partial, full_count, full = lists.tensors
    assert partial_count is not None and partial is not None  # BlockMask sees to it
    states = _listed(partial_count, partial, columns) * _PARTIAL
    if full_count is not None and full is not None:
        states = torch.maximum(states, _listed(full_count, full, columns) * _FULL)
    states = states[(None,) * (4 - states.dim())]
    if states.shape[2] < rows:
        raise ValueError(f"block_mask: must list the blocks of {rows} rows, for seqlen_q (got {states.shape[2]})")
    _kept_states[block_mask] = lists, states
    return states


def _listed(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """u8 [..., rows, columns]: 1 where a row's list has a column among its first `counts`."""
    counted = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    places = torch.where(counted & (indices < columns), indices, columns).to(torch.int64)
    listed = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.uint8, device=indices.device)
    return listed.scatter_(-1, places, 1)[..., :columns]


# --- masks whose tables say what mask_mod says ---


class _Made(NamedTuple):
    """What a BlockMask was made of."""

    lists: _Seen
    text: str
    tables: _Seen


_made: weakref.WeakKeyDictionary[BlockMask, _Made] = weakref.WeakKeyDictionary()


def remember(block_mask: BlockMask, mask_mod: Traced) -> None:
    """The tables of `block_mask` are what its mask_mod, traced, says."""
    _made[block_mask] = _Made(_lists_of(block_mask), mask_mod.text, _seen(mask_mod.tables))


def _is_all_said(block_mask: BlockMask, mask_mod: Traced, call: Call) -> bool:
    """Whether mask_mod alone says it all: the tables are of it, and of every sequence and head that it tells apart."""
    made = _made.get(block_mask)
    if made is None or made.text != mask_mod.text or len(made.tables.tensors) != len(mask_mod.tables):
        return False
    if not (made.lists.are_still(_lists_of(block_mask)) and made.tables.are_still(_seen(mask_mod.tables))):
        return False
    sizes = zip(("b", "h"), block_mask.kv_num_blocks.shape[:2], call[:2])
    return all(
        size >= wanted or (size == 1 and not re.search(rf"\b{name}\b", mask_mod.text)) for name, size, wanted in sizes
    )
