# Block masks: which blocks of scores are computed at all. Made of a mask_mod, or taken from torch's own.
"""block_mask and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tilewise import _arrays, _core

_TORCHS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


class BlockMask(NamedTuple):
    """Which blocks of queries and keys are visible. Those that it does not list are hidden.

    Attributes:
        mask_mod: Which scores of a listed block that is not full are visible: as attention() takes it, or None for all.
        counts: int32 [batch_size or 1, num_heads_q or 1, rows of blocks]: how many blocks each row of blocks lists.
        indices: int32 [.., columns of blocks]: which ones, in any order.
        full_counts, full_indices: Likewise those that are visible whole, of which mask_mod is not asked; or None.
        block_size: Queries and keys of a block, multiples of 16.
    """

    mask_mod: Any
    counts: Any
    indices: Any
    full_counts: Any = None
    full_indices: Any = None
    block_size: tuple[int, int] = (128, 128)

    def arrays(self) -> list[Any]:
        """What the core takes."""
        lists = [self.counts, self.indices]
        return lists if self.full_counts is None else [*lists, self.full_counts, self.full_indices]


def block_mask(
    mask_mod: Union[str, Callable[..., object]],
    seqlen_q: int,
    seqlen_k: int,
    *,
    batch_size: Optional[int] = None,
    num_heads: Optional[int] = None,
    block_size: Union[int, tuple[int, int]] = 128,
    device: object = None,
) -> BlockMask:
    """The BlockMask of a mask_mod.

    By bounds of what it computes over blocks, and score by score where these leave it open: the mask of all scores is
    never there. The work is the CPU's.

    Args:
        mask_mod: Whether a key is visible: as attention() takes it.
        seqlen_q, seqlen_k: Numbers of queries and keys.
        batch_size, num_heads: Sequences and query heads that mask_mod tells apart; None where it speaks of none.
        block_size: Queries and keys of a block, or one number for both: multiples of 16.
        device: Where torch tensors are made; None makes NumPy arrays.

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it, what was expected and what came.
    """
    from tilewise._functions import traced_function

    text, tables = traced_function("mask_mod", mask_mod)
    rows, keys = (block_size, block_size) if isinstance(block_size, int) else block_size
    for name, size in (
        ("block_size", rows),
        ("block_size", keys),
        ("batch_size", batch_size),
        ("num_heads", num_heads),
    ):
        if size is not None and size < 1:
            raise ValueError(f"{name}: must be at least 1 (got {size})")
    lists = (batch_size or 1, num_heads or 1, -(-seqlen_q // rows))
    shapes = (lists, (*lists, -(-seqlen_k // keys)))
    made = [np.zeros(shape, np.int32) for shape in (*shapes, *shapes)]
    _core.write_block_mask(
        text,
        [_arrays.borrow(f"table{i}", _on_host(table)) for i, table in enumerate(tables)],
        batch_size or 0,
        num_heads or 0,
        seqlen_q,
        seqlen_k,
        rows,
        keys,
        [_arrays.borrow("outputs", array, writable=True) for array in made],
    )
    if device is not None:
        import torch

        made = [torch.from_numpy(array).to(device) for array in made]  # type: ignore[call-overload]
    counts, indices, full_counts, full_indices = made
    return BlockMask(mask_mod, counts, indices, full_counts, full_indices, (rows, keys))


def _on_host(table: Any) -> Any:
    return table.detach().cpu() if hasattr(table, "detach") else table


def taken(given: Any) -> BlockMask:
    """A BlockMask of ours, or torch's own as one."""
    if isinstance(given, BlockMask):
        return given
    if not all(hasattr(given, name) for name in (*_TORCHS, "BLOCK_SIZE", "mask_mod")):
        raise TypeError(f"block_mask: must be a BlockMask of tilewise or of torch (got {type(given).__name__})")
    rows, keys = given.BLOCK_SIZE
    counts, indices, full_counts, full_indices = (getattr(given, name) for name in _TORCHS)
    return BlockMask(given.mask_mod, counts, indices, full_counts, full_indices, (rows, keys))
