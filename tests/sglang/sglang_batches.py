"""SGLang's own pools, layers and batches, filled at random: what its scheduler would hand to an attention backend."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

PLACES = 1024
SWA_PLACES = 768
MAX_REQUESTS = 8
MAX_CONTEXT = 256


def mha_pool(heads: int, dim: int, dtype: torch.dtype, page_size: int = 1, **more: Any) -> MHATokenToKVPool:
    return MHATokenToKVPool(PLACES, page_size, dtype, heads, dim, 2, "cpu", False, **more)


def mla_pool(dtype: torch.dtype, lora: int, rope: int) -> MLATokenToKVPool:
    return MLATokenToKVPool(PLACES, 1, dtype, lora, rope, 2, "cpu", False)


def swa_pool(heads: int, dim: int, dtype: torch.dtype, page_size: int = 1) -> SWAKVPool:
    """Layer 0 sees all, layer 1 has a pool of fewer places, in another order."""
    pool = SWAKVPool(
        PLACES, SWA_PLACES, page_size, dtype, heads, dim, swa_attention_layer_ids=[1], full_attention_layer_ids=[0],
        device="cpu",
    )  # fmt: skip
    pages = SWA_PLACES // page_size
    mapping = torch.zeros(PLACES + page_size + 1, dtype=torch.int64)
    order = 1 + torch.randperm(pages - 1)
    for page in range(1, pages):
        first = int(order[page - 1]) * page_size
        mapping[page * page_size : (page + 1) * page_size] = torch.arange(first, first + page_size)
    mapping[-1] = -1
    pool.register_mapping(mapping)
    return pool


def make_runner(pool: Any, **more: Any) -> SimpleNamespace:
    """What a backend reads of a model runner."""
    facts = {
        "device": "cpu", "token_to_kv_pool": pool,
        "req_to_token_pool": ReqToTokenPool(MAX_REQUESTS, MAX_CONTEXT, "cpu", False),
        "use_mla_backend": isinstance(pool, MLATokenToKVPool), "is_draft_worker": False, "attention_chunk_size": None,
        "model_config": SimpleNamespace(is_encoder_decoder=False),
    }  # fmt: skip
    return SimpleNamespace(**{**facts, **more})


def buffers(pool: Any) -> list[torch.Tensor]:
    """What a pool stores, of all layers."""
    if isinstance(pool, SWAKVPool):
        return [*buffers(pool.full_kv_pool), *buffers(pool.swa_kv_pool)]
    return [*pool.kv_buffer] if isinstance(pool, MLATokenToKVPool) else [*pool.k_buffer, *pool.v_buffer]


def fill(pool: Any) -> None:
    """Random keys and values everywhere, so that a wrong place is seen."""
    for buffer in buffers(pool):
        buffer.copy_(torch.randn(buffer.shape).to(pool.dtype).view(buffer.dtype))


def make_batch(runner: SimpleNamespace, mode: str, seed: int, prefixes: bool = True, **more: Any) -> ForwardBatch:
    """Up to six requests of random lengths, at random places of the pool, in rows of the table out of order."""
    draw = random.Random(seed)
    page = runner.token_to_kv_pool.page_size
    requests = draw.randint(1, 6)
    added = [1 if mode == "DECODE" else draw.choice((1, 2, 5, 17, 40)) for _ in range(requests)]
    before = [draw.choice((0, 1, 7, 16, 33, 64)) if prefixes and mode != "DECODE" else 0 for _ in range(requests)]
    if mode == "DECODE":
        before = [draw.choice((1, 2, 15, 16, 17, 90)) for _ in range(requests)]
    lengths = [old + new for old, new in zip(before, added)]
    table = runner.req_to_token_pool.req_to_token
    table.copy_(torch.randint(0, SWA_PLACES - page, table.shape))  # what a table keeps of earlier requests
    rows = draw.sample(range(1, MAX_REQUESTS + 1), requests)
    free = draw.sample(range(1, SWA_PLACES // page), sum(-(-length // page) for length in lengths))
    out = []
    for row, old, length in zip(rows, before, lengths):
        pages = [free.pop() for _ in range(-(-length // page))]
        places = torch.tensor([pages[token // page] * page + token % page for token in range(length)])
        table[row, :length] = places.int()
        out.append(places[old:])
    extend: dict[str, Any] = {}
    if mode != "DECODE":
        extend = {
            "extend_num_tokens": sum(added), "extend_seq_lens": torch.tensor(added), "extend_seq_lens_cpu": added,
            "extend_prefix_lens": torch.tensor(before), "extend_prefix_lens_cpu": before,
        }  # fmt: skip
    return ForwardBatch(
        forward_mode=ForwardMode[mode], batch_size=requests, input_ids=torch.zeros(sum(added), dtype=torch.int64),
        req_pool_indices=torch.tensor(rows), seq_lens=torch.tensor(lengths), seq_lens_cpu=torch.tensor(lengths),
        out_cache_loc=torch.cat(out), seq_lens_sum=sum(lengths), **{**extend, **more},
    )  # fmt: skip


def make_layer(heads: int, dim: int, heads_k: int, **more: Any) -> RadixAttention:
    return RadixAttention(heads, dim, dim**-0.5, heads_k, **{"layer_id": 0, **more})
