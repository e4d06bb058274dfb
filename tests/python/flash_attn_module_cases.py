# Plain formulas of attention layers in float64, for the tests of tilewise.compat.flash_attn.modules.
"""Attention, rotation and MHA by definition."""

import torch


def attention(q, k, v, visible, bias=None, scale=None):
    """q [b, sq, h, d], k, v [b, sk, hk, d]; visible broadcasts to [b, h, sq, sk]; rows that see nothing are 0."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) for tensor in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.nan_to_num(scores.softmax(-1))
    return (weights @ v).transpose(1, 2)


def band(seqlen_q, seqlen_k, causal=False, window=(-1, -1)):
    """bool [seqlen_q, seqlen_k], aligned at the bottom right."""
    distance = torch.arange(seqlen_k) - torch.arange(seqlen_q)[:, None] - (seqlen_k - seqlen_q)
    visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    left, right = window
    right = 0 if causal else right
    if left >= 0:
        visible &= distance >= -left
    if right >= 0:
        visible &= distance <= right
    return visible


def rotated(x, positions, dim, interleaved=False, base=10000.0, scale_base=None, keys=False, length=None):
    """x [..., seqlen, heads, head_dim] at positions [..., seqlen], the first `dim` columns turned."""
    x = x.double()
    angles = positions.double()[..., None] * base ** (-torch.arange(0, dim, 2).double() / dim)
    growth = torch.ones_like(angles)
    if scale_base is not None:
        scale = (torch.arange(0, dim, 2).double() + 0.4 * dim) / (1.4 * dim)
        growth = scale ** ((positions.double()[..., None] - length // 2) / scale_base)
        growth = 1.0 / growth if keys else growth
    cos, sin = (angles.cos() * growth)[..., None, :], (angles.sin() * growth)[..., None, :]
    a, b = (x[..., :dim:2], x[..., 1:dim:2]) if interleaved else x[..., :dim].chunk(2, -1)
    parts = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([turned, x[..., dim:]], -1)
