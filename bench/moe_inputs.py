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
    "gpt_oss": Layer(32, 4, 2880, 2880),
    "ragged": Layer(13, 4, 520, 264),
    "ragged_blocks": Layer(13, 4, 544, 288),
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

    @property
    def element_bytes(self) -> float:
        return 2.0

    def numbers(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """An expert's gate_up and down in fp32."""
        return self.gate_up[expert].float(), self.down[expert].float()


@dataclass
class PackedMatrices:
    """Random matrices [experts, rows, columns] in mxfp4: two elements a byte, a byte of scale for 32."""

    elements: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def draw(cls, experts: int, rows: int, columns: int) -> PackedMatrices:
        import torch

        middle = 124 - columns.bit_length() // 2
        elements = torch.empty(experts, rows, columns // 2, device="cuda", dtype=torch.uint8)
        scales = torch.empty(experts, rows, columns // 32, device="cuda", dtype=torch.uint8)
        return cls(elements.random_(0, 256), scales.random_(middle, middle + 4))

    def numbers(self, expert: int) -> torch.Tensor:
        import torch

        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device="cuda")
        table = torch.cat([table, -table])
        bytes_ = self.elements[expert].long()
        elements = torch.stack([table[bytes_ & 15], table[bytes_ >> 4]], -1).flatten(-2)
        return elements * torch.exp2(self.scales[expert].float() - 127).repeat_interleave(32, -1)


@dataclass
class PackedWeights:
    """Weights in mxfp4."""

    layer: Layer
    gate_up: PackedMatrices
    down: PackedMatrices

    element_bytes = 0.5 + 1 / 32

    @classmethod
    def draw(cls, layer: Layer) -> PackedWeights:
        return cls(
            layer,
            PackedMatrices.draw(layer.experts, 2 * layer.intermediate, layer.hidden),
            PackedMatrices.draw(layer.experts, layer.hidden, layer.intermediate),
        )

    def numbers(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.gate_up.numbers(expert), self.down.numbers(expert)


AnyWeights = Weights | PackedWeights


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

    def reference(self, w: AnyWeights) -> torch.Tensor:
        """In fp32, an expert after the other."""
        import torch

        out = torch.zeros(self.x.shape, device="cuda")
        for expert in self.ids.unique().tolist():
            if not 0 <= expert < w.layer.experts:
                continue
            token, slot = (self.ids == expert).nonzero(as_tuple=True)
            gate_up, down = w.numbers(expert)
            gate, up = (self.x[token].float() @ gate_up.t()).chunk(2, -1)
            part = (torch.nn.functional.silu(gate) * up) @ down.t()
            out.index_add_(0, token, part * self.weights[token, slot, None])
        return out
