"""Functions of scores beside torch's compiled flex_attention, and beside the option that says the same.

On a GPU batches of 16k tokens of 2048 features, by events; on the CPU the backward pass alone, since torch 2.13 has
none there. Both get the same Python functions; torch's block mask is made before the clock runs. Times
are the least of several runs, which take turns.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tilewise.set_num_threads(options.threads)
    on_gpu = options.device == "cuda"
    both = not options.forward
    head = f"{'ms':>8s} {'torch':>8s} {'x torch':>8s} {'option':>8s} {'of it':>6s}"
    print(f"{'case':44s} {head}" + (f"   backward: {head}" if both else ""))
    ratios: list[list[float]] = [[], []]
    for dtype in options.dtypes or (["bf16"] if on_gpu else list(DTYPES)):
        for head_dim in options.head_dims:
            for seqlen in options.seqlens:
                for case in cases(seqlen, FEATURES // head_dim if on_gpu else CPU_HEADS, options.device):
                    if options.only in case.name:
                        measured = measure(case, dtype, head_dim, seqlen, options)
                        for kept, ratio in zip(ratios, measured, strict=False):
                            kept += [] if ratio is None else [ratio]
    for name, kept in zip(("forward", "backward"), ratios, strict=True):
        if kept:
            mean = geometric_mean(kept)
            print(f"{name}: torch's time to ours {min(kept):.2f} to {max(kept):.2f}, geometric mean {mean:.2f}")
    return 0


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


def measure(case: Case, dtype: str, head_dim: int, seqlen: int, options: argparse.Namespace) -> list[float | None]:
    """Torch's time to ours, forward and backward; None without torch's."""
    torch.manual_seed(0)
    device, on_gpu = options.device, options.device == "cuda"
    batch, heads = (max(TOKENS // seqlen, 1), FEATURES // head_dim) if on_gpu else (1, CPU_HEADS)
    shape = (batch, heads, seqlen, head_dim)
    q, k, v, dout = (torch.randn(shape, dtype=DTYPES[dtype], device=device) for _ in range(4))
    functions = {
        name: trace(f) for name, f in (("score_mod", case.score_mod), ("mask_mod", case.mask_mod)) if f is not None
    }
    ours = own_calls([q, k, v, dout], {"layout": "bhsd", **functions})
    forward, backward = [ours[0]], [ours[1]]
    if case.option:
        tensors, given = [q, k, v, dout], {"layout": "bhsd", **case.option}
        if case.lengths:
            tensors = [t.transpose(1, 2).reshape(-1, heads, head_dim).contiguous() for t in tensors]
            given = {**case.option, **packed(case.lengths * batch, device)}
        option = own_calls(tensors, given)
        forward, backward = [*forward, option[0]], [*backward, option[1]]
    both = not options.forward
    if not options.alone:
        theirs = torch_calls(case, [q, k, v, dout], seqlen, both and on_gpu)
        torch.testing.assert_close(ours[0](), theirs[0](), rtol=2e-2, atol=2e-2)
        forward = [*forward, theirs[0]]
        backward = [*backward, *theirs[1:]]
    texts, ratios = [], []
    for calls in (forward, backward) if both else (forward,):
        times = least(calls, options.samples, on_gpu)
        has_theirs = not options.alone and (on_gpu or calls is forward)
        own, other = times[0], times[-1] if has_theirs else math.nan
        option = times[1] if case.option else math.nan
        texts.append(f"{own:8.3f} {other:8.3f} {other / own:8.2f} {option:8.3f} {option / own:6.2f}")
        ratios.append(other / own if has_theirs else None)
    label = f"{dtype} d{head_dim} s{seqlen} {case.name}"
    print(f"{label:44s} " + "             ".join(texts), flush=True)
    return ratios


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


def least(calls: list[Call], samples: int, on_gpu: bool) -> list[float]:
    """Milliseconds."""
    best = [math.inf] * len(calls)
    for call in calls:
        call()
    for _ in range(samples):
        for n, call in enumerate(calls):
            best[n] = min(best[n], (on_device if on_gpu else on_host)(call))
    return best


def on_host(call: Call) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


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
