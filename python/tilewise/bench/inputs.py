"""The tensors of a case: one seeded draw, rounded to the dtype, as torch tensors or NumPy arrays.

Every library gets these same tensors, and the reference the same rounded values in float64.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise.bench.reference import Array
from tilewise.bench.shapes import Case

TORCH_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "fp8_e4m3": "float8_e4m3fn"}
NUMPY_DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64}  # NumPy has no bf16 and no fp8

_A_TENTH_LIES_BELOW = -1.2816  # of normal values


def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


@dataclass(frozen=True)
class Inputs:
    """q, k, v and dout in the case's layout: torch tensors where torch is installed, else NumPy arrays.

    cu_seqlens is int32 and there only for packed sequences, whose tensors are [total, heads, head_dim]; so are bias
    [1, num_heads_q or 1, seqlen_q, seqlen_k] and alibi_slopes [num_heads_q] fp32 for cases that have them.
    """

    q: Any
    k: Any
    v: Any
    dout: Any
    cu_seqlens: Any = None
    bias: Any = None
    alibi_slopes: Any = None


def make_inputs(case: Case, seed: int | None = 0) -> Inputs:
    """Normal values, contiguous in the case's layout, on its device, which a GPU draws itself: standard ones, but for q
    and k of a case with a score_deviation.

    With None for the seed, torch tensors that nothing has been written to.
    """
    shape = case.shape
    draw_normal = _uninitialised(case) if seed is None else normal_values(seed, case.torch_device)

    def draw(seqlen: int, num_heads: int, columns: int, dtype: str, deviation: float = 1.0) -> Any:
        sizes: tuple[int, ...] = (shape.batch_size, seqlen, num_heads, columns)
        if case.lengths:
            sizes = (sum(case.lengths), num_heads, columns)
        elif case.layout == "bhsd":
            sizes = (sizes[0], sizes[2], sizes[1], sizes[3])
        values = draw_normal(sizes)
        return as_dtype(values if deviation == 1.0 else values * deviation, dtype)

    query_side, key_side = (shape.seqlen_q, shape.num_heads_q), (shape.seqlen_k, shape.num_heads_k)
    wide = math.sqrt(case.score_deviation)
    q, k = (draw(*side, shape.head_dim, case.dtype, wide) for side in (query_side, key_side))
    v = draw(*key_side, shape.value_columns, case.dtype)
    dout = draw(*query_side, shape.value_columns, case.out_dtype)
    return Inputs(q, k, v, dout, _starts(case), _bias(case, draw_normal), _alibi_slopes(case))


def normal_values(seed: int, device: str) -> Callable[[tuple[int, ...]], Any]:
    """Draws float32 of given sizes: NumPy arrays for the CPU without torch, else tensors."""
    if device == "cpu":
        generator = np.random.default_rng(seed)

        def draw(sizes: tuple[int, ...]) -> Any:
            values = generator.standard_normal(sizes, dtype=np.float32)
            return importlib.import_module("torch").from_numpy(values) if has_torch() else values

        return draw
    import torch

    on_device = torch.Generator(device).manual_seed(seed)
    return lambda sizes: torch.randn(sizes, generator=on_device, device=device, dtype=torch.float32)


def as_dtype(values: Any, dtype: str) -> Any:
    """A tensor or array, rounded."""
    if isinstance(values, np.ndarray):
        return values.astype(NUMPY_DTYPES[dtype])
    import torch

    return values.to(getattr(torch, TORCH_DTYPES[dtype]))


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


def _starts(case: Case) -> Any:
    """cu_seqlens of packed sequences."""
    if not case.lengths:
        return None
    import torch

    return torch.tensor((0, *case.lengths), device=case.torch_device).cumsum(0).to(torch.int32)


def _bias(case: Case, draw_normal: Callable[[tuple[int, ...]], Any]) -> Any:
    """Normal values; of booleans nine of ten are true."""
    if not case.bias:
        return None
    kind, _, dims = case.bias.rstrip("]").partition("[")
    shape = case.shape
    sizes = {"b": shape.batch_size, "h": shape.num_heads_q, "q": shape.seqlen_q, "k": shape.seqlen_k}
    values = draw_normal(tuple(sizes.get(dim, 1) for dim in dims.split(",")))
    if kind == "bool":
        return values > _A_TENTH_LIES_BELOW
    return as_dtype(values, case.dtype if kind == "query" else kind)


def _alibi_slopes(case: Case) -> Any:
    """2^(-8 (i + 1) / num_heads_q), as ALiBi's paper has them for powers of two."""
    if not case.alibi:
        return None
    import torch

    heads = case.shape.num_heads_q
    return torch.exp2(torch.arange(1, heads + 1, device=case.torch_device, dtype=torch.float32) * (-8.0 / heads))


def _uninitialised(case: Case) -> Callable[[tuple[int, ...]], Any]:
    import torch

    dtype = getattr(torch, TORCH_DTYPES[case.dtype])
    return lambda sizes: torch.empty(sizes, device=case.torch_device, dtype=dtype)
