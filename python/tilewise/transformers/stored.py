"""Whether a quantised checkpoint's weights stay as they are stored.

On a CPU transformers would widen them to bf16; asked for "tilewise" experts, its quantizers leave them alone.
"""

from __future__ import annotations

import functools
from typing import Any

from transformers.quantizers.base import HfQuantizer

from tilewise.transformers.experts import NAME

__all__ = ["StoredWeights", "is_supported"]


def is_supported() -> bool:
    """Whether this transformers shows its quantizers the configuration, which says who computes experts."""
    return hasattr(HfQuantizer, "update_attn_implementation")


def _asks(config: Any) -> bool:
    """Whether experts of a configuration, or of its text model, are to be NAME's."""
    return any(part._experts_implementation == NAME for part in (config, config.get_text_config(decoder=True)))


class StoredWeights:
    """Before a quantizer among the bases of a class: what it demands of the machine, and what it decides by that,
    waits until the configuration is seen, and is skipped where checkpoints' weights are for NAME to compute with.
    """

    quantization_config: Any
    pre_quantized: bool
    keeps_stored = False

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        self._validate = functools.partial(super().validate_environment, *args, **kwargs)  # type: ignore[misc]

    def update_attn_implementation(self, config: Any) -> Any:
        """Called with the configuration, right after validate_environment()."""
        validate = self.__dict__.pop("_validate")
        self.keeps_stored = self.pre_quantized and not self.quantization_config.dequantize and _asks(config)
        if not self.keeps_stored:
            validate()
        return super().update_attn_implementation(config)  # type: ignore[misc]
