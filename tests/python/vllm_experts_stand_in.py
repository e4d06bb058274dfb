# What tilewise.vllm's experts see of vLLM, release by release: layers of experts, methods and quantisations.
"""Stand-ins for vLLM's modules of experts, among those of vllm_stand_in.py."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any

import torch
import vllm_linear_stand_in as linear


class UnquantizedFusedMoEMethod:
    """vLLM's method: what it computes is marked, and so is that it has repacked the weights."""

    def __init__(self, moe: Any) -> None:
        self.moe = moe

    @classmethod
    def register_oot(cls, theirs: type) -> None:
        registry = sys.modules["vllm.model_executor.custom_op"].op_registry_oot
        assert cls.__name__ not in registry, f"Duplicate op name: {cls.__name__}"
        registry[cls.__name__] = theirs

    is_monolithic = True

    def maybe_make_prepare_finalize(self, routing_tables: Any = None) -> Any:
        raise ValueError("should not be called")

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.repacked = True

    def forward_native(self, layer: Any, x: Any, *others: Any, **more: Any) -> str:
        return "vLLM's own"


class FusedMoEMethodBase(ABC):
    def __init__(self, moe: Any) -> None:
        self.moe, self.moe_quant_config, self.moe_kernel = moe, None, None

    @abstractmethod
    def create_weights(self, layer: Any, *sizes: Any, **attributes: Any) -> None: ...

    @abstractmethod
    def get_fused_moe_quant_config(self, layer: Any) -> Any: ...

    @abstractmethod
    def apply(self, layer: Any, *tensors: Any, **more: Any) -> torch.Tensor: ...

    @property
    def is_monolithic(self) -> bool:
        return bool(hasattr(self, "experts_cls") and self.experts_cls.is_monolithic())


class Theirs(FusedMoEMethodBase):
    """vLLM's own method of quantised experts, which pads sizes as its kernels ask."""

    def maybe_roundup_sizes(self, hidden: int, intermediate: int, *others: Any) -> tuple[int, int]:
        return -(-hidden // 256) * 256, -(-intermediate // 256) * 256

    def create_weights(self, layer: Any, *sizes: Any, **attributes: Any) -> None: ...

    def get_fused_moe_quant_config(self, layer: Any) -> Any: ...

    def apply(self, layer: Any, *tensors: Any, **more: Any) -> Any:
        return "vLLM's own"


class RoutedExperts(torch.nn.Module):
    """vLLM's layer: it is made by its method, which it asks its quantisation for before that is there to ask of."""

    def __init__(self, moe_config: Any, quant_config: Any, **others: Any) -> None:
        super().__init__()
        self.layer_name = "layers.0.experts"
        self.moe_config, self.quant_config, self.activation = moe_config, quant_config, moe_config.activation
        numbers = {f"swiglu_{name}": others.get(name) for name in ("alpha", "limit", "beta")}
        vars(self).update(numbers, apply_router_weight_on_input=False)
        self.quant_method = quant_config.get_quant_method(self, self.layer_name)
        hidden, intermediate = self.quant_method.maybe_roundup_sizes(
            moe_config.hidden_dim, moe_config.intermediate_size, moe_config.in_dtype, moe_config.moe_parallel_config
        )
        experts = moe_config.num_experts
        self.quant_method.create_weights(
            layer=self, num_experts=experts, hidden_size=hidden, unpadded_hidden_size=moe_config.hidden_dim,
            intermediate_size_per_partition=intermediate, params_dtype=moe_config.in_dtype,
            weight_loader=self.weight_loader, global_num_experts=experts,
        )  # fmt: skip

    @property
    def expert_map(self) -> Any:
        return None if self.quant_method.moe_kernel is None else self.quant_method.moe_kernel

    def weight_loader(
        self, param: Any, loaded_weight: torch.Tensor, weight_name: str, shard_id: Any, expert_id: Any
    ) -> None:
        """Of one expert and of one of w1, w3 and w2, or of gpt-oss's experts all at once."""
        if self.quant_config.get_name() == "gpt_oss_mxfp4":
            param.data.copy_(loaded_weight)
            return
        if "scale" in weight_name:
            assert param.quant_method == "block"
        part = param.data[expert_id]
        half = part.shape[0] // 2
        part = {"w1": part[:half], "w3": part[half:], "w2": part}[shard_id]
        part.copy_(loaded_weight)


class QuantizationConfig:
    packed_modules_mapping: dict[str, list[str]] = {}  # noqa: RUF012

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            return Theirs(layer.moe_config)
        return linear.Theirs() if isinstance(layer, linear.LinearBase) else "of another layer"

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16]


class Fp8Config(QuantizationConfig):
    is_checkpoint_fp8_serialized = True

    def __init__(
        self,
        weight_block_size: Any = None,
        ignored_layers: Any = (),
        store_dtype: Any = None,
        activation_scheme: str = "dynamic",
    ) -> None:
        self.weight_block_size, self.ignored_layers, self.store_dtype = weight_block_size, ignored_layers, store_dtype
        self.activation_scheme = activation_scheme

    @classmethod
    def get_name(cls) -> str:
        return "fp8"


class Mxfp4Config(QuantizationConfig):
    @classmethod
    def get_name(cls) -> str:
        return "mxfp4"


class GptOssMxfp4Config(Mxfp4Config):
    @classmethod
    def get_name(cls) -> str:
        return "gpt_oss_mxfp4"


def _quantisations() -> dict[str, Any]:
    methods: dict[str, type] = {cls.get_name(): cls for cls in (Fp8Config, Mxfp4Config, GptOssMxfp4Config)}

    def register(name: str) -> Any:
        def keep(cls: type) -> type:
            assert issubclass(cls, QuantizationConfig)
            methods[name] = cls
            return cls

        return keep

    return {"get_quantization_config": methods.__getitem__, "register_quantization_config": register}


def _set_weight_attrs(parameter: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        assert not hasattr(parameter, name), f"Overwriting existing tensor attribute: {name}"
        setattr(parameter, name, value)


def modules(release: str) -> dict[str, dict[str, Any]]:
    """What each of them holds, by its name."""

    def skips_exactly(prefix: str, ignored_layers: Any, fused_mapping: Any = None) -> bool:
        return prefix in ignored_layers

    def skips(prefix: str, ignored_layers: Any, fused_mapping: Any = None, match_mode: str = "exact") -> bool:
        return any(name in prefix if match_mode == "substring" else name == prefix for name in ignored_layers)

    older = release.startswith("0.26")
    fp8: Any = Fp8Config if older else type("Fp8Config", (Fp8Config,), {"ignored_layers_match_mode": "substring"})
    quantisations = _quantisations()
    quantisations["register_quantization_config"]("fp8")(fp8)
    linears = linear.modules(QuantizationConfig)
    for contents in linears.values():
        for cls in contents.values():
            if isinstance(cls, type) and issubclass(cls, QuantizationConfig):
                quantisations["register_quantization_config"](cls.get_name())(cls)
    layers = "vllm.model_executor.layers"
    return {
        **linears,
        "vllm.model_executor.custom_op": {"op_registry_oot": {}},
        "vllm.model_executor.utils": {"set_weight_attrs": _set_weight_attrs},
        f"{layers}.fused_moe": {"FusedMoEMethodBase": FusedMoEMethodBase, "RoutedExperts": RoutedExperts},
        f"{layers}.fused_moe.unquantized_fused_moe_method": {"UnquantizedFusedMoEMethod": UnquantizedFusedMoEMethod},
        f"{layers}.quantization": quantisations,
        f"{layers}.quantization.fp8": {"Fp8Config": fp8},
        f"{layers}.quantization.mxfp4": {"Mxfp4Config": Mxfp4Config, "GptOssMxfp4Config": GptOssMxfp4Config},
        f"{layers}.quantization.utils.quant_utils": {"is_layer_skipped": skips_exactly if older else skips},
    }


def moe_config(**changes: Any) -> SimpleNamespace:
    """Of a layer of four experts, whose sizes are those of few blocks."""
    ranks = {f"{name}_size": changes.pop(name, 1) for name in ("tp", "pcp", "dp", "ep", "sp")}
    activation = changes.pop("activation", "silu")
    given = {
        "hidden_dim": 256, "intermediate_size": 128, "num_experts": 4, "experts_per_token": 2,
        "in_dtype": torch.float32, "device": "cpu", "has_bias": False, "is_act_and_mul": True,
        "is_lora_enabled": False, "activation": SimpleNamespace(value=activation),
        "moe_parallel_config": SimpleNamespace(**ranks),
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})
