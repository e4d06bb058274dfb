# What bounds of blocks begin with: the same tensors for every call on blocks of the same sizes.
"""Tensors that calls of block_mask() on a device share."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=device)


def variable(axis: int, size: int, block: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The least and the greatest of an axis in each of its blocks, and flipped."""
    first = torch.arange(0, size, block, device=device)
    shape = [2] + [-1 if axis == each else 1 for each in range(4)]
    ends, flipped = both_ways(first, (first + (block - 1)).clamp(max=size - 1))
    return ends.reshape(shape), flipped.reshape(shape)


def both_ways(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends of intervals, and flipped, in one piece of memory."""
    both = torch.stack((high, low, high))
    return both.narrow(0, 1, 2), both.narrow(0, 0, 2)


def unknown(device: torch.device) -> Tensor:
    """Never throughout, perhaps anywhere."""
    return torch.arange(2, device=device).reshape(2, 1, 1, 1, 1) == 1


@functools.lru_cache(maxsize=64)
def _kept(make: Any, sizes: tuple[int, ...], device: torch.device, stream: int) -> Any:
    return make(*sizes, device=device)


class Constants:
    """What is made on a device once for calls on a stream: on others it might not be there yet."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # What a graph makes is there once it runs.
        self.keeps = device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
        self.stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" and self.keeps else 0

    def made(self, make: Any, *sizes: int) -> Any:
        return _kept(make, sizes, self.device, self.stream) if self.keeps else make(*sizes, device=self.device)
