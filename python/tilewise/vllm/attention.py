"""A layer's attention in vLLM, over its paged cache as it lies.

A cache is [blocks, num_heads_k, block_size, 2 * head_dim] of any strides: of each token's row the first half is its
key, the second its value, but on CPUs. Hybrid models give layers of different kinds the same memory and other tables,
and tables keep stale entries behind sliding windows: nothing is remembered of a cache, and no entry is read that no key
needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from vllm import envs
from vllm.v1.attention.backend import AttentionImpl, AttentionType

import tilewise
from tilewise.vllm.asked import announce, refuse_meanings, share_threads
from tilewise.vllm.ranks import attend_shared

__all__ = ["FP8_CACHES", "BatchMetadata", "TilewiseCpuImpl", "TilewiseImpl"]

FP8_CACHES = ("fp8", "fp8_e4m3")
_PLAIN_CACHES = ("auto", "float16", "bfloat16", "float32")
_WITHOUT_CACHE = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
# Options of layers and what they are where they say nothing.
_NEUTRAL = {"chunk_lookback": -1}


@dataclass
class BatchMetadata:
    """What the layers of one kind share in a step. vLLM's own subclasses replace slot_mapping."""

    num_reqs: int
    num_actual_tokens: int  # what follows in q is padding
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor  # int32 [num_reqs + 1]
    seq_lens: torch.Tensor  # int32 [num_reqs], with the step's own tokens
    block_table: torch.Tensor  # int32 [num_reqs, blocks]
    slot_mapping: torch.Tensor  # int64 [tokens], block * block_size + place, or -1
    causal: bool
    shared_lengths: Optional[torch.Tensor] = None  # of ranks that share sequences; see ranks.py


class TilewiseImpl(AttentionImpl):
    """Attention of one layer. Raises NotImplementedError by name for what it cannot do, before anything runs."""

    can_return_lse_for_decode: bool = True  # which ranks that share sequences ask for

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> None:
        refuse_meanings("a layer", others, _NEUTRAL)
        if kv_cache_dtype not in (*_PLAIN_CACHES, *FP8_CACHES):
            raise NotImplementedError(
                f"kv_cache_dtype: must be of {', '.join((*_PLAIN_CACHES, *FP8_CACHES))} with tilewise's attention in "
                f"vLLM (got {kv_cache_dtype!r})"
            )
        ranks = getattr(self, "pcp_world_size", 1)
        if ranks > 1:
            raise NotImplementedError(
                f"prefill context parallelism: is not supported by tilewise's attention in vLLM (got {ranks} ranks)"
            )
        announce("attention")
        share_threads()
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks  # filled after this, when weights are loaded
        self._slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._options: dict[str, Any] = {"softmax_scale": self.scale}
        if logits_soft_cap:
            self._options["softcap"] = float(logits_soft_cap)
        if envs.VLLM_BATCH_INVARIANT:
            self._options["batch_invariant"] = True

    def _rarer_options(self, query: torch.Tensor) -> dict[str, Any]:
        """The layer's tensors, where and as the queries take them."""
        options: dict[str, Any] = {}
        if self._slopes is not None:
            self._slopes = self._slopes.to(query.device)
            options["alibi_slopes"] = self._slopes
        if self.sinks is not None:
            fits = self.sinks.dtype in (query.dtype, torch.float32)
            options["sink"] = self.sinks if fits else self.sinks.float()
        return options

    def _scales(self, layer: Any) -> dict[str, Any]:
        """Of fp8 caches: what stored numbers are multiplied by, one for the layer's keys and one for its values."""
        if self.kv_cache_dtype not in FP8_CACHES:
            return {}
        for name in ("_k_scale", "_v_scale"):
            scale = getattr(layer, name)
            if scale.numel() != 1:
                raise NotImplementedError(
                    f"{name}: must be one number for a layer with tilewise's attention in vLLM "
                    f"(got {list(scale.shape)})"
                )
        return {"k_scale": layer._k_scale_float, "v_scale": layer._v_scale_float}

    def _pages(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [blocks, block_size, num_heads_k, head_dim], without a copy."""
        if kv_cache.ndim != 4 or kv_cache.shape[-1] != 2 * self.head_size:
            raise NotImplementedError(
                f"kv_cache: must be [blocks, heads, block_size, {2 * self.head_size}] with tilewise's attention in "
                f"vLLM (got {list(kv_cache.shape)})"
            )
        if self.kv_cache_dtype in FP8_CACHES:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
        return self._halves(kv_cache)

    def _halves(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same: where others read a cache, too, keys and values lie beside each other."""
        pages = kv_cache.transpose(1, 2)
        return pages[..., : self.head_size], pages[..., self.head_size :]

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Writes a step's keys and values, [tokens, num_heads_k, head_dim], to their slots; more rows are padding."""
        if self.attn_type in _WITHOUT_CACHE:
            return
        tokens = slot_mapping.shape[0]
        k_cache, v_cache = self._pages(kv_cache)
        tilewise.append_kv(k_cache, v_cache, key[:tokens], value[:tokens], slots=slot_mapping, **self._scales(layer))

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: BatchMetadata | None,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """query, output: [tokens, num_heads_q, head_dim]; output is written, and returned. The cache has the keys."""
        refuse_meanings("a layer", {"output_scale": output_scale, "output_block_scale": output_block_scale, **others})
        if output is None:
            output = torch.empty_like(query)
        if attn_metadata is None:  # a run that measures memory
            return output.zero_()
        step = attn_metadata
        q, out = (
            query[: step.num_actual_tokens],
            output[: step.num_actual_tokens].view_as(query[: step.num_actual_tokens]),
        )
        options = {**self._options, **self._rarer_options(q), "mask": "causal" if step.causal else None}
        without_cache = self.attn_type in _WITHOUT_CACHE
        if self.sliding_window is not None:  # counts the token itself; what sees both ways has it on both sides
            left = self.sliding_window - 1
            options["window"] = (left, 0 if step.causal else left)
        if without_cache:
            lengths = {"cu_seqlens": step.query_start_loc, "max_seqlen": step.max_query_len}
            options |= {f"{name}_{side}": length for name, length in lengths.items() for side in "qk"}
            tilewise.attention(q, key[: len(q)], value[: len(q)], layout="thd", out=out, **options)
        elif step.shared_lengths is not None:
            rows = len(q)
            pages = self._pages(kv_cache)
            attend_shared(q, key[:rows], value[:rows], *pages, step, options, self._scales(layer), out)
        else:
            k_cache, v_cache = self._pages(kv_cache)
            tilewise.kv_cache_attention(
                q, k_cache, v_cache, cache_seqlens=step.seq_lens, block_table=step.block_table,
                cu_seqlens_q=step.query_start_loc, max_seqlen_q=step.max_query_len, out=out, **self._scales(layer),
                **options,
            )  # fmt: skip
        return output


class TilewiseCpuImpl(TilewiseImpl):
    """On CPUs a block's content is its backend's own: of each head all keys come first, then all values.

    Memory is read in longer runs so. On two Zen 3 cores a step of 8 requests of 4,096 tokens took 5.7 ms with rows of
    both and takes 2.6 (9 heads on 3), with 32 heads on 8 it took 7.8 and takes 6.6.
    """

    def _halves(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks, heads, block_size, columns = kv_cache.shape
        if kv_cache.stride()[2:] != (columns, 1):  # heads lie between a block's tokens
            return super()._halves(kv_cache)
        keys, values = kv_cache.view(blocks, heads, 2 * block_size, self.head_size).transpose(1, 2).chunk(2, dim=1)
        return keys, values
