"""A model of a compute unit of AMD's CDNA on the main loop of a compiled kernel: how many cycles a turn takes, how much
of them each unit is busy, and what waves wait for. For code objects of `tilewise compile` and of other libraries.

    tilewise compile --target gfx942 --out kernels --problem attention_forward dtype=bf16 seqlen_q=8192 head_dim=128
    python bench/amd_model.py --target gfx942 kernels/forward.hsaco

No AMD GPU was at hand to hold it against one: it compares code, and says no time in microseconds. bench/README.md has
what it leaves out."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from amd_code import MACHINES, Instruction, Listing, Machine, Register, Turn, parameters_of, skips, trace_turn
from amd_isa import tool
from amd_path import LANES, ExecutedPath

Takes = Callable[[str], bool | None]

SIMDS = 4
LDS_LATENCY, MEMORY_LATENCY = 32, 200  # quads
RESULT_LATENCY = 4  # quads until others than the next sum may read what a product has left
QUEUE = 16  # quads of work that LDS and memory take before they have done it
TURNS = 14


@dataclass
class Wave:
    """Where a wave is in its turns, and what it waits for."""

    number: int
    block: int
    turn: list[Instruction]
    late: int  # barriers that it passes before its first turn: a stagger
    priority: int = 0
    at: int = 0
    free: int = 0  # the first quad that it may issue in
    waits_for_block: bool = False
    ends: list[int] = field(default_factory=list)  # of its turns
    ready: dict[Register, int] = field(default_factory=dict)
    summed: dict[Register, int] = field(default_factory=dict)
    outstanding: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))

    def is_pending(self, registers: list[Register], now: int) -> bool:
        return any(self.ready.get(register, 0) > now for register in registers)


@dataclass
class Result:
    """What the waves of a compute unit did in some turns."""

    cycles: float  # of a turn of all waves
    busy: dict[str, float]  # unit: its share of the time
    waiting: dict[str, float]  # reason: the share of the waves' time
    flops: int  # of a turn of all waves

    def tflops(self, machine: Machine) -> float:
        return self.flops / self.cycles * machine.units * machine.gigahertz / 1e3


class Unit:
    """A compute unit's SIMDs with a matrix and a vector unit each, and the LDS and memory pipes that they share."""

    def __init__(self, waves: list[Wave], waves_a_block: int) -> None:
        self.waves, self.waves_a_block = waves, waves_a_block
        self.matrix, self.vector = [0] * SIMDS, [0] * SIMDS  # until when each is taken
        self.pipe = {"lds": 0, "memory": 0}
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.now = 0

    def run(self, turns: int) -> None:
        limit = 2_000_000
        while min(len(wave.ends) for wave in self.waves) < turns:
            self.open_barriers()
            for simd in range(SIMDS):
                self.issue(simd)
            self.now += 1
            if self.now > limit:
                sys.exit(f"the waves stand still after {limit} quads: a barrier that not all of a block come to?")

    def open_barriers(self) -> None:
        arrived = Counter(wave.block for wave in self.waves if wave.waits_for_block)
        for wave in self.waves:
            if wave.waits_for_block and arrived[wave.block] == self.waves_a_block:
                wave.waits_for_block, wave.free = False, self.now + 1
            elif wave.waits_for_block:
                self.waiting["barrier"] += 1

    def issue(self, simd: int) -> None:
        """One instruction a quad for each unit, of different waves: those of high priority first, then the oldest."""
        able = [w for w in self.waves if w.number % SIMDS == simd and w.free <= self.now and not w.waits_for_block]
        used: set[str] = set()
        for wave in sorted(able, key=lambda w: (-w.priority, len(w.ends), w.at, w.number)):
            if wave.late > 0:
                wave.late, wave.waits_for_block = wave.late - 1, True
                continue
            instruction = wave.turn[wave.at]
            reason = self.obstacle(wave, instruction, simd, used)
            if reason:
                self.waiting[reason] += 1
                continue
            self.execute(wave, instruction, simd)
            # A matrix and a vector instruction leave through one port.
            used |= {"matrix", "vector"} if instruction.unit in ("matrix", "vector") else {instruction.unit} - {""}
            wave.free = self.now + instruction.pause
            wave.at += 1
            if wave.at == len(wave.turn):
                wave.at = 0
                wave.ends.append(self.now)

    def obstacle(self, wave: Wave, instruction: Instruction, simd: int, used: set[str]) -> str:
        """Why it can't issue now; empty where it can."""
        unit, now = instruction.unit, self.now
        if unit in used:
            return f"{unit} port"
        if wave.is_pending(instruction.reads, now) or (unit != "matrix" and wave.is_pending(instruction.writes, now)):
            return "register"
        for counter, most in instruction.waits.items():
            outstanding = wave.outstanding[counter]
            while outstanding and outstanding[0] <= now:
                outstanding.popleft()
            if len(outstanding) > most:
                return counter
        if unit in ("matrix", "vector") and self.vector[simd] > now:
            return "vector unit"
        if unit == "matrix" and self.matrix[simd] > now:
            return "matrix unit"
        if unit == "matrix" and any(wave.summed.get(register, 0) > now for register in instruction.sums):
            return "accumulator"
        if unit in self.pipe and self.pipe[unit] > now + QUEUE:
            return f"{unit} queue"
        return ""

    def execute(self, wave: Wave, instruction: Instruction, simd: int) -> None:
        unit, now, quads = instruction.unit, self.now, instruction.quads
        if unit:
            self.busy[unit] += quads
        if unit == "matrix":
            self.vector[simd], self.matrix[simd] = now + 1, now + quads
            for register in instruction.writes:
                wave.ready[register], wave.summed[register] = now + quads + RESULT_LATENCY, now + quads
        elif unit == "vector":
            self.vector[simd] = now + quads
            for register in instruction.writes:
                wave.ready[register] = now + quads + (1 if quads > 1 else 0)
                wave.summed.pop(register, None)
        elif unit in self.pipe:
            self.pipe[unit] = max(self.pipe[unit], now) + quads
            latency = LDS_LATENCY if unit == "lds" else MEMORY_LATENCY
            wave.outstanding[instruction.counter].append(self.pipe[unit] + latency)
            for register in instruction.writes:  # s_waitcnt alone says when these are there
                wave.ready.pop(register, None)
                wave.summed.pop(register, None)
        if instruction.barrier:
            wave.waits_for_block = True
        if instruction.priority is not None:
            wave.priority = instruction.priority


def simulate(turns: list[Turn], blocks: int, waves_a_block: int, stagger: int = 0, priority: int = 0) -> Result:
    """`turns`: of the first half of a block's waves and of the second, or one of all. The second half begins `stagger`
    barriers late, with that priority."""
    half = max(waves_a_block // 2, 1)
    late = [number % waves_a_block >= half and waves_a_block > 1 for number in range(blocks * waves_a_block)]
    waves = [
        Wave(n, n // waves_a_block, turns[-1 if late[n] else 0].path, stagger * late[n], priority * late[n])
        for n in range(blocks * waves_a_block)
    ]
    unit = Unit(waves, waves_a_block)
    unit.run(TURNS)
    first = TURNS // 3  # what comes before fills the pipes
    spans = [(wave.ends[TURNS - 1] - wave.ends[first]) / (TURNS - 1 - first) for wave in waves]
    shared = {name: 1 if name in unit.pipe else SIMDS for name in unit.busy}
    busy = {name: quads / unit.now / shared[name] for name, quads in unit.busy.items() if name != "scalar"}
    waiting = {reason: count / unit.now / len(waves) for reason, count in unit.waiting.most_common(6)}
    flops = sum(instruction.flops for wave in waves for instruction in wave.turn)
    return Result(4 * sum(spans) / len(spans), busy, waiting, flops)


def notes_of(path: Path) -> str:
    if path.read_bytes()[:4] != b"\x7fELF":
        return path.read_text()
    words = [tool("llvm-readobj"), "--notes", str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def resource(notes: str, name: str, given: int, path: Path) -> int:
    if given:
        return given
    found = re.findall(rf"\.{name}:\s+(\d+)", notes)
    if not found:
        sys.exit(f"{path}: has no .{name}: say --registers, --lds and --threads")
    return max(map(int, found))


def blocks_at_once(machine: Machine, registers: int, lds: int, waves_a_block: int) -> int:
    """That a compute unit has room for."""
    step = 8
    waves = SIMDS * (machine.registers // (-(-registers // step) * step))
    return max(1, min(waves // waves_a_block, machine.lds_bytes // max(lds, 1)))


def describe(path: Path, machine: Machine, turn: Turn, result: Result, blocks: int, waves: int) -> str:
    matrix = sum(instruction.is_matrix for instruction in turn.path)
    kinds = Counter(instruction.unit or "other" for instruction in turn.path)
    ideal = 4 * sum(i.quads for i in turn.path if i.is_matrix) * blocks * waves / SIMDS
    shares = ", ".join(f"{name} {share:.0%}" for name, share in sorted(result.busy.items()))
    waits = ", ".join(f"{reason} {share:.0%}" for reason, share in result.waiting.items())
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return (
        f"{path.name} on {machine.name}: a turn executes {len(turn.path)} instructions ({counts}; "
        f"{kinds['scalar'] / max(matrix, 1):.2f} scalar a product)\n"
        f"  {blocks} blocks of {waves} waves a compute unit: {result.cycles:.0f} cycles a turn, the products alone "
        f"{ideal:.0f}\n"
        f"  busy: {shares}; {result.tflops(machine):.0f} TFLOP/s at {machine.gigahertz} GHz\n"
        f"  waves wait for: {waits}"
    )


def turn_of(path: Path, listing: Listing, loop: int, takes: Takes, block: int) -> Turn:
    """What is executed: computed from the parameters in the launch.json beside the file, or else by rule alone."""
    lines = listing.loop(loop)
    parameters = parameters_of(path)
    if parameters is None:
        return trace_turn(listing, lines, takes)
    symbol, kernarg = parameters

    def guess(at: int, target: int) -> bool:
        said = takes(listing.jumps[at])
        return skips(listing, at, target) if said is None else said

    try:
        return ExecutedPath(listing, kernarg, block, guess).turn(symbol, lines)
    except ValueError as error:
        sys.exit(f"{path}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="code objects, or listings in text")
    parser.add_argument("--target", required=True, choices=sorted(MACHINES))
    parser.add_argument("--symbol", default="", help="the kernel's, where a file has several")
    parser.add_argument("--block", type=int, default=0, help="the number of the block whose path is taken (default: 0)")
    parser.add_argument("--loop", type=int, default=0, help="which of the loops, by matrix instructions (default: 0)")
    parser.add_argument("--second-loop", type=int, help="that of the second half of a block's waves, where it has one")
    parser.add_argument("--stagger", type=int, default=0, help="barriers that the second half begins late")
    parser.add_argument("--priority", type=int, default=0, help="s_setprio of the second half before its loop")
    parser.add_argument("--take", nargs="*", default=[], metavar="LABEL", help="branches of unknown condition to take")
    parser.add_argument("--pass", nargs="*", default=[], metavar="LABEL", dest="passed", help="and not to take")
    parser.add_argument("--decisions", action="store_true", help="print how each branch of a turn was decided")
    for name in ("registers", "lds", "threads"):
        parser.add_argument(f"--{name}", type=int, default=0, help="of a file that does not tell")
    arguments = parser.parse_args()
    machine = MACHINES[arguments.target]

    def takes(label: str) -> bool | None:
        return True if label in arguments.take else False if label in arguments.passed else None

    for path in arguments.files:
        listing, notes = Listing.of_file(path, machine, arguments.symbol), notes_of(path)
        loops = [arguments.loop] + ([] if arguments.second_loop is None else [arguments.second_loop])
        turns = [turn_of(path, listing, loop, takes, arguments.block) for loop in loops]
        waves = max(resource(notes, "max_flat_workgroup_size", arguments.threads, path) // LANES, 1)
        lds = resource(notes, "group_segment_fixed_size", arguments.lds, path)
        blocks = blocks_at_once(machine, resource(notes, "vgpr_count", arguments.registers, path), lds, waves)
        result = simulate(turns, blocks, waves, arguments.stagger, arguments.priority)
        print(describe(path, machine, turns[0], result, blocks, waves))
        if arguments.decisions:
            print("\n".join(f"  {decision}" for turn in turns for decision in turn.decisions))


if __name__ == "__main__":
    main()
