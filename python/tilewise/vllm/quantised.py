"""Quantised experts of vLLM, fp8 in blocks and mxfp4: a layer is one call of tilewise.moe() over its weights as stored.

vLLM's own methods choose their kernels, and with them the sizes that weights are padded to, while a layer is made. So
that is when it is settled who computes it, before vLLM is asked: on many CPUs it has no kernels for such weights, and
says so by an error. Rows are not quantised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.quantization import get_quantization_config, register_quantization_config
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, Mxfp4Config
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
from vllm.model_executor.utils import set_weight_attrs
from vllm.platforms import current_platform

import tilewise
from tilewise.vllm.asked import announce, share_threads, vllm_logger
from tilewise.vllm.experts import compute, form_of, obstacle

__all__ = ["StoredExperts", "install"]

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(frozen=True)
class Storage:
    """How a checkpoint, and vLLM's parameters, hold experts' weights."""

    name: str  # as logs say it
    w_format: str  # as moe() says it
    dtype: torch.dtype
    per_element: int  # numbers in an element
    block: tuple[int, int]  # rows, columns
    scale_dtype: torch.dtype
    scale_name: str  # of the parameters, behind w13_ and w2_
    weight_dtype: str | None  # by which vLLM's loaders of some models know a layer's weights


_FP8 = Storage("fp8 blocks", "fp8_128x128", torch.float8_e4m3fn, 1, (128, 128), torch.float32, "weight_scale_inv", None)
_MXFP4 = Storage("mxfp4", "mxfp4", torch.uint8, 2, (1, 32), torch.uint8, "weight_scale", "mxfp4")


def _problem(layer: Any, storage: Storage) -> str:
    """A call on a layer as problem text. Of the number of tokens no implementation asks."""
    moe = layer.moe_config
    form = {name: value for name, value in form_of(layer).items() if value is not None}
    if "limit" in form:
        form["clamp"] = "before"
    dtype = _DTYPES[moe.in_dtype]
    if moe.has_bias:
        form |= {"gate_up_bias": dtype, "down_bias": dtype}
    fields = {
        "dtype": dtype, "tokens": 1, "hidden": moe.hidden_dim, "intermediate": moe.intermediate_size,
        "num_experts": moe.num_experts, "top_k": moe.experts_per_token, "w_format": storage.w_format, **form,
    }  # fmt: skip
    device = torch.device(moe.device).type
    if device != "cpu":
        fields["device"] = "hip" if torch.version.hip else device
    return "moe " + " ".join(f"{name}={value}" for name, value in fields.items())


def _obstacle(layer: Any, storage: Storage) -> str | None:
    """Why moe() cannot compute a layer that is about to be made; None where it can."""
    moe = layer.moe_config
    reason = obstacle(layer, moe)
    if reason is not None:
        return reason
    if moe.in_dtype not in _DTYPES:
        return f"its tokens are {moe.in_dtype}"
    if getattr(moe, "is_lora_enabled", False):
        return "it may have adapters (LoRA)"
    # Gates and ups have blocks of their own, and a block of packed numbers is whole bytes.
    sizes = {"intermediate": moe.intermediate_size, **({"hidden": moe.hidden_dim} if storage.per_element > 1 else {})}
    for name, size in sizes.items():
        if size % storage.block[1] != 0:
            return f"its {name} size, {size}, is no multiple of {storage.block[1]}, the columns of a block"
    explained = tilewise.explain(_problem(layer, storage))
    if explained.chosen is None:
        return "; ".join(dict.fromkeys(f"{row.implementation}: {row.reason}" for row in explained.rows))
    return None


def _as_bytes(loader: Callable[..., Any]) -> Callable[..., Any]:
    """A loader of scales in e8m0, which would otherwise be copied as the numbers that they are."""

    @functools.wraps(loader)
    def load(parameter: torch.Tensor, loaded: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        if loaded.is_floating_point():
            loaded = loaded.to(torch.float8_e8m0fnu).view(torch.uint8)
        return loader(parameter, loaded, *arguments, **more)

    return load


class StoredExperts(FusedMoEMethodBase):
    """A layer's method, as vLLM calls it, that computes with weights as they are stored."""

    def __init__(self, moe: Any, storage: Storage) -> None:
        super().__init__(moe)
        self._storage = storage
        self.weight_dtype = storage.weight_dtype
        announce(f"experts in {storage.name}")
        share_threads()

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate_size_per_partition: int, *others: Any, **more: Any
    ) -> tuple[int, int]:
        """As they are."""
        return hidden_size, intermediate_size_per_partition

    def maybe_make_prepare_finalize(self, *arguments: Any, **more: Any) -> None:
        """What takes tokens to the ranks of their experts: on one rank nothing does."""

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        """Of vLLM's kernels."""

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        weight_loader: Callable[..., Any],
        **attributes: Any,
    ) -> None:
        """Parameters under the names, and of the shapes, that vLLM's loaders of models fill."""
        storage = self._storage
        block_rows, block_columns = storage.block
        scale_loader = _as_bytes(weight_loader) if storage.scale_dtype == torch.uint8 else weight_loader
        halves = 2 if self.moe.is_act_and_mul else 1
        sizes = (("w13", halves, intermediate_size_per_partition, hidden_size),
                 ("w2", 1, hidden_size, intermediate_size_per_partition))  # fmt: skip
        for name, parts, rows, columns in sizes:
            shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
                "weight": ((parts * rows, columns // storage.per_element), storage.dtype),
                storage.scale_name: ((parts * -(-rows // block_rows), -(-columns // block_columns)),
                                     storage.scale_dtype),
            }  # fmt: skip
            if self.moe.has_bias:
                shapes["bias"] = ((parts * rows,), params_dtype)
            for part, (shape, dtype) in shapes.items():
                is_scale = part == storage.scale_name
                values = torch.zeros(num_experts, *shape, dtype=dtype)
                parameter = torch.nn.Parameter(values, requires_grad=False)
                layer.register_parameter(f"{name}_{part}", parameter)
                own = {"weight_loader": scale_loader, "quant_method": "block"} if is_scale else {}
                set_weight_attrs(parameter, {"weight_loader": weight_loader, **attributes, **own})

    def process_weights_after_loading(self, layer: Any) -> None:
        """They stay as they are."""

    def apply(
        self, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *shared: Any, **more: Any
    ) -> torch.Tensor:
        """x: [tokens, hidden]. Shared experts have run before: they are summed elsewhere."""
        storage = self._storage
        scales = {name: getattr(layer, f"{theirs}_{storage.scale_name}")
                  for name, theirs in (("gate_up_scale", "w13"), ("down_scale", "w2"))}  # fmt: skip
        return compute(layer, x, topk_weights, topk_ids, w_format=storage.w_format, **scales)


class _Own:
    """Before a quantisation of vLLM's among the bases of a class: layers of experts that moe() can do are its."""

    def _storage_of(self, prefix: str) -> Storage | None:
        """Of a layer's experts; None where moe() has no such format, or they are not quantised."""
        raise NotImplementedError

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        """The method of a layer, which is vLLM's with a line in the log where moe() cannot do a layer of experts."""
        storage = self._storage_of(prefix) if isinstance(layer, RoutedExperts) else None
        if storage is not None:
            reason = _obstacle(layer, storage)
            if reason is None:
                return StoredExperts(layer.moe_config, storage)
            vllm_logger().warning("%s: its experts are vLLM's own, since %s", prefix, reason)
        return super().get_quant_method(layer, prefix)  # type: ignore[misc]

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """On CPUs float32, too, which vLLM's kernels there do not have."""
        theirs: list[torch.dtype] = super().get_supported_act_dtypes()  # type: ignore[misc]
        return [*theirs, torch.float32] if current_platform.is_cpu() else theirs


class TilewiseFp8Config(_Own, Fp8Config):
    """quant_method fp8: with weight_block_size, 128 x 128."""

    def _storage_of(self, prefix: str) -> Storage | None:
        how = {"match_mode": self.ignored_layers_match_mode} if hasattr(self, "ignored_layers_match_mode") else {}
        if is_layer_skipped(prefix, self.ignored_layers, self.packed_modules_mapping, **how):
            return None
        if not self.is_checkpoint_fp8_serialized:
            return None
        if self.store_dtype == "mxfp4":
            return _MXFP4
        if self.weight_block_size is not None and tuple(self.weight_block_size) == _FP8.block:
            return _FP8
        vllm_logger().warning(
            "%s: its experts are vLLM's own, since their fp8 weights have blocks of %s", prefix, self.weight_block_size
        )
        return None


class TilewiseMxfp4Config(_Own, Mxfp4Config):
    """quant_method mxfp4."""

    def _storage_of(self, prefix: str) -> Storage | None:
        return _MXFP4


class TilewiseGptOssMxfp4Config(_Own, GptOssMxfp4Config):
    """What vLLM makes of mxfp4 in gpt-oss's checkpoints."""

    def _storage_of(self, prefix: str) -> Storage | None:
        return _MXFP4


_CONFIGS = {
    "fp8": (TilewiseFp8Config, Fp8Config),
    "mxfp4": (TilewiseMxfp4Config, Mxfp4Config),
    "gpt_oss_mxfp4": (TilewiseGptOssMxfp4Config, GptOssMxfp4Config),
}


def install() -> None:
    """Has vLLM ask these classes. Again is harmless; another plugin's classes stay, which the log says."""
    for method, (ours, theirs) in _CONFIGS.items():
        known = get_quantization_config(method)
        if known is theirs:
            register_quantization_config(method)(ours)
        elif known is not ours:
            vllm_logger().warning(
                "experts in %s stay those of %s.%s, which was registered before", method, known.__module__,
                known.__name__,
            )  # fmt: skip
