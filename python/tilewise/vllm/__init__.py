"""Tilewise's attention, experts and linear layers inside vLLM.

vLLM loads register() by the entry point vllm.general_plugins. Nothing changes until it is asked for.
TILEWISE_VLLM=experts asks for the experts, and linear for quantised linear layers. On GPUs `--attention-backend CUSTOM`
asks for attention; with TILEWISE_VLLM=mla it is that of models with latent attention, since vLLM has one such name, and
asks a class for one kind of layers. vLLM's CPU platform knows one attention backend alone and ignores that option:
there TILEWISE_VLLM=attention asks. Words are joined by commas.
"""

from __future__ import annotations

import importlib
from typing import Any

from tilewise._public import lists_public_names
from tilewise.vllm.asked import vllm_logger, wanted

__all__ = ["register"]
__dir__ = lists_public_names(__all__)

_BACKENDS = "tilewise.vllm.backend"
_LATENT = "tilewise.vllm.mla"


def _register_latent_prompts() -> None:
    """Of latent layers, vLLM chooses what computes prompts apart."""
    prompts: Any = importlib.import_module("vllm.v1.attention.backends.mla.prefill.registry")
    custom = prompts.MLAPrefillBackendEnum.CUSTOM
    if not custom.is_overridden():
        prompts.register_mla_prefill_backend(custom, f"{_LATENT}.TilewiseMlaPrefill")


def register() -> None:
    """Registers the backend CUSTOM, and what TILEWISE_VLLM asks for. Again is harmless, in every process.

    Raises ValueError for a word in TILEWISE_VLLM that is none.
    """
    asked = wanted()
    registry: Any = importlib.import_module("vllm.v1.attention.backends.registry")
    members = registry.AttentionBackendEnum
    if not members.CUSTOM.is_overridden():  # another plugin's stays
        latent = "mla" in asked
        registry.register_backend(
            members.CUSTOM, f"{_LATENT}.TilewiseMlaBackend" if latent else f"{_BACKENDS}.TilewiseBackend"
        )
        if latent:
            _register_latent_prompts()
    if not asked:
        return
    on_cpu = importlib.import_module("vllm.platforms").current_platform.is_cpu()
    if on_cpu and "mla" in asked:
        vllm_logger().warning("TILEWISE_VLLM=mla is for GPUs and changes nothing on vLLM's CPU platform")
    if "attention" in asked and on_cpu:
        registry.register_backend(members.CPU_ATTN, f"{_BACKENDS}.TilewiseCpuBackend")
    elif "attention" in asked:
        vllm_logger().warning(
            "TILEWISE_VLLM=attention is for vLLM's CPU platform and changes nothing here: "
            "use --attention-backend CUSTOM"
        )
    if "experts" in asked:
        importlib.import_module("tilewise.vllm.experts").install()
    if asked & {"experts", "linear"}:
        importlib.import_module("tilewise.vllm.quantised").install()
