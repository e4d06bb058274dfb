"""Forward and backward of bf16 expert layers on the GPU that is here, beside torch's grouped_mm layer.

Gradients are compared with fp32 arithmetic first. Calls are timed in turns, each after a pause, forward alone and with
the backward pass behind it: with sums of the first product made again, stored for the backward pass, and torch's.
TILEWISE_FORCE=cuda.sm80 times the portable kernels. Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_gpu import FLOPS
from moe_inputs import LAYERS, Call, Layer, Weights

if TYPE_CHECKING:
    import torch

WORST_ERROR = 1e-2  # of a gradient in bf16, relative, in the norm
HOLD_CYCLES = 10_000_000  # that the GPU is busy while the host queues a sample's launches
Run = Callable[[], "torch.Tensor"]


class Case:
    """A call whose inputs want gradients."""

    def __init__(self, layer: Layer, tokens: int, skewed: bool = False) -> None:
        import torch

        self.w, self.call = Weights.draw(layer), Call.draw(layer, tokens, skewed)
        self.dout = torch.randn_like(self.call.x)
        self.inputs = (self.call.x, self.call.weights, self.w.gate_up, self.w.down)
        for tensor in self.inputs:
            tensor.requires_grad_()

    def library(self, stored: bool = False) -> torch.Tensor:
        import tilewise

        x, weights, gate_up, down = self.inputs
        return tilewise.moe(x, self.call.ids, weights, gate_up, down, save_gate_up=stored)

    def stored(self) -> torch.Tensor:
        return self.library(stored=True)

    def grouped(self) -> torch.Tensor:
        """As transformers' "grouped_mm" experts have it."""
        import torch

        x, weights, gate_up, down = self.inputs
        tokens, top_k = self.call.ids.shape
        flat = self.call.ids.reshape(-1)
        order = torch.argsort(flat)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device="cuda")
        counts = torch.histc(flat.float(), bins=self.w.layer.experts, min=0, max=self.w.layer.experts - 1)
        offsets = torch.cumsum(counts, 0, dtype=torch.int32)
        gate, up = torch._grouped_mm(x[order // top_k], gate_up.transpose(-2, -1), offs=offsets).chunk(2, -1)
        parts = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.transpose(-2, -1), offs=offsets)
        parts = parts * weights.reshape(-1)[order, None].to(parts.dtype)
        return parts[back].view(tokens, top_k, -1).sum(1)

    def gradients(self, run: Run) -> list[torch.Tensor]:
        for tensor in self.inputs:
            tensor.grad = None
        run().backward(self.dout)
        return [tensor.grad for tensor in self.inputs if tensor.grad is not None]

    def reference(self) -> list[torch.Tensor]:
        """In fp32, an expert after the other."""
        import torch

        sums = [torch.zeros(tensor.shape, device="cuda") for tensor in self.inputs]
        for expert in self.call.ids.unique().tolist():
            token, slot = (self.call.ids == expert).nonzero(as_tuple=True)
            own = [
                tensor.detach()[at].float().requires_grad_()
                for tensor, at in zip(self.inputs, (token, (token, slot), expert, expert))
            ]
            gate, up = (own[0] @ own[2].t()).chunk(2, -1)
            part = (torch.nn.functional.silu(gate) * up) @ own[3].t() * own[1][:, None]
            part.backward(self.dout[token].float())
            grads = [tensor.grad for tensor in own if tensor.grad is not None]
            sums[0].index_add_(0, token, grads[0])
            sums[1][token, slot], sums[2][expert], sums[3][expert] = grads[1:]
        return sums


def errors_of(layer: Layer, tokens: int, skewed: bool, stored: bool) -> list[float]:
    """Relative, in the norm, of x, topk_weights, gate_up and down; infinite where two runs differ in a bit."""
    import torch

    case = Case(layer, tokens, skewed)
    runs = [[grad.clone() for grad in case.gradients(lambda: case.library(stored))] for _ in range(2)]
    if not all(torch.equal(first, second) for first, second in zip(*runs)):
        return [float("inf")]
    reference = case.reference()
    errors = [float((own.float() - of).norm() / of.norm()) for own, of in zip(runs[0], reference)]
    return [error if error == error else float("inf") for error in errors]


def seconds_of(case: Case, ways: dict[str, Run], samples: int, pause: float) -> dict[str, dict[str, float]]:
    """Medians of the forward pass and of both."""
    import torch

    seconds: dict[str, dict[str, list[float]]] = {name: {"forward": [], "both": []} for name in ways}
    for sample in range(samples + 2):
        for name, run in ways.items():
            for tensor in case.inputs:
                tensor.grad = None
            torch.cuda.synchronize()
            time.sleep(pause)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            torch.cuda._sleep(HOLD_CYCLES)
            events[0].record()
            out = run()
            events[1].record()
            out.backward(case.dout)
            events[2].record()
            torch.cuda.synchronize()
            if sample < 2:
                continue
            for part, end in zip(("forward", "both"), events[1:]):
                seconds[name][part].append(events[0].elapsed_time(end) / 1e3)
    return {name: {part: statistics.median(of) for part, of in parts.items()} for name, parts in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="qwen,mixtral", help="default: qwen,mixtral")
    parser.add_argument("--tokens", default="4096,16384", help="default: 4096,16384")
    parser.add_argument("--samples", type=int, default=10, help="of each, default: 10")
    parser.add_argument("--pause", type=float, default=0.02, metavar="SECONDS", help="before a call, default: 0.02")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave torch's layer out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("moe_training_gpu.py: needs a GPU, which torch does not see", file=sys.stderr)
        return 1
    torch.manual_seed(options.samples)
    for layer, tokens, skewed in ((LAYERS["ragged"], 200, True), (LAYERS["qwen"], 1000, False)):
        for stored in (False, True):
            errors = errors_of(layer, tokens, skewed, stored)
            text = " ".join(f"{error:.1e}" for error in errors)
            print(f"{layer} {tokens} tokens{', stored' if stored else ''}: errors {text}", flush=True)
            if max(errors) > WORST_ERROR:
                return 1
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name in options.layers.split(","):
        for tokens in (int(text) for text in options.tokens.split(",")):
            layer = LAYERS[name]
            case = Case(layer, tokens)
            ways: dict[str, Run] = {"tilewise": case.library, "tilewise, stored": case.stored}
            if options.peers:
                ways["grouped_mm"] = case.grouped
            seconds = seconds_of(case, ways, options.samples, options.pause)
            # Three products forward; backward the first one, which is two, again and two for each of the three.
            floor = 11 * 2 * case.call.ids.numel() * layer.hidden * layer.intermediate / FLOPS
            for way, parts in seconds.items():
                both, forward = (parts[part] * 1e6 for part in ("both", "forward"))
                print(
                    f"{name} {tokens} {way:16} both {both:8.0f} us, {both / floor / 1e6:.2f} x floor; "
                    f"forward {forward:.0f}, backward {both - forward:.0f}",
                    flush=True,
                )
            results[f"{name} {tokens}"] = {"floor": floor, "seconds": seconds}
            del case, ways
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
