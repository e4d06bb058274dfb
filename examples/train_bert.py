"""Trains a BERT-base-shaped model on random tokens, with Tilewise's attention and with torch's.

Prints samples/s and peak memory of both, and the losses of the first and the last step, which are alike without
dropout. Each runs in a process of its own, so that the peak is its own: of the GPU's allocator there, of resident
memory on a CPU.

    python examples/train_bert.py                            # a GPU where there is one
    python examples/train_bert.py --device cpu --steps 2 --batch-size 2
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilewise.nn

VOCABULARY, MASKED_SHARE = 30522, 0.15


class SelfAttention(nn.Module):
    """One projection to queries, keys and values, attention, and a projection back."""

    def __init__(self, width: int, heads: int, dropout: float, attention: str) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attention = tilewise.nn.FlashAttention(attention_dropout=dropout) if attention == "tilewise" else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # views: [batch, seqlen, heads, head_dim]
        if self.attention is not None:
            attended = self.attention(q, k, v)
        else:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            dropout_p = self.dropout if self.training else 0.0
            attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p).transpose(1, 2)
        return self.out(attended.flatten(2))


class Layer(nn.Module):
    """A post-norm encoder layer."""

    def __init__(self, width: int, heads: int, dropout: float, attention: str) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, dropout, attention)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.dropout(self.attention(x)))
        normed: Tensor = self.norms[1](x + self.dropout(self.feed_forward(x)))
        return normed


class Bert(nn.Module):
    """Embeddings, layers, and a head that shares the embeddings' weights."""

    def __init__(self, options: argparse.Namespace, attention: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, options.width)
        self.positions = nn.Embedding(options.seqlen, options.width)
        self.norm = nn.LayerNorm(options.width)
        self.layers = nn.ModuleList(
            Layer(options.width, options.heads, options.dropout, attention) for _ in range(options.layers)
        )

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        """Logits of the masked positions alone, [masked, vocabulary]."""
        x = self.norm(self.tokens(tokens) + self.positions.weight)
        for layer in self.layers:
            x = layer(x)
        return x[masked] @ self.tokens.weight.T


def train(options: argparse.Namespace, attention: str) -> dict[str, float]:
    """samples/s, peak memory in MiB, first and last loss of `options.steps` steps after one that is not timed."""
    torch.manual_seed(0)
    model = Bert(options, attention)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    model.to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (options.batch_size, options.seqlen)).to(options.device)
    masked = (torch.rand(options.batch_size, options.seqlen) < MASKED_SHARE).to(options.device)
    inputs = tokens.masked_fill(masked, 103)
    on_gpu = options.device.startswith("cuda")
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[options.dtype]
    start, losses = 0.0, []
    for step in range(options.steps + 1):
        if step == 1:
            start = _now(on_gpu)
        with torch.autocast(torch.device(options.device).type, dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(inputs, masked).float(), tokens[masked])
        losses.append(loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = _now(on_gpu) - start
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else _resident_mebibytes()
    return {
        "samples_per_second": options.steps * options.batch_size / seconds,
        "mebibytes": peak,
        "first_loss": losses[0].item(),
        "last_loss": losses[-1].item(),
    }


def _now(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def _resident_mebibytes() -> float:
    """The most that this process had in memory; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _options() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=["tilewise", "sdpa", "both"], default="both")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", choices=["bf16", "f16", "f32"], help="of autocast; bf16 on a GPU, f32 on a CPU")
    parser.add_argument("--batch-size", type=int, default=32 if on_gpu else 4)
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=20 if on_gpu else 3)
    options = parser.parse_args()
    options.dtype = options.dtype or ("bf16" if options.device.startswith("cuda") else "f32")
    for name in ("batch_size", "seqlen", "layers", "width", "heads", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: must be at least 1 (got {getattr(options, name)})")
    if options.width % options.heads:
        parser.error(f"--heads: must divide --width = {options.width} (got {options.heads})")
    return options


def main() -> int:
    options = _options()
    if options.attention != "both":
        print(json.dumps(train(options, options.attention)))
        return 0
    print(
        f"{options.layers} layers of width {options.width}, {options.heads} heads, batches of {options.batch_size} × "
        f"{options.seqlen} tokens, {options.dtype}, {options.device}, {options.steps} steps"
    )
    for attention in ("tilewise", "sdpa"):
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--attention", attention]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return done.returncode
        figures = json.loads(done.stdout)
        print(
            f"{attention:9} {figures['samples_per_second']:9.2f} samples/s {figures['mebibytes']:9.0f} MiB at most   "
            f"loss {figures['first_loss']:.4f} to {figures['last_loss']:.4f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
