"""The classes that vLLM asks about its attention backend, and what they make of a batch's metadata."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from tilewise.vllm.asked import refuse_meanings
from tilewise.vllm.attention import FP8_CACHES, BatchMetadata, TilewiseCpuImpl, TilewiseImpl
from tilewise.vllm.ranks import SharedLengths

__all__ = ["TilewiseBackend", "TilewiseBuilder", "TilewiseCpuBackend"]

_PAGE_UNIT = 16  # tokens
_MAX_HEAD_SIZE = 576
_MIN_COMPUTE_CAPABILITY = 8
_ATTENTION_TYPES = (
    AttentionType.DECODER,
    AttentionType.ENCODER,
    AttentionType.ENCODER_ONLY,
    AttentionType.ENCODER_DECODER,
)


class TilewiseBuilder(AttentionMetadataBuilder):
    """Makes the metadata of a batch's layers of one kind."""

    # A captured launch covers max_query_len queries of each request. vLLM captures mixed batches with less than their
    # replays may have, and runs them in pieces where this is declared.
    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.UNIFORM_BATCH

    # Of vLLM's metadata, what an answer does not depend on: the rest is read below, or refused where it says something.
    _INFORMATION = frozenset(
        {
            "query_start_loc_cpu",
            "seq_lens_cpu_upper_bound",
            "logits_indices_padded",
            "num_logits_indices",
            "max_logits_per_req",
            "encoder_seq_lens",  # which vLLM's own builder of cross-attention makes seq_lens of
            "encoder_seq_lens_cpu",
            "positions",
            "is_prefilling",
            "req_idx",
            "replayssm_decode_base_cpu",
        }
    )

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any, *others: Any, **more: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, *others, **more)
        parallel = getattr(vllm_config, "parallel_config", None)
        shares = getattr(parallel, "decode_context_parallel_size", 1) > 1
        self._shared = SharedLengths(vllm_config, device) if shares else None

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **others: Any
    ) -> BatchMetadata:
        """common_prefix_len: tokens that all requests share, which the table names for each of them anyway."""
        refuse_meanings("vLLM's metadata builder", others)
        given = common_attn_metadata
        read = {field.name for field in dataclasses.fields(BatchMetadata)} | {"block_table_tensor"}
        if self._shared is not None:
            # Which count a step's own tokens, too.
            read |= {"dcp_local_seq_lens", "dcp_local_seq_lens_cpu", "dcp_local_seq_lens_cpu_upper_bound"}
        refuse_meanings(
            "vLLM's metadata",
            {
                field.name: getattr(given, field.name)
                for field in dataclasses.fields(given)
                if field.name not in read | self._INFORMATION and not field.name.startswith("_")
            },
        )
        if not isinstance(given.causal, bool):
            raise NotImplementedError(
                "causal: must be one bool for a batch with tilewise's attention in vLLM (got one for each request)"
            )
        requests = given.num_reqs
        starts, lengths = given.query_start_loc[: requests + 1], given.seq_lens[:requests]
        return BatchMetadata(
            num_reqs=requests,
            num_actual_tokens=given.num_actual_tokens,
            max_query_len=given.max_query_len,
            max_seq_len=given.max_seq_len,
            query_start_loc=starts,
            seq_lens=lengths,
            block_table=given.block_table_tensor[:requests],
            slot_mapping=given.slot_mapping,
            causal=given.causal,
            shared_lengths=None if self._shared is None else self._shared.of(starts, lengths),
        )


class TilewiseBackend(AttentionBackend):
    """What `--attention-backend CUSTOM` is."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]  # no cache of float32 on GPUs
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *FP8_CACHES]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TilewiseImpl]:
        return TilewiseImpl

    @staticmethod
    def get_builder_cls() -> type[TilewiseBuilder]:
        return TilewiseBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None, **others: Any) -> list[Any]:
        return [MultipleOf(_PAGE_UNIT)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
        **others: Any,
    ) -> tuple[int, ...]:
        """Before 0.29 vLLM asks; since then it is always this, in whatever order it lies in memory."""
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 0 < head_size <= _MAX_HEAD_SIZE

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in _ATTENTION_TYPES

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= _MIN_COMPUTE_CAPABILITY)


class TilewiseCpuBackend(TilewiseBackend):
    """The same under the name of the one backend that vLLM's CPU platform knows."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [*TilewiseBackend.supported_dtypes, torch.float32]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> type[TilewiseImpl]:
        return TilewiseCpuImpl
