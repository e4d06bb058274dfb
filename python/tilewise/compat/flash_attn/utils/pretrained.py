# flash_attn.utils.pretrained: the weights of a checkpoint of Hugging Face's, by transformers and safetensors.
"""state_dict_from_pretrained."""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
from torch import Tensor

__all__ = ["state_dict_from_pretrained"]


def _names() -> tuple[tuple[str, bool], ...]:
    """(name, whether it is an index of several files) of the files that may hold weights, in the order of choice."""
    from transformers import utils

    return (
        (utils.WEIGHTS_NAME, False),
        (utils.WEIGHTS_INDEX_NAME, True),
        (utils.SAFE_WEIGHTS_NAME, False),
        (utils.SAFE_WEIGHTS_INDEX_NAME, True),
    )


def _files(model_name: str) -> list[str]:
    """Paths of the files that hold a checkpoint's weights.

    Raises:
        OSError: There is no such checkpoint.
    """
    from transformers.utils.hub import cached_file, get_checkpoint_shard_files

    for name, is_index in _names():
        path = os.path.join(model_name, name)
        if os.path.isdir(model_name):
            found = path if os.path.isfile(path) else None
        else:
            found = cached_file(model_name, name, _raise_exceptions_for_missing_entries=False)
        if found is not None and is_index:
            shards, _ = get_checkpoint_shard_files(model_name, found)
            return list(shards)
        if found is not None:
            return [found]
    raise OSError(f"model_name: must be a folder or a model with weights (got {model_name!r})")


def _loaded(path: str, device: Any) -> dict[str, Tensor]:
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return dict(load_file(path, device=str(device)))
    return dict(torch.load(path, map_location=device, weights_only=True))


def state_dict_from_pretrained(
    model_name: str, device: Any = None, dtype: Optional[torch.dtype] = None
) -> dict[str, Tensor]:
    """The weights of a checkpoint.

    Args:
        model_name: A folder, or a name on the hub.
        device: Where they go; None: the CPU.
        dtype: What they become, before they go there; None: they stay as they are.

    Raises:
        OSError: There are none.
        ImportError: transformers or safetensors is not installed.
    """
    device = torch.device("cpu" if device is None else device)
    straight = dtype in (None, torch.float32)
    weights: dict[str, Tensor] = {}
    for path in _files(model_name):
        weights |= _loaded(path, device if straight else torch.device("cpu"))
    return {name: tensor.to(dtype=dtype).to(device=device) for name, tensor in weights.items()}
