"""Machine code of AMD's CDNA as the model of a compute unit sees it: what each instruction asks of which unit, which
registers it reads and writes, and the path that a wave takes through one turn of a main loop."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from amd_isa import instruction_kind, tool  # noqa: E402

Register = tuple[str, int]


@dataclass(frozen=True)
class Machine:
    """One compute unit of four SIMDs. Times are in quads, of four cycles: a wave's vector instruction takes one."""

    name: str
    units: int  # of the product, for TFLOP/s alone
    gigahertz: float
    lds_bytes: int
    flops_a_quad: int  # of a SIMD's matrix unit, in 16 bits
    lds_read_bytes: int  # a cycle, of the whole unit
    transcendental_quads: int
    registers: int = 512  # of a lane, for all waves of a SIMD
    double_rate: str = ""  # shapes that take half as long as flops_a_quad says

    def passes(self, op: str) -> int:
        """Quads that a matrix instruction holds its SIMD's matrix unit."""
        shape = re.search(r"_(\d+)x(\d+)x(\d+)", op)
        if shape is None:
            return 4
        m, n, k = map(int, shape.groups())
        rate = self.flops_a_quad * (2 if re.search(r"fp8|bf8|i8|f8f6f4", op) else 1)
        if self.double_rate and re.search(self.double_rate, op):
            rate *= 2
        return max(2 * m * n * k // rate, 4)


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("gfx90a", 110, 1.7, 64 << 10, 1024, 128, 4),
        Machine("gfx942", 304, 2.1, 64 << 10, 2048, 128, 4),
        # Shapes of older machines keep the time that they have on gfx942 (LLVM's scheduling model).
        Machine("gfx950", 256, 2.4, 160 << 10, 2048, 256, 2, double_rate=r"16x16x32_b?f16|32x32x16_b?f16|f8f6f4"),
    )
}
LDS_WRITE_BYTES = 128  # a cycle
MEMORY_BYTES = 64  # a cycle, of the path between a unit and its cache


def registers_of(text: str) -> list[Register]:
    found: list[Register] = []
    for kind, first, last, one in re.findall(r"\b([vas])(?:\[(\d+):(\d+)\]|(\d+)\b)", text):
        found += [(kind, number) for number in (range(int(first), int(last) + 1) if first else (int(one),))]
    return found + [("vcc", 0)] * ("vcc" in text)


def bytes_a_lane(op: str) -> int:
    sizes = ((r"x4|b128", 16), (r"x3|b96", 12), (r"x2|b64", 8), (r"short|b16|u16|i16", 2), (r"byte|b8|u8|i8", 1))
    each = next((size for pattern, size in sizes if re.search(pattern, op)), 4)
    return each * (2 if "read2" in op or "write2" in op else 1)


@dataclass
class Instruction:
    """`unit`: matrix, vector, lds, memory, scalar, or "" for what a wave does without one (waits, barriers)."""

    op: str
    unit: str
    reads: list[Register] = field(default_factory=list)
    writes: list[Register] = field(default_factory=list)
    sums: list[Register] = field(default_factory=list)  # of a matrix instruction: its accumulator, which is forwarded
    quads: int = 1  # that it holds its unit
    flops: int = 0
    waits: dict[str, int] = field(default_factory=dict)  # counter: how many may be outstanding
    counter: str = ""  # that it is counted by until it is done
    barrier: bool = False
    priority: int | None = None
    pause: int = 1  # quads until the wave's next instruction
    operands: list[str] = field(default_factory=list)

    @property
    def is_matrix(self) -> bool:
        return self.unit == "matrix"


def unit_of(op: str) -> str:
    kind = instruction_kind(op)
    if kind in ("matrix", "lds"):
        return kind
    if kind in ("vector", "transcendental"):
        return "vector"
    if re.match(r"(buffer|global|flat|scratch)_", op):
        return "memory"
    return "" if re.match(r"s_(wait|barrier|nop|setprio|sched|sleep)", op) else "scalar"


def decode(line: str, machine: Machine) -> Instruction | None:
    """One line of a disassembly; None where it has no instruction."""
    text = re.split(r"//|;", line)[0].strip()
    match = re.match(r"([a-z]\w+)\s*(.*)", text)
    if match is None or text.endswith(":"):
        return None
    op, rest = match.groups()
    unit, operands = unit_of(op), re.split(r",\s*(?![^\[]*\])", rest)
    to_lds = unit == "memory" and re.search(r"\blds\b", rest) is not None
    stores = unit in ("lds", "memory") and (to_lds or re.search(r"write|store", op) is not None)
    compares = op.startswith(("s_cmp", "s_bitcmp", "s_cbranch", "s_branch"))
    done = Instruction(op, unit, operands=[operand.split()[0] for operand in operands if operand])
    if not (stores or compares or unit == ""):
        done.writes = registers_of(operands[0])
    done.reads = registers_of(",".join(operands if stores or compares else operands[1:]))
    if op.startswith(("v_fmac", "v_swap", "v_permlane")) or "dst_sel" in rest:
        done.reads += done.writes
    if unit == "matrix":
        done.quads, done.sums = machine.passes(op), registers_of(operands[3]) if len(operands) > 3 else []
        done.reads = registers_of(",".join(operands[1:3]))
        shape = re.search(r"_(\d+)x(\d+)x(\d+)", op)
        m, n, k = map(int, shape.groups()) if shape else (0, 0, 0)
        done.flops = 2 * m * n * k
    elif unit == "vector" and instruction_kind(op) == "transcendental":
        done.quads = machine.transcendental_quads
    elif unit == "lds":
        rate = LDS_WRITE_BYTES if stores else machine.lds_read_bytes
        done.quads, done.counter = max(1, 64 * bytes_a_lane(op) // (4 * rate)), "lgkmcnt"
    elif unit == "memory":
        done.quads, done.counter = max(1, 64 * bytes_a_lane(op) // (4 * MEMORY_BYTES)), "vmcnt"
    elif op == "s_waitcnt":
        done.waits = {name: int(count) for name, count in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", rest)}
    elif op == "s_setprio":
        done.priority = int(rest, 0)
    elif op == "s_nop":
        done.pause = int(rest, 0) + 1
    done.barrier = op == "s_barrier"
    return done


@dataclass
class Listing:
    """A disassembly, line by line: instructions, where they jump to, and labels."""

    machine: Machine
    instructions: list[Instruction | None] = field(default_factory=list)
    jumps: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_lines(cls, lines: Iterable[str], machine: Machine) -> Listing:
        listing = cls(machine)
        for number, line in enumerate(lines):
            if label := re.match(r"<?(\.?[\w$.]+)>?:", line):
                listing.labels[label.group(1)] = number
                listing.instructions.append(None)
                listing.jumps.append("")
                continue
            listing.instructions.append(decode(line, machine))
            jump = re.match(r"\s+s_c?branch\w*\s+<?([\w$.]+)>?", line)
            listing.jumps.append(jump.group(1) if jump else "")
        return listing

    @classmethod
    def of_file(cls, path: Path, machine: Machine, symbol: str = "") -> Listing:
        """Of a code object, or of a listing in text; from a symbol on."""
        if path.read_bytes()[:4] == b"\x7fELF":
            words = ["-d", "--symbolize-operands", "--no-show-raw-insn", "--no-leading-addr", str(path)]
            done = subprocess.run([tool("llvm-objdump"), *words], capture_output=True, text=True, check=True)
            lines = done.stdout.splitlines()
        else:
            lines = path.read_text().splitlines()
        if symbol:
            at = next((i for i, line in enumerate(lines) if re.match(rf"\w*\s*<?{re.escape(symbol)}>?:", line)), None)
            if at is None:
                sys.exit(f"{path}: --symbol: no such symbol (got {symbol!r})")
            lines = lines[at:]
        return cls.of_lines(lines, machine)

    def loops(self) -> list[tuple[int, int]]:
        """First and last line of the innermost loops with matrix instructions, those with the most first."""
        back = [(self.labels[jump], i) for i, jump in enumerate(self.jumps) if self.labels.get(jump, i) < i]
        back = [loop for loop in back if self.products(*loop)]
        inner = [a for a in back if not any(a[0] <= b[0] and b[1] <= a[1] and a != b for b in back)]
        return sorted(inner, key=lambda loop: -self.products(*loop))

    def loop(self, number: int) -> tuple[int, int]:
        loops = self.loops()
        if not 0 <= number < len(loops):
            sys.exit(f"--loop: must be less than the {len(loops)} loops with matrix instructions (got {number})")
        return loops[number]

    def products(self, first: int, last: int) -> int:
        return sum(i is not None and i.is_matrix for i in self.instructions[first : last + 1])

    def brings_tiles(self, first: int, last: int) -> bool:
        """Whether it loads from memory or writes to LDS: what a turn does in all turns but the last."""
        return any(
            i is not None and (i.unit == "memory" or (i.unit == "lds" and not i.writes))
            for i in self.instructions[first:last]
        )


@dataclass
class Turn:
    """What a wave executes in a turn of a loop, and how each forward branch on the way was decided."""

    path: list[Instruction]
    decisions: list[str]


def skips(listing: Listing, at: int, target: int) -> bool:
    """Whether a turn in the middle of a long loop takes a branch of which nothing else is known: it skips what lies
    ahead (a mask at the edge, a rare rescale), unless that multiplies or brings tiles, which all turns but the last do.
    Backward it goes on with a loop that multiplies, and leaves others."""
    if target <= at:
        return listing.products(target, at) > 0
    return not (listing.products(at, target - 1) > 0 or listing.brings_tiles(at, target))


def trace_turn(listing: Listing, loop: tuple[int, int], takes: Callable[[str], bool | None] = lambda _: None) -> Turn:
    """A turn of a loop by that rule alone; `takes(label)` decides otherwise: True jumps, False goes on."""
    first, last = loop
    turn, at = Turn([], []), first
    while at <= last:
        instruction, label = listing.instructions[at], listing.jumps[at]
        if instruction is not None:
            turn.path.append(instruction)
        target = listing.labels.get(label, -1)
        if at < target <= last and instruction is not None:
            jumps = instruction.op == "s_branch"
            if not jumps:
                said = takes(label)
                jumps = skips(listing, at, target) if said is None else said
                turn.decisions.append(f"{instruction.op} {label}: {'taken' if jumps else 'not taken'} (by rule)")
            if jumps:
                at = target
                continue
        at += 1
    return turn


FORMATS = {"int32_t": "i", "uint32_t": "I", "int64_t": "q", "uint64_t": "Q", "float": "f"}


def parameters_of(code: Path) -> tuple[str, bytes] | None:
    """The symbol and the parameter block of a code object's first launch, as the launch.json beside it says. Tensors
    and workspace lie at addresses that nothing is at. None where there is no such file."""
    description = code.parent / "launch.json"
    if not description.is_file():
        return None
    report = json.loads(description.read_text(encoding="utf-8"))
    steps = [step for problem in report["problems"] for step in problem["steps"] if step.get("file") == code.name]
    if not steps:
        return None
    step, kernel = steps[0], next(kernel for kernel in report["kernels"] if kernel["file"] == code.name)
    values = dict(step["values_of_contiguous_tensors"])
    values |= {name: (i + 1) << 40 for i, name in enumerate(step["pointers"]["tensors"])}
    values |= {name: (1 << 46) + offset for name, offset in step["pointers"]["workspace"].items()}
    block = bytearray(kernel["parameters"]["size"])
    for row in kernel["parameters"]["fields"]:
        if row["name"] in values:
            kind = "Q" if row["type"].endswith("*") else FORMATS[row["type"]]
            struct.pack_into("<" + kind, block, row["offset"], values[row["name"]])
    return kernel["symbol"], bytes(block)
