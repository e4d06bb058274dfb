# flash_attn.utils.benchmark: torch's timer and profiler around a function, on the device of its inputs.
"""Times of a function's forward and backward pass."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils import benchmark

__all__ = [
    "benchmark_all",
    "benchmark_backward",
    "benchmark_combined",
    "benchmark_forward",
    "benchmark_fwd_bwd",
    "benchmark_memory",
    "pytorch_profiler",
]

_Timed = tuple[Any, Any]  # torch's Timer and its Measurement


def _device_type(inputs: tuple[Any, ...]) -> str:
    return next((x.device.type for x in inputs if isinstance(x, Tensor)), "cpu")


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


class _Call:
    """A function with its inputs, under autocast where asked."""

    def __init__(self, fn: Callable[..., Any], inputs: tuple[Any, ...], kwinputs: dict[str, Any], amp: Any) -> None:
        self.fn, self.inputs, self.kwinputs, self.amp = fn, inputs, kwinputs, amp

    def forward(self) -> Any:
        enabled, dtype = self.amp
        with torch.autocast(device_type=_device_type(self.inputs), dtype=dtype, enabled=enabled):
            return self.fn(*self.inputs, **self.kwinputs)

    def backward(self, y: Tensor, grad: Tensor) -> None:
        for x in self.inputs:
            if isinstance(x, Tensor):
                x.grad = None
        y.backward(grad, retain_graph=True)

    def gradient(self, y: Tensor, grad: Optional[Tensor]) -> Tensor:
        if grad is None:
            return torch.randn_like(y)
        if grad.shape != y.shape:
            raise RuntimeError(f"grad: must have the output's shape, {tuple(y.shape)} (got {tuple(grad.shape)})")
        return grad


def _timed(function: Callable[[], Any], repeats: int, title: str, verbose: bool) -> _Timed:
    if verbose:
        print(title)
    timer = benchmark.Timer(stmt="function()", globals={"function": function}, num_threads=torch.get_num_threads())
    measured = timer.timeit(repeats)
    if verbose:
        print(measured)
    return timer, measured


def benchmark_forward(
    fn: Callable[..., Any],
    *inputs: Any,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> _Timed:
    """torch's (Timer, Measurement) of fn(*inputs, **kwinputs)."""
    call = _Call(fn, inputs, kwinputs, (amp, amp_dtype))
    return _timed(call.forward, repeats, f"{desc} - Forward pass", verbose)


def benchmark_backward(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: Optional[Tensor] = None,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> _Timed:
    """Likewise of the backward pass alone, from `grad` or random numbers."""
    call = _Call(fn, inputs, kwinputs, (amp, amp_dtype))
    y = _first(call.forward())
    gradient = call.gradient(y, grad)
    return _timed(lambda: call.backward(y, gradient), repeats, f"{desc} - Backward pass", verbose)


def benchmark_combined(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: Optional[Tensor] = None,
    repeats: int = 10,
    desc: str = "",
    verbose: bool = True,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    **kwinputs: Any,
) -> _Timed:
    """Likewise of both passes together."""
    call = _Call(fn, inputs, kwinputs, (amp, amp_dtype))
    gradient = call.gradient(_first(call.forward()), grad)
    both = f"{desc} - Forward + Backward pass"
    return _timed(lambda: call.backward(_first(call.forward()), gradient), repeats, both, verbose)


def benchmark_fwd_bwd(
    fn: Callable[..., Any], *inputs: Any, grad: Optional[Tensor] = None, **options: Any
) -> tuple[_Timed, _Timed]:
    """benchmark_forward and benchmark_backward."""
    return benchmark_forward(fn, *inputs, **options), benchmark_backward(fn, *inputs, grad=grad, **options)


def benchmark_all(
    fn: Callable[..., Any], *inputs: Any, grad: Optional[Tensor] = None, **options: Any
) -> tuple[_Timed, _Timed, _Timed]:
    """benchmark_forward, benchmark_backward and benchmark_combined."""
    both = benchmark_fwd_bwd(fn, *inputs, grad=grad, **options)
    return (*both, benchmark_combined(fn, *inputs, grad=grad, **options))


def pytorch_profiler(
    fn: Callable[..., Any],
    *inputs: Any,
    trace_filename: Optional[str] = None,
    backward: bool = False,
    amp: bool = False,
    amp_dtype: torch.dtype = torch.float16,
    cpu: bool = False,
    verbose: bool = True,
    **kwinputs: Any,
) -> None:
    """Prints what torch's profiler says of a call, and writes its trace. `cpu`: the host's part too, which is all there
    is where the inputs lie on a CPU."""
    call = _Call(fn, inputs, kwinputs, (amp, amp_dtype))
    gradient = torch.randn_like(_first(call.forward())) if backward else None

    def step() -> None:
        out = _first(call.forward())
        if gradient is not None:
            call.backward(out, gradient)

    for _ in range(30):
        step()
    on_gpu = _device_type(inputs) == "cuda"
    kinds = torch.profiler.ProfilerActivity
    activities = [*([kinds.CPU] if cpu or not on_gpu else []), *([kinds.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities, record_shapes=True, with_stack=True) as profile:
        step()
    if verbose:
        print(profile.key_averages().table(row_limit=50))
    if trace_filename is not None:
        profile.export_chrome_trace(trace_filename)


def benchmark_memory(
    fn: Callable[..., Any], *inputs: Any, desc: str = "", verbose: bool = True, **kwinputs: Any
) -> float:
    """The most memory of the GPU that was in use during fn(*inputs, **kwinputs), in thousands of MiB.

    Raises:
        RuntimeError: torch has no GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("benchmark_memory: needs a GPU, whose memory it measures")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    fn(*inputs, **kwinputs)
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() / (2**20 * 1000)
    if verbose:
        print(f"{desc} max memory: {most}GB")
    torch.cuda.empty_cache()
    return most
