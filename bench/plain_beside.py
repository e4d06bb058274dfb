"""What a call is compared with, such as the same call without an option, timed in the same turns.

A GPU at its power limit runs what comes after a busy minute up to a fifth slower than what comes after a pause: rates
of different minutes make no ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_cases import PLAIN, GpuCase, flops

from tilewise.bench.contenders import Contender
from tilewise.bench.inputs import Inputs, make_inputs
from tilewise.bench.runner import Timer
from tilewise.bench.shapes import Case, Pass
from tilewise.bench.timing import Timing

PLAIN_CALL = "tilewise without the option"


class PlainBeside:
    """Its tensors are made once, for all passes. `tflops` has the passes that what beside() gives has timed."""

    def __init__(self, plain: Case, passes: Sequence[Pass], device: str, tilewise: Contender[Case, Inputs]) -> None:
        self.case = GpuCase(PLAIN, plain, tuple(passes))
        self.tflops: dict[Pass, float] = {}
        self._device, self._tilewise = device, tilewise
        self._inputs = make_inputs(self.case.on(device), seed=0)

    def beside(self, timer: Timer, operation: Pass) -> Timer:
        """`timer` with this call among those that it times; its answer has it not."""
        call = self._tilewise.prepare(self.case.on(self._device, operation), self._inputs).call

        def timed(calls: Mapping[str, Callable[[], object]]) -> Mapping[str, Timing]:
            timings = dict(timer({**calls, PLAIN_CALL: call}))
            self.tflops[operation] = flops(self.case, operation) / timings.pop(PLAIN_CALL).median / 1e12
            return timings

        return timed
