"""fp8 checkpoints of transformers, experts and linear layers, computed from the bytes as they are stored.

Rows are not quantised, so that scales of activations, which some checkpoints have, are not needed. On a CPU
transformers has no kernels for such weights and widens them to bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts, FP8GroupedLinear, FP8Linear
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

import tilewise
from tilewise.transformers import stored
from tilewise.transformers.experts import NAME, call, form_of, matrices, refusal

__all__ = ["Fp8Quantizer", "GroupedLinear", "Linear", "experts_forward", "install", "take_form"]

# What transformers' class for fp8 experts raises where a configuration has no sizes or activation for it.
NOT_MADE = (AssertionError, AttributeError, KeyError, TypeError)
_OTHERWISE = "quantization_config=FineGrainedFP8Config(dequantize=True) widens them"
_E8M0 = torch.float8_e8m0fnu
# Blocks of weights, rows by columns, with the formats of their scales in f32 and e8m0.
_FORMATS: dict[tuple[int, int], tuple[str, str]] = {
    (128, 128): ("fp8_128x128", "fp8_128x128_e8m0"),
    (1, 128): ("fp8_1x128", "fp8_1x128_e8m0"),
    (1, 32): ("", "mxfp8"),
}


def _format(module: Any, scale: torch.Tensor, weight: torch.Tensor) -> str:
    """The format of a module's weights. NotImplementedError with the reason where there is none."""
    is_e8m0 = scale.dtype == _E8M0
    if weight.dtype == torch.int8:
        name = "mxfp4" if is_e8m0 else ""
        kind = "fp4"
    elif module.block_size is None:
        name = "" if is_e8m0 else "fp8_tensor"
        kind = "fp8 with one scale"
    else:
        blocks = tuple(module.block_size)
        name = _FORMATS.get(blocks, ("", ""))[is_e8m0]
        kind = f"fp8 in blocks of {' x '.join(map(str, blocks))}"
    if not name or weight.dtype not in (torch.int8, torch.float8_e4m3fn) or scale.dtype not in (torch.float32, _E8M0):
        held = str(weight.dtype).removeprefix("torch.")
        raise NotImplementedError(
            f"its weights are {kind} (in {held}) with scales in {str(scale.dtype).removeprefix('torch.')}, which no "
            f"format has; {_OTHERWISE}"
        )
    return name


def _bytes(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().view(torch.uint8) if weight.dtype == torch.int8 else weight.detach()


def _by_halves(scale: torch.Tensor, rows: int, block_rows: int) -> torch.Tensor:
    """[num_experts, rows, blocks of columns]: scales of gates and of ups, each with blocks of their own, by row."""
    halves = scale.view(torch.uint8) if scale.dtype == _E8M0 else scale
    by_row: torch.Tensor = halves.unflatten(1, (2, -1)).repeat_interleave(block_rows, 2)[:, :, : rows // 2]
    return by_row.flatten(1, 2).view(scale.dtype)


def _of_experts(module: Any) -> tuple[str, torch.Tensor, torch.Tensor]:
    """(format, scales of the first product, scales of the second) of FP8Experts."""
    first, down = matrices(module)
    scale = (module.gate_up_proj_scale_inv if module.has_gate else module.up_proj_scale_inv).detach()
    down_scale = module.down_proj_scale_inv.detach()
    name = _format(module, scale, first)
    if _format(module, down_scale, down) != name:
        raise NotImplementedError("the scales of its two products are of different types")
    rows = first.shape[1]
    block_rows = {"fp8_tensor": rows // 2, "fp8_128x128": 128, "fp8_128x128_e8m0": 128}.get(name, 1)
    if not module.has_gate or (name != "fp8_tensor" and (rows // 2) % block_rows == 0):
        return name, scale, down_scale
    # A block that begins in the gates would end in the ups: each row has its scale instead, down's rows as well.
    finer = {"fp8_tensor": "fp8_row"}.get(name, name.replace("128x128", "1x128"))
    down_rows = down.shape[1] if name == "fp8_tensor" else 128
    bytes_ = down_scale.view(torch.uint8) if down_scale.dtype == _E8M0 else down_scale
    down_scale = bytes_.repeat_interleave(down_rows, 1)[:, : down.shape[1]].view(down_scale.dtype)
    return finer, _by_halves(scale, rows, block_rows), down_scale


def experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """What transformers calls for FP8Experts; results in the dtype of hidden_states."""
    if not hasattr(module, "is_concatenated"):
        module.is_concatenated = True
    try:
        name, scale, down_scale = _of_experts(module)
    except NotImplementedError as error:
        raise refusal(type(module), str(error)) from None
    quantised = {"w_format": name, "gate_up_scale": scale, "down_scale": down_scale}
    first, down = matrices(module)
    return call(module, hidden_states, top_k_index, top_k_weights, _bytes(first), _bytes(down), quantised)


class Linear(FP8Linear):
    """transformers' FP8Linear, by tilewise.linear; where that has no kernel for the device by transformers' own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., out_features] in the dtype of input, [..., in_features]."""
        try:
            return tilewise.linear(
                input,
                _bytes(self.weight),
                self.bias,
                w_format=_format(self, self.weight_scale_inv, self.weight),  # type: ignore[arg-type]
                w_scale=self.weight_scale_inv.detach(),
            )
        except NotImplementedError:
            if input.device.type == "cpu":
                raise
            return super().forward(input)  # type: ignore[no-any-return]


class GroupedLinear(FP8GroupedLinear):
    """transformers' FP8GroupedLinear likewise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n_groups, out_features / n_groups] in the dtype of x, [..., n_groups, in_features]."""
        rows = x.movedim(-2, 0).reshape(-1, x.shape[-1])
        count = rows.shape[0] // self.n_groups
        scale = self.weight_scale_inv.detach()
        grouped = (self.n_groups, -1)
        try:
            out = tilewise.grouped_linear(
                rows,
                _bytes(self.weight).unflatten(0, grouped),
                bias=None if self.bias is None else self.bias.unflatten(0, grouped),
                counts=torch.full((self.n_groups,), count, dtype=torch.int32, device=x.device),
                w_format=_format(self, scale, self.weight),  # type: ignore[arg-type]
                w_scale=scale.expand(self.n_groups) if scale.dim() == 0 else scale.unflatten(0, grouped),
            )
        except NotImplementedError:
            if x.device.type == "cpu":
                raise
            return super().forward(x)  # type: ignore[no-any-return]
        return out.reshape(self.n_groups, *x.shape[:-2], -1).movedim(0, -2)


class Fp8Quantizer(stored.StoredWeights, FineGrainedFP8HfQuantizer):
    """transformers' quantizer of fp8, whose modules compute with Tilewise where the model asks for its experts."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        own = {name: module for name, module in model.named_modules() if hasattr(module, "_is_expert_parallel")}
        try:
            super()._process_model_before_weight_loading(model, **kwargs)
        except NOT_MADE as error:
            if not self.keeps_stored:
                raise
            reason = f"transformers makes no fp8 experts for it ({error}); {_OTHERWISE}"
            raise refusal(type(model), reason) from error
        if not self.keeps_stored:
            return
        for name, module in model.named_modules():
            cls = type(module)
            try:
                if cls is FP8Linear or cls is FP8GroupedLinear:
                    _format(module, module.weight_scale_inv, module.weight)
                    module.__class__ = Linear if cls is FP8Linear else GroupedLinear
                elif isinstance(module, FP8Experts):
                    take_form(module, own[name])
                    _of_experts(module)
            except NotImplementedError as error:
                raise refusal(type(model), f"of {name}, {error}") from None


def take_form(module: Any, own: Any) -> None:
    """FP8Experts compute by a formula of their own; these are to compute what the model's class does."""
    if own.is_transposed or not own.is_concatenated:
        raise NotImplementedError("fp8 weights are loaded as [gate; up] by rows, and its class has another layout")
    module.__dict__["_tilewise_form"] = form_of(own)


def install() -> None:
    """Makes NAME known for fp8 weights, and keeps these as they are stored. Again is harmless."""
    ALL_FP8_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    for method in ("fp8", "mxfp8"):
        AUTO_QUANTIZER_MAPPING[method] = Fp8Quantizer
