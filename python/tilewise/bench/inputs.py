"""The tensors of a case: one seeded draw, rounded to the dtype, as torch tensors or NumPy arrays.

Every library gets these same tensors, and the reference the same rounded values in float64.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise.bench.reference import Array
from tilewise.bench.shapes import Case

TORCH_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
NUMPY_DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64}  # NumPy has no bf16


def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


@dataclass(frozen=True)
class Inputs:
    """q, k, v and dout in the case's layout: torch tensors where torch is installed, else NumPy arrays."""

    q: Any
    k: Any
    v: Any
    dout: Any


def make_inputs(case: Case, seed: int | None = 0) -> Inputs:
    """Standard normal values, contiguous in the case's layout, on its device.

    With None for the seed, torch tensors that nothing has been written to.
    """
    shape = case.shape
    generator = np.random.default_rng(seed)

    def draw(seqlen: int, num_heads: int) -> Any:
        sizes = (shape.batch_size, seqlen, num_heads, shape.head_dim)
        if case.layout == "bhsd":
            sizes = (sizes[0], sizes[2], sizes[1], sizes[3])
        if seed is None:
            return _uninitialised(sizes, case)
        return _native(generator.standard_normal(sizes, dtype=np.float32), case)

    query_side, key_side = (shape.seqlen_q, shape.num_heads_q), (shape.seqlen_k, shape.num_heads_k)
    return Inputs(q=draw(*query_side), k=draw(*key_side), v=draw(*key_side), dout=draw(*query_side))


def poisoned_like(tensor: Any) -> Any:
    """A tensor of the same kind filled with NaN: what a kernel forgets to write stays visible."""
    if isinstance(tensor, np.ndarray):
        return np.full_like(tensor, np.nan)
    import torch

    return torch.full_like(tensor, float("nan"))


def to_reference(tensor: Any, layout: str) -> Array:
    """float64 [batch, heads, seqlen, head_dim] of a tensor or array."""
    values = tensor if isinstance(tensor, np.ndarray) else tensor.detach().double().cpu().numpy()
    values = np.asarray(values, dtype=np.float64)
    return values.swapaxes(1, 2) if layout == "bshd" else values


def _native(values: np.ndarray[Any, np.dtype[np.float32]], case: Case) -> Any:
    if not has_torch():
        return values.astype(NUMPY_DTYPES[case.dtype])
    import torch

    return torch.from_numpy(values).to(case.torch_device, getattr(torch, TORCH_DTYPES[case.dtype]))


def _uninitialised(sizes: tuple[int, ...], case: Case) -> Any:
    import torch

    return torch.empty(sizes, device=case.torch_device, dtype=getattr(torch, TORCH_DTYPES[case.dtype]))
