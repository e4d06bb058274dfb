# docs/semantics.md as dense float64 formulas in torch, so that autograd gives the gradients too.
# Written apart from the library on purpose: nothing here comes from it.
"""Attention by formula, one sequence and head at a time."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch


def philox4x32_10(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of counters [..., 4] under keys [..., 2], all uint32 in uint64 arrays."""
    low = np.uint64(0xFFFFFFFF)
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k = [key[..., i].astype(np.uint64) for i in range(2)]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k[0], p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, axis=-1)


def dropout_keep(seed: int, offset: int, batch_head: int, rows: int, keys: int, threshold: int) -> np.ndarray:
    """bool [rows, keys]: which weights dropout keeps."""
    i, j = np.meshgrid(np.arange(rows, dtype=np.uint64), np.arange(keys, dtype=np.uint64), indexing="ij")
    constant = np.zeros_like(i)
    word = [4 * (j // 32) + (j % 8) // 2, i, constant + np.uint64(batch_head), constant + np.uint64(offset % 2**32)]
    key = [constant + np.uint64(seed % 2**32), constant + np.uint64((seed >> 32) ^ (offset >> 32))]
    words = philox4x32_10(np.stack(word, -1), np.stack(key, -1))
    chosen = np.take_along_axis(words, ((j % 32) // 8)[..., None].astype(np.int64), axis=-1)[..., 0]
    draw = (chosen >> (16 * (j % 2))) & np.uint64(0xFFFF)
    return draw >= threshold


@dataclass
class Call:
    """Options of a call; arrays as float64 or integer torch tensors."""

    mask: Optional[str] = None
    alignment: str = "bottom_right"
    window: tuple[int, int] = (-1, -1)
    softmax_scale: Optional[float] = None
    softcap: float = 0.0
    bias: Any = None
    alibi_slopes: Any = None
    sink: Any = None
    dropout_p: float = 0.0
    seed: int = 0
    offset: int = 0
    seqused_q: Any = None
    seqused_k: Any = None
    leftpad_k: Any = None


def _visible(call: Call, sq: int, sk: int, d: int) -> torch.Tensor:
    i, j = torch.arange(sq)[:, None], torch.arange(sk)[None, :]
    left, right = call.window
    if call.mask is not None:
        right = 0
    visible = torch.ones(sq, sk, dtype=torch.bool)
    if left >= 0:
        visible &= j >= i + d - left
    if right >= 0:
        visible &= j <= i + d + right
    return visible


def _one_head(call: Call, q: Any, k: Any, v: Any, bias: Any, slope: Any, sink: Any, keep: Any) -> Any:
    """(out [sq, dv], lse [sq]) of one head of one sequence, used rows only."""
    sq, sk = q.shape[0], k.shape[0]
    top_left = call.alignment == "top_left" or call.mask == "causal_top_left"
    d = 0 if top_left else sk - sq
    visible = _visible(call, sq, sk, d)
    scale = call.softmax_scale if call.softmax_scale is not None else 1 / math.sqrt(q.shape[1])
    s = scale * (q @ k.T)
    if call.softcap > 0:
        s = call.softcap * torch.tanh(s / call.softcap)
    if bias is not None:
        if bias.dtype == torch.bool:
            visible = visible & bias
        else:
            visible = visible & (bias > -math.inf)
            s = s + torch.where(visible, bias, 0.0)
    if slope is not None:
        distance = (torch.arange(sq)[:, None] + d - torch.arange(sk)[None, :]).abs()
        s = s - slope * distance
    s = torch.where(visible, s, -math.inf)
    top = torch.cat([s, s.new_full((sq, 1), -math.inf) if sink is None else sink.expand(sq, 1)], 1)
    top = top.amax(1, keepdim=True).detach()
    top = torch.where(top > -math.inf, top, 0.0)
    e = torch.where(visible, torch.exp(torch.where(visible, s, 0.0) - top), 0.0)
    total = e.sum(1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    seen = total > 0
    safe = torch.where(seen, total, 1.0)
    p = torch.where(seen, e / safe, 0.0)
    if keep is not None:
        p = torch.where(keep, p / (1 - round(call.dropout_p * 65536) / 65536), 0.0)
    lse = torch.where(seen, top + torch.log(safe), -math.inf)[:, 0]
    return p @ v, lse


def sequence(call: Call, b: int, q: Any, k: Any, v: Any, bias: Any) -> Any:
    """(out [rows, heads, dv], lse [heads, rows]) of sequence b; q [rows, heads, dim]; bias [heads, rows, keys]."""
    left = int(call.leftpad_k[b]) if call.leftpad_k is not None else 0
    used_q = int(call.seqused_q[b]) if call.seqused_q is not None else q.shape[0]
    used_k = int(call.seqused_k[b]) if call.seqused_k is not None else k.shape[0] - left
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    outs, lses = [], []
    for h in range(heads):
        head_bias = None if bias is None else bias[h, :used_q, left : left + used_k]
        slope = None
        if call.alibi_slopes is not None:
            slope = call.alibi_slopes[h] if call.alibi_slopes.dim() == 1 else call.alibi_slopes[b, h]
        keep = None
        if call.dropout_p > 0:
            threshold = round(call.dropout_p * 65536)
            keep = torch.from_numpy(dropout_keep(call.seed, call.offset, b * heads + h, used_q, used_k, threshold))
        part = slice(left, left + used_k)
        out, lse = _one_head(
            call, q[:used_q, h], k[part, h // group], v[part, h // group], head_bias, slope,
            None if call.sink is None else call.sink[h], keep,
        )  # fmt: skip
        rest = q.shape[0] - used_q
        outs.append(torch.cat([out, out.new_zeros(rest, v.shape[2])]))
        lses.append(torch.cat([lse, lse.new_full((rest,), -math.inf)]))
    return torch.stack(outs, 1), torch.stack(lses)


def _bias_of(bias: Any, b: int, heads: int, rows: int, keys: int) -> Any:
    if bias is None:
        return None
    bias = bias.reshape((1,) * (4 - bias.dim()) + tuple(bias.shape))
    return bias[b if bias.shape[0] > 1 else 0].expand(heads, rows, keys)


def dense(call: Call, q: Any, k: Any, v: Any) -> Any:
    """(out, lse) of bshd tensors."""
    results = [
        sequence(call, b, q[b], k[b], v[b], _bias_of(call.bias, b, q.shape[2], q.shape[1], k.shape[1]))
        for b in range(q.shape[0])
    ]
    return torch.stack([out for out, _ in results]), torch.stack([lse for _, lse in results])


def packed(call: Call, q: Any, k: Any, v: Any, cu_q: list[int], cu_k: list[int]) -> Any:
    """(out, lse) of thd tensors; rows of no sequence come back as 0."""
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
    lse = torch.zeros(q.shape[1], q.shape[0], dtype=q.dtype)
    for b in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        bias = call.bias
        if bias is not None:
            sizes = q.shape[1], max(np.diff(cu_q)), max(np.diff(cu_k))
            bias = _bias_of(bias, b, *sizes)[:, : cu_q[b + 1] - cu_q[b], : cu_k[b + 1] - cu_k[b]]
        part, part_lse = sequence(call, b, q[rows], k[keys], v[keys], bias)
        out = torch.cat([out[: cu_q[b]], part, out[cu_q[b + 1] :]])
        lse = torch.cat([lse[:, : cu_q[b]], part_lse, lse[:, cu_q[b + 1] :]], 1)
    return out, lse
