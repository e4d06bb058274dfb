"""What the layers of a forward pass share, in SGLang's words and in Tilewise's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Step", "added_tokens", "longest_of"]


@dataclass
class Step:
    """What all layers of a forward pass share."""

    tokens: int  # what follows in q is padding
    max_seqlen_q: int
    has_prefix: bool  # some request has tokens in the pool from before
    cu_seqlens_q: torch.Tensor  # int32 [requests + 1]
    cache_seqlens: torch.Tensor  # int32 [requests], with the step's own tokens
    block_table: torch.Tensor  # int32 [requests, pages]
    swa_block_table: torch.Tensor | None  # of windowed layers that have a pool of their own
    swa_out_cache_loc: torch.Tensor | None


def added_tokens(batch: Any) -> int:
    """What a batch's seq_lens do not count: draft tokens that are to be verified."""
    return batch.spec_info.draft_token_num if batch.forward_mode.is_target_verify() else 0


def longest_of(batch: Any, added: int) -> int:
    """Tokens of the longest request, with `added` more."""
    known = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else batch.seq_lens
    return int(known.max()) + added
