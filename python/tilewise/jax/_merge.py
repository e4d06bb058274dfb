# merge() for JAX, by its formula: XLA fuses these few operations by itself, and JAX differentiates them.
"""merge for JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import jax
import jax.numpy as jnp

from tilewise._arguments import LAYOUTS, flag, named
from tilewise._keywords import with_known_keywords

if TYPE_CHECKING:
    from tilewise._types import Layout

_ROWS = {"bshd": (0, 2, 1), "sbhd": (2, 0, 1), "bhsd": (0, 1, 2), "thd": (1, 0)}  # of an lse, in out's order


@with_known_keywords
def merge(
    outs: Sequence[Any],
    lses: Sequence[Any],
    sink: Optional[Any] = None,
    *,
    layout: Layout = "bshd",
    return_lse: bool = True,
) -> Any:
    """Joins partial results of the same queries over disjoint keys, each computed without the sink.

    Args:
        outs: Results of attention(), at least one: a list or tuple of arrays, or one stacked array [parts, ...].
        lses: Their softmax_lse, in the same order; stacked where outs are.
        sink: f32 or dtype of the result, [num_heads_q]; joins the denominator here, once.
        layout: As attention() took it.
        return_lse: Also return softmax_lse.

    Returns:
        out in the shape and dtype of the first part; or (out, softmax_lse).

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it, what was expected and what came.
    """
    order = _ROWS[named("layout", layout, LAYOUTS)]
    if len(outs) == 0 or len(outs) != len(lses):
        raise ValueError(f"lses: must be as many as outs, at least one (got {len(lses)} and {len(outs)})")
    for i, (out, lse) in enumerate(zip(outs, lses)):
        for name, part, first in ((f"outs[{i}]", out, outs[0]), (f"lses[{i}]", lse, lses[0])):
            if part.shape != first.shape:
                raise ValueError(f"{name}: must have shape {list(first.shape)} (got {list(part.shape)})")
        if out.ndim != len(order) + 1 or tuple(lse.shape[axis] for axis in order) != out.shape[:-1]:
            raise ValueError(f"lses[{i}]: must be the softmax_lse of outs[{i}] in layout {layout}, {list(out.shape)} "
                             f"(got {list(lse.shape)})")  # fmt: skip
    return_lse = flag("return_lse", return_lse)
    parts = jnp.stack([jnp.asarray(lse) for lse in lses])
    heads = 0 if layout == "thd" else 1
    own = -jnp.inf
    if sink is not None:
        if sink.shape != (parts.shape[1 + heads],):
            raise ValueError(f"sink: must have shape [{parts.shape[1 + heads]}] (got {list(sink.shape)})")
        own = jnp.asarray(sink).astype(parts.dtype).reshape(-1, *[1] * (parts.ndim - 2 - heads))
    top = jnp.maximum(parts.max(axis=0), own)
    top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
    seen = parts != -jnp.inf
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, parts - top, 0)), 0)
    total = weights.sum(axis=0) + (0 if sink is None else jnp.exp(own - top))
    some = total != 0
    total = jnp.where(some, total, 1)
    weights = jnp.transpose(weights / total, (0, *(1 + axis for axis in order)))[..., None]
    out = sum(jnp.where(w != 0, w * jnp.asarray(part), 0) for w, part in zip(weights, outs))
    out = jnp.asarray(out).astype(outs[0].dtype)
    return (out, jnp.where(some, top + jnp.log(total), -jnp.inf)) if return_lse else out
