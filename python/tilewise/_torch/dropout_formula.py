# The dropout map of docs/semantics.md in torch's integers, for the derivatives that come from torch's operations:
# they have to drop what the kernels drop.
"""Which weights dropout keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewise._options import Options

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _halves(factor: int, counter: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a product of 32-bit numbers; int64 wraps, and keeps all bits."""
    product = factor * counter
    return (product >> 32) & _LOW, product & _LOW


def _philox(counter: list[Tensor], key: list[Tensor]) -> list[Tensor]:
    for _ in range(10):
        high0, low0 = _halves(_MULTIPLIERS[0], counter[0])
        high1, low1 = _halves(_MULTIPLIERS[1], counter[2])
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(word + step) & _LOW for word, step in zip(key, _KEY_STEPS)]
    return counter


def _seed_and_offset(options: Options, device: Any) -> tuple[Tensor, Tensor]:
    if options.seed_and_offset is not None:
        return options.seed_and_offset[0], options.seed_and_offset[1]
    seed = (options.seed + 2**63) % 2**64 - 2**63
    return torch.tensor(seed, device=device), torch.tensor(0, device=device)


def keep_of(options: Options, row: Tensor, key: Tensor, batch_size: int, heads: int, first: int) -> Tensor:
    """[batch_size, heads, rows, keys]: which weights are kept, to grow by growth().

    `row` [rows, 1] and `key` [1, keys] or [batch_size, 1, 1, keys] are places in the used part, of sequences
    `first` and on. Keys outside of it get any value.
    """
    key = key.clamp(min=0)
    blocks = (int(key.shape[-1]) + 31) // 32
    seed, offset = _seed_and_offset(options, row.device)
    words = [seed & _LOW, ((seed >> 32) ^ (offset >> 32)) & _LOW]
    heads_of = torch.arange(first * heads, (first + batch_size) * heads, device=row.device)
    fields = (
        torch.arange(4 * blocks, device=row.device),
        row,
        (heads_of & _LOW).view(batch_size, heads, 1, 1),
        offset & _LOW,
    )
    shape = (batch_size, heads, row.shape[0], 4 * blocks)
    drawn = torch.stack(_philox([field.expand(shape) for field in fields], words), -1)
    # [.., block, eight's pair, word of the block's eights] and halves, to the order of the keys
    halves = torch.stack((drawn & 0xFFFF, drawn >> 16), -1).unflatten(3, (blocks, 4))
    draws = halves.transpose(-2, -3).flatten(3)
    chosen = draws.gather(3, key.expand(batch_size, heads, row.shape[0], key.shape[-1]))
    kept: Tensor = chosen >= _threshold(options)
    return kept


def _threshold(options: Options) -> int:
    return int(min(options.dropout_p * 65536 + 0.5, 65535))


def growth(options: Options) -> float:
    """What kept weights are multiplied by."""
    return 65536 / (65536 - _threshold(options))
