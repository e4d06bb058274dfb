# docs/semantics.md in jax.numpy: what implementation="jax" computes, for derivatives that the kernels do not have.
"""Attention made of jax.numpy's operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tilewise.jax._calls import Call, forward_results

_TO_BHSD = {"bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3), "bhsd": (0, 1, 2, 3)}


def refuse(call: Call, q: Any) -> None:
    """NotImplementedError where a call is not one for this formula."""
    if call.options.layout == "thd":
        raise NotImplementedError('implementation: "jax" takes layouts bshd, sbhd and bhsd (got thd)')
    if call.options.dropout_p != 0.0:
        raise NotImplementedError(f'implementation: "jax" has no dropout (got dropout_p {call.options.dropout_p})')
    if call.functions is not None:
        raise NotImplementedError('implementation: "jax" takes no score_mod, mask_mod and block_mask (got some)')
    if q.dtype.itemsize == 1:
        raise NotImplementedError(f'implementation: "jax" takes f32, bf16, f16 and f64 (got {q.dtype.name})')


def _visible(call: Call, given: dict[str, Any], rows: int, keys: int) -> tuple[Any, Any, Any]:
    """Which scores count, which keys are used and |i + d - j|; [batch_size or 1, 1, rows or 1, keys]."""
    options = call.options
    per_sequence = (-1, 1, 1, 1)
    start = given["leftpad_k"].reshape(per_sequence) if "leftpad_k" in given else 0
    used_k = given["seqused_k"].reshape(per_sequence) if "seqused_k" in given else keys - start
    used_q = given["seqused_q"].reshape(per_sequence) if "seqused_q" in given else rows
    i = jnp.arange(rows).reshape(1, 1, rows, 1)
    j = jnp.arange(keys).reshape(1, 1, 1, keys) - start
    used = (j >= 0) & (j < used_k)
    distance = i + (0 if options.top_left else used_k - used_q) - j
    visible = used & (i < used_q)
    right = 0 if options.causal else options.window_right
    if options.window_left >= 0:
        visible &= distance <= options.window_left
    if right >= 0:
        visible &= distance >= -right
    return visible, used, abs(distance)


def _scores(call: Call, given: dict[str, Any], q: Any, k: Any, visible: Any, distance: Any) -> tuple[Any, Any]:
    """Scores before the softmax, and which of them it sees."""
    options = call.options
    scale = q.shape[-1] ** -0.5 if options.softmax_scale is None else options.softmax_scale
    scores = scale * jnp.einsum("bhid,bhjd->bhij", q, k, precision=jax.lax.Precision.HIGHEST)
    if options.softcap:
        scores = options.softcap * jnp.tanh(scores / options.softcap)
    if "bias" in given and given["bias"].dtype == jnp.bool_:
        visible = visible & given["bias"]
    elif "bias" in given:
        scores += given["bias"].astype(scores.dtype)
    if "alibi_slopes" in given:
        slopes = given["alibi_slopes"]
        scores -= slopes.reshape(-1, slopes.shape[-1], 1, 1) * distance
    return scores, visible & (scores != -jnp.inf)


def _times(given: dict[str, Any], group: int, keys: int) -> Any:
    """How often each key is selected, [batch_size, num_heads_q or 1, rows, keys]; 1 where none are."""
    if "key_indices" not in given:
        return 1
    indices = jnp.swapaxes(given["key_indices"], 1, 2)  # of heads, of rows
    start = given["leftpad_k"].reshape(-1, 1, 1, 1) if "leftpad_k" in given else 0
    places = jnp.where((indices >= 0) & (indices < keys - start), indices + start, keys)
    batch, head, row, _ = jnp.indices(places.shape, sparse=True)
    times = jnp.zeros((*places.shape[:3], keys + 1), jnp.int32).at[batch, head, row, places].add(1)[..., :keys]
    return jnp.repeat(times, group if times.shape[1] > 1 else 1, axis=1)


def _attend(call: Call, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    given = dict(zip(call.names, arrays))
    out, lse = forward_results(call, arrays)
    order = _TO_BHSD[call.options.layout]
    q, k, v = (jnp.transpose(given[name], order).astype(lse.dtype) for name in "qkv")
    group = q.shape[1] // max(k.shape[1], 1)
    visible, used, distance = _visible(call, given, q.shape[2], k.shape[2])
    used = jnp.swapaxes(used, -1, -2)  # what is not used may hold anything
    k, v = (jnp.repeat(jnp.where(used, array, 0), group, axis=1) for array in (k, v))
    scores, visible = _scores(call, given, q, k, visible, distance)
    times = _times(given, group, k.shape[2])
    visible = visible & (times > 0)
    scores = jnp.where(visible, scores, 0)
    top = jnp.max(jnp.where(visible, scores, -jnp.inf), axis=-1, keepdims=True, initial=-jnp.inf)
    sink = given["sink"].astype(lse.dtype).reshape(1, -1, 1, 1) if "sink" in given else -jnp.inf
    top = jnp.maximum(top, sink)
    top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
    weights = jnp.where(visible, times * jnp.exp(jnp.where(visible, scores - top, 0)), 0)
    total = weights.sum(axis=-1, keepdims=True) + (jnp.exp(sink - top) if "sink" in given else 0)
    some = total != 0
    total = jnp.where(some, total, 1)
    mean = jnp.einsum("bhij,bhjd->bhid", weights / total, v, precision=jax.lax.Precision.HIGHEST)
    back = [order.index(axis) for axis in range(4)]
    statistics = jnp.where(some, top + jnp.log(total), -jnp.inf)[..., 0]
    if "seqused_q" in given:
        rows = jnp.arange(q.shape[2]) < given["seqused_q"].reshape(-1, 1, 1)
        statistics, mean = jnp.where(rows, statistics, -jnp.inf), jnp.where(rows[..., None], mean, 0)
    return jnp.transpose(mean, back).astype(out.dtype), statistics


@functools.lru_cache(1024)
def formula(call: Call, return_lse: bool) -> Callable[..., Any]:
    """attention() as a function of call.names' arrays; its result is out, or (out, softmax_lse)."""

    def tilewise_attention_formula(*arrays: Any) -> Any:
        out, lse = _attend(call, arrays)
        return (out, lse) if return_lse else out

    return jax.jit(tilewise_attention_formula)
