# The KV cache step. Like attention(), these functions bring their arguments to one form and hand over to the module of
# the arrays' kind.
"""kv_cache_attention and append_kv."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from tilewise import _attention, _core
from tilewise._arguments import flag, implementation_name, integer, is_number, named, number, window_pair
from tilewise._arrays import block_mask_options, borrow, borrow_optional, cupy_stream, empty_for, once_written
from tilewise._attention import _is_torch, _load_torch_backend
from tilewise._functions import score_functions
from tilewise._keywords import check_keywords, keywords_of, with_known_keywords
from tilewise._threads import torch_threads
from tilewise._types import Array, ArrayT, CacheMask, ScoreFunction

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tilewise._types import KvCacheOptions

_MASKS: dict[Optional[str], bool] = {None: False, "causal": True}
# The arrays among the options, in the order of the torch operators, which is the core's.
ARRAYS = (
    "cu_seqlens_q",
    "cu_seqlens_k_new",
    "k_scale",
    "v_scale",
    "rotary_cos",
    "rotary_sin",
    "rotary_seqlens",
    "cache_seqlens",
    "cache_batch_idx",
    "cache_leftpad",
    "block_table",
    "slots",
    "alibi_slopes",
    "sink",
    "key_indices",
)


def in_order(**arrays: Any) -> tuple[Any, ...]:
    """Arrays by their names as a tuple in the order of ARRAYS, None where there is none."""
    if unknown := arrays.keys() - set(ARRAYS):
        raise TypeError(f"arrays: must be among {', '.join(ARRAYS)} (got {', '.join(sorted(unknown))})")
    return tuple(map(arrays.get, ARRAYS))


def _with_short_way(careful: Callable[..., Any]) -> Callable[..., Any]:
    """kv_cache_attention() with a short way, at half the cost, for what a serving engine passes: torch tensors, and no
    rarer options.

    It answers unknown keywords too, for `careful`.
    """
    known = keywords_of(careful)

    @functools.wraps(careful)
    def kv_cache_attention(
        q: Any,
        k_cache: Any,
        v_cache: Any,
        k: Any = None,
        v: Any = None,
        *,
        cache_seqlens: Any = None,
        block_table: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        mask: Any = None,
        softmax_scale: Any = None,
        **options: Any,
    ) -> Any:
        torch = _attention._torch_backend
        if (
            not options
            and torch is not None
            and not torch.compiling()  # first, as the one that a compiler which looks on understands
            and (mask is None or (isinstance(mask, str) and mask == "causal"))
            and torch.kv_cache.is_plain(q, k_cache, v_cache, (k, v, cache_seqlens, block_table, rotary_cos, rotary_sin))
        ):
            if softmax_scale is not None:
                softmax_scale = number("softmax_scale", softmax_scale)
            return torch.kv_cache.plain_attend(
                q, k_cache, v_cache, k, v, cache_seqlens, block_table, rotary_cos, rotary_sin, mask is not None,
                softmax_scale,
            )  # fmt: skip
        check_keywords("kv_cache_attention", options, known)
        return careful(
            q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, block_table=block_table, rotary_cos=rotary_cos,
            rotary_sin=rotary_sin, mask=mask, softmax_scale=softmax_scale, **options,
        )  # fmt: skip

    return kv_cache_attention


@overload
def kv_cache_attention(
    q: ArrayT,
    k_cache: Array,
    v_cache: Optional[Array],
    k: Optional[Array] = ...,
    v: Optional[Array] = ...,
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[KvCacheOptions],
) -> ArrayT: ...
@overload
def kv_cache_attention(
    q: ArrayT,
    k_cache: Array,
    v_cache: Optional[Array],
    k: Optional[Array] = ...,
    v: Optional[Array] = ...,
    *,
    return_lse: Literal[True],
    **options: Unpack[KvCacheOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def kv_cache_attention(
    q: ArrayT,
    k_cache: Array,
    v_cache: Optional[Array],
    k: Optional[Array] = ...,
    v: Optional[Array] = ...,
    *,
    return_lse: bool,
    **options: Unpack[KvCacheOptions],
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...
@_with_short_way
def kv_cache_attention(
    q: ArrayT,
    k_cache: Array,
    v_cache: Optional[Array],
    k: Optional[Array] = None,
    v: Optional[Array] = None,
    *,
    rotary_cos: Optional[Array] = None,
    rotary_sin: Optional[Array] = None,
    rotary_interleaved: bool = False,
    rotary_seqlens: Optional[Array] = None,
    rotary_offset: int = 0,
    cache_seqlens: Optional[Union[int, Array]] = None,
    cache_batch_idx: Optional[Array] = None,
    cache_leftpad: Optional[Array] = None,
    block_table: Optional[Array] = None,
    cu_seqlens_q: Optional[Array] = None,
    max_seqlen_q: Optional[int] = None,
    cu_seqlens_k_new: Optional[Array] = None,
    head_dim_v: Optional[int] = None,
    mask: CacheMask = None,
    window: tuple[int, int] = (-1, -1),
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[ScoreFunction] = None,
    block_mask: Optional[object] = None,
    sink: Optional[Array] = None,
    key_indices: Optional[Array] = None,
    k_scale: Optional[Union[float, Array]] = None,
    v_scale: Optional[Union[float, Array]] = None,
    num_splits: int = 0,
    batch_invariant: bool = False,
    return_lse: bool = False,
    out: Optional[Array] = None,
    implementation: Optional[str] = None,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]:
    """One step of a serving engine: rotate q and k, append k and v to the caches in place, attend over the caches.

    It equals append_kv() followed by the same call without k and v. The full definition is in docs/semantics.md,
    "KV cache step". There is no backward pass.

    Args:
        q: [batch_size, seqlen_q, num_heads_q, head_dim], f32, bf16 or f16; or packed [total_q, num_heads_q, head_dim]
            with cu_seqlens_q.
        k_cache, v_cache: [batch_size_cache, capacity, num_heads_k, head_dim], or with a block_table pages
            [num_pages, page_size, num_heads_k, head_dim]; v_cache with head_dim_v. Both q's dtype, or fp8 e4m3.
            v_cache None: the values are the first head_dim_v columns of the keys.
        k, v: New keys and values, [batch_size, seqlen_k_new, num_heads_k, head_dim] or packed as q is; None: none.
        rotary_cos, rotary_sin: f32 or q's dtype, [rows, rotary_dim / 2]. New keys and queries are rotated.
        rotary_interleaved: Pairs are (2i, 2i + 1), not (i, i + rotary_dim / 2).
        rotary_seqlens: int32 [batch_size], position of the first new key; None: cache_seqlens.
        rotary_offset: First dimension that is rotated.
        cache_seqlens: int32 [batch_size] or an integer, places in use before the new keys; None without k: all.
        cache_batch_idx: int32 [batch_size], which sequence of the cache is whose; -1: none.
        cache_leftpad: int32 [batch_size], places to skip at the start.
        block_table: int32 [batch_size, max_pages_per_seq]. Entries that no key needs may hold anything.
        cu_seqlens_q: int32 [batch_size + 1], where sequences of packed q (and k) start.
        max_seqlen_q: Longest of them; None: total_q.
        cu_seqlens_k_new: Likewise for k and v; None: cu_seqlens_q.
        head_dim_v: With v_cache None, how many columns of the keys are values.
        mask: None or "causal", aligned bottom right.
        window: Keys visible to the (left, right) of the diagonal; -1 is unbounded.
        softmax_scale, softcap, alibi_slopes, sink: As attention() takes them.
        score_mod, mask_mod: Likewise, but of positions: kv_idx counts a sequence's keys, and q_idx is the key that the
            query stands at (its last query at the last key), so that q_idx >= kv_idx is the causal mask.
        block_mask: As attention() takes it, instead of mask_mod, of positions likewise: its seqlen_q and seqlen_k are
            the places that the cache has of a sequence (its capacity, page_size * max_pages_per_seq of pages).
        key_indices: As attention() takes it: places of a sequence, whatever its pages are.
        k_scale, v_scale: Of fp8 caches: a number, or f32 of no dimension, [num_heads_k], [batch_size, num_heads_k], or
            of the cache's shape without head_dim; the last are computed and written where keys are appended.
        num_splits: Parts of the keys that are computed side by side; 0: chosen from shapes.
        batch_invariant: A sequence's result does not depend on what else is in the batch.
        return_lse: Also return softmax_lse, f32 [batch_size, num_heads_q, seqlen_q], packed [num_heads_q, total_q].
        out: Where to write; None: a new array.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.

    Returns:
        out, shaped like q with head_dim_v as the last dimension and in q's dtype; or (out, softmax_lse).

    Raises:
        ValueError, TypeError: An argument is wrong; on the CPU nothing has been written then.
        NotImplementedError: No implementation accepts the call, or a tensor requires gradients.

    Example, two sequences of 5 and 0 tokens in pages of 4, which decode a token each:
        >>> import numpy as np
        >>> k_cache, v_cache = np.zeros((6, 4, 2, 8), np.float32), np.zeros((6, 4, 2, 8), np.float32)
        >>> lengths = np.array([5, 0], np.int32)
        >>> table = np.array([[3, 1], [4, -1]], np.int32)  # -1: an entry that no key needs
        >>> q, k, v = np.ones((2, 1, 4, 8), np.float32), *np.ones((2, 2, 1, 2, 8), np.float32)
        >>> out = tilewise.kv_cache_attention(
        ...     q, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, mask="causal"
        ... )
        >>> out.shape, int(v_cache[1, 1].sum()), int(v_cache[4, 0].sum())
        ((2, 1, 4, 8), 16, 16)
    """
    values = _scalars(rotary_interleaved, rotary_offset, cache_seqlens, k_scale, v_scale, head_dim_v)
    left, right = window_pair(window)
    values |= {
        "causal": named("mask", mask, _MASKS),
        "window_left": left,
        "window_right": right,
        "softmax_scale": None if softmax_scale is None else number("softmax_scale", softmax_scale),
        "softcap": number("softcap", softcap),
        "num_splits": integer("num_splits", num_splits),
        "batch_invariant": flag("batch_invariant", batch_invariant),
        "max_seqlen_q": None if max_seqlen_q is None else integer("max_seqlen_q", max_seqlen_q),
    }
    arrays = _without_numbers(
        values, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_seqlens=rotary_seqlens,
        cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
        block_table=block_table, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new, k_scale=k_scale,
        v_scale=v_scale, alibi_slopes=alibi_slopes, sink=sink, key_indices=key_indices,
    )  # fmt: skip
    return_lse = flag("return_lse", return_lse)
    implementation = implementation_name(implementation)
    if (functions := score_functions(score_mod, mask_mod, block_mask)) is not None:
        values |= functions._asdict()
    backend = _load_torch_backend().kv_cache.attend if _is_torch(q) else _attend_arrays
    result: Union[ArrayT, tuple[ArrayT, ArrayT]]
    result = backend(q, k_cache, v_cache, k, v, arrays, values, out, return_lse, implementation)
    return result


@with_known_keywords
def append_kv(
    k_cache: Array,
    v_cache: Optional[Array],
    k: Array,
    v: Optional[Array],
    *,
    cache_seqlens: Optional[Union[int, Array]] = None,
    slots: Optional[Array] = None,
    cu_seqlens_k_new: Optional[Array] = None,
    max_seqlen_k_new: Optional[int] = None,
    rotary_cos: Optional[Array] = None,
    rotary_sin: Optional[Array] = None,
    rotary_interleaved: bool = False,
    rotary_seqlens: Optional[Array] = None,
    rotary_offset: int = 0,
    cache_batch_idx: Optional[Array] = None,
    cache_leftpad: Optional[Array] = None,
    block_table: Optional[Array] = None,
    k_scale: Optional[Union[float, Array]] = None,
    v_scale: Optional[Union[float, Array]] = None,
    implementation: Optional[str] = None,
) -> None:
    """Appends k and v to the caches in place, as kv_cache_attention() does before it attends.

    Args:
        k_cache, v_cache, cache_seqlens, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens,
            rotary_offset, cache_batch_idx, cache_leftpad, block_table, k_scale, v_scale: As kv_cache_attention()
            takes them.
        k, v: [batch_size, seqlen_k_new, num_heads_k, head_dim], or packed [total_k_new, num_heads_k, head_dim], which
            are one sequence without cu_seqlens_k_new. v is None where v_cache is.
        slots: int32 or int64, one for each new token: page * page_size + place, or -1 for a token to skip. They stand
            in for cache_seqlens and block_table.
        max_seqlen_k_new: Longest of packed sequences; None: total_k_new.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.

    Raises:
        ValueError, TypeError, NotImplementedError: As kv_cache_attention().

    Example, a prompt of three tokens, the second of them padding, in pages of 4:
        >>> import numpy as np
        >>> k_cache, v_cache = np.zeros((6, 4, 2, 8), np.float32), np.zeros((6, 4, 2, 8), np.float32)
        >>> k, v = np.ones((2, 3, 2, 8), np.float32)
        >>> tilewise.append_kv(k_cache, v_cache, k, v, slots=np.array([13, -1, 14]))
        >>> np.flatnonzero(k_cache[..., 0, 0]).tolist()
        [13, 14]
    """
    values = _scalars(rotary_interleaved, rotary_offset, cache_seqlens, k_scale, v_scale, None)
    if max_seqlen_k_new is not None:
        values["max_seqlen_k_new"] = integer("max_seqlen_k_new", max_seqlen_k_new)
    arrays = _without_numbers(
        values, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_seqlens=rotary_seqlens,
        cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
        block_table=block_table, slots=slots, cu_seqlens_k_new=cu_seqlens_k_new, k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip
    implementation = implementation_name(implementation)
    if _is_torch(k):
        _load_torch_backend().kv_cache.append(k_cache, v_cache, k, v, arrays, values, implementation)
    else:
        _append_arrays(k_cache, v_cache, k, v, arrays, values, implementation)


def _without_numbers(values: dict[str, Any], **arrays: Any) -> tuple[Any, ...]:
    """`arrays`, in the order of ARRAYS, but for those in whose place `values` has a number."""
    for name, number_name in (
        ("cache_seqlens", "cache_seqlen"),
        ("k_scale", "k_scale_value"),
        ("v_scale", "v_scale_value"),
    ):
        if number_name in values:
            arrays[name] = None
    return in_order(**arrays)


def _scalars(
    interleaved: Any, offset: Any, cache_seqlens: Any, k_scale: Any, v_scale: Any, head_dim_v: Any
) -> dict[str, Any]:
    """The options that are no arrays; of those that may be either, the numbers."""
    values: dict[str, Any] = {
        "rotary_interleaved": flag("rotary_interleaved", interleaved),
        "rotary_offset": integer("rotary_offset", offset),
    }
    if head_dim_v is not None:
        values["head_dim_v"] = integer("head_dim_v", head_dim_v)
    if is_number(cache_seqlens):
        values["cache_seqlen"] = integer("cache_seqlens", cache_seqlens)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if is_number(scale):
            values[f"{name}_value"] = number(name, scale)
    return values


def core_options(arrays: tuple[Any, ...], values: dict[str, Any], writes_scales: bool) -> _core.KvCacheOptions:
    """The core's options, with the arrays borrowed; scales per token are written where keys are appended."""
    views: dict[str, Any] = {
        name: borrow_optional(name, array, writes_scales and name.endswith("_scale") and len(array.shape) == 3)
        for name, array in zip(ARRAYS, arrays)
        if array is not None
    }
    return _core.KvCacheOptions(**views, **borrow_captured(values, borrow))


def borrow_captured(values: dict[str, Any], borrow_one: Callable[[str, Any], Any]) -> dict[str, Any]:
    """`values` with the tensors that functions look up and those of a block mask, if any, borrowed."""
    if "tables" not in values:
        return values
    values = dict(values)
    values["tables"] = [borrow_one(f"table{i}", table) for i, table in enumerate(values["tables"])]
    return values | block_mask_options(values.pop("block_mask"), borrow_one)


def out_shape(q: Any, v_cache: Any, values: dict[str, Any]) -> tuple[int, ...]:
    """q's with head_dim_v; the core says what is wrong with a q or v_cache without dimensions."""
    dim = values.get("head_dim_v", 1) if v_cache is None else (tuple(v_cache.shape) or (1,))[-1]
    return (*tuple(q.shape)[:-1], max(int(dim), 0))


def lse_shape(q: Any) -> tuple[int, ...]:
    """[batch_size, num_heads_q, seqlen_q], or packed [num_heads_q, total_q]."""
    shape = tuple(q.shape)
    return (shape[0], shape[2], shape[1]) if len(shape) == 4 else (shape[1], shape[0]) if len(shape) == 3 else (0,)


def _attend_arrays(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    arrays: tuple[Any, ...],
    values: dict[str, Any],
    out: Any,
    return_lse: bool,
    implementation: Optional[str],
) -> Any:
    appends = k is not None
    view = borrow("q", q)
    caches = borrow("k_cache", k_cache, appends), borrow_optional("v_cache", v_cache, appends)
    options = core_options(arrays, values, appends)
    fresh = out is None
    if fresh:
        out, out_view = empty_for(q, out_shape(view, caches[1], values), view.dtype, view)
    else:
        out_view = borrow("out", out, writable=True)
    lse, lse_view = empty_for(q, lse_shape(view), "f32", view) if return_lse else (None, None)
    stream = cupy_stream(q)
    _core.kv_cache_attention(
        view, *caches, borrow_optional("k", k), borrow_optional("v", v), out_view, lse_view, options,
        implementation or "", torch_threads(), fresh, stream or 0,
    )  # fmt: skip
    if stream is None:
        _core.synchronize(out_view)
    if fresh:
        out = once_written(q, out, out_view)
    return out if lse_view is None else (out, once_written(q, lse, lse_view))


def _append_arrays(
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    arrays: tuple[Any, ...],
    values: dict[str, Any],
    implementation: Optional[str],
) -> None:
    caches = borrow("k_cache", k_cache, writable=True), borrow_optional("v_cache", v_cache, writable=True)
    options = core_options(arrays, values, writes_scales=True)
    stream = cupy_stream(k)
    view = borrow("k", k)
    _core.append_kv(*caches, view, borrow_optional("v", v), options, implementation or "", torch_threads(), stream or 0)
    if stream is None:
        _core.synchronize(view)
