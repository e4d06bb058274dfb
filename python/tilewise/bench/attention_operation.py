"""Attention, forward and backward, as the command measures it."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tilewise.bench.argument_types import list_of, one_of
from tilewise.bench.contenders import CPU_RIVALS, RIVALS, Contender, Tilewise, make_rival
from tilewise.bench.gpu_contenders import make_gpu_rival
from tilewise.bench.inputs import NUMPY_DTYPES, has_torch
from tilewise.bench.operation import BenchOperation
from tilewise.bench.rows import Row
from tilewise.bench.runner import run_case
from tilewise.bench.shapes import DTYPES, FP8, LAYOUTS, MASKS, Case, Pass, Shape, default_grid

GPU_DTYPES = ["bf16", "f16"]


class AttentionOperation(BenchOperation):
    """Cases are shapes by dtypes, masks and threads."""

    name = "attention"
    described = "attention (default)"
    shapes_described = "(default: a grid of 27)"
    rivals = CPU_RIVALS
    gpu_rivals = RIVALS
    own = {"dtypes": None, "masks": None, "layout": None, "backward": False}  # noqa: RUF012 (never written)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--dtypes",
            type=list_of(_dtype),
            metavar="DTYPES",
            help=f"comma-separated, of {', '.join(DTYPES)} (default: {','.join(_cpu_dtypes())};"
            f" with --device cuda {','.join(GPU_DTYPES)})",
        )
        parser.add_argument(
            "--masks",
            type=list_of(one_of(MASKS)),
            metavar="MASKS",
            help="comma-separated, of none, causal (default: both)",
        )
        parser.add_argument("--layout", type=one_of(LAYOUTS), help="memory layout: bshd (default) or bhsd")
        parser.add_argument("--backward", action="store_true", help="time the backward pass instead of the forward one")

    def settle(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        if options.backward and not has_torch():
            parser.error("argument --backward: needs torch's autograd (torch is not installed)")
        if options.backward and FP8 in (options.dtypes or ()):
            parser.error(f"argument --dtypes: must have a backward pass with --backward (got {FP8!r})")
        options.masks = options.masks or list(MASKS)
        options.layout = options.layout or "bshd"
        options.dtypes = options.dtypes or (_cpu_dtypes() if options.device == "cpu" else list(GPU_DTYPES))

    def gpu_dtypes(self, options: argparse.Namespace) -> Sequence[str]:
        dtypes: list[str] = options.dtypes
        return dtypes

    def parse_shape(self, text: str) -> Shape:
        return Shape.parse(text)

    def default_shapes(self, device: str) -> list[Shape]:
        del device
        return default_grid()

    def cases(self, options: argparse.Namespace) -> list[Case]:
        which: Pass = "backward" if options.backward else "forward"
        return [
            Case(shape, dtype, mask, which, options.layout, threads, options.device)
            for threads in options.threads
            for dtype in options.dtypes
            for mask in options.masks
            for shape in options.shapes
        ]

    def ours(self) -> Contender[Any, Any]:
        return Tilewise()

    def rival(self, name: str, device: str) -> Contender[Any, Any]:
        return make_rival(name) if device == "cpu" else make_gpu_rival(name)

    def compile_jobs(
        self, ours: Contender[Any, Any], cases: Iterable[Any]
    ) -> Sequence[tuple[str, Callable[[], object]]]:
        assert isinstance(ours, Tilewise)
        return [(str(case), functools.partial(ours.warm_up, case)) for case in cases]

    def run(self, case: Any, contenders: Sequence[Any], settings: Any, on_step: Callable[[str], object]) -> list[Row]:
        return run_case(case, contenders, settings, on_step=on_step)


def _cpu_dtypes() -> list[str]:
    return ["bf16", "f32"] if has_torch() else ["f32", "f16"]


def _dtype(text: str) -> str:
    name = one_of(DTYPES)(text)
    if not has_torch() and name not in NUMPY_DTYPES:
        raise argparse.ArgumentTypeError(f"{name} needs torch, which is not installed (got {text!r})")
    return name
