"""The KV cache step by a straight formula in torch, and a call of it on pages between guards of poison."""

from __future__ import annotations

import math

import torch

import tilewise


def rotate(x, cos, sin, position, interleaved, offset):
    """x [heads, dim] of one token, in f32."""
    x = x.float().clone()
    half = cos.shape[1]
    part = x[:, offset : offset + 2 * half]
    c, s = cos[position].float(), sin[position].float()
    first, second = (part[:, 0::2], part[:, 1::2]) if interleaved else (part[:, :half], part[:, half:])
    rotated = first * c - second * s, first * s + second * c
    if interleaved:
        x[:, offset : offset + 2 * half] = torch.stack(rotated, -1).flatten(-2)
    else:
        x[:, offset : offset + 2 * half] = torch.cat(rotated, -1)
    return x


def attend(q, k, v, causal, window=(-1, -1), scale=None, sink=None, softcap=0.0, slopes=None):
    """One sequence: q [rows, heads, dim], k and v [keys, heads_k, dim], in f64."""
    rows, heads, dim = q.shape
    keys, group = k.shape[0], heads // k.shape[1]
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q.double(), k) * (1 / math.sqrt(dim) if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)[None]
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * at.abs()
    seen = torch.ones_like(at, dtype=torch.bool)
    if causal:
        seen &= at >= 0
    if window[0] >= 0:
        seen &= at <= window[0]
    if window[1] >= 0:
        seen &= at >= -window[1]
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.double()[:, None])
    weights = torch.exp(scores - lse[..., None]).nan_to_num()
    return torch.einsum("hij,jhd->ihd", weights, v), lse


class Step:
    """Two or more sequences with pages in random order and poison in everything that nobody may touch."""

    def __init__(self, page_size, lengths, new, dtype=torch.float32, heads=4, heads_k=2, dim=32, dim_v=32, guard=8):
        self.page_size, self.lengths, self.new, self.dtype = page_size, lengths, new, dtype
        pages = [-(-(n + new) // page_size) for n in lengths]
        total = sum(pages) + 2
        order = torch.randperm(total)
        self.table = torch.full((len(lengths), max(pages) + 1), -(2**31), dtype=torch.int32)
        for b, count in enumerate(pages):
            self.table[b, :count], order = order[:count].int(), order[count:]
        # Each page lies between guards: [pages, guard + page_size * heads_k * dim + guard].
        self.memory, self.caches = [], []
        for width in (dim, dim_v):
            memory = torch.full((total, 2 * guard + page_size * heads_k * width), torch.nan, dtype=dtype)
            cache = memory[:, guard:-guard].unflatten(1, (page_size, heads_k, width))
            for b, length in enumerate(lengths):
                for place in range(length):
                    cache[self.page(b, place)] = torch.randn(heads_k, width).to(dtype)
            self.memory.append(memory)
            self.caches.append(cache)
        shape = (len(lengths), new)
        self.q = torch.randn(*shape, heads, dim).to(dtype)
        self.k, self.v = torch.randn(*shape, heads_k, dim).to(dtype), torch.randn(*shape, heads_k, dim_v).to(dtype)
        self.seqlens = torch.tensor(lengths, dtype=torch.int32)

    def page(self, b, place):
        return int(self.table[b, place // self.page_size]), place % self.page_size

    def rows(self, b, cache):
        return torch.stack([cache[self.page(b, place)] for place in range(self.lengths[b] + self.new)])

    def run(self, **options):
        given = {"cache_seqlens": self.seqlens, "block_table": self.table, "return_lse": True, **options}
        return tilewise.kv_cache_attention(self.q, *self.caches, self.k, self.v, **given)


TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
