"""A call without its option, timed in the same turns as the call with it.

A GPU at its power limit runs what comes after a busy minute up to a fifth slower than what comes after a pause: rates
of different minutes make no ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpu_cases import PLAIN, GpuCase, flops

from tilewise.bench.contenders import Contender
from tilewise.bench.inputs import Inputs, make_inputs
from tilewise.bench.runner import Timer
from tilewise.bench.shapes import Case, Pass
from tilewise.bench.timing import Timing

PLAIN_CALL = "tilewise without the option"


class PlainBeside:
    """`tflops` is None until what beside() gives has timed calls."""

    def __init__(self, plain: Case, operation: Pass, device: str, tilewise: Contender[Case, Inputs]) -> None:
        case = GpuCase(PLAIN, plain, (operation,))
        on_device = case.on(device, operation)
        self._flops = flops(case, operation)
        self._call = tilewise.prepare(on_device, make_inputs(on_device, seed=0)).call
        self.tflops: float | None = None

    def beside(self, timer: Timer) -> Timer:
        """`timer` with this call among those that it times; its answer has it not."""

        def timed(calls: Mapping[str, Callable[[], object]]) -> Mapping[str, Timing]:
            timings = dict(timer({**calls, PLAIN_CALL: self._call}))
            self.tflops = self._flops / timings.pop(PLAIN_CALL).median / 1e12
            return timings

        return timed
