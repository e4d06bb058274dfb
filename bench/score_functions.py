"""Functions of scores beside torch's compiled flex_attention, and beside the option that says the same.

On a GPU batches of 16k tokens of 2048 features, by events; on the CPU torch 2.13 has no backward pass, one thread's
time is the processor's, and masks are given as block masks too. Both get the same Python functions; block masks are
made before the clock runs. Times are the least of several runs, which take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import tilewise
from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.timing import geometric_mean
from tilewise.expression import trace

CPU_HEADS = 8
TOKENS, FEATURES = 16384, 2048  # on a GPU
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
Function = Callable[..., Any]
Call = Callable[[], object]


@dataclass
class Case:
    """A function of scores, or of places, and the option that says the same where there is one."""

    name: str
    score_mod: Function | None = None
    mask_mod: Function | None = None
    option: dict[str, Any] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)  # of the documents that packed sequences are


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=one_of(("cpu", "cuda")), default="cpu", help="default: cpu")
    parser.add_argument("--seqlens", type=list_of(integer(1)), default=[1024, 4096], help="default: 1024,4096")
    parser.add_argument("--head-dims", type=list_of(integer(1)), default=[64, 128], help="default: 64,128")
    parser.add_argument("--dtypes", type=list_of(one_of(tuple(DTYPES))), help="default: f32,bf16; on a GPU bf16")
    parser.add_argument("--threads", type=integer(1), default=1, help="default: 1")
    parser.add_argument("--samples", type=integer(1), default=5, help="runs of each call (default: 5)")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--alone", action="store_true", help="without torch's")
    parser.add_argument("--forward", action="store_true", help="without the backward pass")
    parser.add_argument("--json", type=Path, help="where to write the forward rows, on the CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tilewise.set_num_threads(options.threads)
    on_gpu = options.device == "cuda"
    both = not options.forward
    head = f"{'ms':>8s} {'blocks':>8s} {'torch':>8s} {'x torch':>8s} {'option':>8s} {'of it':>6s}"
    print(f"{'case':44s} {head}" + (f"   backward: {head}" if both else ""))
    ratios: list[list[float]] = [[], []]
    rows: list[list[str]] = []
    for dtype in options.dtypes or (["bf16"] if on_gpu else list(DTYPES)):
        for head_dim in options.head_dims:
            for seqlen in options.seqlens:
                for case in cases(seqlen, FEATURES // head_dim if on_gpu else CPU_HEADS, options.device):
                    if options.only in case.name:
                        passes = measure(case, dtype, head_dim, seqlen, options)
                        rows.append([case.name, dtype, str(head_dim), str(seqlen), *passes[0].texts()])
                        for kept, times in zip(ratios, passes, strict=False):
                            kept += [] if math.isnan(times.theirs) else [times.theirs / times.own]
    for name, kept in zip(("forward", "backward"), ratios, strict=True):
        if kept:
            mean = geometric_mean(kept)
            print(f"{name}: torch's time to ours {min(kept):.2f} to {max(kept):.2f}, geometric mean {mean:.2f}")
    if options.json is not None:
        options.json.write_text(as_json(rows, options))
    return 0


def as_json(rows: list[list[str]], options: argparse.Namespace) -> str:
    """As docs/benchmarks has it."""
    columns = ["function", "dtype", "head_dim", "seqlen", "ms", "with a block mask", "torch", "torch's time to ours"]
    table = {
        "title": "Functions of scores beside torch's compiled flex_attention and the option that says the same, ms",
        "columns": [*columns, "option", "of its rate"],
        "rows": sorted(rows),
    }
    facts = [
        f"CPU: {processor()}, {options.threads} thread; processor time, the least of {options.samples} runs in turns",
        f"versions: tilewise {tilewise.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "command: `python bench/score_functions.py --forward`",
    ]
    document = {"kind": "score_functions", "heading": "CPU", "picture": "", "facts": facts, "notes": []}
    return json.dumps({**document, "tables": [table]}, indent=1) + "\n"


def processor() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{names[0] if names else platform.processor()} ({torch.backends.cpu.get_cpu_capability()})"


@dataclass
class Times:
    """Of one pass, in ms; NaN where there is none."""

    own: float
    blocks: float = math.nan  # with a block mask
    theirs: float = math.nan
    option: float = math.nan

    def texts(self) -> list[str]:
        ratio, rate = self.theirs / self.own, self.option / self.own
        times = [f"{time:.3f}" for time in (self.own, self.blocks, self.theirs)]
        return [*times, f"{ratio:.2f}", f"{self.option:.3f}", f"{rate:.2f}"]


def cases(seqlen: int, num_heads: int, device: str) -> list[Case]:
    slopes = torch.tensor([2.0 ** (-8 * (i + 1) / num_heads) for i in range(num_heads)], device=device)
    torch.manual_seed(1)
    table = torch.randn(num_heads, 255).to(device)
    lengths = document_lengths(seqlen)
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)
    window = min(1024, seqlen // 4)

    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    def sliding(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= window)

    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slopes[h] * abs(q_idx - kv_idx)

    def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[h, (q_idx - kv_idx + 127).clamp(0, 254)]

    def document(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)

    def prefix_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & ((q_idx - kv_idx < 256) | (kv_idx < 64))

    def soft_capped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return 20.0 * torch.tanh(score / 20.0)

    return [
        Case("causal", mask_mod=causal, option={"mask": "causal"}),
        Case("window, causal", mask_mod=sliding, option={"mask": "causal", "window": (window, -1)}),
        Case("ALiBi", score_mod=alibi, option={"alibi_slopes": slopes}),
        Case("relative table", score_mod=relative),
        Case("document, causal", mask_mod=document, option={"mask": "causal"}, lengths=lengths),
        Case("window and prefix, causal", mask_mod=prefix_window),
        Case("softcap", score_mod=soft_capped, option={"softcap": 20.0}),
    ]


def document_lengths(seqlen: int) -> list[int]:
    lengths: list[int] = []
    while sum(lengths) < seqlen:
        drawn = int(torch.randint(seqlen // 8, seqlen // 2 + 1, ()))
        lengths.append(min(drawn, seqlen - sum(lengths)))
    return lengths


def measure(case: Case, dtype: str, head_dim: int, seqlen: int, options: argparse.Namespace) -> list[Times]:
    """Forward and backward."""
    torch.manual_seed(0)
    device, on_gpu = options.device, options.device == "cuda"
    batch, heads = (max(TOKENS // seqlen, 1), FEATURES // head_dim) if on_gpu else (1, CPU_HEADS)
    shape = (batch, heads, seqlen, head_dim)
    q, k, v, dout = (torch.randn(shape, dtype=DTYPES[dtype], device=device) for _ in range(4))
    functions = {
        name: trace(f) for name, f in (("score_mod", case.score_mod), ("mask_mod", case.mask_mod)) if f is not None
    }
    calls = {"own": own_calls([q, k, v, dout], {"layout": "bhsd", **functions})}
    if case.mask_mod is not None and not on_gpu:
        mask = tilewise.block_mask(functions.pop("mask_mod"), seqlen, seqlen)
        calls["blocks"] = own_calls([q, k, v, dout], {"layout": "bhsd", "block_mask": mask, **functions})
    if case.option:
        tensors, given = [q, k, v, dout], {"layout": "bhsd", **case.option}
        if case.lengths:
            tensors = [t.transpose(1, 2).reshape(-1, heads, head_dim).contiguous() for t in tensors]
            given = {**case.option, **packed(case.lengths * batch, device)}
        calls["option"] = own_calls(tensors, given)
    if not options.alone:
        calls["theirs"] = torch_calls(case, [q, k, v, dout], seqlen, on_gpu and not options.forward)
        torch.testing.assert_close(calls["own"][0](), calls["theirs"][0](), rtol=2e-2, atol=2e-2)
    clock = on_device if on_gpu else on_processor if options.threads == 1 else on_host
    passes = []
    for n in range(1 if options.forward else 2):
        names = [name for name in calls if n < len(calls[name])]
        best = least([calls[name][n] for name in names], options.samples, clock)
        passes.append(Times(**dict(zip(names, best, strict=True))))
    label = f"{dtype} d{head_dim} s{seqlen} {case.name}"
    columns = (
        " ".join(text.rjust(width) for text, width in zip(p.texts(), (8, 8, 8, 8, 8, 6), strict=True)) for p in passes
    )
    print(f"{label:44s} " + "             ".join(columns), flush=True)
    return passes


def own_calls(tensors: list[torch.Tensor], given: dict[str, Any]) -> list[Call]:
    q, k, v, dout = tensors
    out, lse = tilewise.attention(q, k, v, return_lse=True, **given)
    return [
        lambda: tilewise.attention(q, k, v, **given),
        lambda: tilewise.attention_backward(dout, q, k, v, out, lse, **given),
    ]


def packed(lengths: list[int], device: str) -> dict[str, Any]:
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)
    longest = max(lengths)
    return {
        "layout": "thd",
        "cu_seqlens_q": ends,
        "cu_seqlens_k": ends,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }


def torch_calls(case: Case, tensors: list[torch.Tensor], seqlen: int, differentiates: bool) -> list[Call]:
    q, k, v, dout = tensors
    block_mask = None
    if case.mask_mod is not None:
        block_mask = create_block_mask(case.mask_mod, None, None, seqlen, seqlen, device=q.device.type)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)

    def run(*given: torch.Tensor) -> torch.Tensor:
        return compiled(*given, score_mod=case.score_mod, block_mask=block_mask)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return run(q, k, v)

    if not differentiates:
        return [forward]
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    out = run(*leaves)
    return [forward, lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)]


def least(calls: list[Call], samples: int, clock: Callable[[Call], float]) -> list[float]:
    """Milliseconds."""
    best = [math.inf] * len(calls)
    for call in calls:
        call()
    for _ in range(samples):
        for n, call in enumerate(calls):
            best[n] = min(best[n], clock(call))
    return best


def on_host(call: Call) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def on_processor(call: Call) -> float:
    """Without what neighbours take of the processor's time."""
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def on_device(call: Call, calls: int = 5) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    call()  # whose launch the next ones' queue behind
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


if __name__ == "__main__":
    raise SystemExit(main())
