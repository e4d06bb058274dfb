# Calls of scaled_dot_product_attention: each of its forms, then all pairs of options; shared with tests/gpu.
"""Shapes, masks and options of torch's scaled_dot_product_attention."""

from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from pairwise import pairwise
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
    "gqa_own_heads": Case(q=(2, 8, 7, 16), k=(2, 4, 11, 16), v=(2, 2, 11, 16), options=GQA),
    "gqa_more_values": Case(q=(2, 6, 7, 16), k=(2, 2, 11, 16), v=(2, 3, 11, 24), options={**GQA, "is_causal": True}),
    "gqa_own_heads_three_dimensions": Case(q=(4, 7, 16), k=(4, 11, 16), v=(1, 11, 16), options=GQA),
    "gqa_own_heads_mask": Case(
        q=(2, 4, 7, 16), k=(2, 1, 11, 16), v=(2, 4, 11, 16), mask=_bools(2, 4, 7, 11), options=GQA
    ),
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
    "mask_causal": Case(k=(2, 4, 7, 16), mask=_bools(2, 1, 7, 7), options={"is_causal": True}),
    "mask_causal_more_keys": Case(mask=_bools(4, 7, 11), options={"is_causal": True}),
    "mask_causal_five_dimensions": Case(
        q=(2, 3, 4, 7, 16), k=(2, 3, 4, 11, 16), mask=_bools(3, 1, 1, 11), options={"is_causal": True}
    ),
    "numbers_causal": Case(q=(2, 4, 13, 16), mask=_numbers(2, 4, 13, 11), options={"is_causal": True}),
    "no_keys": Case(k=(2, 4, 0, 16)),
    "no_queries": Case(q=(2, 4, 0, 16)),
    "no_batch": Case(q=(0, 4, 7, 16), k=(0, 4, 11, 16)),
}


_AXES: dict[str, list[Any]] = {
    "lead": [(2,), (2, 3), (1,)],  # dimensions before the heads
    "lengths": [(7, 11), (9, 9), (13, 4), (1, 20)],
    "heads": [(4, 4), (4, 2), (4, 1), (1, 1)],
    "dims": [(16, 16), (24, 8), (7, 16)],
    "mask": [
        None,
        "causal",
        "bool",
        "bool_keys",
        "bool_heads",
        "numbers",
        "numbers_keys",
        "infinite",
        "causal_numbers",
    ],
    "scale": [None, 0.5, -0.3],
    "rows_first": [False, True],
    "dtype": [torch.float32, torch.bfloat16, torch.float16, torch.float64],
}


def _mask(kind: str, lead: tuple[int, ...], heads: int, lengths: tuple[int, int]) -> Callable[[], torch.Tensor]:
    seqlen_q, seqlen_k = lengths
    kind = kind.removeprefix("causal_")
    shapes = {
        "bool": (*lead, heads, seqlen_q, seqlen_k),
        "bool_keys": (*lead, 1, 1, seqlen_k),
        "bool_heads": (heads, seqlen_q, seqlen_k),
        "numbers": (*lead, heads, seqlen_q, seqlen_k),
        "numbers_keys": (heads, 1, seqlen_k),
        "infinite": (seqlen_q, seqlen_k),
    }
    if kind.startswith("bool"):
        return lambda: torch.rand(shapes[kind]) < 0.7
    if kind == "infinite":
        return lambda: torch.randn(shapes[kind]).masked_fill(torch.rand(shapes[kind]) < 0.4, -torch.inf)
    return _numbers(*shapes[kind])


def _pair(lead: Any, lengths: Any, heads: Any, dims: Any, mask: Any, scale: Any, **rest: Any) -> tuple[Case, bool, Any]:
    q, k, v = (
        (*lead, h, n, d)
        for h, n, d in zip((heads[0], heads[1], heads[1]), (lengths[0], *lengths[1:] * 2), (dims[0], *dims))
    )
    options = {"scale": scale, "enable_gqa": heads[0] != heads[1], "is_causal": str(mask).startswith("causal")}
    drawn = None if mask in (None, "causal") else _mask(mask, lead, heads[0], lengths)
    return Case(q, k, v, drawn, options), rest["rows_first"], rest["dtype"]


# (case, whether rows are stored before heads, dtype) in which every two values meet.
PAIRS = {
    "-".join(str(value).replace("torch.", "") for value in values.values()): _pair(**values)
    for values in pairwise(_AXES, lambda values: True)
}


def draw(case: Case, dtype: torch.dtype, rows_first: bool = False) -> list[torch.Tensor]:
    """[query, key, value] and, where the case has one, the mask: f32 where it is numbers."""
    torch.manual_seed(sum(case.q) + sum(case.k))
    tensors = [torch.randn(shape).to(dtype) for shape in (case.q, case.k, case.v or case.k)]
    if rows_first:
        tensors = [tensor.transpose(-2, -3).contiguous().transpose(-2, -3) for tensor in tensors]
    return tensors if case.mask is None else [*tensors, case.mask()]


def call_of(function: Any, case: Case) -> Any:
    """function(query, key, value[, mask]) with the case's options."""
    return lambda *tensors: function(*tensors, **case.options)


def by_formula(*args: Any, **options: Any) -> torch.Tensor:
    """torch's own function as the plain formula, which takes a mask beside is_causal in one."""
    if len(args) > 3 and options.get("is_causal"):
        q, k, v, mask = args
        lower = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = mask & lower if mask.dtype == torch.bool else torch.where(lower, mask, -torch.inf)
        args, options = (q, k, v, mask), {**options, "is_causal": False}
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*args, **options)


def in_float64(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same with numbers in float64."""
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
