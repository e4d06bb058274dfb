# The public functions of flash_attn 2.8 with its arguments and defaults, and the names in this module that programs
# and its tests reach for. What a call costs the host beside the operator counts: usual calls take the short way.
"""flash_attn.flash_attn_interface over Tilewise."""

from __future__ import annotations

from typing import Any, Optional, Union

from torch import Tensor

from tilewise import _torch
from tilewise._options import FORMS
from tilewise.compat.flash_attn import _attend, _kvcache, _refusals
from tilewise.compat.flash_attn import _raw as flash_attn_gpu
from tilewise.compat.flash_attn._attend import Stacked
from tilewise.compat.flash_attn._autograd import without_backward
from tilewise.compat.flash_attn._call import WHOLE, Packed, dense_rows
from tilewise.compat.flash_attn._operators import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_gpu",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

USE_TRITON_ROCM = False
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward
_FULL, _CAUSAL = FORMS[None, "bshd"], FORMS["causal", "bshd"]
_PAGED_BACKWARD = "flash_attn_varlen_func: there is no backward pass with block_table"


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """How many keys share a maximum in S_dmask: here all of a row do."""
    return 2**30


def _length(longest: Any) -> int:
    """A longest length that came as a tensor as a number; a compiler's symbol stays."""
    return int(longest) if isinstance(longest, Tensor) else longest


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [batch_size, seqlen_q, num_heads, head_dim] and k, v [batch_size, seqlen_k, num_heads_k, dim].

    All of one dtype: fp16 or bf16 as flash_attn takes them, fp32, or f64 on the CPU; head_dim up to 576, v's may be
    another. On the CPU or a GPU; any strides, those whose last dimension is not contiguous at the price of a copy.
    Causal masks and windows end at the last query and the last key.

    Args:
        dropout_p: Probability of dropping a weight, drawn with torch's default generator of the device.
        softmax_scale: None means 1/sqrt(head_dim).
        causal: Whether a query sees no key behind its own place.
        window_size: (left, right), numbers or a tensor; -1 is unbounded.
        softcap: Scores become softcap * tanh(score / softcap); 0 switches it off.
        alibi_slopes: f32 [num_heads] or [batch_size, num_heads].
        deterministic: The gradient of q is bit-reproducible too (k's and v's always are).
        return_attn_probs: Also return softmax_lse and S_dmask.

    Returns:
        out, as q with v's head_dim; or (out, softmax_lse, S_dmask): f32 [batch_size, num_heads, seqlen_q], +inf where
        a row sees nothing, and with dropout the weights with the sign of the dropped ones set, else an empty tensor.

    Raises:
        RuntimeError: flash_attn refuses the call, its kernels' own limits counting under TILEWISE_FLASH_ATTN_STRICT=1
            alone; the message begins with its words.
        ValueError, TypeError, NotImplementedError: Tilewise refuses it.
    """
    if (
        alibi_slopes is None
        and window_size is WHOLE
        and not deterministic
        and dropout_p == 0.0
        and softcap == 0.0
        and not _torch.compiling()
        and not _torch.transforming()
        and _torch.forward_ad._current_level < 0
        and _attend.takes_short_way(q, k, v)
    ):
        try:
            result = _torch.plain_attention(q, k, v, _CAUSAL if causal else _FULL, softmax_scale, return_attn_probs)
        except (RuntimeError, TypeError, ValueError):
            _refusals.dense(q, k, v, softcap, dropout_p, alibi_slopes)
            raise
        if not return_attn_probs:
            return result
        out, softmax_lse = result
        return _attend.with_nothing_dropped(q, k, out, softmax_lse, causal)
    tensors = dense_rows(q), dense_rows(k), dense_rows(v)
    return _attend.dense(
        tensors, None, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of qkv [batch_size, seqlen, 3, num_heads, head_dim], whose gradient is written in place."""
    stacked = Stacked(qkv, None)
    return _attend.dense(
        stacked.unstacked(), stacked, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of kv [batch_size, seqlen_k, 2, num_heads_k, head_dim], whose gradient is written in place."""
    stacked = Stacked(kv, q)
    return _attend.dense(
        stacked.unstacked(), stacked, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of qkv [total, 3, num_heads, head_dim]."""
    stacked = Stacked(qkv, None)
    sequences = Packed(cu_seqlens, cu_seqlens, _length(max_seqlen), _length(max_seqlen))
    return _attend.packed(
        stacked.unstacked(), stacked, sequences, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of kv [total_k, 2, num_heads_k, head_dim]."""
    stacked = Stacked(kv, q)
    sequences = Packed(cu_seqlens_q, cu_seqlens_k, _length(max_seqlen_q), _length(max_seqlen_k))
    return _attend.packed(
        stacked.unstacked(), stacked, sequences, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None,
) -> Any:
    """flash_attn_func of sequences one after the other: q [total_q, num_heads, head_dim], k, v [total_k, ...].

    Args:
        cu_seqlens_q, cu_seqlens_k: int32 [batch_size + 1], where sequences start.
        max_seqlen_q, max_seqlen_k: Longest sequences.
        block_table: int32 [batch_size, pages]; k and v are [num_pages, page_size, num_heads_k, head_dim] then, of any
            page_size, and there is neither dropout nor a backward pass.

    Returns, Raises:
        As flash_attn_func, softmax_lse being [num_heads, total_q].
    """
    sequences = Packed(cu_seqlens_q, cu_seqlens_k, _length(max_seqlen_q), _length(max_seqlen_k))
    if block_table is not None:
        out, softmax_lse, *_ = flash_attn_gpu.paged_fwd(
            q, k, v, None, sequences, block_table, alibi_slopes, dropout_p, softmax_scale, causal, window_size, softcap
        )
        out = without_backward(out, _PAGED_BACKWARD, q, k, v)
        return (out, softmax_lse, q.new_empty(0)) if return_attn_probs else out
    tensors = dense_rows(q), dense_rows(k), dense_rows(v)
    return _attend.packed(
        tensors, None, sequences, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Optional[Union[int, Tensor]] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = WHOLE,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Optional[Tensor] = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Appends k and v to the caches in place, rotated if tables are given, and attends over the caches.

    Args:
        q: [batch_size, seqlen_q, num_heads, head_dim], fp16, bf16 or fp32.
        k_cache, v_cache: [batch_size_cache, capacity, num_heads_k, head_dim], or with a block_table [num_pages,
            page_size, num_heads_k, head_dim] of any page_size; v_cache may have a head_dim of its own.
        k, v: New keys and values [batch_size, seqlen_new, num_heads_k, head_dim]; None: none.
        rotary_cos, rotary_sin: In q's dtype or fp32, [rows, rotary_dim / 2], with a row for every position.
        cache_seqlens: int or int32 [batch_size], places in use before the new keys; None: all.
        cache_batch_idx: int32 [batch_size], which sequence of the cache is whose.
        cache_leftpad: int32 [batch_size], places to skip at the start.
        block_table: int32 [batch_size, pages]. The longest sequence must fit, which waits for a GPU's cache_seqlens.
        rotary_interleaved: Pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2).
        num_splits: Parts of the keys that are computed side by side; 0 chooses.
        softmax_scale, causal, window_size, softcap, alibi_slopes: As flash_attn_func takes them.

    Returns:
        out, as q; or (out, softmax_lse). Neither has a graph: there is no backward pass.

    Raises:
        AssertionError: The last dimension of a cache is not contiguous.
        RuntimeError, ValueError, TypeError, NotImplementedError: As flash_attn_func.
    """
    assert k_cache.stride(-1) == 1, "k_cache must have contiguous last dimension"
    assert v_cache.stride(-1) == 1, "v_cache must have contiguous last dimension"
    return _kvcache.attend(
        dense_rows(q), k_cache, v_cache, None if k is None else dense_rows(k), None if v is None else dense_rows(v),
        rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, softmax_scale, causal,
        window_size, softcap, rotary_interleaved, alibi_slopes, num_splits, return_softmax_lse,
    )  # fmt: skip
