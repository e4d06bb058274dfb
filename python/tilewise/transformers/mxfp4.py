"""gpt-oss's mxfp4 checkpoints, computed from blocks and scales as they are stored.

transformers runs such weights by kernels from its hub, and where it can't, as on a CPU, widens them to bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from tilewise.transformers import stored
from tilewise.transformers.experts import NAME, call, refusal

__all__ = ["Mxfp4Experts", "Mxfp4Quantizer", "install"]

_BLOCK = 32  # elements that share a scale; two are in a byte


class Mxfp4Experts(nn.Module):
    """GptOssExperts with its weights under the names, and of the shapes, that checkpoints have.

    gate_up_proj_blocks is uint8 [num_experts, 2 * intermediate, hidden / 32, 16], gates and ups in turns by rows, and
    gate_up_proj_scales [num_experts, 2 * intermediate, hidden / 32]; down_proj's likewise.
    """

    has_gate, has_bias, is_transposed, is_concatenated, has_post_expert_norm = True, True, False, False, False
    _is_expert_parallel = False
    gate_up_proj_blocks: torch.Tensor
    down_proj_blocks: torch.Tensor
    _apply_gate = GptOssExperts._apply_gate

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.num_experts: int = config.num_local_experts
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        hidden, intermediate = config.hidden_size, config.intermediate_size
        for name, rows, columns in (("gate_up_proj", 2 * intermediate, hidden), ("down_proj", hidden, intermediate)):
            if columns % _BLOCK != 0:
                raise NotImplementedError(f"{name}: columns must be a multiple of {_BLOCK} in mxfp4 (got {columns})")
            shape = (self.num_experts, rows, columns // _BLOCK)
            blocks, scales = torch.zeros(*shape, _BLOCK // 2, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8)
            self.register_parameter(f"{name}_blocks", nn.Parameter(blocks, requires_grad=False))
            self.register_parameter(f"{name}_scales", nn.Parameter(scales, requires_grad=False))
            bias = nn.Parameter(torch.zeros(self.num_experts, rows), requires_grad=False)
            self.register_parameter(f"{name}_bias", bias)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """[tokens, hidden] in the dtype of hidden_states."""
        if self.config._experts_implementation != NAME:
            raise NotImplementedError(
                f"experts_implementation: {self.config._experts_implementation!r} cannot compute with mxfp4 weights as "
                f"they are stored, only {NAME!r} does; load the checkpoint with it in place of switching"
            )
        quantised = {
            "w_format": "mxfp4",
            "gate_up_scale": self.gate_up_proj_scales,
            "down_scale": self.down_proj_scales,
        }
        first, down = self.gate_up_proj_blocks.flatten(2), self.down_proj_blocks.flatten(2)
        return call(self, hidden_states, top_k_index, top_k_weights, first, down, quantised)


class Mxfp4Quantizer(stored.StoredWeights, Mxfp4HfQuantizer):
    """transformers' quantizer of mxfp4, whose experts are Mxfp4Experts where the model asks for Tilewise's."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if not self.keeps_stored:
            super()._process_model_before_weight_loading(model, **kwargs)
            return
        left = self.get_modules_to_not_convert(
            model, self.quantization_config.modules_to_not_convert, model._keep_in_fp32_modules
        )
        names = [name for name, module in model.named_modules() if isinstance(module, GptOssExperts)]
        names = [name for name in names if should_convert_module(name, left)]
        if not names:
            raise refusal(type(model), "its checkpoint is mxfp4, and none of its modules are gpt-oss's experts")
        for name in names:
            with torch.device("meta"):
                try:
                    experts = Mxfp4Experts(model.get_submodule(name).config)
                except NotImplementedError as error:
                    raise refusal(type(model), f"of {name}, {error}") from None
            model.set_submodule(name, experts)

    def get_load_operations(self) -> dict[str, Any]:
        """None where parameters are named as the checkpoint's tensors."""
        return {} if self.keeps_stored else super().get_load_operations()

    def get_state_dict_and_metadata(self, model: Any) -> Any:
        """What save_pretrained() writes; None for the model's own state."""
        return (None, {}) if self.keeps_stored else super().get_state_dict_and_metadata(model)


def install() -> None:
    """Keeps mxfp4 checkpoints as they are stored where NAME is asked for. Again is harmless."""
    AUTO_QUANTIZER_MAPPING["mxfp4"] = Mxfp4Quantizer
