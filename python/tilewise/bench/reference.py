"""The float64 attention that every library is compared with, and the comparison.

Plain NumPy in [batch, heads, seqlen, head_dim], a block of query rows at a time, so that a
long sequence needs no seqlen_q x seqlen_k array. It shares no code with what it judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_BLOCK_ROWS = 512


@dataclass(frozen=True)
class Accuracy:
    """Distance of a result from the reference; `problem` is empty where the result is sound."""

    max_abs_err: float
    rel_l2_err: float
    problem: str = ""


# What a correct kernel in this dtype stays well below; a wrong one is far above.
# In fp8 weights are rounded to 3 bits, and results get small where thousands of values cancel.
REL_L2_LIMITS = {"f32": 1e-4, "bf16": 2e-2, "f16": 5e-3, "f64": 1e-12, "fp8_e4m3": 8e-2}


def attention_forward(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    """out of float64 q [b, hq, sq, d] on k, v [b, hk, sk, d or dv]; bottom-right alignment, scale 1/sqrt(d)."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, g, rows in _blocks(q, k):
        probabilities = _probabilities(q[b, h, rows], k[b, g], rows, q.shape[2], causal)
        out[b, h, rows] = probabilities @ v[b, g]
    return out


def attention_backward(q: Array, k: Array, v: Array, dout: Array, *, causal: bool) -> tuple[Array, Array, Array]:
    """dq, dk, dv; shapes as attention_forward()."""
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    scale = 1.0 / math.sqrt(q.shape[3])
    for b, h, g, rows in _blocks(q, k):
        p = _probabilities(q[b, h, rows], k[b, g], rows, q.shape[2], causal)
        dp = dout[b, h, rows] @ v[b, g].T
        ds = p * (dp - (p * dp).sum(axis=1, keepdims=True))
        dq[b, h, rows] = scale * (ds @ k[b, g])
        dk[b, g] += scale * (ds.T @ q[b, h, rows])
        dv[b, g] += p.T @ dout[b, h, rows]
    return dq, dk, dv


def compare(results: list[Array], references: list[Array], dtype: str) -> Accuracy:
    """The worst of each error over the pairs. NaN, infinity and errors past the dtype's limit are problems."""
    if len(results) != len(references):
        return Accuracy(math.nan, math.nan, f"{len(results)} results instead of {len(references)}")
    max_abs_err = rel_l2_err = 0.0
    for result, reference in zip(results, references):
        if result.shape != reference.shape:
            return Accuracy(math.nan, math.nan, f"shape {result.shape} instead of {reference.shape}")
        bad = int(np.count_nonzero(~np.isfinite(result)))
        if bad:
            return unwritten(bad, result.size)
        difference = result - reference
        max_abs_err = max(max_abs_err, float(np.abs(difference).max(initial=0.0)))
        norm = float(np.linalg.norm(reference))
        rel_l2_err = max(rel_l2_err, float(np.linalg.norm(difference)) / norm if norm else max_abs_err)
    if rel_l2_err > REL_L2_LIMITS[dtype]:
        problem = f"relative L2 error {rel_l2_err:.2g} exceeds {REL_L2_LIMITS[dtype]:.0e} for {dtype}"
        return Accuracy(max_abs_err, rel_l2_err, problem)
    return Accuracy(max_abs_err, rel_l2_err)


def unwritten(bad: int, size: int) -> Accuracy:
    """Of a result that has `bad` values that aren't finite."""
    return Accuracy(math.nan, math.nan, f"{bad} of {size} values are NaN, infinite or never written")


def _blocks(q: Array, k: Array) -> list[tuple[int, int, int, slice]]:
    """(batch, query head, key head, query rows) of every block."""
    batch_size, num_heads_q, seqlen_q, _ = q.shape
    group = num_heads_q // k.shape[1]
    return [
        (b, h, h // group, slice(start, min(start + _BLOCK_ROWS, seqlen_q)))
        for b in range(batch_size)
        for h in range(num_heads_q)
        for start in range(0, seqlen_q, _BLOCK_ROWS)
    ]


def _probabilities(q: Array, k: Array, rows: slice, seqlen_q: int, causal: bool) -> Array:
    scores = (q @ k.T) / math.sqrt(q.shape[1])
    if causal:
        last_key = np.arange(rows.start, rows.stop) + (k.shape[0] - seqlen_q)
        scores[np.arange(k.shape[0])[None, :] > last_key[:, None]] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores
