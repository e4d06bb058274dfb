"""What a machine can do at most, measured beside the figures: a processor by a program, a GPU by torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import tilewise
from tilewise.bench.device_timing import clock_of, measure

_GPU_SECONDS = 0.3
_MATMUL_SIZE = 8192
_COPY_BYTES = 2**32  # many times any last-level cache


@dataclass(frozen=True)
class CpuCeilings:
    """As tools/ceilings/ceilings.hpp describes them: rates of all threads together."""

    num_threads: int
    fma_gflops: float
    bf16_gflops: float
    amx_gflops: float
    peak_gflops: dict[str, float]  # what bounds a kernel, by dtype
    read_gb_per_s: float
    read_bytes: int
    notes: str

    def best_of(self, other: CpuCeilings) -> CpuCeilings:
        """The higher of each rate: interference only ever lowers a measurement."""
        names = ("fma_gflops", "bf16_gflops", "amx_gflops", "read_gb_per_s")
        rates = {name: max(getattr(self, name), getattr(other, name)) for name in names}
        peaks = {dtype: max(rate, other.peak_gflops[dtype]) for dtype, rate in self.peak_gflops.items()}
        return dataclasses.replace(self, **rates, peak_gflops=peaks)


@dataclass(frozen=True)
class GpuCeilings:
    """Rates that torch reaches; the copy counts bytes read and written."""

    matmul_tflops: float
    copy_gb_per_s: float

    def best_of(self, other: GpuCeilings) -> GpuCeilings:
        """The higher of each rate: interference only ever lowers a measurement."""
        return GpuCeilings(max(self.matmul_tflops, other.matmul_tflops), max(self.copy_gb_per_s, other.copy_gb_per_s))

    def least_seconds(self, flops: float, num_bytes: float) -> float:
        """The time that this much arithmetic or this much traffic takes at least, whichever is longer."""
        return max(flops / (self.matmul_tflops * 1e12), num_bytes / (self.copy_gb_per_s * 1e9))


def find_program(name: str, folders: Iterable[Path] = ()) -> Optional[Path]:
    """`name` in the build that the imported package comes from, in one of `folders`, or on PATH."""
    package_build = Path(tilewise.__path__[0]).parent.parent  # <build>/python/tilewise
    for folder in (package_build, *folders):
        if (folder / name).is_file():
            return folder / name
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def measure_cpu_ceilings(program: Path, threads: int, busy: bool = False) -> CpuCeilings:
    """Runs the program. Raises subprocess.CalledProcessError or OSError where it fails.

    busy: By the processor's time, since other programs run too.
    """
    command = [str(program), *(["--cpu-time"] if busy else []), str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    (values,) = json.loads(result.stdout)
    return CpuCeilings(**values)


def measure_gpu_ceilings(device: str) -> GpuCeilings:
    """A large bf16 matrix product and a large copy, on random data; on the CPU small ones."""
    import torch

    small = device == "cpu"
    size, copied = (256, 2**20) if small else (_MATMUL_SIZE, _COPY_BYTES // 2)
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    product = torch.empty_like(a)
    source = torch.randint(0, 127, (copied,), device=device, dtype=torch.int8)
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], Any]] = {
        "matmul": lambda: torch.mm(a, b, out=product),
        "copy": lambda: target.copy_(source),
    }
    timings = {}
    for name, call in calls.items():  # apart, so that the product does not lower the clocks of the copy
        timings.update(measure({name: call}, clock_of(device), 0.01 if small else _GPU_SECONDS))
    return GpuCeilings(2 * size**3 / timings["matmul"].median / 1e12, 2 * copied / timings["copy"].median / 1e9)
