"""Packed sequences with their lengths under "tilewise", beside each of them by itself under "eager"."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from transformers_matrix.checks import build
from transformers_matrix.tiny import VOCABULARY

# Decoders, encoders, windows of both kinds, softcap, sinks, GQA, latent attention, experts, biases of every kind.
TYPES = (
    "apertus", "bert", "cohere2", "deepseek_v3", "ernie4_5", "gemma2", "gemma3_text", "gemma4_text", "glm4", "gpt2",
    "gpt_oss", "granite", "llama", "mistral", "mixtral", "modernbert", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe",
    "roberta",
)  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """One draw. positions: "restarting", "running" or "none"; mask: "none" or "ones"; cache: the model's use_cache,
    None: its default."""

    seed: int
    lengths: tuple[int, ...]
    positions: str
    mask: str
    cache: bool | None
    max_lengths: bool
    seq_idx: bool


def draw(seed: int) -> Batch:
    pick = random.Random(seed)
    lengths = tuple(pick.choice((1, 2, 3, 5, 8, 13, 20)) for _ in range(pick.randint(1, 5)))
    positions = pick.choice(("restarting", "running", "none"))
    cache = pick.choice((None, True, False))
    return Batch(
        seed, lengths, positions, pick.choice(("none", "ones")), cache, pick.random() < 0.8, pick.random() < 0.3
    )


# Whose positions begin behind the padding token's number where none are given.
FIRST_POSITION = {"roberta": 1}


def _keywords(batch: Batch) -> dict[str, Any]:
    """Of the packed call."""
    total = sum(batch.lengths)
    cu = torch.tensor([0, *batch.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    keywords: dict[str, Any] = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu}
    if batch.max_lengths:
        keywords |= {"max_length_q": max(batch.lengths), "max_length_k": max(batch.lengths)}
    if batch.seq_idx:
        index = [i for i, length in enumerate(batch.lengths) for _ in range(length)]
        keywords["seq_idx"] = torch.tensor([index], dtype=torch.int32)
    if batch.mask == "ones":
        keywords["attention_mask"] = torch.ones(1, total, dtype=torch.int64)
    return keywords


def _positions(batch: Batch, first: int) -> list[torch.Tensor]:
    """Of each sequence: what the packed call gives or, where it gives none, counts for itself."""
    starts = [sum(batch.lengths[:i]) for i in range(len(batch.lengths))]
    begins = (first + (0 if batch.positions == "restarting" else start) for start in starts)
    return [torch.arange(begin, begin + length)[None] for begin, length in zip(begins, batch.lengths)]


def compare_packed(model_type: str, batch: Batch) -> tuple[float, float]:
    """Largest error of the outputs, and of parameters' gradients beside the largest gradient."""
    ours, expected = build(model_type)
    generator = torch.Generator().manual_seed(batch.seed)
    ids = torch.randint(5, VOCABULARY - 30, (1, sum(batch.lengths)), generator=generator)
    common = {} if batch.cache is None or not hasattr(expected.config, "use_cache") else {"use_cache": batch.cache}
    positions = _positions(batch, FIRST_POSITION.get(model_type, 0))
    alone = [
        expected(input_ids=part, position_ids=place, **common)[0]
        for part, place in zip(ids.split(batch.lengths, dim=1), positions)
    ]
    want = torch.cat(alone, dim=1)
    keywords = _keywords(batch) | common
    if batch.positions != "none":
        keywords["position_ids"] = torch.cat(positions, dim=1)
    got = ours(input_ids=ids, **keywords)[0]
    weights = torch.randn(want.shape, generator=generator) / want.numel()
    gradients = []
    for model, value in ((expected, want), (ours, got)):
        (value * weights).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    wanted, found = gradients
    assert wanted.keys() == found.keys(), sorted(wanted.keys() ^ found.keys())
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    worst = max(float((found[name] - gradient).abs().max()) for name, gradient in wanted.items())
    return float((got - want).detach().abs().max()), worst / max(largest, 1.0)
