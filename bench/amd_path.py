"""The path of one wave through machine code of AMD's CDNA: integers are computed, from a kernel's parameters and the
numbers of its block and lanes on, and branches taken as they say. What comes from memory, from LDS or out of floating
point is unknown, and so is what follows from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from amd_code import Instruction, Listing, Turn

Known = int | None  # of a scalar register; None: unknown
Lanes = np.ndarray[Any, np.dtype[np.uint64]] | None
WORD = 0xFFFFFFFF
LANES = 64
SPECIAL = {"vcc": 106, "vcc_lo": 106, "vcc_hi": 107, "exec": 126, "exec_lo": 126, "exec_hi": 127, "m0": 124}


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
# Of 32 or 64 bits, before the result is cut to them.
SCALAR: dict[str, Callable[[int, int, int], int]] = {
    "s_and": lambda a, b, n: a & b,
    "s_or": lambda a, b, n: a | b,
    "s_xor": lambda a, b, n: a ^ b,
    "s_andn2": lambda a, b, n: a & ~b,
    "s_orn2": lambda a, b, n: a | ~b,
    "s_nand": lambda a, b, n: ~(a & b),
    "s_nor": lambda a, b, n: ~(a | b),
    "s_xnor": lambda a, b, n: ~(a ^ b),
    "s_lshl": lambda a, b, n: a << (b % n),
    "s_lshr": lambda a, b, n: a >> (b % n),
    "s_ashr": lambda a, b, n: signed(a, n) >> (b % n),
    "s_mul": lambda a, b, n: a * b,
    "s_bfm": lambda a, b, n: ((1 << (a % n)) - 1) << (b % n),
    "s_bfe": lambda a, b, n: (a >> (b & 0x3F)) & ((1 << (b >> 16 & 0x7F)) - 1),
}
SETS_SCC = {
    "s_and",
    "s_or",
    "s_xor",
    "s_andn2",
    "s_orn2",
    "s_nand",
    "s_nor",
    "s_xnor",
    "s_lshl",
    "s_lshr",
    "s_ashr",
    "s_bfe",
}
VECTOR: dict[str, Callable[[Any, Any], Any]] = {
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_hi_u32": lambda a, b: (a * b) >> np.uint64(32),
    "v_min_u32": np.minimum,
    "v_max_u32": np.maximum,
}


def as_floats(lanes: Any) -> Any:
    return lanes.astype(np.uint32).view(np.float32)


def as_bits(floats: Any) -> Any:
    return np.asarray(floats, dtype=np.float32).view(np.uint32).astype(np.uint64)


def reciprocal(lanes: Any) -> Any:
    with np.errstate(divide="ignore"):
        return as_bits(np.float32(1) / as_floats(lanes))


# What compilers divide integers with.
CONVERT: dict[str, Callable[[Any], Any]] = {
    "v_mov_b32": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_cvt_f32_u32": lambda a: as_bits(a.astype(np.float32)),
    "v_cvt_u32_f32": lambda a: np.clip(as_floats(a), 0, WORD).astype(np.uint64),
    "v_rcp_f32": reciprocal,
    "v_rcp_iflag_f32": reciprocal,
}
VECTOR["v_mul_f32"] = lambda a, b: as_bits(as_floats(a) * as_floats(b))


class Wave:
    """Registers of a wave. `kernarg`: the kernel's parameters, which s[0:1] point to; the block's number is in s2."""

    def __init__(self, kernarg: bytes, block: int, wave: int) -> None:
        self.kernarg = kernarg
        self.s: dict[int, Known] = {0: 0, 1: 0, 2: block, 126: WORD, 127: WORD}
        self.v: dict[int, Lanes] = {0: np.arange(LANES, dtype=np.uint64) + np.uint64(LANES * wave)}
        self.scc: bool | None = None

    # ---- Operands --------------------------------------------------------------------------

    @staticmethod
    def scalar_register(text: str) -> int | None:
        if text in SPECIAL:
            return SPECIAL[text]
        found = re.fullmatch(r"s(?:\[(\d+):\d+\]|(\d+))", text)
        return int(found.group(1) or found.group(2)) if found else None

    @staticmethod
    def literal(text: str) -> Known:
        try:
            return int(text, 0)
        except ValueError:
            pass
        try:
            return int(as_bits(float(text)))
        except ValueError:
            return None

    def read(self, text: str, bits: int = 32) -> Known:
        first = self.scalar_register(text)
        if first is None:
            value = self.literal(text)
            return None if value is None else value & ((1 << bits) - 1)
        words = [self.s.get(first + i) for i in range(bits // 32)]
        if any(word is None for word in words):
            return None
        return sum((word or 0) << (32 * i) for i, word in enumerate(words))

    def write(self, text: str, value: Known, bits: int = 32) -> None:
        first = self.scalar_register(text)
        if first is None:
            return
        for i in range(bits // 32):
            self.s[first + i] = None if value is None else value >> (32 * i) & WORD

    def lanes(self, text: str) -> Lanes:
        if found := re.fullmatch(r"v(\d+)", text):
            return self.v.get(int(found.group(1)))
        value = self.read(text)
        return None if value is None else np.full(LANES, value, dtype=np.uint64)

    def wide_lanes(self, text: str) -> Lanes:
        if found := re.fullmatch(r"v\[(\d+):\d+\]", text):
            low, high = (self.v.get(int(found.group(1)) + i) for i in (0, 1))
            return None if low is None or high is None else low | high << np.uint64(32)
        value = self.read(text, 64)
        return None if value is None else np.full(LANES, value, dtype=np.uint64)

    def forget(self, instruction: Instruction) -> None:
        for kind, number in instruction.writes:
            if kind == "s":
                self.s[number] = None
            elif kind == "v":
                self.v[number] = None
            elif kind == "vcc":
                self.s[106] = self.s[107] = None

    # ---- Instructions ----------------------------------------------------------------------

    def execute(self, instruction: Instruction) -> None:
        op = re.sub(r"_(e32|e64|sdwa|dpp)$", "", instruction.op)
        plain = not instruction.op.endswith(("sdwa", "dpp"))
        if op.startswith("s_load_dword"):
            self.load(op, instruction.operands)
        elif op.startswith("s_"):
            self.execute_scalar(op, instruction)
        elif op == "v_readfirstlane_b32":
            lanes = self.lanes(instruction.operands[1])
            self.write(instruction.operands[0], None if lanes is None else int(lanes[0]))
        elif plain and op.startswith("v_cmp_"):
            self.compare_lanes(op, instruction)
        elif plain and op.startswith("v_") and self.compute_lanes(op, instruction.operands):
            pass
        else:
            self.forget(instruction)

    def load(self, op: str, operands: list[str]) -> None:
        size = re.search(r"x(\d+)", op)
        count, first = int(size.group(1)) if size else 1, self.scalar_register(operands[0])
        offset = self.literal(operands[2]) if self.scalar_register(operands[1]) == 0 else None
        for i in range(count):
            at = None if offset is None else offset + 4 * i
            word = None if at is None or at + 4 > len(self.kernarg) else self.kernarg[at : at + 4]
            if first is not None:
                self.s[first + i] = None if word is None else int.from_bytes(word, "little")

    def execute_scalar(self, op: str, instruction: Instruction) -> None:
        operands = instruction.operands
        name, _, kind = op.rpartition("_")
        bits = 64 if kind.endswith("64") else 32
        if op.startswith("s_cmp_"):
            relation, kind = op.split("_")[2:4]
            wide = 64 if kind.endswith("64") else 32
            a, b = self.read(operands[0], wide), self.read(operands[1], wide)
            if kind.startswith("i") and a is not None and b is not None:
                a, b = signed(a), signed(b)
            self.scc = None if a is None or b is None else bool(COMPARE[relation](a, b))
        elif op.startswith("s_cselect"):
            a, b = self.read(operands[1], bits), self.read(operands[2], bits)
            self.write(operands[0], None if self.scc is None else a if self.scc else b, bits)
        elif op.startswith(("s_mov_", "s_movk", "s_cmov")):
            self.write(operands[0], None if op.startswith("s_cmov") else self.read(operands[1], bits), bits)
        elif name in ("s_add", "s_addc", "s_sub", "s_subb") and bits == 32:
            self.add(name, kind, operands)
        elif name in ("s_min", "s_max"):
            self.pick(name, kind, operands)
        elif name == "s_abs":
            a = self.read(operands[1])
            self.write(operands[0], None if a is None else abs(signed(a)))
            self.scc = None if a is None else a != 0
        elif name == "s_not":
            a = self.read(operands[1], bits)
            self.write(operands[0], None if a is None else ~a, bits)
            self.scc = None if a is None else (~a & ((1 << bits) - 1)) != 0
        elif name == "s_mul_hi":
            a, b = self.read(operands[1]), self.read(operands[2])
            if kind == "i32" and a is not None and b is not None:
                a, b = signed(a), signed(b)
            self.write(operands[0], None if a is None or b is None else (a * b) >> 32 & WORD)
        elif "saveexec" in op:
            old, mask = self.read("exec", 64), self.read(operands[1], 64)
            new = None if old is None or mask is None or not op.startswith("s_and_save") else old & mask
            self.write(operands[0], old, 64)
            self.write("exec", new, 64)
            self.scc = None if new is None else new != 0
        elif name in SCALAR:
            self.combine(name, bits, operands)
        else:
            self.forget(instruction)
            self.scc = None if instruction.unit == "scalar" and "branch" not in op else self.scc

    def add(self, name: str, kind: str, operands: list[str]) -> None:
        a, b = self.read(operands[1]), self.read(operands[2])
        carries = name in ("s_addc", "s_subb")
        if a is None or b is None or (carries and self.scc is None):
            self.write(operands[0], None)
            self.scc = None
            return
        carry = int(bool(self.scc)) if carries else 0
        total = a + b + carry if name.startswith("s_add") else a - b - carry
        self.write(operands[0], total)
        if kind == "i32":
            exact = signed(a) + signed(b) if name == "s_add" else signed(a) - signed(b)
            self.scc = not -(1 << 31) <= exact < 1 << 31
        else:
            self.scc = total > WORD or total < 0

    def pick(self, name: str, kind: str, operands: list[str]) -> None:
        a, b = self.read(operands[1]), self.read(operands[2])
        if a is None or b is None:
            self.write(operands[0], None)
            self.scc = None
            return
        key = signed if kind == "i32" else int
        first = key(a) < key(b) if name == "s_min" else key(a) > key(b)
        self.write(operands[0], a if first else b)
        self.scc = first

    def combine(self, name: str, bits: int, operands: list[str]) -> None:
        a = self.read(operands[1], bits)
        b = self.read(operands[2], 32 if name in ("s_lshl", "s_lshr", "s_ashr", "s_bfe", "s_bfm") else bits)
        # Zeros decide an AND, and what exec was before it was narrowed what it is afterwards.
        if name == "s_and" and (a == 0 or b == 0):
            a = b = 0
        if name == "s_or" and operands[:2] == ["exec", "exec"] and a is None:
            a, b = (b, b) if b is not None else (WORD << 32 | WORD,) * 2
        value = None if a is None or b is None else SCALAR[name](a, b, bits) & ((1 << bits) - 1)
        self.write(operands[0], value, bits)
        if name in SETS_SCC:
            self.scc = None if value is None else value != 0

    def compare_lanes(self, op: str, instruction: Instruction) -> None:
        operands = instruction.operands
        _, _, relation, kind = op.split("_")[:4]
        target, sources = (operands[0], operands[1:]) if len(operands) == 3 else ("vcc", operands)
        active = self.read("exec", 64)
        bits: Any = None
        if kind in ("u32", "i32") and relation in COMPARE:
            a, b = self.lanes(sources[0]), self.lanes(sources[1])
            if a is not None and b is not None:
                if kind == "i32":
                    a, b = a.astype(np.uint32).view(np.int32), b.astype(np.uint32).view(np.int32)
                bits = COMPARE[relation](a, b)
        elif kind in ("u64", "i64") and relation in COMPARE:
            a, b = self.wide_lanes(sources[0]), self.wide_lanes(sources[1])
            if a is not None and b is not None:
                if kind == "i64":
                    a, b = a.view(np.int64), b.view(np.int64)
                bits = COMPARE[relation](a, b)
        if bits is None or active is None:
            self.write(target, None, 64)
            return
        self.write(target, sum(1 << int(lane) for lane in np.flatnonzero(bits)) & active, 64)

    def compute_lanes(self, op: str, operands: list[str]) -> bool:
        """Whether it is an operation that is known here."""
        found = re.fullmatch(r"v(?:(\d+)|\[(\d+):\d+\])", operands[0])
        if found is None:
            return False
        if op == "v_mov_b64":
            value = self.read(operands[1], 64)
            first = int(found.group(1) or found.group(2))
            for i in (0, 1):
                word = None if value is None else value >> (32 * i) & WORD
                self.v[first + i] = None if word is None else np.full(LANES, word, dtype=np.uint64)
            return True
        if found.group(1) is None:
            return False
        if op in CONVERT and len(operands) == 2:
            source = self.lanes(operands[1])
            self.v[int(found.group(1))] = None if source is None else CONVERT[op](source) & np.uint64(WORD)
            return True
        if op == "v_cndmask_b32":
            mask = self.read(operands[3] if len(operands) > 3 else "vcc", 64)
            a, b = self.lanes(operands[1]), self.lanes(operands[2])
            picked = None
            if mask is not None and a is not None and b is not None:
                picked = np.where([mask >> lane & 1 for lane in range(LANES)], b, a)
            self.v[int(found.group(1))] = picked
            return True
        if op not in VECTOR or len(operands) != 3:
            return False
        a, b = self.lanes(operands[1]), self.lanes(operands[2])
        value = None if a is None or b is None else VECTOR[op](a, b) & np.uint64(WORD)
        self.v[int(found.group(1))] = value
        return True

    def jumps(self, op: str) -> bool | None:
        """Whether a branch is taken; None where that is unknown."""
        if op == "s_branch":
            return True
        kind = op.removeprefix("s_cbranch_")
        if kind in ("scc0", "scc1"):
            return None if self.scc is None else self.scc == (kind == "scc1")
        mask = self.read("vcc" if kind.startswith("vcc") else "exec", 64)
        return None if mask is None else (mask == 0) != kind.endswith("nz")


class ExecutedPath:
    """The first wave of a block on its way. guess(at, target) says whether a branch of unknown condition is taken."""

    def __init__(self, listing: Listing, kernarg: bytes, block: int, guess: Callable[[int, int], bool]) -> None:
        self.listing, self.wave, self.guess = listing, Wave(kernarg, block, 0), guess

    def turn(self, symbol: str, loop: tuple[int, int], number: int = 4) -> Turn:
        """The `number`-th turn of the loop. Throws ValueError where the kernel ends before."""
        listing, turn, turns = self.listing, Turn([], []), 0
        at = listing.labels[symbol]
        for _ in range(1_000_000):
            turns += at == loop[0]
            if turns > number:
                return turn
            instruction, label = listing.instructions[at], listing.jumps[at]
            if instruction is not None and turns == number:
                turn.path.append(instruction)
            if instruction is None or not label:
                if instruction is not None and instruction.op == "s_endpgm":
                    break
                if instruction is not None:
                    self.wave.execute(instruction)
                at += 1
                continue
            target = listing.labels[label]
            known = self.wave.jumps(instruction.op)
            taken = self.guess(at, target) if known is None else known
            if turns == number and instruction.op != "s_branch":
                how = "by rule" if known is None else "computed"
                turn.decisions.append(f"{instruction.op} {label}: {'taken' if taken else 'not taken'} ({how})")
            at = target if taken else at + 1
        raise ValueError(f"the path ends after {turns} turns of the loop, before turn {number} is done")
