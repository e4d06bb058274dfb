"""What one call of the torch operator costs beside the arithmetic: a tiny problem, without and with gradients.

Beside it torch's own scaled_dot_product_attention on the same tensors, and the drop-ins beside the calls of Tilewise
that they make.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from command_line import BUILDS
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import tilewise
from tilewise.bench.argument_types import seconds
from tilewise.bench.ceilings import find_program
from tilewise.bench.timing import measure
from tilewise.compat import flash_attn, sdpa
from tilewise.compat.transformer_engine import DotProductAttention
from tilewise.expression import trace

Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--min-time", type=seconds, default=1.0, help="seconds for each line (default: 1)")
    options = parser.parse_args()
    others = (drop_in_calls(), sdpa_calls(), transformer_engine_calls(), function_calls("cpu"), flex_calls())
    for calls in (None, *others, expert_calls("cpu")):
        for name, microseconds in measure_overhead(options.min_time, calls).items():
            print(f"{name:40s} {microseconds:8.2f} us")


def measure_overhead(min_time: float = 1.0, calls: dict[str, Call] | None = None) -> dict[str, float]:
    """Least microseconds of each call in 200 samples, on one thread; `min_time` is in seconds, for each.

    What the machine does besides can only add to a few microseconds of one thread. `calls`: None for those of
    Tilewise and torch.
    """
    torch.set_num_threads(1)
    timings = measure(calls or {**tilewise_calls(), **torch_calls()}, min_time, num_samples=200)
    return {name: timing.best * 1e6 for name, timing in timings.items()}


def cpp_overhead(name: str) -> list[dict[str, Any]]:
    """Nanoseconds of the parts of C++ calls, which the program `name` measures; empty where it is not built."""
    program = find_program(name, BUILDS)
    if program is None:
        return []
    result = subprocess.run([program, "--json"], check=True, capture_output=True, text=True, timeout=120)
    measured: list[dict[str, Any]] = json.loads(result.stdout)
    return measured


def tilewise_calls() -> dict[str, Call]:
    """[batch, seqlen, heads, head_dim] = [1, 1, 1, 8]."""
    q, k, v, dout = (torch.randn(1, 1, 1, 8) for _ in range(4))
    return {
        "tilewise, no gradient": lambda: tilewise.attention(q, k, v),
        **gradient_calls("tilewise", tilewise.attention, q, k, v, dout),
    }


def torch_calls() -> dict[str, Call]:
    q, k, v, dout = (torch.randn(1, 1, 1, 8) for _ in range(4))
    return {
        "torch, no gradient": lambda: scaled_dot_product_attention(q, k, v),
        **gradient_calls("torch", scaled_dot_product_attention, q, k, v, dout),
    }


def drop_in_calls() -> dict[str, Call]:
    """flash_attn's functions beside tilewise.attention, alternately, on bf16 [1, 1, 1, 8]."""
    q = torch.randn(1, 1, 1, 8, dtype=torch.bfloat16)
    leaf, rows, starts = q.clone().requires_grad_(), q[0], torch.tensor([0, 1], dtype=torch.int32)
    thd = {"layout": "thd", "cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 1, "max_seqlen_k": 1}
    return {
        "tilewise, bf16": lambda: tilewise.attention(q, q, q),
        "flash_attn_func": lambda: flash_attn.flash_attn_func(q, q, q),
        "tilewise, bf16 with gradient": lambda: tilewise.attention(leaf, leaf, leaf),
        "flash_attn_func with gradient": lambda: flash_attn.flash_attn_func(leaf, leaf, leaf),
        "tilewise, softcap": lambda: tilewise.attention(q, q, q, softcap=2.0),
        "flash_attn_func, softcap": lambda: flash_attn.flash_attn_func(q, q, q, softcap=2.0),
        "tilewise, return_lse": lambda: tilewise.attention(q, q, q, return_lse=True),
        "flash_attn_func, return_attn_probs": lambda: flash_attn.flash_attn_func(q, q, q, return_attn_probs=True),
        "tilewise, packed": lambda: tilewise.attention(rows, rows, rows, **thd),
        "flash_attn_varlen_func": lambda: flash_attn.flash_attn_varlen_func(rows, rows, rows, starts, starts, 1, 1),
        "tilewise.kv_cache_attention": lambda: tilewise.kv_cache_attention(q, q, q, cache_seqlens=1),
        "flash_attn_with_kvcache": lambda: flash_attn.flash_attn_with_kvcache(q, q, q, cache_seqlens=1),
    }


def sdpa_calls() -> dict[str, Call]:
    """torch's scaled_dot_product_attention on Tilewise, on f32 [1, 1, 1, 8]."""
    q = torch.randn(1, 1, 1, 8)
    leaf, mask = q.clone().requires_grad_(), torch.ones(1, 1, dtype=torch.bool)
    return {
        "tilewise, bhsd": lambda: tilewise.attention(q, q, q, layout="bhsd"),
        "compat.sdpa": lambda: sdpa.scaled_dot_product_attention(q, q, q),
        "tilewise, bhsd with gradient": lambda: tilewise.attention(leaf, leaf, leaf, layout="bhsd"),
        "compat.sdpa with gradient": lambda: sdpa.scaled_dot_product_attention(leaf, leaf, leaf),
        "tilewise, bhsd, bias": lambda: tilewise.attention(q, q, q, layout="bhsd", bias=mask),
        "compat.sdpa, attn_mask": lambda: sdpa.scaled_dot_product_attention(q, q, q, mask),
        "tilewise, bhsd, dropout": lambda: tilewise.attention(q, q, q, layout="bhsd", dropout_p=0.1),
        "compat.sdpa, dropout": lambda: sdpa.scaled_dot_product_attention(q, q, q, dropout_p=0.1),
    }


def transformer_engine_calls() -> dict[str, Call]:
    """DotProductAttention, which torch calls through a module's call and which flattens its result, on f32."""
    q, starts = torch.randn(1, 1, 1, 8), torch.tensor([0, 1], dtype=torch.int32)
    leaf, rows = q.clone().requires_grad_(), q[0]
    causal, local = (DotProductAttention(1, 8, qkv_format="bshd", window_size=window) for window in (None, (3, 0)))
    packed = DotProductAttention(1, 8, qkv_format="thd", attn_mask_type="padding_causal_bottom_right")
    thd = {"layout": "thd", "cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 1, "max_seqlen_k": 1}
    te = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, "max_seqlen_q": 1, "max_seqlen_kv": 1}
    return {
        "tilewise, causal": lambda: tilewise.attention(q, q, q, mask="causal"),
        "DotProductAttention": lambda: causal(q, q, q),
        "tilewise, causal with gradient": lambda: tilewise.attention(leaf, leaf, leaf, mask="causal"),
        "DotProductAttention with gradient": lambda: causal(leaf, leaf, leaf),
        "tilewise, window": lambda: tilewise.attention(q, q, q, mask="causal", window=(3, -1)),
        "DotProductAttention, window": lambda: local(q, q, q),
        "tilewise, packed": lambda: tilewise.attention(rows, rows, rows, mask="causal", **thd),
        "DotProductAttention, thd": lambda: packed(rows, rows, rows, **te),
    }


def function_calls(device: str) -> dict[str, Call]:
    """Calls with functions of scores on bf16 [1, 16, 1, 64]: the same function every time, a new one, one that is
    traced before, and a block mask."""
    q, slopes = torch.randn(1, 16, 1, 64, device=device).bfloat16(), torch.ones(1, device=device)
    leaf = q.clone().requires_grad_()

    def new(distance: int = 8) -> Any:
        return lambda score, b, h, q_idx, kv_idx: torch.where(q_idx - kv_idx < distance, score + slopes[h], score)

    same, known = new(), trace(new())
    mask = tilewise.block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, 16, 16, block_size=16, device=device)
    return {
        "tilewise, bf16 of 16 rows": lambda: tilewise.attention(q, q, q),
        "tilewise, score_mod": lambda: tilewise.attention(q, q, q, score_mod=same),
        "tilewise, new score_mod": lambda: tilewise.attention(q, q, q, score_mod=new()),
        "tilewise, traced score_mod": lambda: tilewise.attention(q, q, q, score_mod=known),
        "tilewise, block_mask": lambda: tilewise.attention(q, q, q, block_mask=mask),
        "tilewise, score_mod with gradient": lambda: tilewise.attention(leaf, leaf, leaf, score_mod=same),
    }


def flex_calls() -> dict[str, Call]:
    """torch's flex_attention on Tilewise, on f32 [1, 1, 1, 8]."""
    from tilewise.compat import flex_attention as flex

    q = torch.randn(1, 1, 1, 8)

    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    def halved(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * 0.5

    own = flex.create_block_mask(causal, 1, 1, 1, 1, "cpu")
    torchs = torch_flex.create_block_mask(causal, 1, 1, 1, 1, "cpu")
    return {
        "flex_attention": lambda: flex.flex_attention(q, q, q),
        "flex_attention, score_mod": lambda: flex.flex_attention(q, q, q, halved),
        "flex_attention, own block_mask": lambda: flex.flex_attention(q, q, q, None, own),
        "flex_attention, torch's block_mask": lambda: flex.flex_attention(q, q, q, None, torchs),
    }


def expert_calls(device: str) -> dict[str, Call]:
    """A layer of one expert and one token, bf16, of 64 and 64."""
    x, ids, weights = torch.randn(1, 64), torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    tensors = (x.bfloat16(), ids, weights, torch.randn(1, 128, 64).bfloat16(), torch.randn(1, 64, 64).bfloat16())
    given = tuple(tensor.to(device) for tensor in tensors)
    return {"tilewise.moe": lambda: tilewise.moe(*given)}


def gradient_calls(name: str, attention: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> dict[str, Call]:
    """The forward call that records a graph, alone and with the backward pass it records."""
    *inputs, dout = tensors
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs)
    return {
        f"{name}, forward with gradient": lambda: attention(*leaves),
        f"{name}, forward and backward": lambda: torch.autograd.grad(attention(*leaves), leaves, dout),
    }


if __name__ == "__main__":
    main()
