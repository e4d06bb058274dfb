# torch's scaled_dot_product_attention over Tilewise. The usual call is handed on at once; what is
# refused there, or is of another shape, goes the careful way, which adapts it or says what is wrong.
"""torch.nn.functional.scaled_dot_product_attention: the same signature, the same meaning.

``scaled_dot_product_attention`` is the function. ``routed`` is a context manager (or decorator) in which torch's own
goes to it wherever Tilewise honours the call; every other call is torch's as before. ``RoutedCalls`` says how many
went which way, and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._arguments import flag, number
from tilewise._attention import attention
from tilewise._public import lists_public_names
from tilewise.compat._names import REFUSALS, renamed
from tilewise.compat._sdpa_routing import LeftToTorch, RefusedCall, RoutedCalls, routed, serve

__all__ = ["LeftToTorch", "RoutedCalls", "routed", "scaled_dot_product_attention"]
__dir__ = lists_public_names(__all__)

_NAMES = {"q": "query", "k": "key", "v": "value", "bias": "attn_mask", "softmax_scale": "scale"}
_attend: Callable[..., Tensor] = attention
_compiling = torch.compiler.is_compiling


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, on Tilewise.

    Args:
        query: [..., num_heads_q, seqlen_q, head_dim], of two dimensions or more, f32, bf16 or f16; on the CPU f64 too.
        key: [..., num_heads_k, seqlen_k, head_dim]. Dimensions before seqlen broadcast.
        value: [..., num_heads_v, seqlen_k, head_dim_v]; num_heads_v is num_heads_k but with enable_gqa.
        attn_mask: Broadcastable to [..., num_heads_q, seqlen_q, seqlen_k], never expanded: bool, where True takes
            part, or f32 or the dtype of query, which is added to the scores and may require a gradient.
        dropout_p: Probability in [0, 1], rounded to a multiple of 2^-16, of dropping a weight. The seed is drawn with
            torch's generator of query's device.
        is_causal: Query i sees keys 0 to i (the diagonal is at the top left), and of those what attn_mask lets it see,
            as torch has it on the CPU.
        scale: Any finite number; None means 1/sqrt(head_dim).
        enable_gqa: num_heads_k and num_heads_v may be divisors of num_heads_q, each its own: the fewer ones are
            repeated in memory up to their least common multiple. Without it heads broadcast, as the rest does.

    Returns:
        [..., num_heads_q, seqlen_q, head_dim_v], stored heads first or rows first as query is. Rows that see no key
        are 0.

    Raises:
        RuntimeError, TypeError, ValueError: The call is wrong; the message names the argument.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    if isinstance(query, Tensor) and not _compiling():  # a compiler takes the way that needs no refusal to go on
        try:
            shape_q, shape_k = query.shape, key.shape
            heads_fit = len(shape_q) == 4 and (enable_gqa is True or (enable_gqa is False and shape_q[1] == shape_k[1]))
            if heads_fit and (is_causal is False or is_causal is True) and not query.is_nested:
                mask = None
                if is_causal:  # where both lengths are the same the usual mask means the same, and is quicker
                    mask = "causal" if shape_q[2] == shape_k[2] else "causal_top_left"
                if attn_mask is None:
                    if dropout_p == 0.0:
                        return _attend(query, key, value, mask=mask, softmax_scale=scale, layout="bhsd")
                    if 0.0 < dropout_p < 1.0:
                        return _attend(
                            query, key, value, mask=mask, softmax_scale=scale, layout="bhsd", dropout_p=dropout_p
                        )
                elif attn_mask.dim() >= 2 and 0.0 <= dropout_p < 1.0:
                    return _attend(
                        query, key, value, mask=mask, softmax_scale=scale, layout="bhsd", bias=attn_mask,
                        dropout_p=dropout_p,
                    )  # fmt: skip
        except (AttributeError, *REFUSALS):
            pass
    return _careful(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _careful(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor],
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    enable_gqa: Any,
) -> Tensor:
    """scaled_dot_product_attention() of a call of whatever kind: told apart, adapted or refused."""
    _check_types(query=query, key=key, value=value)
    if attn_mask is not None and not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask: must be a tensor or None (got {type(attn_mask).__name__})")
    is_causal, enable_gqa = flag("is_causal", is_causal), flag("enable_gqa", enable_gqa)
    dropout_p = number("dropout_p", dropout_p)
    if not 0.0 <= dropout_p <= 1.0:
        raise RefusedCall(f"dropout_p: must be between 0 and 1 (got {dropout_p})")
    mask = "causal_top_left" if is_causal else None
    options = {
        "mask": mask,
        "softmax_scale": scale,
        "layout": "bhsd",
        "dropout_p": 0.0 if dropout_p == 1.0 else dropout_p,
    }
    if query.is_nested:
        if attn_mask is not None:
            raise RefusedCall("attn_mask: must be None beside nested tensors (got a tensor)")
        return _attention(query, key, value, options)
    q, k, v, lead = _aligned(query, key, value, enable_gqa)
    if attn_mask is not None:
        options["bias"] = _bias(attn_mask, query, lead)
    out = _attention(q, k, v, options)
    rank = max(query.dim(), key.dim(), value.dim())
    sizes = (*lead, *out.shape[1:])
    out = out.reshape(sizes[len(sizes) - rank :])
    return out * 0.0 if dropout_p == 1.0 else out  # every weight is dropped: zeros, NaN where one would be


def _attention(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    try:
        return _attend(q, k, v, **options)
    except REFUSALS as error:
        raise renamed(error, _NAMES) from None


def _check_types(**tensors: Any) -> None:
    for position, (name, tensor) in enumerate(tensors.items(), 1):
        if not isinstance(tensor, Tensor):  # torch's words
            raise TypeError(
                f"scaled_dot_product_attention(): argument '{name}' (position {position}) must be Tensor, "
                f"not {type(tensor).__name__}"
            )
    query, key, value = tensors.values()
    if len({tensor.is_nested for tensor in tensors.values()}) > 1:
        raise RefusedCall("query, key, value: must all be nested tensors or none of them")
    if query.is_nested:
        return
    for name, tensor in tensors.items():
        if tensor.dim() < 2:
            raise RefusedCall(f"{name}: must have at least 2 dimensions (got {tensor.dim()})")
    mixed = not query.dtype == key.dtype == value.dtype
    if mixed and not torch.is_autocast_enabled(query.device.type):  # torch's words
        raise RefusedCall(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {query.dtype} "
            f"key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if key.shape[-2] != value.shape[-2]:
        raise RefusedCall(f"value: must have as many positions as key, {key.shape[-2]} (got {value.shape[-2]})")


def _aligned(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """query, key and value as [batch_size, heads, seqlen, dim], and the dimensions that batch_size is made of."""
    rank = max(4, query.dim(), key.dim(), value.dim())
    tensors = [tensor[(None,) * (rank - tensor.dim())] for tensor in (query, key, value)]
    heads_q, heads_k, heads_v = (tensor.shape[-3] for tensor in tensors)
    if enable_gqa:
        if 0 in (heads_k, heads_v) or heads_q % heads_k != 0 or heads_q % heads_v != 0:
            raise RefusedCall(
                f"key, value: must each have a number of heads that divides query's {heads_q} (got {heads_k} and "
                f"{heads_v})"
            )
        common = math.lcm(heads_k, heads_v)
        tensors[1:] = (_repeated(tensor, common) for tensor in tensors[1:])
        heads: tuple[int, ...] = (heads_q, common, common)
    else:
        (common,) = _broadcast("heads", ((heads_q,), (heads_k,), (heads_v,)))
        shared = heads_k == heads_v == 1  # one key head for all of them needs no expansion
        heads = (common, *((1, 1) if shared else (common, common)))
    lead = _broadcast("dimensions before the heads", [tuple(tensor.shape[:-3]) for tensor in tensors])
    q, k, v = (
        _rows(tensor.expand(*lead, count, *tensor.shape[-2:])).flatten(0, -4) for tensor, count in zip(tensors, heads)
    )
    return q, k, v, lead


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    """[..., heads, seqlen, dim]: each head as often as it takes."""
    own = tensor.shape[-3]
    return tensor if own == heads else tensor.repeat_interleave(heads // own, -3)


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _broadcast(what: str, sizes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(*sizes))
    except RuntimeError:
        listed = ", ".join(str(list(size)) for size in sizes)
        raise RefusedCall(f"query, key, value: {what} must broadcast (got {listed})") from None


def _bias(attn_mask: Tensor, query: Tensor, lead: tuple[int, ...]) -> Tensor:
    """The mask with the dimensions before its heads, where it has any, as one."""
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):  # torch's words
        raise RefusedCall(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{attn_mask.dtype} and query.dtype: {query.dtype} instead."
        )
    if not 2 <= attn_mask.dim() <= len(lead) + 3:
        raise RefusedCall(f"attn_mask: must have at least 2 dimensions and no more than query (got {attn_mask.dim()})")
    if query.dtype == torch.float64 and attn_mask.dtype == torch.float32:
        attn_mask = attn_mask.to(torch.float64)
    if attn_mask.dim() <= 3 or len(lead) == 1:
        return attn_mask
    attn_mask = attn_mask[(None,) * (len(lead) + 3 - attn_mask.dim())]
    if any(size != 1 for size in attn_mask.shape[:-3]):
        try:
            attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-3:])
        except RuntimeError:
            raise RefusedCall(
                f"attn_mask: must broadcast to query's {list(lead)} before the heads (got {list(attn_mask.shape[:-3])})"
            ) from None
    return attn_mask.flatten(0, -4)


serve(scaled_dot_product_attention)
