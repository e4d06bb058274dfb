# The function itself: what is wrong with a call, in its user's words, and what it is to tilewise.attention.
"""flex_attention()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

from tilewise._arguments import flag
from tilewise._attention import attention
from tilewise.compat._names import REFUSALS, renamed
from tilewise.compat._routing import RefusedCall
from tilewise.compat.flex_attention._block_mask import Call, visible
from tilewise.compat.flex_attention._functions import traced
from tilewise.compat.flex_attention._kernel_options import check_kernel_options

_NAMES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "bias": "block_mask",
    "mask_mod": "block_mask",
    "softmax_scale": "scale",
}
_attend: Callable[..., Any] = attention


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Optional[Callable[..., Tensor]] = None,
    block_mask: Optional[BlockMask] = None,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Optional[AuxRequest] = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, on Tilewise, with gradients on the CPU too.

    Functions are traced into expressions, as ``tilewise.expression.trace`` does it, again where what they capture may
    have changed. An index of a captured tensor that is negative counts from its end, as in torch's eager function; one
    beyond it, an error there, reads 0. Captured tensors have gradients too, but not through what a mask_mod or an index
    makes of them.

    Args:
        query: [batch_size, num_heads_q, seqlen_q, head_dim], f32, bf16 or f16; on the CPU f64 too.
        key: [batch_size, num_heads_k, seqlen_k, head_dim], of a batch_size of 1 beside a block_mask of query's too.
        value: [batch_size, num_heads_k, seqlen_k, head_dim_v].
        score_mod: A function (score, b, h, q_idx, kv_idx) that gives a score; one that can't be traced is refused.
        block_mask: torch's BlockMask. Blocks that it does not list are hidden, full ones visible, and others as its
            mask_mod says. A mask_mod that can't be traced is evaluated for every query and key at every call, up to
            2^28 of them. A block that is listed twice counts once.
        scale: Any finite number; None means 1/sqrt(head_dim).
        enable_gqa: num_heads_k may be a divisor of num_heads_q.
        return_lse: Also return the log-sum-exp, f32 (f64 where query is) [batch_size, num_heads_q, seqlen_q], -inf of
            rows that see nothing. Deprecated in torch in favour of return_aux.
        kernel_options: Options of torch's kernels. None of them changes what is computed, so all are ignored; an
            unknown one is refused.
        return_aux: AuxRequest; its max_scores are refused.

    Returns:
        [batch_size, num_heads_q, seqlen_q, head_dim_v], stored heads first or rows first as query is; or (out, lse),
        or (out, AuxOutput). Rows that see no key are 0.

    Raises:
        ValueError, TypeError, RuntimeError: The call is wrong; the message names the argument.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    enable_gqa, return_lse = flag("enable_gqa", enable_gqa), flag("return_lse", return_lse)
    _check_tensors(query, key, value, enable_gqa)
    _check_block_mask(block_mask, query, key)
    check_kernel_options(kernel_options)
    if return_aux is not None:
        if return_lse:
            raise ValueError("return_lse: must be False beside return_aux (got True)")
        if return_aux.max_scores:
            raise NotImplementedError("return_aux: max_scores must be False, no kernel keeps them (got True)")
    if key.shape[0] != query.shape[0]:
        key, value = (tensor.expand(query.shape[0], *tensor.shape[1:]) for tensor in (key, value))
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    if score_mod is None and block_mask is None:
        attend = _attend_plainly
    else:
        attend = _left_alone if torch.compiler.is_compiling() else _attend_by_functions
    result = attend(query, key, value, score_mod, block_mask, scale, wants_lse)
    if return_aux is None:
        return result
    out, lse = result if wants_lse else (result, None)
    return out, AuxOutput(lse=lse)


def _attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: Any, return_lse: bool
) -> Any:
    """Of a call whose score_mod and block_mask are None, which torch.compile takes into its graph."""
    return _attention(query, key, value, {"softmax_scale": scale, "return_lse": return_lse})


def _attend_by_functions(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: Any, return_lse: bool
) -> Any:
    options = {"softmax_scale": scale, "return_lse": return_lse}
    if score_mod is not None:
        options["score_mod"] = traced("score_mod", score_mod, query.device)
    if block_mask is not None:
        call = Call(query.shape[0], query.shape[1], query.shape[2], key.shape[2], query.device)
        options |= visible(block_mask, call)
        # Orders of adding up dq are what a torch that shall be deterministic goes by.
        if getattr(block_mask, "dq_write_order", None) is not None:
            options["deterministic"] = True
    return _attention(query, key, value, options)


# Opaque to torch.compile: what it would trace is itself a trace.
_left_alone: Any = torch.compiler.disable(_attend_by_functions, reason="it traces functions of scores itself")


def _attention(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    try:
        return _attend(query, key, value, layout="bhsd", **options)
    except REFUSALS as error:
        raise renamed(error, _NAMES) from error.__cause__


def _check_tensors(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: must be a torch tensor (got {type(tensor).__name__})")
        if tensor.is_nested:
            raise NotImplementedError(f"{name}: must not be a nested tensor")
        if tensor.dim() != 4:
            raise NotImplementedError(f"{name}: must have 4 dimensions (got {tensor.dim()})")
    heads_q, heads_k = query.shape[1], key.shape[1]
    if not enable_gqa and heads_q != heads_k:
        raise ValueError(f"key: must have query's {heads_q} heads without enable_gqa (got {heads_k})")
    if enable_gqa and (heads_k == 0 or heads_q % heads_k != 0):
        raise ValueError(f"key: must have a number of heads that divides query's {heads_q} (got {heads_k})")


def _check_block_mask(block_mask: Any, query: Tensor, key: Tensor) -> None:
    """As torch does, which wants one of another batch size beside keys of a batch of 1 alone."""
    batch_q, batch_k = query.shape[0], key.shape[0]
    if block_mask is None:
        if batch_q != batch_k:
            raise ValueError(f"key: must have query's batch size {batch_q} without a block_mask (got {batch_k})")
        return
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"block_mask: must be torch's BlockMask or None (got {type(block_mask).__name__})")
    if batch_q != batch_k and (batch_k != 1 or block_mask.kv_num_blocks.shape[0] != batch_q):
        raise ValueError(
            f"key: must have query's batch size {batch_q}, or 1 beside a block_mask of query's (got {batch_k} beside "
            f"{block_mask.kv_num_blocks.shape[0]})"
        )
    wanted = query.shape[2], key.shape[2]
    if tuple(block_mask.seq_lengths) != wanted:
        raise ValueError(f"block_mask: must be of seqlen_q and seqlen_k, {wanted} (got {block_mask.seq_lengths})")
    if block_mask.kv_num_blocks.device != query.device:
        raise RefusedCall(
            f"block_mask: must be on query's device {query.device} (got {block_mask.kv_num_blocks.device})"
        )
