"""What the figures of attention_gpu.py were measured on, and the argument that names the device."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
from dataclasses import dataclass

import torch
from machine import describe_machine

import tilewise

_GIB = 2**30


@dataclass(frozen=True)
class GpuMachine:
    """One line each for the report; `name` is also the key of the machine's section in the documentation."""

    name: str
    gpu: str
    driver: str
    host: str
    versions: str


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
