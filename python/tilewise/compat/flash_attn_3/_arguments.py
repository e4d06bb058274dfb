# What FlashAttention-3 adds to flash_attn's arguments: descales of fp8, queries against the values (qv), chunks.
"""Arguments of FlashAttention-3 as Tilewise's."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from tilewise.compat.flash_attn._strict import strict

DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float8_e4m3fn))
MAX_HEAD_DIM = 256


def refuse(q: Tensor, k: Tensor, v: Tensor, attention_chunk: int) -> None:
    """What FlashAttention-3 refuses, or Tilewise of it, and the core would take or say in other words; what only its
    kernels ask for holds under TILEWISE_FLASH_ATTN_STRICT=1."""
    if q.dtype not in DTYPES and strict():
        words = "FlashAttention only supports fp16, bf16, and fp8_e4m3 data type"
        raise RuntimeError(f"{words} (got {q.dtype})")
    for name, tensor in (("key", k), ("value", v)):
        if tensor.dtype != q.dtype and tensor.dtype != torch.float8_e4m3fn:
            raise RuntimeError(f"query and {name} must have the same dtype (got {q.dtype} and {tensor.dtype})")
    if q.shape[-1] > MAX_HEAD_DIM and strict():
        words = f"FlashAttention forward only supports head dimension at most {MAX_HEAD_DIM}"
        raise RuntimeError(f"{words} (got {q.shape[-1]})")
    if attention_chunk != 0:
        raise NotImplementedError(
            f"attention_chunk: must be 0, since chunks are not implemented (got {attention_chunk})"
        )


def sides(window_size: Any, causal: bool) -> tuple[int, int]:
    """(left, right) of numbers or of a tensor, -1 for unbounded; a causal call has no right side."""
    left, right = int(window_size[0]), int(window_size[1])
    return max(left, -1), -1 if causal else max(right, -1)


def in_16_bits(tensor: Tensor) -> Tensor:
    """fp8 as bf16, which holds each of its values; anything else as it is."""
    return tensor.to(torch.bfloat16) if tensor.dtype == torch.float8_e4m3fn else tensor


def scales(
    q_descale: Optional[Tensor], k_descale: Optional[Tensor], v_descale: Optional[Tensor]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """k_scale and v_scale of fp8 caches as tensors, f32 [batch_size, num_heads_k], or both as the number 1 where there
    is no descale. That of the queries is one of their scores, as the keys' is."""
    of_scores = q_descale if k_descale is None else k_descale if q_descale is None else q_descale * k_descale
    like = of_scores if v_descale is None else v_descale
    if like is None:
        return {}, {"k_scale_value": 1.0, "v_scale_value": 1.0}
    given = {"k_scale": of_scores, "v_scale": v_descale}  # both are of one kind
    return {name: (torch.ones_like(like) if scale is None else scale).contiguous() for name, scale in given.items()}, {}


class Latent(NamedTuple):
    """A call with qv in the absorbed form of MLA: one cache of keys whose first columns are the values."""

    q: Tensor
    cache: Tensor
    new: Optional[Tensor]
    head_dim_v: int


def latent(q: Tensor, qv: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], v: Optional[Tensor]) -> Latent:
    """The call in that form, where v_cache and k_cache are views of one [latent | rope] tensor, side by side.

    Raises:
        NotImplementedError: They are not, so that scores would be sums over two caches.
    """
    dim_v = v_cache.shape[-1]
    beside = (
        v_cache.shape[:-1] == k_cache.shape[:-1]
        and v_cache.stride() == k_cache.stride()
        and v_cache.dtype == k_cache.dtype
        and v_cache.data_ptr() + dim_v * v_cache.element_size() == k_cache.data_ptr()
        and v_cache.untyped_storage().data_ptr() == k_cache.untyped_storage().data_ptr()
    )
    if not beside:
        raise NotImplementedError(
            "qv: must come with v_cache and k_cache that are views of one tensor, the values' columns first "
            "(got two tensors, or other views)"
        )
    if v_cache.dtype == torch.float8_e4m3fn:
        raise NotImplementedError("qv: must not come with caches in fp8")
    if qv.shape != (*q.shape[:-1], dim_v):
        raise RuntimeError(f"qv must have shape {(*q.shape[:-1], dim_v)} (got {tuple(qv.shape)})")
    cache = v_cache.as_strided((*v_cache.shape[:-1], dim_v + k_cache.shape[-1]), v_cache.stride())
    new = None if k is None or v is None else torch.cat([v, k], dim=-1)
    return Latent(torch.cat([qv, q], dim=-1), cache, new, dim_v)
