# torch's create_block_mask in pieces: the mask of a whole problem is never there.
"""create_block_mask()."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import BlockMask, create_mask

from tilewise._arguments import flag
from tilewise.compat.flex_attention._block_mask import remember
from tilewise.compat.flex_attention._functions import traced
from tilewise.expression import TraceError

_PIECE = 2**24  # elements of the mask that are evaluated at once


@torch.compiler.disable  # type: ignore[untyped-decorator]
def create_block_mask(
    mask_mod: Callable[..., Tensor],
    B: Optional[int],  # noqa: N803
    H: Optional[int],  # noqa: N803
    Q_LEN: int,  # noqa: N803
    KV_LEN: int,  # noqa: N803
    device: Any = None,
    BLOCK_SIZE: Union[int, tuple[int, int]] = 128,  # noqa: N803
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """torch.nn.attention.flex_attention.create_block_mask: the same BlockMask, by pieces of the mask.

    Args:
        mask_mod: A function (b, h, q_idx, kv_idx) of whether the key is visible.
        B, H: Sequences and query heads that mask_mod tells apart; None is 1.
        Q_LEN, KV_LEN: Numbers of queries and keys.
        device: Where the mask is used; None is torch's accelerator, or the CPU.
        BLOCK_SIZE: Queries and keys of a block, or one number for both.
        _compile: No effect; nothing is compiled.
        separate_full_blocks: Whether blocks that are visible throughout are listed apart.
        compute_dq_write_order: Adds the orders that torch's own deterministic backward pass goes by. torch makes the
            whole BlockMask then.
        dq_kv_order: Of those orders.

    Raises:
        As torch's own.
    """
    flag("_compile", _compile)
    for name, size in (("B", B), ("H", H), ("Q_LEN", Q_LEN), ("KV_LEN", KV_LEN)):
        if size is not None and size < 1:
            raise ValueError(f"{name}: must be at least 1 (got {size})")
    if compute_dq_write_order:
        return torchs.create_block_mask(
            mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, False, separate_full_blocks, True, dq_kv_order
        )
    batch_size, num_heads = B or 1, H or 1
    rows, columns = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    counts = _visible_counts(mask_mod, (batch_size, num_heads, Q_LEN, KV_LEN), (rows, columns), torch.device(device))
    full = counts == rows * columns if separate_full_blocks else torch.zeros_like(counts, dtype=torch.bool)
    partial = (counts > 0) & ~full
    full_counts, full_indices = _lists(full) if separate_full_blocks else (None, None)
    counts, indices = _lists(partial)
    block_mask = BlockMask.from_kv_blocks(
        counts,
        indices,
        full_counts,
        full_indices,
        BLOCK_SIZE=(rows, columns),
        mask_mod=mask_mod,
        seq_lengths=(Q_LEN, KV_LEN),
    )
    with contextlib.suppress(NotImplementedError, TraceError):  # whoever uses it is told
        remember(block_mask, traced("mask_mod", mask_mod, block_mask.kv_indices.device))
    return block_mask


def _visible_counts(mask_mod: Any, sizes: tuple[int, ...], block: tuple[int, int], device: torch.device) -> Tensor:
    """[batch_size, num_heads, rows of blocks, columns of blocks]: how many elements of each block are visible."""
    batch_size, num_heads, seqlen_q, seqlen_k = sizes
    rows = block[0]
    of_rows = num_heads * rows * seqlen_k  # elements of one sequence's row of blocks
    sequences = max(1, min(batch_size, _PIECE // max(1, of_rows)))
    step = max(1, _PIECE // max(1, of_rows * sequences)) * rows
    pieces = []
    for first_b in range(0, batch_size, sequences):
        own = [
            _piece(mask_mod, (first_b, min(sequences, batch_size - first_b)), (first_q, min(step, seqlen_q - first_q)),
                   num_heads, seqlen_k, block, device)
            for first_q in range(0, seqlen_q, step)
        ]  # fmt: skip
        pieces.append(torch.cat(own, 2))
    return torch.cat(pieces)


def _piece(
    mask_mod: Any,
    sequences: tuple[int, int],
    queries: tuple[int, int],
    num_heads: int,
    seqlen_k: int,
    block: tuple[int, int],
    device: torch.device,
) -> Tensor:
    """_visible_counts() of some sequences and queries, each a first one and a number."""
    (first_b, number_b), (first_q, number_q) = sequences, queries

    def moved(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
        return mask_mod(b + first_b, h, q_idx + first_q, kv_idx)

    mask: Tensor = create_mask(moved, number_b, num_heads, number_q, seqlen_k, device)
    mask = torch.nn.functional.pad(mask, (0, -seqlen_k % block[1], 0, -number_q % block[0]))
    blocks: Tensor = mask.unflatten(3, (-1, block[1])).unflatten(2, (-1, block[0]))
    return blocks.sum((3, 5), dtype=torch.int64)


def _lists(listed: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row how many columns it lists, and these, before the others."""
    indices = torch.argsort(listed.to(torch.int32), dim=-1, descending=True, stable=True)
    return listed.sum(-1).to(torch.int32), indices.to(torch.int32)
