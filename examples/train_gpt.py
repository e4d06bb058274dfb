"""Trains a GPT-shaped model with Tilewise's attention and with torch's backends, and compares the losses step by step.

Prints tokens/s, peak memory, and how far each step's loss lies from that of the first attention named. A sequence
counts up by a stride of its own, modulo the vocabulary, so that there is something to learn. Each attention runs in a
process of its own.

    python examples/train_gpt.py                                     # a GPU where there is one
    python examples/train_gpt.py --seqlen 16384 --compile
    python examples/train_gpt.py --device cpu --width 128 --heads 2 --seqlen 256 --steps 3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewise.nn

TORCH_BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
STRIDES = 16  # of counting sequences
WARM_UP = 3  # steps that are not timed: torch.compile and Tilewise compile kernels in the first


class CausalAttention(nn.Module):
    """One projection to queries, keys and values, causal attention, and a projection back."""

    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.attention = tilewise.nn.FlashAttention() if attention == "tilewise" else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # views: [batch, seqlen, heads, head_dim]
        if self.attention is not None:
            attended = self.attention(q, k, v, causal=True)
        else:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out(attended.flatten(2))


class Layer(nn.Module):
    """A pre-norm decoder layer."""

    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.attention = CausalAttention(width, heads, attention)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        grown: Tensor = x + self.feed_forward(self.norms[1](x))
        return grown


class Gpt(nn.Module):
    """Embeddings, layers, and a head that shares the embeddings' weights; returns the mean loss of the next token."""

    def __init__(self, options: argparse.Namespace, attention: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.positions = nn.Embedding(options.seqlen, options.width)
        self.layers = nn.ModuleList(Layer(options.width, options.heads, attention) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, seqlen + 1] of int64."""
        x = self.tokens(tokens[:, :-1]) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def draw_tokens(options: argparse.Namespace, generator: torch.Generator) -> Tensor:
    """Sequences that count by 1 to STRIDES from anywhere: [batch, seqlen + 1]."""
    starts = torch.randint(options.vocabulary, (options.batch_size, 1), generator=generator)
    strides = torch.randint(1, STRIDES + 1, (options.batch_size, 1), generator=generator)
    return ((starts + strides * torch.arange(options.seqlen + 1)) % options.vocabulary).to(options.device)


def train(options: argparse.Namespace, attention: str) -> dict[str, Any]:
    """tokens/s of the steps after WARM_UP, peak memory in MiB, and every step's loss."""
    torch.manual_seed(0)
    model: Any = Gpt(options, attention)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    model.to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    step_model = torch.compile(model) if options.compile else model
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[options.dtype]
    autocast = torch.autocast(torch.device(options.device).type, dtype, enabled=dtype != torch.float32)
    by_backend = attention in TORCH_BACKENDS
    backend: Any = sdpa_kernel(TORCH_BACKENDS[attention]) if by_backend else contextlib.nullcontext()
    generator, losses, start = torch.Generator().manual_seed(1), [], 0.0
    with backend:
        for step in range(WARM_UP + options.steps):
            if step == WARM_UP:
                start = _now(options)
            with autocast:
                loss = step_model(draw_tokens(options, generator))
            losses.append(loss.detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds = _now(options) - start
    on_gpu = options.device.startswith("cuda")
    return {
        "tokens_per_second": options.steps * options.batch_size * options.seqlen / seconds,
        "mebibytes": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else _resident_mebibytes(),
        "losses": [loss.item() for loss in losses],
    }


def _now(options: argparse.Namespace) -> float:
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def _resident_mebibytes() -> float:
    """The most that this process had in memory; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _options() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ("tilewise", "sdpa", *TORCH_BACKENDS)
    default = "cudnn,flash,tilewise" if on_gpu else "sdpa,tilewise"
    parser.add_argument("--attention", default=default, help=f"some of {','.join(known)} (default: {default})")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", choices=["bf16", "f16", "f32"], help="of autocast; bf16 on a GPU, f32 on a CPU")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--batch-size", type=int, help="default: 16384 tokens on a GPU, 1 sequence on a CPU")
    parser.add_argument("--seqlen", type=int, default=4096 if on_gpu else 512)
    parser.add_argument("--layers", type=int, default=4 if on_gpu else 2)
    parser.add_argument("--width", type=int, default=2048 if on_gpu else 256)
    parser.add_argument("--heads", type=int, default=16 if on_gpu else 4)
    parser.add_argument("--vocabulary", type=int, default=4096 if on_gpu else 256)
    parser.add_argument(
        "--learning-rate", type=float, help="default: 0.08 / width; where training is unstable, losses come apart"
    )
    parser.add_argument("--steps", type=int, default=20 if on_gpu else 3)
    parser.add_argument("--json", action="store_true", help="print all figures of one attention, every step's loss too")
    options = parser.parse_args()
    options.attention = options.attention.split(",")
    for name in options.attention:
        if name not in known:
            parser.error(f"--attention: must be some of {','.join(known)} (got {name!r})")
    on_gpu = options.device.startswith("cuda")
    options.dtype = options.dtype or ("bf16" if on_gpu else "f32")
    if options.batch_size is None:
        options.batch_size = max(1, 16384 // max(1, options.seqlen)) if on_gpu else 1
    for name in ("batch_size", "seqlen", "layers", "width", "heads", "vocabulary", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: must be at least 1 (got {getattr(options, name)})")
    if options.learning_rate is None:
        options.learning_rate = 0.08 / options.width
    if not options.learning_rate > 0:
        parser.error(f"--learning-rate: must be positive (got {options.learning_rate})")
    if options.width % options.heads:
        parser.error(f"--heads: must divide --width = {options.width} (got {options.heads})")
    if options.json and len(options.attention) > 1:
        parser.error(f"--json: must come with one --attention (got {len(options.attention)})")
    return options


def main() -> int:
    options = _options()
    if options.json:
        print(json.dumps(train(options, options.attention[0])))
        return 0
    print(
        f"{options.layers} layers of width {options.width}, {options.heads} heads, batches of {options.batch_size} × "
        f"{options.seqlen} tokens, {options.dtype}, {options.device}, {'compiled' if options.compile else 'eager'}, "
        f"{WARM_UP} + {options.steps} steps"
    )
    first: list[float] = []
    for attention in options.attention:
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--attention", attention, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return done.returncode
        figures = json.loads(done.stdout)
        losses = figures["losses"]
        first = first or losses
        apart = max(abs(loss / other - 1) for loss, other in zip(losses, first))
        print(
            f"{attention:9} {figures['tokens_per_second']:9.0f} tokens/s {figures['mebibytes']:9.0f} MiB at most   "
            f"loss {losses[0]:.4f} to {losses[-1]:.4f}, at most {100 * apart:.3f}% from {options.attention[0]}'s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
