# Block masks: which blocks of scores are computed at all. Made of a mask_mod, or taken from torch's own.
"""block_mask and its result."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tilewise import _arrays, _core
from tilewise._types import ScoreFunction

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
    mask_mod: ScoreFunction,
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
    never there. The work is the CPU's; on a GPU, where `device` and all captured tensors are, it is the GPU's, nothing
    waits for it, and blocks that bounds leave open are listed as visible in part, of which mask_mod is asked anyway.

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
    sizes = (batch_size or 0, num_heads or 0, seqlen_q, seqlen_k, rows, keys)
    if device is not None and seqlen_q > 0 and seqlen_k > 0:
        import torch

        on = torch.device(device)  # type: ignore[call-overload]
        if on.type != "cpu" and all(getattr(table, "device", None) == _indexed(on) for table in tables):
            return _by_bounds(mask_mod, text, tables, sizes, on)
    made = _written(text, [_on_host(table) for table in tables], sizes)
    if device is not None:
        import torch

        made = [torch.from_numpy(array).to(device) for array in made]  # type: ignore[call-overload]
    counts, indices, full_counts, full_indices = made
    return BlockMask(mask_mod, counts, indices, full_counts, full_indices, (rows, keys))


def _written(text: str, tables: list[Any], sizes: tuple[int, ...]) -> list[Any]:
    """The core's lists of batch_size, num_heads, seqlen_q, seqlen_k, rows and keys of a block; of arrays on the CPU."""
    batch_size, num_heads, seqlen_q, seqlen_k, rows, keys = sizes
    lists = (batch_size or 1, num_heads or 1, -(-seqlen_q // rows))
    shapes = (lists, (*lists, -(-seqlen_k // keys)))
    made = [np.zeros(shape, np.int32) for shape in (*shapes, *shapes)]
    borrowed = [_arrays.borrow(f"table{i}", table) for i, table in enumerate(tables)]
    outputs = [_arrays.borrow("outputs", array, writable=True) for array in made]
    _core.write_block_mask(text, borrowed, batch_size, num_heads, seqlen_q, seqlen_k, rows, keys, outputs)
    return made


def _indexed(device: Any) -> Any:
    """The device of a tensor that is made there."""
    import torch

    return device if device.index is not None else torch.device(device.type, torch.accelerator.current_device_index())


def _by_bounds(mask_mod: Any, text: str, tables: Any, sizes: tuple[int, ...], device: Any) -> BlockMask:
    from tilewise import _block_mask_bounds as bounds

    _check(text, tuple((table.dtype, table.dim()) for table in tables), sizes)
    batch_size, num_heads, *others = sizes
    blocks = bounds.Blocks(batch_size or 1, num_heads or 1, *others)
    of_lists = bounds.listed(bounds.states(text, tables, blocks, device))
    (full_counts, counts), (full_indices, indices) = (both.unbind() for both in of_lists)
    return BlockMask(mask_mod, counts, indices, full_counts, full_indices, (blocks.rows, blocks.keys))


@functools.lru_cache(maxsize=64)
def _check(text: str, tables: tuple[tuple[Any, int], ...], sizes: tuple[int, ...]) -> None:
    """The core's checks, of tables by their dtype and rank: of no queries and keys it reads nothing."""
    import torch

    batch_size, num_heads, _, _, rows, keys = sizes
    _written(text, [torch.zeros([1] * rank, dtype=dtype) for dtype, rank in tables],
             (batch_size, num_heads, 0, 0, rows, keys))  # fmt: skip


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
