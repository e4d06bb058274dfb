"""Compiles kernels for AMD GPUs that need not be here and reports what limits them: registers, scratch, shared memory,
waves a SIMD, and how the mainloop's instructions keep the matrix and the vector unit busy.

Without --kernel, the kernels that `tilewise compile` makes of a list of problems; with it, one kernel of the
configuration that --set gives."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = {"forward": "Forward", "bwd_dq": "BwdDq", "bwd_dkdv": "BwdDkdv"}
TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1102", "gfx1151")
SHAPE = "dtype=bf16 seqlen_q=8192 num_heads_q=16"
PROBLEMS = tuple(
    f"attention_{operation} {SHAPE} head_dim={head_dim}{mask}"
    for operation, masks in (("forward", ("", " mask=causal")), ("backward", ("", " mask=causal")))
    for head_dim in (64, 128, 256)
    for mask in masks
)

# Of one SIMD: 16-bit FLOPs of its matrix unit a cycle, and the cycles that a wave's vector or transcendental
# instruction holds it (AMD's instruction set manuals and peak rates).
MATRIX_FLOPS = {"gfx90a": 256, "gfx942": 512, "gfx950": 1024, "gfx11": 256}
VECTOR_CYCLES = {"gfx9": 4, "gfx11": 1}
TRANSCENDENTAL_CYCLES = {"gfx90a": 16, "gfx942": 16, "gfx950": 8, "gfx11": 4}
# Registers of a lane that a SIMD's waves share, the step they are given out in, and the most waves.
REGISTERS = {"gfx9": (512, 8, 8), "gfx1102": (1024, 16, 16), "gfx11": (1536, 24, 16)}
# Shared memory of the 4 SIMDs that a block may run on: a compute unit, or a work group processor.
SHARED_BYTES = {"gfx950": 160 << 10, "gfx9": 64 << 10, "gfx11": 128 << 10}


def of_target(table: dict, target: str):  # type: ignore[type-arg, no-untyped-def]
    return next(value for prefix, value in table.items() if target.startswith(prefix))


def find_tool(name: str) -> str:
    """A program of LLVM, whatever its version's suffix; empty where there is none. Without a suffix it may be an old
    one, which knows none of these targets."""
    for suffix in ("-22", "-21", "-20", "-19"):
        if path := shutil.which(name + suffix):
            return path
    path = shutil.which(name)
    said = re.search(r"LLVM version (\d+)", run([path, "--version"])) if path else None
    return path if path and said and int(said[1]) >= 19 else ""


def tool(name: str) -> str:
    """The same, where there must be one."""
    return find_tool(name) or sys.exit(f"{name} of LLVM 19 or newer is needed")


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass
class CodeObject:
    """A compiled kernel: its notes, and an instruction, a branch's target and a label a line."""

    path: Path
    target: str
    notes: str = ""
    names: list[str] = field(default_factory=list)
    jumps: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.notes = run([tool("llvm-readobj"), "--notes", str(self.path)])
        options = ["-d", "--symbolize-operands", "--no-show-raw-insn", "--no-leading-addr"]
        for i, line in enumerate(run([tool("llvm-objdump"), *options, str(self.path)]).splitlines()):
            name = jump = ""
            if m := re.match(r"<?([\w$.]+)>?:", line):
                self.labels[m.group(1)] = i
            elif m := re.match(r"\s+([a-z]\w+)(?:\s+<?([\w$.]+)>?)?", line):
                name = m.group(1)
                jump = (m.group(2) or "") if "branch" in name else ""
            self.names.append(name)
            self.jumps.append(jump)

    def resource(self, name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", self.notes)
        return int(match.group(1)) if match else 0

    def symbol(self) -> str:
        match = re.search(r"\.name:\s+tilewise_(\w+)", self.notes)
        return match.group(1) if match else "?"


def instruction_kind(name: str) -> str:
    if name.startswith(("v_mfma", "v_wmma")):
        return "matrix"
    if re.match(r"v_(exp|rcp|log|sqrt|rsq|sin|cos)_", name):
        return "transcendental"
    # Two vector operations that one instruction carries count once: so does the cycle they take.
    return {"v_": "vector", "ds": "lds"}.get(name[:2], "other")


def is_matrix(name: str) -> bool:
    return instruction_kind(name) == "matrix"


def main_loop(jumps: list[str], labels: dict[str, int], matrix: list[bool]) -> tuple[int, int] | None:
    """First and last line of the innermost loop with the most matrix instructions, None where no loop has one. Of any
    GPU's code: line by line where it jumps to, if it does, and whether it is a matrix instruction."""
    loops = [(labels[jump], i) for i, jump in enumerate(jumps) if labels.get(jump, i) < i]
    loops = [(a, b) for a, b in loops if any(matrix[a:b])]
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in loops)]
    return max(inner, key=lambda loop: sum(matrix[loop[0] : loop[1]]), default=None)


@dataclass
class Mix:
    """Instructions of a loop, and the cycles that they hold the matrix and the vector unit."""

    count: Counter[str] = field(default_factory=Counter)
    matrix_cycles: float = 0.0
    vector_cycles: int = 0


def mix_of(code: CodeObject) -> Mix:
    """Blocks without matrix instructions that a forward branch may skip are left out."""
    loop = main_loop(code.jumps, code.labels, [is_matrix(name) for name in code.names])
    if loop is None:
        sys.exit(f"{code.path}: no loop with matrix instructions")
    first, last = loop
    skipped: set[int] = set()
    for i in range(first, last):
        end = code.labels.get(code.jumps[i], -1)
        if i < end <= last and code.names[i] != "s_branch" and not any(map(is_matrix, code.names[i:end])):
            skipped |= set(range(i + 1, end))
    mix = Mix()
    for name in (code.names[i] for i in range(first, last + 1) if i not in skipped):
        mix.count[instruction_kind(name)] += 1
        if m := re.search(r"(?:mfma|wmma)_\w*?_(\d+)x(\d+)x(\d+)", name):
            m_size, n_size, k_size = map(int, m.groups())
            mix.matrix_cycles += 2 * m_size * n_size * k_size / of_target(MATRIX_FLOPS, code.target)
    mix.vector_cycles = of_target(VECTOR_CYCLES, code.target) * mix.count["vector"]
    mix.vector_cycles += of_target(TRANSCENDENTAL_CYCLES, code.target) * mix.count["transcendental"]
    return mix


def waves_a_simd(code: CodeObject) -> str:
    """Waves of one SIMD when whole blocks fill its compute unit, and what limits them."""
    waves = code.resource("max_flat_workgroup_size") // code.resource("wavefront_size")
    registers, step, most = of_target(REGISTERS, code.target)
    of_registers = min(most, registers // (-(-code.resource("vgpr_count") // step) * step))
    blocks = {"registers": 4 * of_registers // waves}
    blocks["LDS"] = of_target(SHARED_BYTES, code.target) // max(code.resource("group_segment_fixed_size"), 1)
    limit = min(blocks, key=lambda name: blocks[name])
    return f"{blocks[limit] * waves / 4:g} ({limit})"


COLUMNS = ("target", "kernel", "registers", "scratch", "LDS bytes", "waves a SIMD", "matrix instructions")
HEADING = (*COLUMNS, "matrix cycles", "vector cycles", "vector/matrix", "lds/matrix")


def row(name: str, code: CodeObject) -> tuple[str, ...]:
    mix = mix_of(code)
    resources = ("vgpr_count", "private_segment_fixed_size", "group_segment_fixed_size")
    numbers = [str(code.resource(resource)) for resource in resources]
    ratios = (mix.vector_cycles / mix.matrix_cycles, mix.count["lds"] / mix.count["matrix"])
    cycles = (f"{mix.count['matrix']}", f"{mix.matrix_cycles:.0f}", f"{mix.vector_cycles}")
    return (code.target, name, *numbers, waves_a_simd(code), *cycles, *(f"{ratio:.2f}" for ratio in ratios))


def of_problems(targets: list[str], problems: list[str], tilewise: Path, folder: Path) -> Iterator[tuple[str, ...]]:
    for target in targets:
        for number, problem in enumerate(problems):
            out = folder / f"{target}-{number}"
            run([str(tilewise), "compile", "--target", target, "--out", str(out), "--problem", problem])
            words = [word for word in problem.split()[1:] if word not in SHAPE.split()]
            for path in sorted(out.glob("*.hsaco")):
                code = CodeObject(path, target)
                if code.symbol() in KERNELS:
                    yield row(f"{path.stem} {' '.join(words)}", code)


def of_configuration(target: str, kernel: str, config: dict[str, str], folder: Path) -> tuple[str, ...]:
    """One kernel of a configuration, in a stub like those that the library generates."""
    name = KERNELS[kernel]
    known = set(re.findall(r'visit\("(\w+)"', (ROOT / "src/device/attention/config.h").read_text()))
    if unknown := set(config) - known:
        sys.exit(f"{name}Config has no field {', '.join(sorted(unknown))}")
    fields = " ".join(f"c.{field} = {value};" for field, value in config.items())
    machine, lanes = ("cdna", 64) if target.startswith("gfx9") else ("rdna", 32)
    ops, threads = f"{machine.capitalize()}Ops<{machine.capitalize()}Machine>", int(config["waves"]) * lanes
    stub = f"""#pragma clang force_cuda_host_device begin
#include "device/tile/machine_{machine}.h"
#include "device/tile/ops_{machine}.h"
#include "device/attention/{kernel}.h"
namespace tilewise::device {{
inline constexpr {name}Config kConfig = [] {{ {name}Config c; {fields} return c; }}();
using Kernel = {name}<{ops}, kConfig>;
}}
#pragma clang force_cuda_host_device end
extern "C" __attribute__((global, amdgpu_flat_work_group_size({threads}, {threads}))) void
tilewise_{kernel}(const tilewise::device::{name}Params params) {{
  static __attribute__((shared)) tilewise::device::Kernel::Shared shared;
  tilewise::device::Kernel::run(params, shared);
}}
"""
    source, out = folder / "kernel.hip", folder / f"{kernel}-{target}.hsaco"
    source.write_text(stub)
    options = ["-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-O3"]
    options += ["-std=c++20", "-mcode-object-version=5", f"--offload-arch={target}", f"-I{ROOT / 'src'}"]
    run([tool("clang++"), *options, "-o", str(out), str(source)])
    return row(" ".join([kernel, *(f"{name}={value}" for name, value in config.items())]), CodeObject(out, target))


def markdown(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def publish_table(lines: list[str]) -> None:
    """Keeps the table in docs/benchmarks, and makes docs/benchmarks.md anew."""
    sys.path.insert(0, str(ROOT / "bench"))
    from benchmarks_page import publish

    print(f"written: {publish('amd_isa', '', chr(10).join(['Mainloops:', '', *lines]))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=list(TARGETS))
    parser.add_argument("--problem", nargs="+", default=list(PROBLEMS), help="problems, each one line of text")
    parser.add_argument("--tilewise", type=Path, default=ROOT / "build/tilewise", help="the command")
    parser.add_argument("--kernel", choices=sorted(KERNELS), help="compile this one by --set, not problems")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="fields of KernelConfig")
    parser.add_argument("--keep", type=Path, help="folder that keeps the code objects")
    parser.add_argument("--write-docs", action="store_true", help="keep the table in docs/benchmarks, for its page")
    arguments = parser.parse_args()
    lines = [markdown(HEADING), markdown(("---",) * 2 + ("---:",) * (len(HEADING) - 2))]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.kernel:
            config = {"waves": "4"} | dict(item.split("=", 1) for item in arguments.set)
            rows = (of_configuration(target, arguments.kernel, config, folder) for target in arguments.target)
        else:
            rows = of_problems(arguments.target, arguments.problem, arguments.tilewise.resolve(), folder)
        for cells in rows:
            lines.append(markdown(cells))
            print(lines[-1], flush=True)
    if arguments.write_docs:
        publish_table(lines)


if __name__ == "__main__":
    main()
