"""Tiny random checkpoints whose weights are quantised, as fp8's and gpt-oss's are stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

import tilewise

# As gpt-oss's checkpoints have it.
NOT_MXFP4 = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def fp8_config(**others: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], **others}


def moe_config(kind: str = "deepseek_v3", **others: Any) -> Any:
    """Of a model of two layers with four experts, whose sizes are those of few blocks."""
    sizes: dict[str, Any] = {
        "hidden_size": 256, "intermediate_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 97, "num_experts_per_tok": 2,
        "max_position_embeddings": 64,
    }  # fmt: skip
    if kind == "deepseek_v3":
        sizes |= {
            "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 128,
            "kv_lora_rank": 96, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
        }  # fmt: skip
    elif kind == "gpt_oss":
        sizes |= {"num_local_experts": 4, "head_dim": 64, "layer_types": ["full_attention", "sliding_attention"]}
    else:
        sizes |= {"num_experts": 4, "num_local_experts": 4, "head_dim": 64}
    return transformers.AutoConfig.for_model(kind, **(sizes | others))


def random_model(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.08 if parameter.ndim > 1 else 0.3)
    return model


def write(
    folder: Path, model: Any, quantisation: dict[str, Any] | None, change: Callable[[dict[str, Any]], None]
) -> Path:
    """The model's checkpoint, its tensors changed, with a configuration that says how they are quantised."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    if quantisation is not None:
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantisation}))
    return folder


def in_fp8(model: Any, format: str = "fp8_128x128", widen: bool = False) -> Callable[[dict[str, Any]], None]:
    """Quantises the weights of linear layers and of experts, and widens them again."""
    linears = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}

    def change(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            module = name.removesuffix(".weight")
            if module in linears - {"lm_head"} or ".experts." in name:
                elements, scales = tilewise.quantize(tensors[name].contiguous(), format)  # type: ignore[arg-type]
                if widen:
                    tensors[name] = tilewise.dequantize(elements, scales, format)  # type: ignore[arg-type]
                    continue
                tensors[name] = elements
                one = format == "fp8_tensor" and module in linears
                tensors[f"{module}.weight_scale_inv"] = scales.reshape(()) if one else scales

    return change


def in_mxfp4(tensors: dict[str, Any]) -> None:
    """Experts' weights of gpt-oss in blocks and scales."""
    for name in list(tensors):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            weight = tensors.pop(name).transpose(1, 2).contiguous()
            elements, scales = tilewise.quantize(weight, "mxfp4")
            tensors[f"{name}_blocks"] = elements.view(torch.uint8).unflatten(-1, (-1, 16)).contiguous()
            tensors[f"{name}_scales"] = scales.view(torch.uint8)
