"""A step of Tilewise's backend in SGLang, or of SGLang's own, over tensors drawn at random."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

import tilewise.sglang


def backend(runner: Any) -> Any:
    tilewise.sglang.register()
    return ATTENTION_BACKENDS["tilewise"](runner)


def draw(batch: Any, layer: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of a step as models make them: columns of one row."""
    tokens = len(batch.input_ids)
    sizes = [layer.tp_q_head_num * layer.qk_head_dim, layer.tp_k_head_num * layer.qk_head_dim,
             layer.tp_v_head_num * layer.v_head_dim]  # fmt: skip
    q, k, v = torch.randn(tokens, sum(sizes)).to(dtype).split(sizes, dim=-1)
    return q, k.view(tokens, -1, layer.qk_head_dim), v.view(tokens, -1, layer.v_head_dim)


def run(runner: Any, make: Any, batch: Any, layer: Any, tensors: Any, **options: Any) -> torch.Tensor:
    attention = make(runner)
    attention.init_forward_metadata(batch)
    q, k, v = (tensor if tensor is None else tensor.clone() for tensor in tensors)
    return attention.forward(q, k, v, layer, batch, **options)
