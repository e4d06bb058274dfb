"""What the figures of attention_gpu.py were measured on, and the GPU's ceilings through torch."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpu_timing import clock_of, measure
from machine import describe_machine

import tilewise

_GIB = 2**30
_CEILING_SECONDS = 0.3
_MATMUL_SIZE = 8192
_COPY_BYTES = 2**32  # many times any last-level cache


@dataclass(frozen=True)
class GpuMachine:
    """One line each for the report; `name` is also the key of the machine's section in the documentation."""

    name: str
    gpu: str
    driver: str
    host: str
    versions: str


@dataclass(frozen=True)
class GpuCeilings:
    """Rates that torch reaches; the copy counts bytes read and written."""

    matmul_tflops: float
    copy_gb_per_s: float

    def best_of(self, other: GpuCeilings) -> GpuCeilings:
        return GpuCeilings(max(self.matmul_tflops, other.matmul_tflops), max(self.copy_gb_per_s, other.copy_gb_per_s))


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help='default: cuda; "cpu" only tries the benchmark itself')


def check_device(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"argument --device: must be one torch can use (got {options.device!r}, without a CUDA GPU)")


def describe_gpu(device: str, name: str | None = None) -> GpuMachine:
    """The current device; with "cpu", where only the benchmark's logic is tried, the processor."""
    host = describe_machine()
    versions = f"tilewise {tilewise.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    processor = f"{host.processor}; {host.memory}; {host.system}"
    if device == "cpu":
        return GpuMachine(name or host.name, "none: measured on the CPU", "none", processor, versions)
    properties = torch.cuda.get_device_properties(device)
    gpu = (
        f"{properties.name}, compute capability {properties.major}.{properties.minor},"
        f" {properties.multi_processor_count} multiprocessors, {properties.total_memory / _GIB:.0f} GiB,"
        f" {properties.L2_cache_size / 2**20:.0f} MiB of L2"
    )
    driver = f"{driver_version()}, CUDA {torch.version.cuda} of torch"
    return GpuMachine(name or str(properties.name), gpu, driver, processor, versions)


def driver_version() -> str:
    """As nvidia-smi says it; "unknown" without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return result.stdout.strip().splitlines()[0] if result.returncode == 0 and result.stdout.strip() else "unknown"


def cpu_count() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


def measure_ceilings(device: str) -> GpuCeilings:
    """A large bf16 matrix product and a large copy, on random data; on the CPU small ones."""
    small = device == "cpu"
    size, copied = (256, 2**20) if small else (_MATMUL_SIZE, _COPY_BYTES // 2)
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    product = torch.empty_like(a)
    source = torch.randint(0, 127, (copied,), device=device, dtype=torch.int8)
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], object]] = {
        "matmul": lambda: torch.mm(a, b, out=product),
        "copy": lambda: target.copy_(source),
    }
    timings = {}
    for name, call in calls.items():  # apart, so that the product does not lower the clocks of the copy
        timings.update(measure({name: call}, clock_of(device), 0.01 if small else _CEILING_SECONDS))
    return GpuCeilings(2 * size**3 / timings["matmul"].median / 1e12, 2 * copied / timings["copy"].median / 1e9)


def l2_bytes(device: str) -> int:
    """Size of the last-level cache that inputs must exceed to be read from memory."""
    return 0 if device == "cpu" else int(torch.cuda.get_device_properties(device).L2_cache_size)
