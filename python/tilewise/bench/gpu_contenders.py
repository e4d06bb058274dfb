"""The libraries as they are measured on a GPU: torch's kernels by preference, flash_attn, flashinfer.

None of them is imported unless it is asked for and installed.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tilewise.bench.contenders import (
    CaseT,
    Contender,
    InputsT,
    Prepared,
    Torch,
    Unsupported,
    not_installed,
    refuse_fp8,
    refuse_other_values,
    through_autograd,
)
from tilewise.bench.inputs import Inputs
from tilewise.bench.shapes import Case

# Of torch.nn.attention.SDPBackend, by preference: FlashAttention-2 is what torch is measured for, and the others
# take what it refuses.
TORCH_BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")

FLASHINFER_WORKSPACE_BYTES = 2**27  # what its documentation recommends
FLASHINFER_PAGE_SIZE = 16
FLASHINFER_TENSOR_CORE_GROUP = 4  # query heads on a key head from which its documentation recommends them


class TorchOnGpu(Torch):
    """scaled_dot_product_attention, by the first of TORCH_BACKENDS that takes the case."""

    def __init__(self) -> None:
        self._backends: dict[Case, str] = {}

    def implementation(self, case: Case) -> str:
        return self._backends.get(case, "")

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        *preferred, last = TORCH_BACKENDS
        for backend in preferred:
            with contextlib.suppress(RuntimeError):  # torch's refusal; cuDNN's own errors are of that kind too
                return self._prepare_by(backend, case, inputs)
        return self._prepare_by(last, case, inputs)

    def _prepare_by(self, backend: str, case: Case, inputs: Inputs) -> Prepared:
        """With that backend alone allowed. Raises RuntimeError where it refuses."""
        with _only(backend), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they say why it refuses, which the next one makes up for
            prepared = super().prepare(case, inputs)
            prepared.call()
        self._backends[case] = backend.lower()

        def call() -> Any:
            with _only(backend):
                return prepared.call()

        def results() -> Sequence[Any]:
            with _only(backend):
                return prepared.results()

        return Prepared(call, results)

    def bottom_right_mask(self, case: Case) -> Any:
        """A mask that torch knows by name goes to FlashAttention too, which takes no tensor."""
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(case.shape.seqlen_q, case.shape.seqlen_k)


def _only(backend: str) -> contextlib.AbstractContextManager[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, backend))


class TorchFlash(Torch):
    """By FlashAttention-2 alone, on bhsd views that are made outside the timed call.

    To be called under sdpa_kernel(FLASH_ATTENTION), which is entered once for all calls. Windows and packed
    sequences, which torch's function does not take, go to the operator beneath it.
    """

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        refuse_fp8(self.name, case)
        refuse_other_values(self.name, case)
        if case.softcap or case.alibi or case.bias:
            raise Unsupported("FlashAttention-2 takes no softcap, ALiBi and bias by way of torch")
        if case.deterministic:
            raise Unsupported("torch makes gradients deterministic for a whole process, not for a call")
        if case.window_left >= 0 or case.lengths:
            return through_autograd(self._beneath(case, inputs), case.operation, inputs)
        if case.mask == "causal" and case.shape.seqlen_q != case.shape.seqlen_k:
            raise Unsupported("torch aligns a causal mask top-left")
        from torch.nn.functional import scaled_dot_product_attention

        options: dict[str, Any] = {"is_causal": case.mask == "causal", "dropout_p": case.dropout_p}
        if case.shape.num_heads_q != case.shape.num_heads_k:
            options["enable_gqa"] = True

        def attention(q: Any, k: Any, v: Any) -> Any:
            return scaled_dot_product_attention(q, k, v, **options)

        views = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout))
        prepared = through_autograd(attention, case.operation, Inputs(*views))
        return Prepared(prepared.call, lambda: [result.transpose(1, 2) for result in prepared.results()])

    def _beneath(self, case: Case, inputs: Inputs) -> Callable[[Any, Any, Any], Any]:
        import torch

        if not inputs.q.is_cuda:
            raise Unsupported("torch has windows and packed sequences on CUDA devices alone")
        flash, lengths = torch.ops.aten._flash_attention_forward, (case.shape.seqlen_q, case.shape.seqlen_k)
        window = {"window_size_left": case.window_left, "window_size_right": 0} if case.window_left >= 0 else {}
        starts, causal = inputs.cu_seqlens, case.mask == "causal"
        return lambda q, k, v: flash(q, k, v, starts, starts, *lengths, 0.0, causal, False, **window)[0]


class TorchCudnn(Torch):
    """By cuDNN, through the operator beneath torch's function, which needs no preference among backends."""

    name = "torch_cudnn"

    def version(self) -> str:
        import torch

        return str(torch.backends.cudnn.version())

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        refuse_fp8(self.name, case)
        if not inputs.q.is_cuda:
            raise Unsupported("cuDNN runs on CUDA devices alone")
        if case.window_left >= 0 or case.softcap or case.alibi or case.lengths:
            raise Unsupported("cuDNN takes no window, softcap, ALiBi and packed sequences by way of torch")
        if case.deterministic or case.bias.startswith("bool"):
            raise Unsupported("deterministic gradients and booleans are not measured with cuDNN")
        if case.mask == "causal" and case.shape.seqlen_q != case.shape.seqlen_k:
            raise Unsupported("torch aligns a causal mask top-left")
        import torch

        cudnn, causal = torch.ops.aten._scaled_dot_product_cudnn_attention, case.mask == "causal"
        keeps_lse = case.operation == "backward"

        def attention(q: Any, k: Any, v: Any) -> Any:
            return cudnn(q, k, v, inputs.bias, keeps_lse, case.dropout_p, causal, False)[0]

        views = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout))
        try:
            prepared = through_autograd(attention, case.operation, Inputs(*views))
            prepared.call()
        except RuntimeError as error:  # its refusals and its failures are of one kind
            raise Unsupported(f"cuDNN: {str(error).splitlines()[0]}") from None
        return Prepared(prepared.call, lambda: [result.transpose(1, 2) for result in prepared.results()])


class Installed(Contender[CaseT, InputsT]):
    """A library that is measured where it can be imported and has the function."""

    function: str

    def missing(self) -> str:
        if reason := not_installed(self.name):
            return reason
        try:
            found = hasattr(importlib.import_module(self.name), self.function)
        except Exception as error:  # an extension built for another torch raises whatever it likes
            return f"{self.name} {self.version()} can't be imported ({error}): not measured"
        return "" if found else f"{self.name} {self.version()} has no {self.function}: not measured"

    @abstractmethod
    def prepare(self, case: CaseT, inputs: InputsT) -> Prepared: ...


class FlashAttn(Installed[Case, Inputs]):
    """flash_attn.flash_attn_func, whose causal mask is aligned bottom-right."""

    name = "flash_attn"
    function = "flash_attn_func"

    def implementation(self, case: Case) -> str:
        return self.function

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        refuse_fp8(self.name, case)
        refuse_other_values(self.name, case)
        flash_attn_func = importlib.import_module(self.name).flash_attn_func
        causal = case.mask == "causal"

        def attention(q: Any, k: Any, v: Any) -> Any:
            if case.layout == "bshd":
                return flash_attn_func(q, k, v, causal=causal)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            return flash_attn_func(q, k, v, causal=causal).transpose(1, 2)

        return through_autograd(attention, case.operation, inputs)


class Workspace:
    """What flashinfer's wrappers compute in: one for all of them, made when it is first needed."""

    def __init__(self) -> None:
        self._bytes: Any = None

    def on(self, device: Any) -> Any:
        """A tensor of bytes."""
        import torch

        if self._bytes is None:
            self._bytes = torch.zeros(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._bytes


class FlashInfer(Installed[Case, Inputs]):
    """flashinfer's wrappers for a batch: decoding from pages, prefill of sequences of one length.

    plan() is outside the timed call, as an inference engine calls it once for all layers.
    """

    name = "flashinfer"
    function = "BatchPrefillWithRaggedKVCacheWrapper"

    def __init__(self) -> None:
        self._workspace = Workspace()

    def version(self) -> str:
        return str(getattr(importlib.import_module(self.name), "__version__", "?"))

    def implementation(self, case: Case) -> str:
        return "paged decode" if _decodes(case) else "ragged prefill"

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        refuse_fp8(self.name, case)
        refuse_other_values(self.name, case)
        if case.operation == "backward":
            raise Unsupported("flashinfer has no backward pass")
        if case.layout != "bshd":
            raise Unsupported(f"flashinfer takes batches in layout bshd alone (got {case.layout})")
        attention = self._decode(case, inputs) if _decodes(case) else self._prefill(case, inputs)
        return through_autograd(attention, "forward", inputs)

    def _prefill(self, case: Case, inputs: Inputs) -> Any:
        shape = case.shape
        wrapper = importlib.import_module(self.name).BatchPrefillWithRaggedKVCacheWrapper(
            self._workspace.on(inputs.q.device), "NHD"
        )
        wrapper.plan(
            _starts(shape.batch_size, shape.seqlen_q, inputs),
            _starts(shape.batch_size, shape.seqlen_k, inputs),
            shape.num_heads_q,
            shape.num_heads_k,
            shape.head_dim,
            causal=case.mask == "causal",
            q_data_type=inputs.q.dtype,
            kv_data_type=inputs.k.dtype,
        )

        def attention(q: Any, k: Any, v: Any) -> Any:
            return wrapper.run(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).view(q.shape)

        return attention

    def _decode(self, case: Case, inputs: Inputs) -> Any:
        """One query a sequence. The cache's pages are those of k and v in their order, so nothing is copied."""
        import torch

        shape, device = case.shape, inputs.q.device
        pages = shape.seqlen_k // FLASHINFER_PAGE_SIZE
        wrapper = importlib.import_module(self.name).BatchDecodeWithPagedKVCacheWrapper(
            self._workspace.on(inputs.q.device),
            "NHD",
            use_tensor_cores=shape.num_heads_q // shape.num_heads_k >= FLASHINFER_TENSOR_CORE_GROUP,
        )
        wrapper.plan(
            _starts(shape.batch_size, pages, inputs),
            torch.arange(shape.batch_size * pages, device=device, dtype=torch.int32),
            torch.full((shape.batch_size,), FLASHINFER_PAGE_SIZE, device=device, dtype=torch.int32),
            shape.num_heads_q,
            shape.num_heads_k,
            shape.head_dim,
            FLASHINFER_PAGE_SIZE,
            q_data_type=inputs.q.dtype,
            kv_data_type=inputs.k.dtype,
        )
        paged = (shape.batch_size * pages, FLASHINFER_PAGE_SIZE, shape.num_heads_k, shape.head_dim)

        def attention(q: Any, k: Any, v: Any) -> Any:
            return wrapper.run(q.flatten(0, 1), (k.view(paged), v.view(paged))).view(q.shape)

        return attention


def _decodes(case: Case) -> bool:
    return case.shape.seqlen_q == 1 and case.shape.seqlen_k % FLASHINFER_PAGE_SIZE == 0


def _starts(batch_size: int, length: int, inputs: Inputs) -> Any:
    """Where sequences of one length start, and the end of the last."""
    import torch

    return torch.arange(0, (batch_size + 1) * length, length, device=inputs.q.device, dtype=torch.int32)


def make_gpu_rival(name: str) -> Contender[Case, Inputs]:
    """The contender of one of contenders.RIVALS on a GPU."""
    makers: dict[str, type[Contender[Case, Inputs]]] = {
        "torch": TorchOnGpu,
        "flash_attn": FlashAttn,
        "flashinfer": FlashInfer,
    }
    return makers[name]()
