"""The GPU that is measured: whether there is one, what it is called, and its cache.

torch's word for it is "cuda" on AMD too, Tilewise's is "hip" there.
"""

from __future__ import annotations

import tilewise
from tilewise.bench.inputs import has_torch

# A buffer this many times as large as a cache leaves nothing else in it.
CACHE_FACTOR = 4
# Of that buffer: twice the 256 MiB of memory-side cache that MI300 has beyond what it calls L2.
_LEAST_FLUSHED_BYTES = 2**29
# Times it is read: once takes an H200 130 us, and the host needs 200 us to enqueue a backward pass through autograd.
_FLUSHES = 4


def gpu_kind() -> str:
    """Tilewise's name for the kind of GPU that torch is built for: "cuda" or "hip"."""
    if not has_torch():
        return "cuda"
    import torch

    return "hip" if torch.version.hip else "cuda"


def refusal(kind: str, dtype: str = "bf16", problem: str = "attention_forward seqlen_q=64 head_dim=64") -> str:
    """Why nothing can be measured on such a GPU, in Tilewise's own words or torch's; empty where it can."""
    rows = tilewise.explain(f"{problem} device={kind} dtype={dtype}").rows
    if not any(row.accepted for row in rows):
        elsewhere = "the tensors are on"  # of implementations for other devices
        reasons = [f"{row.implementation}: {row.reason}" for row in rows if elsewhere not in row.reason]
        return "; ".join(reasons) or f"no implementation of {problem.split()[0]} runs on {kind} devices"
    if not has_torch():
        return "torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


def gpu_name() -> str:
    """Of torch's current device."""
    import torch

    return str(torch.cuda.get_device_name())


def l2_bytes(device: str) -> int:
    """Size of the last-level cache that inputs must exceed to be read from memory; 0 for "cpu"."""
    if device == "cpu":
        return 0
    import torch

    return int(torch.cuda.get_device_properties(device).L2_cache_size)


class CacheFlush:
    """Evicts everything from the device's caches when called, by reading.

    A written buffer would leave dirty lines, whose way to memory then counts as the next call's traffic. The few
    hundred microseconds it takes also let the host enqueue the next call before the device is free, so that
    only the device's own time falls between the events.
    """

    def __init__(self, device: str) -> None:
        import torch

        num_bytes = max(CACHE_FACTOR * l2_bytes(device), _LEAST_FLUSHED_BYTES)
        self._buffer = torch.zeros(num_bytes // 4, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        import torch

        for _ in range(_FLUSHES):
            torch.sum(self._buffer, dim=0, out=self._sum)
