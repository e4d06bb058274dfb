"""Unquantised experts of vLLM: a layer is one call of tilewise.moe() over its weights as they were loaded.

On CPUs vLLM's own method repacks them. So which of the two computes a layer is settled when its weights are there, and
a layer that moe() cannot do goes vLLM's way, with the reason in the log.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

import tilewise
from tilewise.vllm.asked import announce, share_threads, vllm_logger

__all__ = ["TilewiseExperts", "compute", "form_of", "install", "obstacle"]

# vLLM's activations as moe() takes them. gpt-oss's has numbers, which a layer may give.
_FORMS: dict[str, dict[str, Any]] = {
    "silu": {"activation": "silu"},
    "gelu": {"activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "silu_no_mul": {"gate": "none", "activation": "silu"},
    "gelu_no_mul": {"gate": "none", "activation": "gelu"},
    "gelu_tanh_no_mul": {"gate": "none", "activation": "gelu_tanh"},
    "relu2_no_mul": {"gate": "none", "activation": "relu_squared"},
    "swigluoai": {"gate": "interleaved", "activation": "swiglu_oai"},
}
_OAI = {"alpha": 1.702, "limit": 7.0}
_OAI_BETA = 1.0
_BIASES = {"gate_up_bias": "w13_bias", "down_bias": "w2_bias"}


def form_of(layer: Any) -> dict[str, Any]:
    """What a layer's experts do between their products, as moe() takes it."""
    form = _FORMS[layer.activation.value]
    if form["activation"] != "swiglu_oai":
        return form
    given = {"alpha": layer.swiglu_alpha, "limit": layer.swiglu_limit}
    return {**form, **{name: _OAI[name] if value is None else value for name, value in given.items()}}


def obstacle(layer: Any, moe: Any) -> str | None:
    """Why moe() cannot compute a layer, whatever its weights are; None where it can."""
    ranks = moe.moe_parallel_config
    sizes = {name: getattr(ranks, f"{name}_size") for name in ("tp", "pcp", "dp", "ep", "sp")}
    if any(size > 1 for size in sizes.values()):
        return f"its experts are spread over ranks ({sizes})"
    activation = layer.activation.value
    if activation not in _FORMS:
        return f"moe() has no activation {activation}"
    is_oai = activation == "swigluoai"
    numbers = {} if is_oai else {"alpha": layer.swiglu_alpha, "limit": layer.swiglu_limit}
    if not (is_oai and layer.swiglu_beta == _OAI_BETA):
        numbers["beta"] = layer.swiglu_beta
    for name, value in numbers.items():
        if value is not None:
            return f"its {activation} has {name}={value}"
    return None


def _obstacle_of_loaded(layer: Any, moe: Any) -> str | None:
    """obstacle() of a layer whose weights are there, unquantised."""
    if layer.expert_map is not None:
        return "it has a map of experts"
    dtypes = {layer.w13_weight.dtype, layer.w2_weight.dtype}
    if not dtypes <= {torch.float32, torch.bfloat16, torch.float16}:
        return f"its weights are {', '.join(sorted(map(str, dtypes)))}"
    return obstacle(layer, moe)


def compute(
    layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, **quantised: Any
) -> torch.Tensor:
    """A layer's experts of x, [tokens, hidden]; quantised: moe()'s arguments about the weights' format."""
    biases: dict[str, Any] = {name: getattr(layer, theirs, None) for name, theirs in _BIASES.items()}
    return tilewise.moe(
        x, topk_ids, topk_weights, layer.w13_weight, layer.w2_weight, **biases, **form_of(layer),
        weight_on_input=layer.apply_router_weight_on_input, **quantised,
    )  # fmt: skip


class TilewiseExperts(UnquantizedFusedMoEMethod):
    """vLLM's method of unquantised experts, on moe() where that can."""

    _ours = False

    @property
    def is_monolithic(self) -> bool:
        """Whether it routes, too, which moe() leaves to vLLM's router."""
        return not self._ours and bool(super().is_monolithic)

    def maybe_make_prepare_finalize(self, *arguments: Any, **more: Any) -> Any:
        """What takes tokens to the ranks of their experts: on one rank nothing does."""
        return None if self._ours else super().maybe_make_prepare_finalize(*arguments, **more)

    def process_weights_after_loading(self, layer: Any) -> None:
        reason = _obstacle_of_loaded(layer, self.moe)
        self._ours = reason is None
        if reason is None:
            announce("unquantised experts")
            share_threads()
            return
        vllm_logger().warning("%s: its experts are vLLM's own, since %s", layer.layer_name, reason)
        super().process_weights_after_loading(layer)

    def forward_native(
        self, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *shared: Any, **more: Any
    ) -> Any:
        """x: [tokens, hidden]. Shared experts have run before: they are summed elsewhere."""
        if not self._ours:
            return super().forward_native(layer, x, topk_weights, topk_ids, *shared, **more)
        return compute(layer, x, topk_weights, topk_ids)


def install() -> None:
    """Has vLLM make TilewiseExperts. Again is harmless; another plugin's class stays, which the log says."""
    known = op_registry_oot.get(UnquantizedFusedMoEMethod.__name__)
    if known is None:
        UnquantizedFusedMoEMethod.register_oot(TilewiseExperts)
    elif known is not TilewiseExperts:
        vllm_logger().warning(
            "experts stay those of %s.%s, which was registered before", known.__module__, known.__name__
        )
