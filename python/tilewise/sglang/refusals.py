"""What Tilewise's backend in SGLang cannot serve: each refusal names what it was, before anything is computed."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import get_parallel

from tilewise.sglang.known import refuse_meanings

__all__ = ["refuse", "refuse_batch", "refuse_layer", "refuse_phase", "refuse_runner"]

_POOLS = (MHATokenToKVPool, MLATokenToKVPool)
_CACHES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
# Fields of a batch that change what attention computes, and of which it knows nothing.
_UNKNOWN_OF_BATCH = (
    "encoder_lens",
    "multi_item_delimiter_indices",
    "decision_layouts",
    "attn_cp_metadata",
    "attn_dcp_metadata",
    "dcp_kv_mask",
    "cross_attention_custom_mask",
    "encoder_swa_row_floor",
)
# Likewise, set by models between layers.
_UNKNOWN_OF_PHASE = ("attn_attend_prefix_cache", "mha_return_lse", "mha_one_shot")


def refuse(name: str, expected: str, got: object) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(f"{name}: {expected} with tilewise's attention in SGLang (got {got})")


def _refuse_pool(pool: Any) -> None:
    if type(pool) not in _POOLS:
        refuse("token_to_kv_pool", f"must be {', '.join(kind.__name__ for kind in (*_POOLS, SWAKVPool))}",
               type(pool).__name__)  # fmt: skip
    if pool.dtype not in _CACHES:
        refuse("kv_cache_dtype", f"must be of {', '.join(str(dtype) for dtype in _CACHES)}", pool.dtype)
    layout = getattr(pool, "kv_cache_layout", "nhd")
    if layout != "nhd":
        refuse("kv_cache_layout", "must be nhd", layout)
    method = pool.get_kv_cache_quant_method()
    if getattr(method, "name", "unquantized") != "unquantized":
        refuse("kv_cache_dtype", "must be no quantised cache but fp8 e4m3", method.name)


def refuse_runner(runner: Any) -> None:
    """Refuses a model runner: its pool of keys and values, what its model is, and how it is spread."""
    pool = runner.token_to_kv_pool
    for part in (pool.full_kv_pool, pool.swa_kv_pool) if type(pool) is SWAKVPool else (pool,):
        _refuse_pool(part)
    if getattr(runner, "is_draft_worker", False):
        refuse("the draft model of speculative decoding", "must have another attention backend", "a draft worker")
    if runner.model_config.is_encoder_decoder:
        refuse("the model", "must have no cross-attention", "an encoder and a decoder")
    parallel = get_parallel()
    if parallel.dcp_enabled:
        refuse("decode context parallelism", "must be off", f"{parallel.attn_dcp_size} ranks")


def refuse_batch(batch: Any) -> None:
    """Refuses a batch of a kind, or with masks and orders, that is unknown."""
    mode = batch.forward_mode
    if mode.name not in ("EXTEND", "MIXED", "DECODE", "IDLE", "TARGET_VERIFY"):
        refuse("forward_mode", "must be of EXTEND, MIXED, DECODE, IDLE and TARGET_VERIFY", mode.name)
    refuse_meanings("a batch", {name: getattr(batch, name, None) for name in _UNKNOWN_OF_BATCH})
    if mode.is_target_verify():
        tree = getattr(batch.spec_info, "tree_topk", None)
        if tree != 1:
            refuse("spec_info", "must be a chain of draft tokens, with topk 1", f"tree_topk {tree}")


def refuse_phase(batch: Any) -> None:
    """Refuses what a model asks for between layers: prefixes attended by themselves, whose parts are merged."""
    refuse_meanings("a batch", {name: getattr(batch, name, None) for name in _UNKNOWN_OF_PHASE})


def refuse_layer(layer: Any, attention_chunk_size: int | None) -> None:
    """Refuses a layer with a mask or a form of scores that is unknown."""
    if layer.is_cross_attention:
        refuse("is_cross_attention", "must be False", True)
    if layer.attn_type not in (AttentionType.DECODER, AttentionType.ENCODER_ONLY):
        refuse("attn_type", "must be decoder or encoder_only", layer.attn_type.value)
    windowed = layer.sliding_window_size is not None and layer.sliding_window_size > -1
    if windowed and layer.attn_type == AttentionType.ENCODER_ONLY:
        refuse("sliding_window_size", "must be -1 for a layer that sees both ways", layer.sliding_window_size)
    if layer.use_irope and attention_chunk_size is not None:
        refuse("use_irope", "must be False where the model attends in chunks", f"chunks of {attention_chunk_size}")
    if layer.logit_cap > 0 and layer.logit_capping_method != "tanh":
        refuse("logit_capping_method", "must be tanh", layer.logit_capping_method)
    if layer.pos_encoding_mode != "NONE":
        refuse("pos_encoding_mode", "must be NONE", layer.pos_encoding_mode)
    if layer.xai_temperature_len is not None and layer.xai_temperature_len > 0:
        refuse("xai_temperature_len", "must be -1", layer.xai_temperature_len)
