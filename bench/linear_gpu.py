"""Linear layers on the GPU that is here, beside torch: few rows, many, groups, and quantised weights.

Each case is compared with fp32 arithmetic and timed in turns with torch's product of the same numbers where it has one:
captured graphs of calls that take another copy of the weights each, 400 MB together, so that weights come from memory.
Prints microseconds, and bytes of weights and operations in a second. Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_gpu import seconds_of

if TYPE_CHECKING:
    import torch

COLD_BYTES = 400e6  # of all weights together
WORST_ERROR = 6e-3  # of out in bf16, relative, in the norm


@dataclass(frozen=True)
class Case:
    """Sizes and formats of a layer."""

    tokens: int
    n: int
    k: int
    w_format: Any = "none"
    x_format: Any = "none"
    experts: int = 0  # 0: no groups

    @property
    def name(self) -> str:
        formats = "" if self.w_format == "none" else f" {self.x_format} x {self.w_format}"
        return f"{self.tokens} x {self.n} x {self.k}{f' of {self.experts}' if self.experts else ''}{formats}"

    @property
    def flops(self) -> float:
        return 2.0 * self.tokens * self.n * self.k


CASES = (
    Case(1, 4096, 14336),
    Case(16, 4096, 14336),
    Case(64, 4096, 14336),
    Case(4096, 4096, 7168),
    Case(1, 14336, 4096),
    Case(1, 4096, 14336, "mxfp4"),
    Case(1, 4096, 14336, "nvfp4"),
    Case(1, 4096, 14336, "fp8_128x128"),
    Case(16, 4096, 14336, "mxfp4"),
    Case(64, 4096, 14336, "mxfp4"),
    Case(4096, 4096, 7168, "mxfp4"),
    Case(4096, 4096, 7168, "fp8_128x128", "fp8_1x128"),
    Case(512, 1536, 2048, experts=128),
    Case(16384, 1536, 2048, experts=128),
)


class Layer:
    """A case's tensors, with copies of its weights."""

    def __init__(self, case: Case) -> None:
        import torch

        import tilewise

        self.case = case
        shape = (*([case.experts] if case.experts else []), case.n, case.k)
        w = torch.randn(shape, device="cuda", dtype=torch.bfloat16) / case.k**0.5
        self.x = torch.randn(case.tokens, case.k, device="cuda", dtype=torch.bfloat16)
        rows: Any = (self.x,) if case.x_format == "none" else tilewise.quantize(self.x, case.x_format)
        weights: Any = (w,) if case.w_format == "none" else tilewise.quantize(w, case.w_format)
        copies = max(1, round(COLD_BYTES / weights[0].nbytes))
        self.weights = [[part.clone() for part in weights] for _ in range(copies)]
        self.rows = rows
        self.out = torch.empty(case.tokens, case.n, device="cuda", dtype=torch.bfloat16)
        counts = torch.randint(0, max(case.experts, 1), (case.tokens,), device="cuda")
        ends = torch.bincount(counts, minlength=max(case.experts, 1)).cumsum(0)
        self.offsets = torch.cat([ends.new_zeros(1), ends]).int()

    def call(self, copy: int) -> Callable[[], Any]:
        import tilewise

        names = ["w_scale", "w_global_scale"]
        given: dict[str, Any] = dict(zip(names, self.weights[copy][1:]))
        if len(self.rows) > 1:
            given["x_scale"] = self.rows[1]
        given |= {"x_format": self.case.x_format, "w_format": self.case.w_format, "out": self.out}
        if self.case.experts:
            given["offsets"] = self.offsets
        function = tilewise.grouped_linear if self.case.experts else tilewise.linear
        return lambda: function(self.rows[0], self.weights[copy][0], **given)

    def peer(self, copy: int) -> Callable[[], Any] | None:
        import torch

        w = self.weights[copy][0]
        if self.case.w_format != "none":
            return None
        if self.case.experts:
            return lambda: torch._grouped_mm(self.x, w.transpose(-2, -1), offs=self.offsets[1:])
        return lambda: torch.mm(self.x, w.t(), out=self.out)

    def error(self) -> float:
        """Relative, in the norm; infinite where something is not written."""
        import tilewise

        self.out.fill_(float("nan"))
        self.call(0)()
        weights = self.weights[0]
        w: Any = weights[0]
        x: Any = self.rows[0]
        if self.case.w_format != "none":
            w = tilewise.dequantize(weights[0], weights[1], self.case.w_format, *weights[2:])
        if self.case.x_format != "none":
            x = tilewise.dequantize(x, self.rows[1], self.case.x_format)
        reference = self.reference(x.float(), w.float())
        error = float(((self.out.float() - reference).norm() / reference.norm()).item())
        return error if error == error else float("inf")

    def reference(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        import torch

        if not self.case.experts:
            return x @ w.t()
        ends = self.offsets.tolist()
        parts = [x[begin:end] @ w[e].t() for e, (begin, end) in enumerate(zip(ends, ends[1:]))]
        return torch.cat(parts)


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    layer = Layer(case)
    error = layer.error()
    if error > WORST_ERROR:
        print(f"{case.name}: error {error:.1e}, which is more than {WORST_ERROR:.0e}", flush=True)
        return {"error": error}
    copies = range(len(layer.weights))
    ways = {"tilewise": [layer.call(copy) for copy in copies]}
    peers = [layer.peer(copy) for copy in copies]
    if all(peers):
        ways["torch"] = [peer for peer in peers if peer]
    seconds = {name: statistics.median(of) for name, of in seconds_of(ways, options.samples, options.pause).items()}
    weights = sum(part.nbytes for part in layer.weights[0])
    for name, time in seconds.items():
        rates = f"{weights / time / 1e12:5.2f} TB/s of weights, {case.flops / time / 1e12:6.0f} TFLOP/s"
        print(f"{case.name:44} {name:10} {time * 1e6:9.1f} us  {rates}", flush=True)
    return {"error": error, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="only cases whose name contains it")
    parser.add_argument("--samples", type=int, default=20, help="of each, default: 20")
    parser.add_argument("--pause", type=float, default=0.01, metavar="SECONDS", help="before a sample, default: 0.01")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("linear_gpu.py: needs a GPU, which torch does not see", file=sys.stderr)
        return 1
    torch.manual_seed(options.samples)
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for case in CASES:
        if options.filter in case.name:
            results[case.name] = measure(case, options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
