"""Sizes, weights and calls of expert layers for benchmarks, drawn on the GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Layer:
    """Sizes of an expert layer."""

    experts: int
    top_k: int
    hidden: int
    intermediate: int


LAYERS = {
    "qwen": Layer(128, 8, 2048, 768),
    "mixtral": Layer(8, 2, 4096, 14336),
    "deepseek": Layer(256, 8, 7168, 2048),
    "ragged": Layer(13, 4, 520, 264),
}


@dataclass
class Weights:
    """Random weights on the GPU."""

    layer: Layer
    gate_up: torch.Tensor  # [experts, 2 intermediate, hidden]
    down: torch.Tensor  # [experts, hidden, intermediate]

    @classmethod
    def draw(cls, layer: Layer) -> Weights:
        import torch

        def matrix(rows: int, cols: int) -> torch.Tensor:
            out = torch.empty(layer.experts, rows, cols, device="cuda", dtype=torch.bfloat16)
            for expert in out:
                expert.copy_(torch.randn(rows, cols, device="cuda") * cols**-0.5)
            return out

        return cls(layer, matrix(2 * layer.intermediate, layer.hidden), matrix(layer.hidden, layer.intermediate))


@dataclass
class Call:
    """A call's rows and routing, and what it leaves."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    scratch: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def draw(cls, layer: Layer, tokens: int, skewed: bool = False) -> Call:
        import torch

        x = torch.randn(tokens, layer.hidden, device="cuda").bfloat16()
        logits = torch.randn(tokens, layer.experts, device="cuda")
        if skewed:
            logits += torch.linspace(3, 0, layer.experts, device="cuda")
        weights, ids = torch.topk(torch.softmax(logits, -1), layer.top_k, sorted=True)
        return cls(x, ids.int(), weights / weights.sum(-1, keepdim=True), torch.empty_like(x))

    def reference(self, w: Weights) -> torch.Tensor:
        """In fp32, an expert after the other."""
        import torch

        out = torch.zeros(self.x.shape, device="cuda")
        for expert in self.ids.unique().tolist():
            if not 0 <= expert < w.layer.experts:
                continue
            token, slot = (self.ids == expert).nonzero(as_tuple=True)
            gate, up = (self.x[token].float() @ w.gate_up[expert].float().t()).chunk(2, -1)
            part = (torch.nn.functional.silu(gate) * up) @ w.down[expert].float().t()
            out.index_add_(0, token, part * self.weights[token, slot, None])
        return out
