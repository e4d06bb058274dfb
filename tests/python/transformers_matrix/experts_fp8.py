"""What transformers' class for fp8 weights computes in place of a class of experts, with "tilewise" and from bytes."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.integrations.moe import use_experts_implementation

import tilewise
from tilewise.transformers import fp8
from transformers_matrix.checks import compare, first_line

FORMAT = "fp8_128x128"


def _stands_in(own: Any) -> Any:
    """What the quantizer makes of a module, from a class of its own: the decorator changes the one that it is given."""
    made = type("FP8Experts", (FP8Experts,), {})
    decorated: Any = use_experts_implementation(
        experts_class=made, experts_interface=ALL_FP8_EXPERTS_FUNCTIONS, has_gate=own.has_gate
    )
    return decorated(config=own.config, block_size=(128, 128), has_gate=own.has_gate)


def _quantise(own: Any, module: Any) -> None:
    """Gives the module the weights in fp8, and its own class what these stand for."""
    for name in ("gate_up_proj" if own.has_gate else "up_proj", "down_proj"):
        weight = getattr(own, name)
        parts = weight.detach().chunk(2, 1) if name == "gate_up_proj" else (weight.detach(),)
        quantised = [tilewise.quantize(part.contiguous(), FORMAT) for part in parts]
        elements, scales = (torch.cat(each, 1) for each in zip(*quantised))
        with torch.no_grad():
            getattr(module, name).copy_(elements)
            getattr(module, f"{name}_scale_inv").copy_(scales)
            weight.copy_(torch.cat([tilewise.dequantize(*each, FORMAT) for each in quantised], 1))


def check(own: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> str:
    """ "fp8" where the class's own forward has the same result and gradients of x and of the weights; else why not."""
    if own.has_bias:
        return "no fp8 (transformers has none with biases)"
    try:
        module = _stands_in(own)
    except fp8.NOT_MADE as error:
        return f"no fp8 (transformers: {first_line(error)})"
    try:
        fp8.take_form(module, own)
    except NotImplementedError as error:
        return f"no fp8 ({error})"
    _quantise(own, module)
    results = []
    for each, implementation in ((own, "eager"), (module, "tilewise")):
        own.config._experts_implementation = implementation
        given = [tensor.detach().clone().requires_grad_() for tensor in (x, weights)]
        out = each(given[0], ids, given[1])
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), given)])
    for name, expected, found in zip(("out", "gradient of x", "gradient of top_k_weights"), *results):
        compare(found, expected, f"fp8, {name}")
    return "fp8"
