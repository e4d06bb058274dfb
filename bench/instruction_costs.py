"""What the instructions of softmax cost a warp scheduler of Hopper, by themselves and beside wgmma.

One block: a warpgroup multiplies without a pause while two work through a mix of instructions (instruction_costs.cu).
From both rates follows how quick a kernel could be at most whose scores take such a mix, if its warps did nothing else
and waited for nothing. Prints Markdown tables. Needs torch and NVRTC, and an NVIDIA GPU of sm_90.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from command_line import EXIT_FAILURE, EXIT_OK, REPOSITORY
from cuda_program import CudaModule, compile_cuda

from tilewise.bench.markdown import table

SOURCE = Path(__file__).with_suffix(".cu")
ARCHITECTURE = "sm_90a"
PRODUCT_CYCLES = 64  # of a product, as quick as the matrix unit is
RUNS = 5


def constant(name: str) -> int:
    """Of the kernel's source."""
    found = re.search(rf"^constexpr int {name} = (\d+);", SOURCE.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{SOURCE.name} has no number {name}")
    return int(found[1])


SCORES, REPEATS, WORKERS = constant("kScores"), constant("kRepeats"), constant("kWorkers")
THREADS, SHARED_BYTES = (WORKERS + 1) * constant("kGroup"), constant("kSharedBytes")

INSTRUCTIONS = {
    "fadd": "FADD",
    "fmul": "FMUL",
    "ffma": "FFMA",
    "lop3": "LOP3",
    "prmt": "PRMT",
    "max": "FMNMX",
    "pack": "F2FP, two weights to bf16",
    "hmul2": "HMUL2",
    "imad": "IMAD",
    "mul_wide": "IMAD.WIDE, 64 bits",
    "ex2": "MUFU.EX2",
    "tanh": "MUFU.TANH",
}

# Instructions of each score; "pack/2": of every second one. Of Philox's ten rounds all but 15 of 20 products, with an
# exclusive or each, are common to many draws; they serve eight scores, whose draws three instructions a pair compare
# and apply.
MIXES: Mapping[str, Sequence[str]] = {
    "softmax": ("ffma", "ex2", "fadd", "pack/2"),
    "softmax, scores compared": ("ffma", "ex2", "fadd", "max/2", "pack/2"),
    "softmax, no sums": ("ffma", "ex2", "pack/2"),
    "softcap": ("fmul", "tanh", "ffma", "ex2", "fadd", "pack/2"),
    "dropout's draws": ("mul_wide*15", "lop3*15"),
    "dropout's masks": ("lop3/2", "lop3/2", "lop3/2"),
}
# Kernels: the mixes of a score, each of which may run beside products or not.
KERNELS: Mapping[str, Sequence[str]] = {
    "softmax": ("softmax",),
    "softmax, scores compared": ("softmax, scores compared",),
    "softcap": ("softcap",),
    "dropout": ("softmax", "dropout's draws", "dropout's masks"),
}
HEAD_DIMS = (64, 72, 80, 96, 128, 256)


@dataclass(frozen=True)
class Cost:
    """Cycles of a scheduler for an instruction, or for a mix's part of a score; and of a product of 64 beside it."""

    alone: float
    beside: float
    product: float

    @property
    def products_done(self) -> float:
        """Cycles' worth of products, at the matrix unit's full rate, that get done beside one."""
        return self.beside * PRODUCT_CYCLES / self.product


def least_cycles(costs: Sequence[Cost], matrix_cycles: float) -> float:
    """Of a score that takes these mixes and so many cycles of the matrix unit, if each mix ran beside products or
    without them as it suits, and nothing waited."""
    total, left = sum(cost.alone for cost in costs), matrix_cycles
    for cost in sorted(costs, key=lambda cost: (cost.beside - cost.alone) / cost.products_done):
        if cost.beside - cost.alone >= cost.products_done:  # as long as one after the other
            continue
        share = min(1.0, left / cost.products_done)
        total += share * (cost.beside - cost.alone)
        left -= share * cost.products_done
    return total + left


def matrix_cycles(head_dim: int) -> float:
    """Of both products of a score: depth in steps of 16, columns in steps of 8; 1,024 multiply-adds a cycle and
    multiprocessor for each of four schedulers' 32 lanes."""
    depth, columns = -(-head_dim // 16) * 16, -(-head_dim // 8) * 8
    return (depth + columns) / 16


def mix_text(instructions: Sequence[str]) -> str:
    """C++ statements that work through the mix of SCORES scores."""
    statements = []
    for i in range(SCORES):
        for instruction in instructions:
            name, _, part = instruction.partition("/")
            name, _, times = name.partition("*")
            if times:  # of all scores together
                count = int(times)
                statements += [f"{name}(x, {i});"] * (count * (i + 1) // SCORES - count * i // SCORES)
            elif i % int(part or 1) == 0:
                statements.append(f"{name}(x, {i});")
    return " ".join(statements)


def kernel_name(mix: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in mix)


def source_text() -> str:
    mixes = {**{name: (name,) for name in INSTRUCTIONS}, **MIXES}
    lines = [f"TILEWISE_MEASURE({kernel_name(mix)}_, {mix_text(instructions)})" for mix, instructions in mixes.items()]
    return SOURCE.read_text() + "\n" + "\n".join(lines) + "\n"


class Measurement:
    """Of all mixes, compiled together."""

    def __init__(self) -> None:
        import torch

        self._answer = torch.zeros(4, dtype=torch.int64, device="cuda")
        self._module = CudaModule(compile_cuda(source_text(), ARCHITECTURE, REPOSITORY / "src"))

    def run(self, mix: str, beside: bool) -> list[int]:
        pointer = self._answer.data_ptr()
        arguments = [ctypes.c_int(beside), ctypes.c_float(1.1), ctypes.c_void_p(pointer), ctypes.c_void_p(pointer + 24)]
        self._module.launch(f"measure_{kernel_name(mix)}_", THREADS, SHARED_BYTES, arguments)
        return [int(number) for number in self._answer.tolist()]

    def cost(self, mix: str) -> Cost:
        """Of each of SCORES."""
        works = REPEATS * SCORES * WORKERS
        alone = statistics.median(self.run(mix, False)[0] / works for _ in range(RUNS))
        beside = [self.run(mix, True) for _ in range(RUNS)]
        return Cost(
            alone,
            statistics.median(cycles / works for cycles, *_ in beside),
            statistics.median(cycles / products for _, cycles, products, _ in beside),
        )


def cost_rows(costs: Mapping[str, Cost], names: Mapping[str, str]) -> list[list[str]]:
    return [
        [names.get(mix, mix), f"{cost.alone:.2f}", f"{cost.beside:.2f}", f"{PRODUCT_CYCLES / cost.product:.2f}"]
        for mix, cost in costs.items()
    ]


def report(instructions: Mapping[str, Cost], mixes: Mapping[str, Cost]) -> str:
    header = ["cycles alone", "cycles beside products", "their rate"]
    bounds = []
    plain = {dim: least_cycles([mixes["softmax"]], matrix_cycles(dim)) for dim in HEAD_DIMS}
    for kernel, parts in KERNELS.items():
        for dim in HEAD_DIMS:
            least = least_cycles([mixes[part] for part in parts], matrix_cycles(dim))
            bounds.append([kernel, str(dim), f"{matrix_cycles(dim):.1f}", f"{least:.1f}", f"{plain[dim] / least:.2f}"])
    return "\n\n".join(
        [
            table(["instruction", *header], cost_rows(instructions, INSTRUCTIONS)),
            table(["of a score", *header], cost_rows(mixes, {})),
            table(["kernel", "head_dim", "cycles of products", "least cycles a score", "of softmax"], bounds),
        ]
    )


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("instruction_costs.py: needs an NVIDIA GPU of sm_90, which torch does not see", file=sys.stderr)
        return EXIT_FAILURE
    measurement = Measurement()
    print(f"{torch.cuda.get_device_name()}\n")
    print(
        report({name: measurement.cost(name) for name in INSTRUCTIONS}, {mix: measurement.cost(mix) for mix in MIXES})
    )
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
