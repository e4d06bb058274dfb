# Calls of scaled_dot_product_attention, shared with tests/gpu.
"""Shapes, masks and options of torch's scaled_dot_product_attention."""

from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class Case(NamedTuple):
    q: tuple[int, ...] = (2, 4, 7, 16)
    k: tuple[int, ...] = (2, 4, 11, 16)
    v: Optional[tuple[int, ...]] = None  # k's
    mask: Optional[Callable[[], torch.Tensor]] = None
    options: dict[str, Any] = {}  # noqa: RUF012 (never written)


def _bools(*shape: int) -> Callable[[], torch.Tensor]:
    def draw() -> torch.Tensor:
        mask = torch.rand(shape) < 0.7
        mask[..., 0, :] = False  # a row that sees nothing, or where the row is one, nothing at all
        return mask

    return draw


def _numbers(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape)


def _infinite() -> torch.Tensor:
    return torch.randn(7, 11).masked_fill(torch.rand(7, 11) < 0.4, -torch.inf)


GQA = {"enable_gqa": True}
CASES = {
    "plain": Case(),
    "causal": Case(k=(2, 4, 7, 16), options={"is_causal": True}),
    "causal_more_keys": Case(options={"is_causal": True}),
    "causal_more_queries": Case(q=(2, 4, 13, 16), options={"is_causal": True}),
    "scale": Case(options={"scale": 0.7}),
    "scale_integer": Case(options={"scale": 1}),
    "scale_negative": Case(options={"scale": -0.3}),
    "gqa": Case(k=(2, 2, 11, 16), options=GQA),
    "gqa_causal": Case(k=(2, 1, 11, 16), options={**GQA, "is_causal": True}),
    "gqa_of_one": Case(options=GQA),
    "gqa_three_dimensions": Case(q=(4, 7, 16), k=(2, 11, 16), options=GQA),
    "gqa_five_dimensions": Case(q=(2, 3, 4, 7, 16), k=(2, 3, 2, 11, 16), options=GQA),
    "gqa_broadcast_batch": Case(k=(1, 2, 11, 16), options=GQA),
    "value_dim": Case(v=(2, 4, 11, 24)),
    "two_dimensions": Case(q=(7, 16), k=(11, 16)),
    "three_dimensions": Case(q=(3, 7, 16), k=(3, 11, 16), mask=_bools(3, 7, 11)),
    "five_dimensions": Case(q=(2, 3, 4, 7, 16), k=(2, 3, 4, 11, 16), options={"is_causal": True}),
    "different_dimensions": Case(k=(4, 11, 16)),
    "broadcast_batch": Case(k=(1, 4, 11, 16)),
    "broadcast_heads": Case(k=(2, 1, 11, 16)),
    "broadcast_value": Case(v=(1, 1, 11, 16)),
    "broadcast_query": Case(q=(1, 1, 7, 16)),
    "mask": Case(mask=_bools(2, 4, 7, 11)),
    "mask_two_dimensions": Case(mask=_bools(7, 11)),
    "mask_of_keys": Case(mask=_bools(2, 1, 1, 11)),
    "mask_of_queries": Case(mask=_bools(7, 1)),
    "mask_of_heads": Case(mask=_bools(4, 7, 11)),
    "mask_gqa": Case(k=(2, 2, 11, 16), mask=_bools(2, 1, 7, 11), options=GQA),
    "mask_five_dimensions": Case(q=(2, 3, 4, 7, 16), k=(2, 3, 4, 11, 16), mask=_bools(3, 1, 7, 11)),
    "mask_five_of_one": Case(q=(2, 3, 4, 7, 16), k=(2, 3, 4, 11, 16), mask=_bools(1, 1, 4, 7, 11)),
    "numbers": Case(mask=_numbers(2, 4, 7, 11)),
    "numbers_broadcast": Case(mask=_numbers(4, 1, 11)),
    "numbers_infinite": Case(mask=_infinite),
    "numbers_five_dimensions": Case(q=(2, 3, 4, 7, 16), k=(2, 3, 4, 11, 16), mask=_numbers(2, 1, 4, 1, 11)),
    "no_keys": Case(k=(2, 4, 0, 16)),
    "no_queries": Case(q=(2, 4, 0, 16)),
    "no_batch": Case(q=(0, 4, 7, 16), k=(0, 4, 11, 16)),
}


def draw(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """[query, key, value] and, where the case has one, the mask: f32 where it is numbers."""
    torch.manual_seed(sum(map(ord, name)))
    case = CASES[name]
    tensors = [torch.randn(shape).to(dtype) for shape in (case.q, case.k, case.v or case.k)]
    return tensors if case.mask is None else [*tensors, case.mask()]


def call_of(function: Any, name: str) -> Any:
    """function(query, key, value[, mask]) with the case's options."""
    return lambda *tensors: function(*tensors, **CASES[name].options)


def by_formula(*args: Any, **options: Any) -> torch.Tensor:
    """torch's own function as the plain formula."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*args, **options)
