# What the layers written in torch's own operations share: they compute in fp32, or in f64 where the input is f64, and
# round once at the end.
"""Helpers of layers, modules, losses and ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the dtype that a layer computes in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def alone(process_group: Any) -> bool:
    """Whether nobody shares the work: there is no group of processes, or one of one process."""
    return process_group is None or torch.distributed.get_world_size(process_group) == 1


def refuse(name: str, expectation: str, actual: Any) -> NotImplementedError:
    """The error for an option that Tilewise's stand-in for flash_attn cannot honour."""
    return NotImplementedError(f"{name}: must be {expectation} in Tilewise's flash_attn (got {actual})")
