# What torch.utils.flop_counter counts of our operators. It counts as it does of torch's own attention: products of
# matrices alone, each multiplication and addition as one, of all rows and keys of a sequence, whatever a mask, a window
# or a bias hides; five products in a backward pass, whichever gradients it is asked for.
"""FLOP formulas of the torch operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tilewise._options import Options, Short, form_parts
from tilewise._torch.private import has_values

_AXES = {"bshd": (0, 1, 2), "sbhd": (1, 0, 2), "bhsd": (0, 2, 1)}  # batch, rows, heads
_ops: Any = torch.ops.tilewise


def _values(tensor: Optional[Tensor]) -> Optional[list[int]]:
    """The numbers in a tensor, read as torch's own formulas read lengths; None where it has none, as when traced."""
    if tensor is None or not has_values(tensor):
        return None
    values: list[int] = tensor.tolist()
    return values


def _lengths_of(offsets: Tensor, longest: int) -> list[int]:
    """Lengths of packed sequences; where they are not known, each is the longest, as in torch's formulas."""
    values = _values(offsets)
    if values is None:
        return [longest] * (offsets.shape[0] - 1)
    return [end - start for start, end in zip(values, values[1:])]


def _scores(q: Tensor, k: Tensor, options: Any) -> tuple[int, int]:
    """(heads, scores of a head over the whole batch)."""
    if options.layout != "thd":
        batch, rows, heads = _AXES[options.layout]
        keys = k.shape[rows] if options.key_indices is None else options.key_indices.shape[-1]
        return int(q.shape[heads]), int(q.shape[batch] * q.shape[rows] * keys)
    if options.key_indices is not None:
        return int(q.shape[1]), int(q.shape[0] * options.key_indices.shape[-1])
    longest_q, longest_k = options.max_seqlen_q or q.shape[0], options.max_seqlen_k or k.shape[0]
    pairs = zip(_lengths_of(options.cu_seqlens_q, longest_q), _lengths_of(options.cu_seqlens_k, longest_k))
    return int(q.shape[1]), sum(rows * keys for rows, keys in pairs)


def _flops(q: Tensor, k: Tensor, v: Tensor, options: Any, products: tuple[int, int]) -> int:
    """`products`: how many run over head_dim and over head_dim_v."""
    heads, scores = _scores(q, k, options)
    return 2 * heads * scores * int(products[0] * q.shape[-1] + products[1] * v.shape[-1])


def _options(rest: tuple[Any, ...], others: dict[str, Any]) -> Any:
    """Options of an operator with all of them, or of an overload that begins with a form."""
    if (rest and type(rest[0]) is int) or "form" in others:
        form, *tail = (*rest, *others.values())
        if len(tail) > 1 and not isinstance(tail[1], str):  # that one is a score_mod
            return Short(form, *tail).options()
        return Options(causal=form_parts(form)[0], layout=form_parts(form)[1])
    return Options(*rest, **others)


@register_flop_formula(_ops.attention_forward, get_raw=True)
def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any, out_val: Any = None, **others: Any) -> int:
    """Q Kᵀ and P V."""
    return _flops(q, k, v, _options(rest, others), (1, 1))


@register_flop_formula(_ops.attention_forward_out, get_raw=True)
def forward_out(q: Tensor, k: Tensor, v: Tensor, out: Tensor, *rest: Any, out_val: Any = None, **others: Any) -> int:
    return forward(q, k, v, *rest, **others)


@register_flop_formula(_ops.attention_backward, get_raw=True)
def backward(dout: Tensor, dlse: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, *rest: Any,
             out_val: Any = None, **others: Any) -> int:  # fmt: skip
    """Q Kᵀ again, dS K and dSᵀ Q over head_dim; dO Vᵀ and Pᵀ dO over head_dim_v."""
    if type(rest[0]) is bool:
        return _flops(q, k, v, _options(rest[5:], others), (3, 2))
    before = 2 if len(rest) > 1 and type(rest[1]) is bool else 1  # needed; of functions deterministic too
    return _flops(q, k, v, _options(rest[before:] or (0,), others), (3, 2))


@register_flop_formula(_ops.attention_backward_out, get_raw=True)
def backward_out(dout: Tensor, dlse: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                 dq: Any, dk: Any, dv: Any, *rest: Any, out_val: Any = None, **others: Any) -> int:  # fmt: skip
    return _flops(q, k, v, _options(rest, others), (3, 2))


def _named(operator: Any, args: tuple[Any, ...], others: dict[str, Any]) -> dict[str, Any]:
    """The arguments of whichever overload was called, by name. None of these operators has defaults."""
    for overload in operator.overloads():
        names = [argument.name for argument in getattr(operator, overload)._schema.arguments]
        if len(names) == len(args) + len(others):
            return {**dict(zip(names, args)), **others}
    raise TypeError(f"{operator}: no overload takes {len(args) + len(others)} arguments")


def _new_keys(given: dict[str, Any], batch_size: int) -> list[int]:
    k = given["k"]
    if k is None:
        return [0] * batch_size
    if k.dim() == 4:
        return [int(k.shape[1])] * batch_size
    own: Optional[Tensor] = given.get("cu_seqlens_k_new")
    offsets: Tensor = given["cu_seqlens_q"] if own is None else own
    return _lengths_of(offsets, given.get("max_seqlen_k_new") or k.shape[0])


def _cached_keys(given: dict[str, Any], batch_size: int) -> Iterable[int]:
    """Keys of each sequence before the new ones; the cache's capacity where the lengths are not known."""
    k_cache, block_table = given["k_cache"], given["block_table"]
    capacity = int(k_cache.shape[1]) * (1 if block_table is None else int(block_table.shape[1]))
    lengths = _values(given["cache_seqlens"])
    if lengths is None:
        number = given.get("cache_seqlen")
        lengths = [capacity if number is None else number] * batch_size
    padding = _values(given.get("cache_leftpad")) or [0] * batch_size
    places = _values(given.get("cache_batch_idx")) or [0] * batch_size
    return (length - skipped if place >= 0 else -capacity for length, skipped, place in zip(lengths, padding, places))


def _kv_cache(given: dict[str, Any]) -> int:
    q, offsets = given["q"], given.get("cu_seqlens_q", given["q"])
    packed = q.dim() == 3
    rows = _lengths_of(offsets, given["max_seqlen_q"] or q.shape[0]) if packed else [q.shape[1]] * q.shape[0]
    keys = zip(rows, _cached_keys(given, len(rows)), _new_keys(given, len(rows)))
    scores = sum(count * max(cached + new, 0) for count, cached, new in keys)
    values = given.get("head_dim_v") if given["v_cache"] is None else given["v_cache"].shape[-1]
    return 2 * int(q.shape[-2]) * int(scores) * int(q.shape[-1] + (values or q.shape[-1]))


@register_flop_formula(_ops.kv_cache_attention, get_raw=True)
def kv_cache_attention(*args: Any, out_val: Any = None, **others: Any) -> int:
    """Q Kᵀ and P V over the keys that each sequence has with the new ones."""
    return _kv_cache(_named(_ops.kv_cache_attention, args, others))


@register_flop_formula(_ops.kv_cache_attention_out, get_raw=True)
def kv_cache_attention_out(*args: Any, out_val: Any = None, **others: Any) -> int:
    return _kv_cache(_named(_ops.kv_cache_attention_out, args, others))
