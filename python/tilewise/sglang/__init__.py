"""Tilewise's attention inside SGLang, which loads register() by the entry point sglang.srt.plugins.

`--attention-backend tilewise` asks for it; nothing changes until then.
"""

from __future__ import annotations

import importlib
from typing import Any

from tilewise._public import lists_public_names
from tilewise.sglang.known import BACKEND, sglang_logger

__all__ = ["register"]
__dir__ = lists_public_names(__all__)


def _create(runner: Any) -> Any:
    """The backend of one model runner. Raises NotImplementedError by name for what it cannot serve."""
    return importlib.import_module("tilewise.sglang.attention").TilewiseAttnBackend(runner)


def register() -> None:
    """Makes "tilewise" a choice of --attention-backend, and of deterministic inference. Again is harmless."""
    registry: Any = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    choices: Any = importlib.import_module("sglang.srt.arg_groups.choices")
    known = registry.ATTENTION_BACKENDS.get(BACKEND)
    if known is not None and known is not _create:
        sglang_logger().warning(
            "the attention backend %r stays that of %s, which was registered before", BACKEND, known.__module__
        )
        return
    registry.register_attention_backend(BACKEND)(_create)
    if BACKEND not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([BACKEND])
    if BACKEND not in choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
        choices.add_deterministic_attention_backend_choices([BACKEND])
