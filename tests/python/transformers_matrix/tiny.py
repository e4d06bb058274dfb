"""Tiny configurations of transformers' model types: their own defaults, shrunk by the names of the fields."""

from __future__ import annotations

import dataclasses
from typing import Any

HEADS = 4
HEAD_DIM = 8
HIDDEN = HEADS * HEAD_DIM
VOCABULARY = 99
WINDOW = 6
IMAGE = HIDDEN

# What a field of a whole number becomes, by its name, where its default is larger.
NUMBERS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (HIDDEN, (
        "attention_hidden_size", "audio_embed_dim", "backbone_hidden_size", "conv_dim", "d_embed", "d_inner", "d_model",
        "decoder_hidden_size", "dim", "embed_dim", "embed_dim_per_layer", "embedding_dim", "embedding_size", "emb_dim",
        "encoder_hidden_size", "hidden_dim", "hidden_size", "hidden_size_per_layer_input", "inner_dim", "lm_d_inner",
        "lru_width", "model_dim", "n_embd", "n_embed", "n_state", "out_hidden_size", "output_hidden_size",
        "projection_dim", "qformer_hidden_size", "text_hidden_size", "vision_hidden_size", "word_embed_proj_dim",
        "entity_emb_size", "mm_hidden_size", "projector_hidden_size", "width", "ffn_hidden_size", "ffn_dim", "d_ff",
        "decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size", "moe_intermediate_size", "n_inner", "mlp_dim",
        "block_ff_dim", "dense_ffn_hidden_size", "expert_ffn_hidden_size", "feed_forward_size", "mlp_hidden_size",
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "intermediate_size_mlp",
        "decoder_intermediate_size", "encoder_intermediate_size", "feedforward_size", "ffn_intermediate_size",
        "image_size", "img_size", "input_size",
        "block_dim", "block_auto_adjust_ff_dim", "classifier_proj_size", "position_embedding_size",
    )),
    (HEADS, (
        "decoder_attention_heads", "decoder_num_attention_heads", "encoder_attention_heads",
        "encoder_num_attention_heads", "n_head", "n_heads", "num_attention_heads", "num_heads",
        "decoder_num_heads", "encoder_num_heads", "attention_heads", "heads",
    )),
    (2, (
        "decoder_layers", "decoder_num_hidden_layers", "depth", "encoder_layers", "encoder_num_hidden_layers",
        "n_layer", "n_layers", "num_decoder_layers", "num_encoder_layers", "num_hidden_layers", "num_layers",
        "num_key_value_heads", "n_groups", "mamba_n_groups", "n_group", "topk_group", "num_experts_per_tok",
        "num_experts_per_token", "num_blocks", "num_swap_layers", "decoder_n_layer",
        "encoder_n_layer", "entity_layers", "l_layers", "r_layers", "x_layers", "conv_layers", "moe_topk", "moe_k",
        "num_decoder_blocks", "type_vocab_size", "decoder_depth", "encoder_depth", "adapter_layers", "layers",
        "num_key_value_groups", "decoder_num_layers", "encoder_num_layers", "num_text_layers", "num_post_layers",
        "prelude_layers", "n_mamba_heads",
    )),
    (4, (
        "index_topk", "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_mel_bins_factor",
        "num_latents", "rotary_dim", "mem_tokens", "num_queries",
    )),
    (HEAD_DIM, (
        "attention_head_dim", "attention_head_size", "d_head", "d_kv", "dim_head", "head_dim", "key_dim", "kv_channels",
        "linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "qk_nope_head_dim", "qk_rope_head_dim",
        "swa_head_dim", "v_head_dim",
        "global_head_dim", "attention_key_dim", "head_size", "mamba_head_dim", "index_head_dim",
        "patch_size", "mamba_n_heads", "mamba_num_heads", "linear_num_key_heads", "linear_num_value_heads",
    )),
    (16, (
        "kv_lora_rank", "mamba_d_state", "num_mel_bins", "q_lora_rank", "ssm_state_size", "state_size",
        "time_step_rank", "chunk_size", "mamba_chunk_size",
    )),
    (128, ("max_position_embeddings", "n_ctx", "n_positions", "max_source_positions", "max_target_positions",
          "max_seq_len", "seq_length", "max_sequence_length", "max_2d_position_embeddings", "max_seq_length")),
    (VOCABULARY, ("vocab_size", "decoder_vocab_size", "entity_vocab_size", "vocab_size_per_layer_input",
                 "text_vocab_size", "encoder_vocab_size", "src_vocab_size", "tgt_vocab_size")),
    (WINDOW, ("sliding_window", "sliding_window_size", "window_size", "attention_window_size", "local_attention",
             "attention_chunk_size")),
)  # fmt: skip
BY_NAME = {name: number for number, names in NUMBERS for name in names}

# Fields of a few types that need a value of their own; "text_config.num_layers" reaches into a part.
SPECIAL: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 4},
    "esm": {"vocab_size": VOCABULARY, "mask_token_id": 3},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "informer": {"prediction_length": 4},
    "mamba2": {"expand": 1},
    "time_series_transformer": {"prediction_length": 4},
}

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 2,
          "cls_token_id": 1, "mask_token_id": 3, "unk_token_id": 3}  # fmt: skip


def _shrunk(name: str, value: Any) -> Any:
    """The tiny value of a field, or the value itself."""
    if isinstance(value, bool):
        return value
    if ("drop" in name and isinstance(value, (int, float))) or name in ("layerdrop", "layerdrop_rate"):
        return 0.0 if not isinstance(value, int) or name.endswith(("dropout", "pdrop", "_rate")) else value
    if name in ("mask_time_prob", "mask_feature_prob"):
        return 0.0
    if name == "image_size" and isinstance(value, (list, tuple)):
        return [IMAGE] * len(value)
    if isinstance(value, int) and name in BY_NAME:
        return min(value, BY_NAME[name])
    if isinstance(value, int) and name in TOKENS:
        return TOKENS[name]
    return value


def _values(config: Any) -> dict[str, Any]:
    """The fields of the class with this configuration's values."""

    def value(name: str) -> Any:
        try:
            return getattr(config, name, None)
        except Exception:  # it differs from layer to layer
            return None

    return {field.name: value(field.name) for field in dataclasses.fields(config)}


def _rope(parameters: dict[str, Any]) -> dict[str, Any] | None:
    """Rotary parameters whose sections (of time, height and width) fit the tiny head; None: as they are."""
    sections = parameters.get("mrope_section")
    if not isinstance(sections, (list, tuple)) or len(sections) != 3:
        return None
    total = int(HEAD_DIM * parameters.get("partial_rotary_factor", 1.0)) // 2
    return {**parameters, "mrope_section": [total - 2 * (total // 4), total // 4, total // 4]}


def tiny_arguments(config: Any) -> dict[str, Any]:
    """Keyword arguments with which the class of this configuration makes a tiny one."""
    values = _values(config)
    arguments: dict[str, Any] = {}
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "sub_configs"):
            arguments[name] = {**tiny_arguments(part), "model_type": part.model_type}
    for name, value in values.items():
        if name not in arguments and value is not None and (small := _shrunk(name, value)) != value:
            arguments[name] = small
    unset = {"head_dim": HEAD_DIM, "num_key_value_heads": HEADS}
    arguments.update({name: value for name, value in unset.items() if name in values and values[name] is None})
    if "kv_lora_rank" in values and "num_key_value_heads" in values:
        arguments["num_key_value_heads"] = HEADS  # latent attention expands to every head
    if isinstance(values.get("rope_parameters"), dict) and (rope := _rope(values["rope_parameters"])):
        arguments["rope_parameters"] = rope
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, (list, tuple)) and kinds and isinstance(kinds[0], str):
        each = list(dict.fromkeys(kinds))
        each = each if len(each) > 1 else each * 2
        if "layer_types" in values:
            arguments["layer_types"] = each
        for name in ("num_hidden_layers", "num_layers", "n_layer"):
            if name in values:
                arguments[name] = len(each)
    return arguments


def tiny_config(config_class: type, model_type: str) -> Any:
    """A tiny configuration of this class. Raises whatever the class raises."""
    arguments = tiny_arguments(config_class())
    for path, value in SPECIAL.get(model_type, {}).items():
        place = arguments
        *parts, last = path.split(".")
        for part in parts:
            place = place[part]
        place[last] = value
    return config_class(**arguments)
