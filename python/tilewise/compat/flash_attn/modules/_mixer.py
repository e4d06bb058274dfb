# What MHA and ParallelMHA share: inner attention, rotary embedding, and generation with a KV cache.
"""Attention between two projections."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tilewise.compat.flash_attn._call import WHOLE
from tilewise.compat.flash_attn.flash_attn_interface import flash_attn_with_kvcache
from tilewise.compat.flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb
from tilewise.compat.flash_attn.modules._attention import (
    CrossAttention,
    FlashCrossAttention,
    FlashSelfAttention,
    SelfAttention,
)


def update_kv_cache(kv: Tensor, inference_params: Any, layer_idx: int) -> Tensor:
    """Writes kv [batch_size, seqlen, 2, num_heads_k, head_dim] behind what the layer's cache has; a cache is made
    where there is none. Returns all keys and values of these sequences so far."""
    caches = inference_params.key_value_memory_dict
    if layer_idx not in caches:
        rows = inference_params.max_batch_size, inference_params.max_seqlen
        caches[layer_idx] = kv.new_empty(*rows, *kv.shape[2:])
    cache: Tensor = caches[layer_idx]
    first, start = inference_params.batch_size_offset, inference_params.seqlen_offset
    last, end = first + kv.shape[0], start + kv.shape[1]
    fits = last <= cache.shape[0] and end <= cache.shape[1]
    words = f"inference_params: its cache has {cache.shape[0]} sequences of {cache.shape[1]}"
    assert fits, f"{words} (got {last} and {end})"
    cache[first:last, start:end] = kv
    return cache[first:last, :end]


class Mixer(nn.Module):
    """Attention of projected queries, keys and values; subclasses have the projections."""

    layer_idx: Optional[int]
    num_heads: int
    num_heads_kv: int
    head_dim: int
    use_flash_attn: bool
    checkpointing: bool
    rotary_emb_dim: int
    out_proj: nn.Linear

    def _make_inner(
        self,
        causal: bool,
        softmax_scale: Optional[float],
        dropout: float,
        alibi_slopes: Optional[Tensor],
        window_size: Any,
        rotary: dict[str, Any],
    ) -> None:
        """Makes inner_attn, inner_cross_attn and, for rotary_emb_dim > 0, rotary_emb with the arguments `rotary`."""
        more = {"alibi_slopes": alibi_slopes, "window_size": window_size}
        if not self.use_flash_attn:
            assert alibi_slopes is None, "use_alibi: must come with use_flash_attn=True"
            words = f"window_size: must be (-1, -1) without use_flash_attn (got {tuple(window_size)})"
            assert tuple(window_size) == WHOLE, words
        if self.rotary_emb_dim > 0:
            self.rotary_emb = RotaryEmbedding(self.rotary_emb_dim, **rotary)
        of_self: Any = partial(FlashSelfAttention, **more) if self.use_flash_attn else SelfAttention
        of_two: Any = partial(FlashCrossAttention, **more) if self.use_flash_attn else CrossAttention
        common = {"causal": causal, "softmax_scale": softmax_scale, "attention_dropout": dropout}
        self.inner_attn, self.inner_cross_attn = of_self(**common), of_two(**common)

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: Optional[torch.dtype] = None
    ) -> Tensor:  # fmt: skip
        """A cache [batch_size, max_seqlen, 2, num_heads_kv, head_dim] of this layer."""
        weight = self.out_proj.weight
        shape = (batch_size, max_seqlen, 2, self._cached_heads(), self.head_dim)
        return torch.empty(shape, dtype=weight.dtype if dtype is None else dtype, device=weight.device)

    def _cached_heads(self) -> int:
        return self.num_heads_kv

    def _update_kv_cache(self, kv: Tensor, inference_params: Any) -> Tensor:
        assert self.layer_idx is not None, "layer_idx: must be given to generate with a cache (got None)"
        return update_kv_cache(kv, inference_params, self.layer_idx)

    def _rotated(
        self, q: Tensor, kv: Tensor, inference_params: Any, cu_seqlens: Optional[Tensor], max_seqlen: Optional[int]
    ) -> tuple[Tensor, Tensor]:
        """q and kv with positions, packed or not."""
        if cu_seqlens is not None:
            assert max_seqlen is not None, "max_seqlen: must be given with cu_seqlens (got None)"
            return self._rotated_rows(q, kv, cu_seqlens, max_seqlen)
        if inference_params is None:
            q, kv = self.rotary_emb(q, kv)
            return q, kv
        lengths = inference_params.lengths_per_sample
        offset = inference_params.seqlen_offset if lengths is None else lengths[: q.shape[0]]
        q, kv = self.rotary_emb(q, kv, seqlen_offset=offset, max_seqlen=inference_params.max_seqlen)
        return q, kv

    def _rotated_rows(self, q: Tensor, kv: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> tuple[Tensor, Tensor]:
        tables = self.rotary_emb
        tables._update_cos_sin_cache(max_seqlen, device=q.device, dtype=q.dtype)
        of_keys = (tables._cos_cached, tables._sin_cached)
        if tables.scale is not None:
            of_keys = (tables._cos_k_cached, tables._sin_k_cached)
        common: dict[str, Any] = {"interleaved": tables.interleaved, "cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
        q = apply_rotary_emb(q, tables._cos_cached, tables._sin_cached, **common)  # type: ignore[arg-type]
        k = apply_rotary_emb(kv[:, 0], *of_keys, **common)  # type: ignore[arg-type]
        return q, torch.stack([k, kv[:, 1]], dim=1)

    def _decoded(self, q: Tensor, kv: Tensor, inference_params: Any) -> Any:
        """A step over the cache, which appends kv; rotation too goes into it where its tables serve both sides."""
        inner = self.inner_cross_attn
        cos = sin = None
        interleaved = False
        if self.rotary_emb_dim > 0 and self.rotary_emb.scale is None:
            tables = self.rotary_emb
            tables._update_cos_sin_cache(inference_params.max_seqlen, device=q.device, dtype=q.dtype)
            cos, sin, interleaved = tables._cos_cached, tables._sin_cached, tables.interleaved
        elif self.rotary_emb_dim > 0:
            q, kv = self._rotated(q, kv, inference_params, None, None)
        assert self.layer_idx is not None, "layer_idx: must be given to generate with a cache (got None)"
        first = inference_params.batch_size_offset
        cache = inference_params.key_value_memory_dict[self.layer_idx][first : first + q.shape[0]]
        lengths = inference_params.lengths_per_sample
        return flash_attn_with_kvcache(
            q, cache[:, :, 0], cache[:, :, 1], kv[:, :, 0], kv[:, :, 1], rotary_cos=cos, rotary_sin=sin,
            cache_seqlens=inference_params.seqlen_offset if lengths is None else lengths[: q.shape[0]],
            softmax_scale=inner.softmax_scale, causal=inner.causal, window_size=inner.window_size,
            rotary_interleaved=interleaved, alibi_slopes=inner._slopes(),
        )  # fmt: skip

    def _attended(self, q: Tensor, kv: Tensor, inference_params: Any, options: dict[str, Any]) -> Any:
        """Attention of q [..., num_heads, head_dim] and kv [..., 2, num_heads_kv, head_dim]."""
        if inference_params is not None and self.use_flash_attn and inference_params.seqlen_offset > 0:
            return self._decoded(q, kv, inference_params)
        if self.rotary_emb_dim > 0:
            q, kv = self._rotated(q, kv, inference_params, options.get("cu_seqlens"), options.get("max_seqlen"))
        if inference_params is not None:
            return self.inner_cross_attn(q, self._update_kv_cache(kv, inference_params))
        return self._inner(self.inner_cross_attn, q, kv, **options)

    def _attended_packed(self, qkv: Tensor, options: dict[str, Any]) -> Any:
        """Attention of qkv [..., 3, num_heads, head_dim] without a cache, whose gradient is one tensor."""
        if self.rotary_emb_dim > 0 and options.get("cu_seqlens") is None:
            qkv = self.rotary_emb(qkv)
        elif self.rotary_emb_dim > 0:
            q, kv = self._rotated(qkv[:, 0], qkv[:, 1:], None, options["cu_seqlens"], options["max_seqlen"])
            qkv = torch.cat([q[:, None], kv], dim=1)
        return self._inner(self.inner_attn, qkv, **options)

    def _inner(self, module: nn.Module, *tensors: Tensor, **options: Any) -> Any:
        if self.checkpointing:
            return checkpoint(module, *tensors, use_reentrant=False, **options)
        return module(*tensors, **options)
