"""Tilewise's attention and experts inside vLLM, which loads register() by the entry point vllm.general_plugins.

Nothing changes until it is asked for. On GPUs `--attention-backend CUSTOM` asks. vLLM's CPU platform knows one
attention backend alone and ignores that option: there TILEWISE_VLLM asks, with "attention", "experts" or both with a
comma between.
"""

from __future__ import annotations

import importlib
from typing import Any

from tilewise._public import lists_public_names
from tilewise.vllm.asked import vllm_logger, wanted

__all__ = ["register"]
__dir__ = lists_public_names(__all__)

_BACKENDS = "tilewise.vllm.backend"


def register() -> None:
    """Registers the backend CUSTOM, and what TILEWISE_VLLM asks for. Again is harmless, in every process.

    Raises ValueError for a word in TILEWISE_VLLM that is none.
    """
    asked = wanted()
    registry: Any = importlib.import_module("vllm.v1.attention.backends.registry")
    members = registry.AttentionBackendEnum
    if not members.CUSTOM.is_overridden():  # another plugin's stays
        registry.register_backend(members.CUSTOM, f"{_BACKENDS}.TilewiseBackend")
    if not asked:
        return
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cpu():
        vllm_logger().warning(
            "TILEWISE_VLLM is for vLLM's CPU platform and changes nothing here: use --attention-backend CUSTOM"
        )
        return
    if "attention" in asked:
        registry.register_backend(members.CPU_ATTN, f"{_BACKENDS}.TilewiseCpuBackend")
    if "experts" in asked:
        importlib.import_module("tilewise.vllm.experts").install()
