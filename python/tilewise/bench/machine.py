"""What figures were measured on: processor or GPU, memory, versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

import tilewise

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_L3_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_TELLING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """One line each for the report; `name` is also the key of the machine's section in the documentation."""

    name: str
    processor: str
    instruction_sets: str
    last_level_cache: str
    memory: str
    system: str
    versions: str


@dataclass(frozen=True)
class GpuMachine:
    """One line each for the report; `name` is also the key of the machine's section in the documentation."""

    name: str
    gpu: str
    driver: str
    host: str
    versions: str


def describe_machine(name: Optional[str] = None) -> Machine:
    """This machine; `name` replaces the processor's own in the section's title."""
    info = _fields(_CPUINFO)
    cores = len(os.sched_getaffinity(0))
    model = info.get("model name", platform.processor() or "unknown processor")
    flags = info.get("flags", "").split()
    numbers = ", ".join(f"{key.split()[-1]} {info[key]}" for key in ("cpu family", "model", "stepping") if key in info)
    virtual = ", virtual machine" if "hypervisor" in flags else ""
    memory_kib = int(_fields(_MEMINFO).get("MemTotal", "0 kB").split()[0])
    return Machine(
        name=name or f"{model}, {cores} cores",
        processor=f"{model} ({numbers}), {cores} cores{virtual}",
        instruction_sets=", ".join(flag for flag in _TELLING_FLAGS if flag in flags)
        or "none of " + ", ".join(_TELLING_FLAGS),
        last_level_cache=_L3_SIZE.read_text(encoding="ascii").strip() if _L3_SIZE.exists() else "unknown",
        memory=f"{memory_kib * 1024 / _GIB:.0f} GiB",
        system=f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {' '.join(platform.libc_ver())}",
        versions=versions(f"numpy {np.__version__}"),
    )


def describe_gpu(device: str, name: Optional[str] = None) -> GpuMachine:
    """The current device; with "cpu", where only the benchmark's logic is tried, the processor."""
    import torch

    host = describe_machine()
    processor = f"{host.processor}; {host.memory}; {host.system}"
    if device == "cpu":
        return GpuMachine(name or host.name, "none: measured on the CPU", "none", processor, versions())
    properties = torch.cuda.get_device_properties(device)
    gpu = (
        f"{properties.name}, compute capability {properties.major}.{properties.minor},"
        f" {properties.multi_processor_count} multiprocessors, {properties.total_memory / _GIB:.0f} GiB,"
        f" {properties.L2_cache_size / 2**20:.0f} MiB of L2"
    )
    driver = f"{driver_version()}, CUDA {torch.version.cuda} of torch"
    return GpuMachine(name or str(properties.name), gpu, driver, processor, versions())


def versions(*others: str) -> str:
    """Of the libraries that a figure depends on, and of Python."""
    import torch

    names = (f"tilewise {tilewise.__version__}", f"torch {torch.__version__}", *others)
    return ", ".join((*names, f"Python {platform.python_version()}"))


def driver_version() -> str:
    """As nvidia-smi says it; "unknown" without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return result.stdout.strip().splitlines()[0] if result.returncode == 0 and result.stdout.strip() else "unknown"


def _fields(path: Path) -> dict[str, str]:
    """The first `key : value` pairs of a /proc file (cpuinfo repeats them for each core)."""
    fields: dict[str, str] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key.strip(), value.strip())
    return fields
