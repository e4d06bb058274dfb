# Running calls of CPU tensors on the GPU, and a dense float64 reference there for larger shapes.
"""What the GPU tests share."""

import math
from typing import Any, Optional

import torch

import tilewise


def to_gpu(value: Any) -> Any:
    """A tensor on the GPU, differentiably; anything else as it is."""
    return value.cuda() if isinstance(value, torch.Tensor) else value


def run_on_gpu(*tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, softmax_lse) of attention() on the GPU, back on the CPU, with gradients flowing through."""
    given = {name: to_gpu(value) for name, value in options.items()}
    out, lse = tilewise.attention(*map(to_gpu, tensors), return_lse=True, **given)
    return out.cpu(), lse.cpu()


def qkv(
    shape_q: tuple[int, ...],
    shape_k: Optional[tuple[int, ...]] = None,
    dtype: torch.dtype = torch.bfloat16,
    head_dim_v: int = 0,
    seed: int = 0,
) -> list[torch.Tensor]:
    """Random q, k, v on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shape_k = shape_k or shape_q
    shapes = (shape_q, shape_k, (*shape_k[:-1], head_dim_v or shape_k[-1]))
    return [torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype) for shape in shapes]


def dense64(q: Any, k: Any, v: Any, causal: bool = False, window_left: int = -1) -> Any:
    """(out, lse) of bshd tensors in float64 on their device, bottom-right aligned."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    i = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    visible = torch.ones_like(scores[0, 0], dtype=torch.bool)
    if causal:
        visible &= j <= i
    if window_left >= 0:
        visible &= j >= i - window_left
    scores = scores.masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.where(visible, torch.exp(scores - lse[..., None]), 0.0)
    return (weights @ v).transpose(1, 2), lse
