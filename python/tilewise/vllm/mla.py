"""Latent attention (MLA) inside vLLM: decoding over the latent cache as it lies, and prompts with heads unfolded.

A cache is [blocks, block_size, kv_lora_rank + rope columns] of any strides: a row is every head's key, and its first
kv_lora_rank columns are the value. vLLM's own classes project, and write the cache.
"""

from __future__ import annotations

from typing import Any, ClassVar, Optional, Union

import torch
from vllm import envs
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

import tilewise
from tilewise.vllm.asked import announce, refuse_meanings

__all__ = ["TilewiseMlaBackend", "TilewiseMlaBuilder", "TilewiseMlaImpl", "TilewiseMlaPrefill"]

_PAGE_UNIT = 16  # tokens
_PREFERRED_PAGE = 64  # a tile of Hopper's kernel is one page of it
_MIN_COMPUTE_CAPABILITY = 8
_PLAIN_CACHES = ("auto", "float16", "bfloat16")
_DTYPES = (torch.float16, torch.bfloat16)


def _invariant() -> dict[str, Any]:
    return {"batch_invariant": True} if envs.VLLM_BATCH_INVARIANT else {}


class TilewiseMlaBuilder(MLACommonMetadataBuilder):
    """vLLM's metadata; decoding may have several queries of each request, as many of all."""

    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[Any] = QueryLenSupport.UNIFORM


class TilewiseMlaBackend(MLACommonBackend):
    """What `--attention-backend CUSTOM` is with TILEWISE_VLLM=mla."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(_DTYPES)
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(_PLAIN_CACHES)

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TilewiseMlaImpl]:
        return TilewiseMlaImpl

    @staticmethod
    def get_builder_cls() -> type[TilewiseMlaBuilder]:
        return TilewiseMlaBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None, **others: Any) -> list[Any]:
        return [MultipleOf(_PAGE_UNIT)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int, **others: Any) -> int:
        return max(default_block_size, _PREFERRED_PAGE)

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= _MIN_COMPUTE_CAPABILITY)


class TilewiseMlaImpl(MLACommonImpl):
    """Decoding of one layer. Raises NotImplementedError by name for what it cannot do, before anything runs."""

    can_return_lse_for_decode: bool = True  # context parallelism asks for it
    lse_base_on_e: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Optional[list[float]],
        sliding_window: Optional[int],
        kv_cache_dtype: str,
        logits_soft_cap: Optional[float],
        attn_type: str,
        kv_sharing_target_layer_name: Optional[str],
        **latent: Any,
    ) -> None:
        meanings = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
            "indexer": latent.get("indexer"),
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
        }
        refuse_meanings("a latent layer", meanings)
        for name, value, known in (
            ("kv_cache_dtype", kv_cache_dtype, _PLAIN_CACHES),
            ("attn_type", attn_type, (AttentionType.DECODER,)),
        ):
            if value not in known:
                raise NotImplementedError(
                    f"{name}: must be of {', '.join(known)} for a latent layer with tilewise's attention in vLLM "
                    f"(got {value!r})"
                )
        announce("latent attention")
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap,
            attn_type, kv_sharing_target_layer_name, **latent,
        )  # fmt: skip

    def forward_mqa(
        self,
        q: Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        layer: Any,
    ) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        """q: [tokens, heads, columns of the cache], or its two parts. Returns [tokens, heads, kv_lora_rank], and the
        LSE [tokens, heads] where ranks share a sequence."""
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        tokens, heads, columns = q.shape
        decode = attn_metadata.decode
        requests = decode.seq_lens.shape[0]
        if requests == 0 or tokens % requests != 0:
            raise NotImplementedError(
                f"q: must have as many tokens of each request with tilewise's attention in vLLM (got {tokens} of "
                f"{requests} requests)"
            )
        pages = kv_c_and_k_pe_cache.unsqueeze(2)  # one head
        out, lse = tilewise.kv_cache_attention(
            q.view(requests, tokens // requests, heads, columns), pages, None, cache_seqlens=decode.seq_lens,
            block_table=decode.block_table, head_dim_v=self.kv_lora_rank, mask="causal", softmax_scale=self.scale,
            return_lse=True, **_invariant(),
        )  # fmt: skip
        shared = lse.transpose(1, 2).reshape(tokens, heads) if self.need_to_return_lse_for_decode else None
        return out.reshape(tokens, heads, self.kv_lora_rank), shared


class TilewiseMlaPrefill(MLAPrefillBackend):
    """What `--attention-config '{"mla_prefill_backend": "CUSTOM"}'` is: attention over unfolded heads, packed."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(_DTYPES)

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        return bool(device_capability.major >= _MIN_COMPUTE_CAPABILITY)

    def _attend(
        self,
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        starts_q: torch.Tensor,
        longest_q: int,
        starts_k: torch.Tensor,
        longest_k: int,
        **options: Any,
    ) -> Any:
        """tensors: q, k, v. The LSE, where it is asked for, is [heads, tokens]."""
        q, k, v = tensors
        return tilewise.attention(
            q, k, v, layout="thd", cu_seqlens_q=starts_q, max_seqlen_q=longest_q, cu_seqlens_k=starts_k,
            max_seqlen_k=longest_k, softmax_scale=self.scale, **_invariant(), **options,
        )  # fmt: skip

    def run_prefill_new_tokens(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        return_softmax_lse: bool,
        out: Optional[torch.Tensor] = None,
        output_scale: Optional[torch.Tensor] = None,
        **others: Any,
    ) -> Any:
        """q, k, v: [tokens, heads, columns]. Each token sees those of its request up to itself."""
        refuse_meanings("a latent layer", {"output_scale": output_scale, **others})
        step = self._prefill_metadata
        lengths = (step.query_start_loc, step.max_query_len)
        return self._attend((q, k, v), *lengths, *lengths, mask="causal", return_lse=return_softmax_lse, out=out)

    def run_prefill_context_chunk(
        self,
        *,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        chunk_idx: Optional[int] = None,
        chunk: Any = None,
        out: Optional[torch.Tensor] = None,
        **others: Any,
    ) -> Any:
        """k, v: a part of what came before, which every query of its request sees. Returns out and the LSE.

        chunk_idx: which part, in 0.26; later releases pass the part, of some of the requests.
        """
        refuse_meanings("a latent layer", others)
        if chunk is None:
            step = self._prefill_metadata
            context = step.chunked_context
            lengths = (step.query_start_loc, step.max_query_len)
            lengths_k = (context.cu_seq_lens[chunk_idx], context.max_seq_lens[chunk_idx])
        else:
            lengths = (chunk.query_start_loc, chunk.max_query_len)
            lengths_k = (chunk.cu_seq_lens, chunk.max_seq_len)
        return self._attend((q, k, v), *lengths, *lengths_k, return_lse=True, out=out)
