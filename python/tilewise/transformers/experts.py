"""experts_implementation="tilewise": the experts of transformers' mixtures as one call of tilewise.moe().

What a class of experts computes between its two products is its own: its `_apply_gate` is asked for a grid of
numbers, and must be one of the activations that moe() has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import PreTrainedModel

import tilewise

__all__ = ["NAME", "Form", "call", "check_modules", "experts_forward", "form_of", "install", "recognise", "refusal"]

NAME = "tilewise"

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
    "identity": lambda x: x,
}


class Form(NamedTuple):
    """What experts do between their products, as moe() takes it."""

    gate: str
    activation: str
    alpha: float
    limit: float | None
    clamp: str

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Of numbers, in torch's operations."""
        before = self.limit if self.clamp == "before" else None
        after = self.limit if self.clamp == "after" else None
        gate = gate if before is None else gate.clamp(max=before)
        up = up if self.limit is None else up.clamp(-self.limit, self.limit)
        if self.activation == "swiglu_oai":
            gate, up = gate * torch.sigmoid(self.alpha * gate), up + 1
        else:
            gate = ACTIVATIONS[self.activation](gate)
        return (gate if after is None else gate.clamp(max=after)) * up


def _numbers(module: Any, *names: str) -> list[float]:
    """Those of a module's attributes that are numbers."""
    values = (getattr(module, name, None) for name in names)
    return [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


def _forms(module: Any, gate: str) -> Iterator[Form]:
    """Everything that moe() can do with the numbers that a module has, the plain forms first."""
    limits = [limit for limit in _numbers(module, "limit", "swiglu_limit") if 0 < limit < float("inf")]
    alphas = [*_numbers(module, "alpha", "swiglu_alpha"), 1.702]
    clamps = [(None, "before"), *((limit, clamp) for limit in limits for clamp in ("before", "after"))]
    for limit, clamp in clamps:
        yield from (Form(gate, activation, 1.702, limit, clamp) for activation in ACTIVATIONS)
        yield from (Form(gate, "swiglu_oai", alpha, limit, clamp) for alpha in alphas)


def _grid(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates and ups in pairs, to both sides of every limit."""
    largest = max([8.0, *(1.5 * limit for limit in _numbers(module, "limit", "swiglu_limit") if limit < 1e4)])
    ticks = torch.cat((torch.linspace(-largest, largest, 41), torch.linspace(-4, 4, 24)))
    return tuple(torch.cartesian_prod(ticks.to("cpu"), ticks.to("cpu")).unbind(-1))  # type: ignore[return-value]


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def recognise(module: Any) -> Form:
    """What a module of experts computes; NotImplementedError with the reason where moe() cannot."""
    with torch.device("cpu"), torch.no_grad():
        gate, up = _grid(module)
        if not module.has_gate:
            found = module.act_fn(up)
            for name, activation in ACTIVATIONS.items():
                if _agree(activation(up), found):
                    return Form("none", name, 1.702, None, "before")
            raise NotImplementedError(f"its activation, {type(module.act_fn).__name__}, is none that moe() has")
        pairs = {"concatenated": torch.cat((gate, up)), "interleaved": torch.stack((gate, up), -1).flatten()}
        layout = "concatenated" if module.is_concatenated else "interleaved"
        found = module._apply_gate(pairs[layout].unsqueeze(0)).squeeze(0)
        for form in _forms(module, layout):
            if found.shape == gate.shape and _agree(form(gate, up), found):
                return form
        raise NotImplementedError("its _apply_gate is none of the activations that moe() has")


def refusal(cls: type, reason: str) -> NotImplementedError:
    """The error for a class, of a model or of experts, that NAME cannot serve."""
    return NotImplementedError(
        f'experts_implementation: {cls.__name__} cannot use {NAME!r}: {reason}; use "eager" or "grouped_mm"'
    )


def form_of(module: Any) -> Form:
    """recognise(), remembered with the module."""
    form: Form | None = module.__dict__.get("_tilewise_form")
    if form is None:
        if getattr(module, "has_post_expert_norm", False):
            raise refusal(type(module), "it normalises experts' outputs, after a scale of its own")
        try:
            form = recognise(module)
        except NotImplementedError as error:
            raise refusal(type(module), str(error)) from None
        module.__dict__["_tilewise_form"] = form
    return form


def experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """What transformers calls instead of the class's own forward; results in the dtype of hidden_states.

    An index of num_experts, transformers' for another rank's expert, adds nothing.
    """
    first, down = matrices(module)
    if module.is_transposed:
        first, down = first.transpose(1, 2), down.transpose(1, 2)
    return call(module, hidden_states, top_k_index, top_k_weights, first, down, {})


def matrices(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of a module's two products, as it has them."""
    return module.gate_up_proj if module.has_gate else module.up_proj, module.down_proj


def call(
    module: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    first: torch.Tensor,
    down: torch.Tensor,
    quantised: dict[str, Any],
) -> torch.Tensor:
    """moe() of a module's tokens with these weights; quantised: moe()'s arguments about their format."""
    form = form_of(module)
    biased = module.has_bias
    if hidden_states.dtype == torch.float64:
        top_k_weights = top_k_weights.double()
    out = tilewise.moe(
        hidden_states.reshape(-1, hidden_states.shape[-1]),
        top_k_index,
        top_k_weights,
        first,
        down,
        gate_up_bias=(module.gate_up_proj_bias if module.has_gate else module.up_proj_bias) if biased else None,
        down_bias=module.down_proj_bias if biased else None,
        gate=form.gate,  # type: ignore[arg-type]
        activation=form.activation,  # type: ignore[arg-type]
        alpha=form.alpha,
        limit=form.limit,
        clamp=form.clamp,  # type: ignore[arg-type]
        **quantised,
    )
    return out.reshape(hidden_states.shape).to(hidden_states.dtype)  # autocast may have had another one


# Of routed experts; those that every token has are a layer like any other.
_EXPERTS = re.compile(r"(?<!Shared)(?:Experts|CDMoE)$")


def _own_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of a model's modules, those of parts with another kind of configuration left to these."""
    waiting = [model]
    while waiting:
        for name, child in waiting.pop().named_children():
            if not isinstance(child, PreTrainedModel) or type(child.config) is type(model.config):
                yield name, child
                waiting.append(child)


def check_modules(model: PreTrainedModel) -> None:
    """Raises NotImplementedError, with the reason, for a model with experts that NAME cannot serve."""
    for name, module in _own_modules(model):
        cls = type(module)
        if hasattr(module, "_is_expert_parallel"):
            form_of(module)
        elif name == "experts" or _EXPERTS.search(cls.__name__):
            raise refusal(type(model), f"{cls.__name__} never asks transformers which implementation to use")


def _models(model: PreTrainedModel) -> list[PreTrainedModel]:
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def _asked_for(model: PreTrainedModel, request: str | dict[str, str]) -> list[PreTrainedModel]:
    """The model and its parts, as far as set_experts_implementation(request) asks for NAME there."""
    if isinstance(request, str):
        return _models(model) if request == NAME else []
    parts = [getattr(model.config, name, None) for name, wanted in request.items() if name and wanted == NAME]
    own = [model] if request.get("") == NAME else []
    return own + [part for part in _models(model) if any(part.config is config for config in parts)]


def install() -> None:
    """Makes NAME known to transformers and has it ask check_modules(). Again is harmless.

    transformers lets no implementation look at the modules before they run, so two of its methods are wrapped.
    """
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    finish, switch = PreTrainedModel.post_init, PreTrainedModel.set_experts_implementation
    if getattr(switch, "__wrapped__", None) is not None:
        return

    @functools.wraps(finish)
    def post_init(self: PreTrainedModel) -> None:
        if self.config._experts_implementation == NAME:
            check_modules(self)
        finish(self)

    @functools.wraps(switch)
    def set_experts_implementation(self: PreTrainedModel, experts_implementation: str | dict[str, str]) -> None:
        # transformers leaves models as they are, and says nothing, that never ask.
        for model in _asked_for(self, experts_implementation):
            check_modules(model)
        switch(self, experts_implementation)

    PreTrainedModel.post_init = post_init
    PreTrainedModel.set_experts_implementation = set_experts_implementation
