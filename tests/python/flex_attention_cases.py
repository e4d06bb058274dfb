# Functions of scores and masks as people write them for flex_attention, and torch's own function with what it refuses
# on a CPU allowed: its eager implementation has gradients there.
"""Cases of flex_attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.attention.flex_attention as torchs

SEQLENS = (40, 56)  # no multiples of blocks
BATCH_SIZE, HEADS = 2, 4
BLOCK = 16
OWN = torchs.flex_attention  # whatever replaces it later

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = torch.tensor([[0] * 20 + [1] * 17 + [2] * 19, [3] * 40 + [1] * 16])
RELATIVE = torch.linspace(-1, 1, HEADS * 96, dtype=torch.float64).reshape(HEADS, 96)
SCALE = torch.tensor(0.5)


def alibi(score, b, h, q_idx, kv_idx):
    return score - SLOPES[h] * (q_idx - kv_idx).abs()


def relative(score, b, h, q_idx, kv_idx):
    return score + RELATIVE[h, q_idx - kv_idx]  # counts from the end where the key is after the query


def soft_capped(score, b, h, q_idx, kv_idx):
    return 2 * torch.tanh(score / 2) * SCALE


def hiding(score, b, h, q_idx, kv_idx):
    return torch.where((q_idx + kv_idx) % 3 > 0, score * score * 0.3 + b, -float("inf"))


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def documents(b, h, q_idx, kv_idx):
    return DOCUMENTS[b, q_idx] == DOCUMENTS[b, kv_idx]


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 12)


def prefix(b, h, q_idx, kv_idx):
    return kv_idx < 5 + 3 * b


def by_head(b, h, q_idx, kv_idx):
    return (kv_idx + h) % 4 > 0


class Case(NamedTuple):
    score_mod: Optional[Callable[..., Any]] = None
    mask_mod: Optional[Callable[..., Any]] = None
    heads_k: int = HEADS
    mask_sizes: tuple[Optional[int], Optional[int]] = (None, None)


CASES = {
    "plain": Case(),
    "causal": Case(None, causal),
    "documents": Case(None, torchs.and_masks(causal, documents), mask_sizes=(BATCH_SIZE, None)),
    "window and prefix": Case(None, torchs.or_masks(window, prefix), mask_sizes=(BATCH_SIZE, HEADS)),
    "alibi": Case(alibi, causal),
    "relative": Case(relative, None),
    "relative by documents": Case(relative, documents, 2, (BATCH_SIZE, None)),
    "soft cap": Case(soft_capped, causal),
    "hiding": Case(hiding, by_head, 2, (None, HEADS)),
    "gqa": Case(alibi, window, 1),
    "noop": Case(alibi, torchs.noop_mask, 2),
}


def options_of(
    case: Case, create: Callable[..., Any] = torchs.create_block_mask, device: str = "cpu"
) -> dict[str, Any]:
    options: dict[str, Any] = {"score_mod": case.score_mod, "enable_gqa": case.heads_k != HEADS}
    if case.mask_mod is not None:
        options["block_mask"] = create(case.mask_mod, *case.mask_sizes, *SEQLENS, device=device, BLOCK_SIZE=BLOCK)
    return options


def draw(heads_k: int = HEADS, dtype: torch.dtype = torch.float64, batch_k: int = BATCH_SIZE) -> list[torch.Tensor]:
    """[query, key, value]"""
    torch.manual_seed(heads_k)
    q = torch.randn(BATCH_SIZE, HEADS, SEQLENS[0], 16, dtype=torch.float64)
    k, v = (torch.randn(batch_k, heads_k, SEQLENS[1], width, dtype=torch.float64) for width in (16, 24))
    return [tensor.to(dtype) for tensor in (q, k, v)]


@contextlib.contextmanager
def trained_on_a_cpu() -> Iterator[None]:
    """torch's function takes inputs that require gradients, at a third of its time."""
    check, compiles = torchs._validate_device, torchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    torchs._validate_device = lambda *tensors: None
    torchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # the same operator, without a compiler around it
    try:
        yield
    finally:
        torchs._validate_device, torchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = check, compiles


def by_torch(*tensors: torch.Tensor, **options: Any) -> Any:
    with trained_on_a_cpu():
        return OWN(*tensors, **options)
