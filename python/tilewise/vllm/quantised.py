"""vLLM's quantisations, with layers of experts and linear layers that compute with weights as stored.

Of experts, fp8 in blocks and mxfp4: a layer is one call of tilewise.moe(). vLLM's own methods choose their kernels,
and with them the sizes that weights are padded to, while a layer is made. So that is when it is settled who computes
it, before vLLM is asked: on many CPUs it has no kernels for such weights, and says so by an error. Rows are not
quantised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import get_quantization_config, register_quantization_config
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.fbgemm_fp8 import FBGEMMFp8Config
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, Mxfp4Config
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
from vllm.model_executor.utils import set_weight_attrs
from vllm.platforms import current_platform

from tilewise.vllm.asked import announce, share_threads, vllm_logger, wanted
from tilewise.vllm.experts import compute, form_of, obstacle
from tilewise.vllm.linear import LinearStorage, StoredLinear, fp8_in, mx
from tilewise.vllm.stored import DTYPES, loading_bytes, problem_text, refusal

__all__ = ["StoredExperts", "install"]


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
    dtype = DTYPES[moe.in_dtype]
    if moe.has_bias:
        form |= {"gate_up_bias": dtype, "down_bias": dtype}
    fields = {
        "dtype": dtype, "tokens": 1, "hidden": moe.hidden_dim, "intermediate": moe.intermediate_size,
        "num_experts": moe.num_experts, "top_k": moe.experts_per_token, "w_format": storage.w_format, **form,
    }  # fmt: skip
    return problem_text("moe", torch.device(moe.device).type, **fields)


def _obstacle(layer: Any, storage: Storage) -> str | None:
    """Why moe() cannot compute a layer that is about to be made; None where it can."""
    moe = layer.moe_config
    reason = obstacle(layer, moe)
    if reason is not None:
        return reason
    if moe.in_dtype not in DTYPES:
        return f"its tokens are {moe.in_dtype}"
    if getattr(moe, "is_lora_enabled", False):
        return "it may have adapters (LoRA)"
    # Gates and ups have blocks of their own, and a block of packed numbers is whole bytes.
    sizes = {"intermediate": moe.intermediate_size, **({"hidden": moe.hidden_dim} if storage.per_element > 1 else {})}
    for name, size in sizes.items():
        if size % storage.block[1] != 0:
            return f"its {name} size, {size}, is no multiple of {storage.block[1]}, the columns of a block"
    return refusal(_problem(layer, storage))


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
        scale_loader = loading_bytes(weight_loader) if storage.scale_dtype == torch.uint8 else weight_loader
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
    """Before a quantisation of vLLM's among the bases of a class: layers that Tilewise can do, and is asked for, are
    its."""

    def _storage_of(self, prefix: str) -> Storage | None:
        """Of a layer's experts; None where moe() has no such format, or they are not quantised."""

    def _linear_storage_of(self, layer: Any, prefix: str) -> LinearStorage | None:
        """Of a linear layer; None where linear() has no such format, or it is not quantised."""

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        """The method of a layer, which is vLLM's, with a line in the log, where Tilewise cannot do a layer."""
        asked = wanted()
        theirs = functools.partial(super().get_quant_method, layer, prefix)  # type: ignore[misc]
        if "linear" in asked and isinstance(layer, LinearBase):
            linear = self._linear_storage_of(layer, prefix)
            return theirs() if linear is None else StoredLinear(linear, prefix, theirs)
        storage = self._storage_of(prefix) if "experts" in asked and isinstance(layer, RoutedExperts) else None
        if storage is not None:
            reason = _obstacle(layer, storage)
            if reason is None:
                return StoredExperts(layer.moe_config, storage)
            _say_refused(prefix, "its experts are", reason)
        return theirs()


class _OwnOnCpus(_Own):
    """Likewise, of a quantisation whose models vLLM does not run in float32."""

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """On CPUs float32, too."""
        theirs: list[torch.dtype] = super().get_supported_act_dtypes()  # type: ignore[misc]
        return [*theirs, torch.float32] if current_platform.is_cpu() else theirs


def _is_skipped(config: Any, names: Any, prefix: str) -> bool:
    """Whether a layer is among those that a checkpoint leaves as they are."""
    how = {"match_mode": config.ignored_layers_match_mode} if hasattr(config, "ignored_layers_match_mode") else {}
    return bool(is_layer_skipped(prefix, names, config.packed_modules_mapping, **how))


def _say_refused(prefix: str, what: str, reason: str) -> None:
    vllm_logger().warning("%s: %s vLLM's own, since %s", prefix, what, reason)


class TilewiseFp8Config(_OwnOnCpus, Fp8Config):
    """quant_method fp8: experts with weight_block_size 128 x 128, linear layers also with one scale for a matrix."""

    def _storage_of(self, prefix: str) -> Storage | None:
        if _is_skipped(self, self.ignored_layers, prefix) or not self.is_checkpoint_fp8_serialized:
            return None
        if self.store_dtype == "mxfp4":
            return _MXFP4
        if self.weight_block_size is not None and tuple(self.weight_block_size) == _FP8.block:
            return _FP8
        _say_refused(prefix, "its experts are", f"their fp8 weights have blocks of {self.weight_block_size}")
        return None

    def _linear_storage_of(self, layer: Any, prefix: str) -> LinearStorage | None:
        if _is_skipped(self, self.ignored_layers, prefix) or not self.is_checkpoint_fp8_serialized:
            return None
        block = self.weight_block_size
        storage = fp8_in(block, scale_name="weight_scale" if block is None else "weight_scale_inv",
                         has_input_scale=self.activation_scheme == "static")  # fmt: skip
        if storage is None:
            _say_refused(prefix, "it is", f"its fp8 weights have blocks of {block}")
        return storage


class TilewiseMxfp4Config(_OwnOnCpus, Mxfp4Config):
    """quant_method mxfp4, whose linear layers vLLM does not quantise."""

    def _storage_of(self, prefix: str) -> Storage | None:
        return _MXFP4


class TilewiseGptOssMxfp4Config(_OwnOnCpus, GptOssMxfp4Config):
    """What vLLM makes of mxfp4 in gpt-oss's checkpoints."""

    def _storage_of(self, prefix: str) -> Storage | None:
        return _MXFP4


class TilewiseFbgemmConfig(_OwnOnCpus, FBGEMMFp8Config):
    """quant_method fbgemm_fp8: linear layers with a scale for each row."""

    def _linear_storage_of(self, layer: Any, prefix: str) -> LinearStorage | None:
        return None if _is_skipped(self, self.ignore_list, prefix) else fp8_in(None, by_row=True)


class TilewiseCompressedTensorsConfig(_Own, CompressedTensorsConfig):
    """quant_method compressed-tensors: linear layers in fp8 of any scales that linear() has, mxfp8 and mxfp4."""

    def _linear_storage_of(self, layer: Any, prefix: str) -> LinearStorage | None:
        scheme = self.get_scheme_dict(layer, prefix)
        weights = scheme and scheme.get("weights")
        if not weights or weights.type != "float" or weights.dynamic or not weights.symmetric:
            return None  # as it is, or in integers
        strategy = weights.strategy
        form, given = (weights.num_bits, strategy), scheme.get("input_activations")
        storage = None
        if form == (4, "group") and weights.group_size == 32:
            storage = mx("mxfp4", per_element=2, weight_name="weight_packed")
        elif form == (8, "group") and weights.group_size == 32 and weights.scale_dtype == torch.uint8:
            storage = mx("mxfp8")
        elif form in ((8, "tensor"), (8, "channel"), (8, "block")):
            storage = fp8_in(weights.block_structure if strategy == "block" else None, by_row=strategy == "channel",
                             has_input_scale=given is not None and not given.dynamic)  # fmt: skip
        reason = None
        if storage is None:
            reason = f"linear() has no format for its weights ({weights.num_bits} bits, {strategy})"
        elif self.transform_config is not None or scheme.get("output_activations") is not None:
            storage, reason = None, "its checkpoint transforms or quantises what goes in or comes out"
        if reason:
            _say_refused(prefix, "it is", reason)
        return storage


# vLLM's names of quantisations, with their classes, and for what they are ours.
_CONFIGS: dict[str, tuple[type, type, set[str]]] = {
    "fp8": (TilewiseFp8Config, Fp8Config, {"experts", "linear"}),
    "mxfp4": (TilewiseMxfp4Config, Mxfp4Config, {"experts"}),
    "gpt_oss_mxfp4": (TilewiseGptOssMxfp4Config, GptOssMxfp4Config, {"experts"}),
    "fbgemm_fp8": (TilewiseFbgemmConfig, FBGEMMFp8Config, {"linear"}),
    "compressed-tensors": (TilewiseCompressedTensorsConfig, CompressedTensorsConfig, {"linear"}),
}


def install() -> None:
    """Has vLLM ask these classes. Again is harmless; another plugin's classes stay, which the log says."""
    asked = wanted()
    for method, (ours, theirs, words) in _CONFIGS.items():
        if not asked & words:
            continue
        known = get_quantization_config(method)
        if known is theirs:
            register_quantization_config(method)(ours)
        elif known is not ours:
            vllm_logger().warning(
                "layers in %s stay those of %s.%s, which was registered before", method, known.__module__,
                known.__name__,
            )  # fmt: skip
