"""Compiles portable kernels for AMD GPUs that need not be here and reports what limits them: registers, scratch,
shared memory, waves a SIMD, and how the main loop's instructions keep the matrix and the vector unit busy."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
HEADERS = {"forward": "forward.h", "query_gradient": "query_gradient.h", "key_gradient": "key_gradient.h"}
KERNELS = {"forward": "Forward", "query_gradient": "QueryGradient", "key_gradient": "KeyGradient"}

# Of one SIMD: 16-bit FLOPs of its matrix unit a cycle, and the cycles that a wave's vector or transcendental
# instruction holds it (AMD's instruction set manuals and peak rates).
MATRIX_FLOPS = {"gfx90a": 256, "gfx942": 512, "gfx950": 1024, "gfx11": 256}
VECTOR_CYCLES = {"gfx9": 4, "gfx11": 1}
TRANSCENDENTAL_CYCLES = {"gfx90a": 16, "gfx942": 16, "gfx950": 8, "gfx11": 4}
SHARED_BYTES = {"gfx950": 160 << 10, "gfx": 64 << 10}  # of a compute unit, or half a work group processor


def of_target(table: dict[str, int], target: str) -> int:
    return next(value for prefix, value in table.items() if target.startswith(prefix))


def is_cdna(target: str) -> bool:
    return target.startswith("gfx9")


# What the schedule gives long sequences; options of the command line come on top.
def preset(kernel: str, target: str, head_dim: int) -> dict[str, str]:
    cdna = is_cdna(target)
    config = {"head_dim": str(head_dim), "head_dim_v": str(head_dim), "rows_per_wave": "32" if cdna else "16"}
    if kernel == "forward":
        config |= {"waves": "8" if cdna else "4", "tile_cols": "32" if head_dim > 128 else "64"}
        config |= {"rows_in_registers": "true" if cdna or head_dim <= 128 else "false"}
    else:
        config |= {"waves": "4", "tile_cols": "32"}
        config |= {"rows_in_registers": "true" if cdna and head_dim <= 128 else "false"}
    return config


def stub(kernel: str, target: str, config: dict[str, str]) -> str:
    """One kernel as the library generates it."""
    machine = "cdna" if is_cdna(target) else "rdna"
    ops = f"{machine.capitalize()}Ops<{machine.capitalize()}Machine>"
    threads = int(config["waves"]) * (64 if is_cdna(target) else 32)
    order = re.findall(r"(\w+) = [^,;]+[,;]", config_fields())
    fields = ", ".join(f".{name} = {config[name]}" for name in order if name in config)
    if unknown := set(config) - set(order):
        sys.exit(f"KernelConfig has no field {', '.join(sorted(unknown))}")
    return f"""#pragma clang force_cuda_host_device begin
#include "device/portable/machine_{machine}.h"
#include "device/portable/ops_{machine}.h"
#include "device/portable/{HEADERS[kernel]}"
namespace tilewise::device {{
inline constexpr KernelConfig kConfig{{{fields}}};
using Shared = {KERNELS[kernel]}Shared<{ops}, kConfig>;
using Kernel = {KERNELS[kernel]}Kernel<{ops}, kConfig>;
}}
#pragma clang force_cuda_host_device end
extern "C" __attribute__((global, amdgpu_flat_work_group_size({threads}, {threads}))) void
kernel(tilewise::device::KernelParams params) {{
  static __attribute__((shared)) tilewise::device::Shared shared;
  tilewise::device::Kernel::run(params, shared);
}}
"""


def config_fields() -> str:
    text = (SOURCE / "device/common/kernel_config.h").read_text()
    return text[text.index("struct KernelConfig {") : text.index("friend constexpr")]


def compile_stub(source: str, target: str, clang: str, options: list[str]) -> str:
    """The assembly of a stub."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.hip"
        path.write_text(source)
        command = [clang, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"]
        command += [f"--offload-arch={target}", "-O3", "-std=c++20", "-mcode-object-version=5", f"-I{SOURCE}"]
        done = subprocess.run(
            [*command, *options, "-S", "-o", "-", str(path)], capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def instruction_kind(name: str) -> str:
    if name.startswith(("v_mfma", "v_wmma")):
        return "matrix"
    if re.match(r"v_(exp|rcp|log|sqrt|rsq|sin|cos)_", name):
        return "transcendental"
    if name.startswith(("v_", "ds_")):
        return "vector" if name.startswith("v_") else "lds"
    if re.match(r"(buffer|global|flat|scratch)_", name):
        return name.split("_")[0]
    return "wait" if re.match(r"s_(wait|barrier|nop|setprio|sched|delay)", name) else "scalar"


@dataclass
class Loop:
    """The innermost loop with the most matrix instructions."""

    count: Counter[str] = field(default_factory=Counter)
    matrix_cycles: float = 0.0
    vector_cycles: int = 0
    skippable: int = 0  # instructions in blocks without matrix instructions that a forward branch may skip


def innermost_loops(lines: list[str]) -> list[tuple[int, int, list[str], list[str]]]:
    """(first line, last line, instruction and branch target of each line) of the loops with matrix instructions."""
    labels = {m.group(1): i for i, line in enumerate(lines) if (m := re.match(r"(\.?[\w$.]+):", line))}
    names, targets = [""] * len(lines), [""] * len(lines)
    for i, line in enumerate(lines):
        if m := re.match(r"\s+([a-z]\w+)(?:\s+(\.?[\w$.]+))?", line):
            names[i] = m.group(1)
            targets[i] = (m.group(2) or "") if "branch" in names[i] else ""
    matrix = [instruction_kind(name) == "matrix" for name in names]
    loops = [
        (labels[t], i) for i, t in enumerate(targets) if t in labels and labels[t] < i and any(matrix[labels[t] : i])
    ]
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in loops)]
    found = []
    for a, b in inner:
        jumps = [str(labels.get(t, "")) for t in targets[a : b + 1]]
        found.append((a, b, names[a : b + 1], jumps))
    return sorted(found, key=lambda loop: -sum(instruction_kind(n) == "matrix" for n in loop[2]))


def measure_loop(first: int, names: list[str], jumps: list[str], target: str) -> Loop:
    loop, skipped = Loop(), set()
    for i, jump in enumerate(jumps):
        end = int(jump) - first if jump else -1
        inside = i < end < len(names) and names[i] != "s_branch"
        if inside and not any(instruction_kind(n) == "matrix" for n in names[i:end]):
            skipped |= set(range(i + 1, end))
    for i, name in enumerate(names):
        if not name:
            continue
        if i in skipped:
            loop.skippable += 1
            continue
        loop.count[instruction_kind(name)] += 1
        if m := re.search(r"(?:mfma|wmma)_\w*?_(\d+)x(\d+)x(\d+)", name):
            m_size, n_size, k_size = map(int, m.groups())
            loop.matrix_cycles += 2 * m_size * n_size * k_size / of_target(MATRIX_FLOPS, target)
    loop.vector_cycles = of_target(VECTOR_CYCLES, target) * loop.count["vector"]
    loop.vector_cycles += of_target(TRANSCENDENTAL_CYCLES, target) * loop.count["transcendental"]
    return loop


def resource(assembly: str, name: str) -> int:
    match = re.search(rf"^; {name}: (\d+)", assembly, re.MULTILINE)
    return int(match.group(1)) if match else 0


def waves_a_simd(assembly: str, target: str, config: dict[str, str]) -> tuple[int, str]:
    """Waves of one SIMD, and what limits them."""
    by_registers = resource(assembly, "Occupancy")
    blocks = of_target(SHARED_BYTES, target) // max(resource(assembly, "LDSByteSize"), 1)
    simds = 4 if is_cdna(target) else 2
    by_shared = max(blocks, 1) * int(config["waves"]) // simds
    return min(by_registers, by_shared), "registers" if by_registers <= by_shared else "LDS"


def report(kernel: str, target: str, config: dict[str, str], assembly: str) -> str:
    """A row of the table in docs/benchmarks.md."""
    lines = assembly.splitlines()
    loops = innermost_loops(lines)
    if not loops:
        sys.exit(f"{kernel} for {target}: no loop with matrix instructions")
    first, _, names, jumps = loops[0]
    loop = measure_loop(first, names, jumps, target)
    waves, limit = waves_a_simd(assembly, target, config)
    registers = resource(assembly, "TotalNumVgprs") or resource(assembly, "NumVgprs")
    shape = "x".join(config[name] for name in ("waves", "rows_per_wave", "tile_cols"))
    element = {"0": "bf16", "1": "fp16"}[config.get("element", "0")]
    mask = "causal" if config.get("ranged") == "true" else "full"
    ratio, lds = loop.vector_cycles / loop.matrix_cycles, loop.count["lds"] / loop.count["matrix"]
    return (
        f"| {target} | {kernel} | {config['head_dim']} | {element} | {mask} | {shape} | {registers} "
        f"| {resource(assembly, 'ScratchSize')} | {resource(assembly, 'LDSByteSize')} | {waves} ({limit}) "
        f"| {loop.count['matrix']} | {loop.matrix_cycles:.0f} | {loop.vector_cycles} | {ratio:.2f} | {lds:.2f} |"
    )


HEADING = (
    "| target | kernel | head_dim | element | mask | waves×rows×keys | registers | scratch | LDS bytes | waves a SIMD "
    "| matrix instructions | matrix cycles | vector cycles | vector/matrix | lds/matrix |\n" + "|---" * 15 + "|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="+", default=["gfx90a", "gfx942", "gfx950", "gfx1102"])
    parser.add_argument("--kernel", nargs="+", choices=sorted(HEADERS), default=["forward"])
    parser.add_argument("--head-dim", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="fields of KernelConfig")
    parser.add_argument("--clang", default=shutil.which("clang++-22") or "clang++", help="clang 19 or newer")
    parser.add_argument("--clang-option", nargs="*", default=[], help="more options for the compiler")
    parser.add_argument("--assembly", type=Path, help="folder that keeps the assembly")
    parser.add_argument("--isa-mix", type=Path, help="a script to run on each assembly, with its target")
    arguments = parser.parse_args()
    changes = dict(item.split("=", 1) for item in arguments.set)
    print(HEADING)
    for target in arguments.target:
        for kernel in arguments.kernel:
            for head_dim in arguments.head_dim:
                config = preset(kernel, target, head_dim) | changes
                assembly = compile_stub(stub(kernel, target, config), target, arguments.clang, arguments.clang_option)
                print(report(kernel, target, config, assembly), flush=True)
                keep(arguments, f"{kernel}-{target}-{head_dim}.s", target, assembly)


def keep(arguments: argparse.Namespace, name: str, target: str, assembly: str) -> None:
    folder = arguments.assembly
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(assembly)
    if arguments.isa_mix:
        with tempfile.NamedTemporaryFile("w", suffix=f"-{name}") as file:
            file.write(assembly)
            file.flush()
            subprocess.run([sys.executable, str(arguments.isa_mix), file.name, target], check=True)


if __name__ == "__main__":
    main()
