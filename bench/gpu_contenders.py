"""Tilewise and torch's FlashAttention-2 behind one interface, on the same random tensors.

Tensors are made [batch, seqlen, heads, head_dim], or packed [total, heads, head_dim]; each library sees them in
the layout it likes best, as views that cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_cases import GpuCase
from torch.nn.functional import scaled_dot_product_attention

import tilewise
from tilewise.bench import contenders, inputs
from tilewise.bench.contenders import Unsupported
from tilewise.bench.shapes import Pass

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Inputs(inputs.Inputs):
    """q, k, v and the gradient of out, bf16; cu_seqlens is int32 and there only for packed sequences."""

    cu_seqlens: torch.Tensor | None = None


def make_inputs(case: GpuCase, device: str, seed: int | None = 0) -> Inputs:
    """Normal random numbers; with None for the seed, memory that nothing has been written to."""
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    shape = case.shape

    def draw(seqlen: int, heads: int) -> torch.Tensor:
        rows = (sum(case.lengths),) if case.lengths else (shape.batch_size, seqlen)
        size = (*rows, heads, shape.head_dim)
        if generator is None:
            return torch.empty(size, device=device, dtype=torch.bfloat16)
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).bfloat16()

    q, dout = draw(shape.seqlen_q, shape.num_heads_q), draw(shape.seqlen_q, shape.num_heads_q)
    k, v = draw(shape.seqlen_k, shape.num_heads_k), draw(shape.seqlen_k, shape.num_heads_k)
    starts = None
    if case.lengths:
        starts = torch.tensor((0, *case.lengths), device=device).cumsum(0).to(torch.int32)
    return Inputs(q, k, v, dout, starts)


class Tilewise:
    """This library, through tilewise.attention and its torch operators."""

    name = "tilewise"

    def __init__(self, implementation: str | None = None) -> None:
        self.implementation = implementation

    def options(self, case: GpuCase, inputs: Inputs) -> dict[str, Any]:
        options: dict[str, Any] = {"mask": "causal"} if case.causal else {}
        if self.implementation is not None:
            options["implementation"] = self.implementation
        if case.window_left >= 0:
            options["window"] = (case.window_left, -1)
        if case.softcap:
            options["softcap"] = case.softcap
        if case.dropout_p:
            options.update(dropout_p=case.dropout_p, seed=torch.tensor([1, 0], device=inputs.q.device))
        if case.lengths:
            options.update(layout="thd", cu_seqlens_q=inputs.cu_seqlens, cu_seqlens_k=inputs.cu_seqlens)
            options.update(max_seqlen_q=case.shape.seqlen_q, max_seqlen_k=case.shape.seqlen_k)
        return options

    def chosen(self, case: GpuCase, operation: str, inputs: Inputs) -> str:
        """The implementation's name."""
        return str(self.explanation(case, operation, inputs).chosen)

    def explanation(self, case: GpuCase, operation: str, inputs: Inputs) -> tilewise.Explanation:
        """Every implementation's verdict on one pass of the case."""
        options = self.options(case, inputs)
        forward = tilewise.explain(inputs.q, inputs.k, inputs.v, return_lse=True, **options)
        problem = forward.problem.replace("attention_forward", f"attention_{operation}", 1)
        return tilewise.explain(problem, implementation=self.implementation)

    def warm_up(self, case: GpuCase, inputs: Inputs) -> None:
        """Compiles what the case needs; the tensors' elements are not read."""
        backward = "backward" in case.passes
        leaves = [tensor.detach().requires_grad_(backward) for tensor in (inputs.q, inputs.k, inputs.v)]
        tilewise.warmup(*leaves, **self.options(case, inputs))

    def views(self, case: GpuCase, tensors: Tensors) -> Tensors:
        return tensors

    def attention(self, case: GpuCase, inputs: Inputs) -> Callable[..., torch.Tensor]:
        options = self.options(case, inputs)
        return lambda q, k, v: tilewise.attention(q, k, v, **options)


class TorchFlash:
    """scaled_dot_product_attention on bhsd views, to be called under sdpa_kernel(FLASH_ATTENTION).

    Windows and packed sequences, which that function doesn't take, go to the operator beneath it.
    """

    name = "torch"

    def chosen(self, case: GpuCase, operation: str, inputs: Inputs) -> str:
        return ""

    def warm_up(self, case: GpuCase, inputs: Inputs) -> None:
        """Its kernels are compiled already."""

    def views(self, case: GpuCase, tensors: Tensors) -> Tensors:
        if self._beneath(case):
            return tensors
        return tuple(tensor.transpose(1, 2) for tensor in tensors)

    def attention(self, case: GpuCase, inputs: Inputs) -> Callable[..., torch.Tensor]:
        if case.softcap:
            raise Unsupported("torch has no softcap")
        shape, cu_seqlens = case.shape, inputs.cu_seqlens
        if self._beneath(case):
            if not inputs.q.is_cuda:
                raise Unsupported("torch has windows and packed sequences on CUDA devices alone")
            flash, lengths = torch.ops.aten._flash_attention_forward, (shape.seqlen_q, shape.seqlen_k)
            window = {"window_size_left": case.window_left, "window_size_right": 0} if case.window_left >= 0 else {}

            def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                result = flash(q, k, v, cu_seqlens, cu_seqlens, *lengths, 0.0, case.causal, False, **window)
                return result[0]  # type: ignore[no-any-return]

            return attention
        options: dict[str, Any] = {"is_causal": case.causal, "dropout_p": case.dropout_p}
        if shape.num_heads_q != shape.num_heads_k:
            options["enable_gqa"] = True
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, **options)

    @staticmethod
    def _beneath(case: GpuCase) -> bool:
        return case.window_left >= 0 or bool(case.lengths)


Contender = Tilewise | TorchFlash


@dataclass(frozen=True)
class Prepared(contenders.Prepared):
    """`call` runs one pass `calls` times; `results` returns what it computes, in the layout of Inputs."""

    calls: int = 1


def prepare(contender: Contender, case: GpuCase, operation: Pass, inputs: Inputs) -> Prepared:
    """One pass through autograd's own functions; backward alone is timed, its graph being kept."""
    views = Inputs(*contender.views(case, (inputs.q, inputs.k, inputs.v, inputs.dout)))
    prepared = contenders.through_autograd(contender.attention(case, inputs), operation, views)
    return Prepared(prepared.call, lambda: contender.views(case, tuple(prepared.results())))


def prepare_graph(contender: Contender, case: GpuCase, copies: list[Inputs]) -> Prepared:
    """One CUDA graph of a forward call on each of `copies`, so that the host takes no part in the time."""
    each = [prepare(contender, case, "forward", inputs) for inputs in copies]
    if not copies[0].q.is_cuda:

        def in_turn() -> None:
            for prepared in each:
                prepared.call()

        return Prepared(in_turn, each[0].results, len(copies))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # first calls may allocate, load and tune
        for prepared in each[:2]:
            prepared.call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for prepared in each:
            prepared.call()
    return Prepared(graph.replay, each[0].results, len(copies))
