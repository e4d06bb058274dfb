"""Functions of scores on the CPU beside torch's compiled flex_attention, and beside the option that says the same.

Forward, since torch 2.13 has no backward pass there, and our own backward pass beside the forward one. Both get the
same Python functions; torch's block mask is made before the clock runs. Times are the least of several runs, which take
turns.
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

NUM_HEADS = 8
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seqlens", type=list_of(integer(1)), default=[1024, 4096], help="default: 1024,4096")
    parser.add_argument("--head-dims", type=list_of(integer(1)), default=[64, 128], help="default: 64,128")
    parser.add_argument("--dtypes", type=list_of(one_of(tuple(DTYPES))), default=list(DTYPES), help="default: f32,bf16")
    parser.add_argument("--threads", type=integer(1), default=1, help="default: 1")
    parser.add_argument("--samples", type=integer(1), default=5, help="runs of each call (default: 5)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tilewise.set_num_threads(options.threads)
    print(f"{'case':44s} {'ms':>8s} {'torch':>8s} {'x torch':>8s} {'option':>8s} {'of it':>6s} {'backward':>9s}")
    ratios: list[float] = []
    for dtype in options.dtypes:
        for head_dim in options.head_dims:
            for seqlen in options.seqlens:
                ratios += [measure(case, dtype, head_dim, seqlen, options.samples) for case in cases(seqlen)]
    print(f"torch's time to ours: {min(ratios):.2f} to {max(ratios):.2f}, geometric mean {geometric_mean(ratios):.2f}")
    return 0


def cases(seqlen: int) -> list[Case]:
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(NUM_HEADS)])
    table = torch.randn(NUM_HEADS, 255)
    torch.manual_seed(1)
    ends = torch.randint(seqlen // 8, seqlen // 2, (64,)).cumsum(0)
    documents = torch.searchsorted(ends, torch.arange(seqlen), right=True)

    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

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
        Case("ALiBi", score_mod=alibi, option={"alibi_slopes": slopes}),
        Case("relative table", score_mod=relative),
        Case("document, causal", mask_mod=document),
        Case("window and prefix, causal", mask_mod=prefix_window),
        Case("softcap", score_mod=soft_capped, option={"softcap": 20.0}),
    ]


def measure(case: Case, dtype: str, head_dim: int, seqlen: int, samples: int) -> float:
    """Torch's time to ours."""
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(1, NUM_HEADS, seqlen, head_dim, dtype=DTYPES[dtype]) for _ in range(4))
    block_mask = None
    if case.mask_mod is not None:
        block_mask = create_block_mask(case.mask_mod, None, None, seqlen, seqlen, device="cpu")
    compiled = torch.compile(flex_attention)
    functions = {
        name: None if f is None else trace(f)
        for name, f in (("score_mod", case.score_mod), ("mask_mod", case.mask_mod))
    }
    given: dict[str, Any] = {name: f for name, f in functions.items() if f is not None}
    out, lse = tilewise.attention(q, k, v, layout="bhsd", return_lse=True, **given)
    with torch.no_grad():
        theirs = compiled(q, k, v, score_mod=case.score_mod, block_mask=block_mask)
    torch.testing.assert_close(out, theirs, rtol=2e-2, atol=2e-2)
    calls: list[Call] = [
        lambda: tilewise.attention(q, k, v, layout="bhsd", **given),
        lambda: compiled(q, k, v, score_mod=case.score_mod, block_mask=block_mask),
        lambda: tilewise.attention_backward(dout, q, k, v, out, lse, layout="bhsd", **given),
    ]
    if case.option:
        calls.append(lambda: tilewise.attention(q, k, v, layout="bhsd", **case.option))
    with torch.no_grad():
        own, other, backward, *option = least(calls, samples)
    says = f"{option[0]:8.2f} {option[0] / own:6.2f}" if option else f"{'-':>8s} {'-':>6s}"
    label = f"{dtype} d{head_dim} s{seqlen} {case.name}"
    print(f"{label:44s} {own:8.2f} {other:8.2f} {other / own:8.2f} {says} {backward:9.2f}", flush=True)
    return other / own


def least(calls: list[Call], samples: int) -> list[float]:
    """Milliseconds."""
    best = [math.inf] * len(calls)
    for _ in range(samples):
        for n, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[n] = min(best[n], 1e3 * (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    raise SystemExit(main())
