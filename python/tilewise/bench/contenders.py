"""The libraries that can be measured: how each is found, what it refuses, and how it is called.

A contender turns a case and its tensors into two functions: one to time and one that returns
the results to judge. What is missing or can't run says so in one sentence.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Optional, TypeVar

import tilewise
from tilewise.bench.inputs import Inputs, has_torch, make_inputs, poisoned_like
from tilewise.bench.shapes import FP8, Case, Pass, problem_text

CaseT = TypeVar("CaseT")
InputsT = TypeVar("InputsT")


class Unsupported(Exception):
    """Why a contender can't run a case."""


@dataclass(frozen=True)
class Prepared:
    """`call` is timed and runs the case `calls` times; `results` runs it once and returns [out], or [dq, dk, dv] for
    a backward case."""

    call: Callable[[], object]
    results: Callable[[], Sequence[Any]]
    calls: int = 1


class Contender(ABC, Generic[CaseT, InputsT]):
    """One library, on the cases of one operation."""

    name: str

    @abstractmethod
    def missing(self) -> str:
        """Why it can't be measured here at all; empty where it can."""

    @abstractmethod
    def prepare(self, case: CaseT, inputs: InputsT) -> Prepared:
        """Everything outside the timed call. Raises Unsupported."""

    def set_num_threads(self, threads: int) -> None:
        """Makes the following calls use this many threads."""

    def implementation(self, case: CaseT) -> str:
        """Which of its kernels takes the case, where the library can tell."""
        return ""

    def version(self) -> str:
        """The installed version, "?" where it can't be told."""
        try:
            return importlib.metadata.version(self.name.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:
            return "?"


class OfTilewise(Contender[CaseT, InputsT]):
    """This library, through its public Python functions. `implementation`: one of its own, by name."""

    name = "tilewise"

    def __init__(self, implementation: Optional[str] = None) -> None:
        self.forced = implementation

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return str(tilewise.__version__)

    @abstractmethod
    def explanation(self, case: CaseT) -> tilewise.Explanation:
        """Every implementation's verdict on the case."""

    def implementation(self, case: CaseT) -> str:
        return self.explanation(case).chosen or ""

    def set_num_threads(self, threads: int) -> None:
        tilewise.set_num_threads(threads)
        if has_torch():  # whose tensors' calls take torch's number
            import torch

            torch.set_num_threads(threads)


class Tilewise(OfTilewise[Case, Inputs]):
    """tilewise.attention."""

    def explanation(self, case: Case) -> tilewise.Explanation:
        return tilewise.explain(problem_text(case), implementation=self.forced)

    def warm_up(self, case: Case) -> None:
        """Compiles and loads what a case of torch tensors needs."""
        inputs = make_inputs(case, seed=None)
        leaves = (inputs.q, inputs.k, inputs.v)
        if case.operation == "backward":
            leaves = tuple(tensor.requires_grad_() for tensor in leaves)
        tilewise.warmup(*leaves, **self.options(case, inputs))

    def options(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Those that the case is about."""
        options: dict[str, Any] = {"mask": "causal" if case.mask == "causal" else None, "layout": case.layout}
        if self.forced is not None:
            options["implementation"] = self.forced
        if case.window_left >= 0:
            options["window"] = (case.window_left, -1)
        if case.softcap:
            options["softcap"] = case.softcap
        if case.dropout_p:
            seed = importlib.import_module("torch").tensor([1, 0], device=inputs.q.device)
            options.update(dropout_p=case.dropout_p, seed=seed)
        if inputs.bias is not None:
            options["bias"] = inputs.bias
        if inputs.alibi_slopes is not None:
            options["alibi_slopes"] = inputs.alibi_slopes
        if case.deterministic:
            options["deterministic"] = True
        if case.lengths:
            options.update(layout="thd", cu_seqlens_q=inputs.cu_seqlens, cu_seqlens_k=inputs.cu_seqlens)
            options.update(max_seqlen_q=case.shape.seqlen_q, max_seqlen_k=case.shape.seqlen_k)
        return options

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = self.options(case, inputs)

        def attention(q: Any, k: Any, v: Any, out: Any = None) -> Any:
            return tilewise.attention(q, k, v, out=out, **options)

        prepared = through_autograd(attention, case.operation, inputs)
        if case.operation == "backward" or case.device != "cpu":  # see written_over_nan() for the latter
            return prepared
        return Prepared(
            prepared.call, lambda: [attention(inputs.q, inputs.k, inputs.v, out=poisoned_like(inputs.dout))]
        )


class OfTorch(Contender[CaseT, InputsT]):
    """torch, on as many threads as Tilewise."""

    name = "torch"

    def missing(self) -> str:
        return "" if has_torch() else "torch is not installed: not measured"

    def set_num_threads(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)


class Torch(OfTorch[Case, Inputs]):
    """torch.nn.functional.scaled_dot_product_attention."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        refuse_fp8(self.name, case)
        if case.window_left >= 0 or case.softcap or case.alibi or case.lengths:
            raise Unsupported("torch has no windows, softcap, ALiBi and packed sequences")
        if case.bias or case.deterministic:
            raise Unsupported("a bias and deterministic gradients are not measured with torch's function")
        from torch.nn.functional import scaled_dot_product_attention

        shape = case.shape
        options: dict[str, Any] = {"enable_gqa": True} if shape.num_heads_q != shape.num_heads_k else {}
        if case.dropout_p:
            options["dropout_p"] = case.dropout_p
        # Its is_causal is aligned top-left; bottom-right needs a mask, but for one query, which sees every key.
        if case.mask == "causal" and shape.seqlen_q == shape.seqlen_k:
            options["is_causal"] = True
        elif case.mask == "causal" and shape.seqlen_q > 1:
            options["attn_mask"] = self.bottom_right_mask(case)

        def attention(q: Any, k: Any, v: Any) -> Any:
            if case.layout == "bhsd":
                return scaled_dot_product_attention(q, k, v, **options)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            return scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

        return through_autograd(attention, case.operation, inputs)

    def bottom_right_mask(self, case: Case) -> Any:
        """What attn_mask takes for a causal mask of fewer queries than keys."""
        import torch

        shape = case.shape
        visible = torch.ones(shape.seqlen_q, shape.seqlen_k, dtype=torch.bool, device=case.torch_device)
        return visible.tril(diagonal=shape.seqlen_k - shape.seqlen_q)


class TorchMath(Torch):
    """The same by its math path: products and a softmax one after the other, the scores stored between them."""

    name = "torch_math"

    def version(self) -> str:
        return Torch().version()

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH):  # for the graph of a backward case
            prepared = super().prepare(case, inputs)

        def call() -> object:
            with sdpa_kernel(SDPBackend.MATH):
                return prepared.call()

        def results() -> Sequence[Any]:
            with sdpa_kernel(SDPBackend.MATH):
                return prepared.results()

        return Prepared(call, results)


class GpuOnly(Contender[CaseT, InputsT]):
    """A library without CPU kernels: named when it is absent, and when it is there but has no GPU to run on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def missing(self) -> str:
        return not_installed(self.name) or (
            f"{self.name} {self.version()} is installed but has no CPU kernels: not measured on cpu"
        )

    def prepare(self, case: CaseT, inputs: InputsT) -> Prepared:
        raise Unsupported(self.missing())


def refuse_other_values(name: str, case: Case) -> None:
    """For libraries whose function takes none, or that are not measured with them."""
    if case.shape.value_columns != case.shape.head_dim:
        raise Unsupported(f"{name} is measured with values as wide as keys alone")


def refuse_fp8(name: str, case: Case) -> None:
    """For libraries whose function takes none."""
    if case.dtype == FP8:
        raise Unsupported(f"{name} has no attention in fp8")


def not_installed(name: str) -> str:
    """That a package is missing; empty where it is not."""
    return f"{name} is not installed: not measured" if importlib.util.find_spec(name) is None else ""


RIVALS = ("torch", "flash_attn", "flashinfer")
CPU_RIVALS = (*RIVALS, "torch_math")


def make_rival(name: str) -> Contender[Case, Inputs]:
    """The contender of one of CPU_RIVALS on the CPU."""
    if name == "torch_math":
        return TorchMath()
    return Torch() if name == "torch" else GpuOnly(name)


def through_autograd(attention: Callable[[Any, Any, Any], Any], operation: Pass, inputs: Inputs) -> Prepared:
    """The forward pass without gradients, or the backward pass alone: its graph is built once and kept."""
    q, k, v, dout = inputs.q, inputs.k, inputs.v, inputs.dout
    if operation == "forward":

        def forward() -> list[Any]:
            return [attention(q, k, v)]

        return Prepared(forward, forward)
    import torch

    leaves = tuple(tensor.detach().requires_grad_() for tensor in (q, k, v))
    with torch.enable_grad():
        out = attention(*leaves)

    def backward() -> list[Any]:
        return list(torch.autograd.grad(out, leaves, dout, retain_graph=True))

    return Prepared(backward, backward)


def written_over_nan(prepared: Prepared) -> Sequence[Any]:
    """The results of torch tensors, written over NaN, so that what a kernel forgets to write stays visible.

    For libraries that don't all take the tensor to write to: torch's allocator on a GPU gives freed blocks of
    a size to the next tensors of that size.
    """
    _poison(prepared.results())  # in a function of its own, after which nothing holds the blocks
    return prepared.results()


def _poison(results: Sequence[Any]) -> None:
    for result in results:
        result.fill_(math.nan)
