"""What layers of experts and linear layers share whose weights are computed with as a checkpoint stores them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import tilewise

__all__ = ["DTYPES", "loading_bytes", "problem_text", "refusal"]

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def problem_text(operation: str, device: str, **fields: Any) -> str:
    """A call as problem text; device: as torch names its type."""
    if device != "cpu":
        fields["device"] = "hip" if torch.version.hip else device
    return f"{operation} " + " ".join(f"{name}={value}" for name, value in fields.items())


def refusal(problem: str) -> str | None:
    """Why no implementation computes a problem; None where one does."""
    explained = tilewise.explain(problem)
    if explained.chosen is not None:
        return None
    return "; ".join(dict.fromkeys(f"{row.implementation}: {row.reason}" for row in explained.rows))


def loading_bytes(loader: Callable[..., Any]) -> Callable[..., Any]:
    """A loader of scales in e8m0, which would otherwise be copied as the numbers that they are."""

    @functools.wraps(loader)
    def load(parameter: torch.Tensor, loaded: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        if loaded.is_floating_point():
            loaded = loaded.to(torch.float8_e8m0fnu).view(torch.uint8)
        return loader(parameter, loaded, *arguments, **more)

    return load
