"""What the figures were measured on: processor, memory, versions; and the machine's ceilings.

The ceilings come from the program tilewise-ceilings, built with the library.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy
import torch

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


def describe_machine(name: str | None = None) -> Machine:
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
        versions=(
            f"tilewise {tilewise.__version__}, torch {torch.__version__}, numpy {numpy.__version__},"
            f" Python {platform.python_version()}"
        ),
    )


def _fields(path: Path) -> dict[str, str]:
    """The first `key : value` pairs of a /proc file (cpuinfo repeats them for each core)."""
    fields: dict[str, str] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields.setdefault(key.strip(), value.strip())
    return fields


@dataclass(frozen=True)
class Ceilings:
    """As tools/ceilings/ceilings.hpp describes them: rates of all threads together."""

    num_threads: int
    fma_gflops: float
    bf16_gflops: float
    amx_gflops: float
    peak_gflops: dict[str, float]  # what bounds a kernel, by dtype
    read_gb_per_s: float
    read_bytes: int
    notes: str

    def best_of(self, other: Ceilings) -> Ceilings:
        """The higher of each rate: interference only ever lowers a measurement."""
        names = ("fma_gflops", "bf16_gflops", "amx_gflops", "read_gb_per_s")
        rates = {name: max(getattr(self, name), getattr(other, name)) for name in names}
        peaks = {dtype: max(rate, other.peak_gflops[dtype]) for dtype, rate in self.peak_gflops.items()}
        return dataclasses.replace(self, **rates, peak_gflops=peaks)


def find_program(name: str) -> Path | None:
    """`name` in the build that the imported package comes from, in a build folder of this repository, or on PATH."""
    repository = Path(__file__).resolve().parent.parent
    package_build = Path(tilewise.__path__[0]).parent.parent  # <build>/python/tilewise
    candidates = [package_build / name, *sorted(repository.glob(f"build*/{name}"))]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def measure_ceilings(program: Path, threads: int) -> Ceilings:
    """Runs the program. Raises subprocess.CalledProcessError or OSError where it fails."""
    result = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True, timeout=120)
    (values,) = json.loads(result.stdout)
    return Ceilings(**values)


def call_overhead(program: Path) -> list[dict[str, Any]]:
    """What tilewise-overhead measures: nanoseconds of the parts of a C++ call, for each dtype."""
    result = subprocess.run([program, "--json"], check=True, capture_output=True, text=True, timeout=120)
    return cast("list[dict[str, Any]]", json.loads(result.stdout))
