"""Sizes, weights and calls of expert layers for benchmarks, drawn on the GPU."""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class Format:
    """Of quantised weights: elements of a byte, and the block that has a scale."""

    elements_of_byte: int
    block_rows: int
    block_columns: int
    scale_bytes: int

    @property
    def element_bytes(self) -> float:
        return 1 / self.elements_of_byte + self.scale_bytes / (self.block_rows * self.block_columns)


FORMATS = {"mxfp4": Format(2, 1, 32, 1), "nvfp4": Format(2, 1, 16, 1), "fp8": Format(1, 128, 128, 4)}


@dataclass
class QuantisedMatrices:
    """Random matrices [experts, rows, columns] in e2m1, two elements a byte, or in e4m3, and their scales."""

    name: str
    elements: torch.Tensor
    scales: torch.Tensor
    factors: torch.Tensor | None  # of nvfp4, each expert's

    @classmethod
    def draw(cls, name: str, experts: int, rows: int, columns: int) -> QuantisedMatrices:
        import torch

        of, size = FORMATS[name], columns**-0.5 / 3
        shape = (experts, -(-rows // of.block_rows), -(-columns // of.block_columns))
        elements = torch.empty(experts, rows, columns // of.elements_of_byte, device="cuda", dtype=torch.uint8)
        if name == "fp8":
            for expert in elements:
                expert.copy_(torch.randn(rows, columns, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8))
            return cls(name, elements, (torch.rand(shape, device="cuda") + 1) * size * 2, None)
        elements.random_(0, 256)
        if name == "nvfp4":
            scales = (torch.rand(shape, device="cuda") + 0.5).to(torch.float8_e4m3fn).view(torch.uint8)
            return cls(name, elements, scales, torch.full((experts,), size, device="cuda"))
        middle = 127 + round(math.log2(size))
        return cls(name, elements, torch.randint(middle - 1, middle + 2, shape, device="cuda").byte(), None)

    def numbers(self, expert: int) -> torch.Tensor:
        import torch

        of, bytes_, scales = FORMATS[self.name], self.elements[expert], self.scales[expert]
        if self.name == "fp8":
            elements, factors = bytes_.view(torch.float8_e4m3fn).float(), scales
        else:
            table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device="cuda")
            codes = torch.stack([bytes_ & 15, bytes_ >> 4], -1).flatten(-2).long()
            elements = torch.cat([table, -table])[codes]
            if self.factors is not None:
                factors = scales.view(torch.float8_e4m3fn).float() * self.factors[expert]
            else:
                factors = torch.exp2(scales.float() - 127)
        factors = factors.repeat_interleave(of.block_rows, 0).repeat_interleave(of.block_columns, 1)
        return elements * factors[: elements.shape[0], : elements.shape[1]]


@dataclass
class QuantisedWeights:
    """Weights in a format of FORMATS."""

    layer: Layer
    gate_up: QuantisedMatrices
    down: QuantisedMatrices

    @classmethod
    def draw(cls, layer: Layer, name: str) -> QuantisedWeights:
        return cls(
            layer,
            QuantisedMatrices.draw(name, layer.experts, 2 * layer.intermediate, layer.hidden),
            QuantisedMatrices.draw(name, layer.experts, layer.hidden, layer.intermediate),
        )

    @property
    def format(self) -> Format:
        return FORMATS[self.gate_up.name]

    @property
    def element_bytes(self) -> float:
        return self.format.element_bytes

    def numbers(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.gate_up.numbers(expert), self.down.numbers(expert)


AnyWeights = Weights | QuantisedWeights


def quantised_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of fp32 as e4m3 with scales of 1 x 128."""
    import torch

    blocks = -(-x.shape[1] // 128)
    padded = torch.nn.functional.pad(x, (0, 128 * blocks - x.shape[1])).view(x.shape[0], blocks, 128)
    largest = padded.abs().amax(-1)
    scales = torch.where(largest == 0, 1.0, (largest / 448).clamp_min(2.0**-126))
    elements = (padded / scales[..., None]).to(torch.float8_e4m3fn)
    return elements.flatten(1)[:, : x.shape[1]].contiguous(), scales


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

    def quantised_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x in fp8 with scales of 1 x 128."""
        return quantised_rows(self.x.float())

    def reference(self, w: AnyWeights, quantises: bool = False) -> torch.Tensor:
        """In fp32, an expert after the other. quantises: x, and what is between both products."""
        import torch

        def rows(x: torch.Tensor) -> torch.Tensor:
            if not quantises:
                return x.float()
            elements, scales = quantised_rows(x.float())
            return elements.float() * scales.repeat_interleave(128, 1)[:, : x.shape[1]]

        out = torch.zeros(self.x.shape, device="cuda")
        x = rows(self.x)
        for expert in self.ids.unique().tolist():
            if not 0 <= expert < w.layer.experts:
                continue
            token, slot = (self.ids == expert).nonzero(as_tuple=True)
            gate_up, down = w.numbers(expert)
            gate, up = (x[token] @ gate_up.t()).chunk(2, -1)
            part = rows(torch.nn.functional.silu(gate) * up) @ down.t()
            out.index_add_(0, token, part * self.weights[token, slot, None])
        return out
