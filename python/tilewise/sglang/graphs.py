"""Steps that a CUDA graph finds again: SGLang captures batches of as many requests each, and replays them over tensors
that lie where they lay.

What a step brings is copied into those tensors before a replay, tables only as far as its longest request reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilewise.sglang.refusals import refuse
from tilewise.sglang.steps import Step, added_tokens, longest_of

__all__ = ["GraphState"]


@dataclass
class GraphState:
    """Tensors of the largest batch; each captured one has their first rows."""

    cache_seqlens: torch.Tensor  # int32 [requests]
    block_table: torch.Tensor  # int32 [requests, pages]
    swa_block_table: torch.Tensor | None
    swa_out_cache_loc: torch.Tensor | None  # int64 [tokens]
    starts: dict[tuple[int, int], torch.Tensor]  # cu_seqlens_q by requests and queries of each

    @classmethod
    def of(cls, requests: int, tokens: int, pages: int, windows: bool, device: Any) -> GraphState:
        """windows: whether windowed layers have a pool of their own."""

        def table() -> torch.Tensor:
            return torch.zeros(requests, pages, dtype=torch.int32, device=device)

        return cls(
            cache_seqlens=torch.ones(requests, dtype=torch.int32, device=device),
            block_table=table(),
            swa_block_table=table() if windows else None,
            swa_out_cache_loc=torch.zeros(tokens, dtype=torch.int64, device=device) if windows else None,
            starts={},
        )

    def step_of(self, batch: Any, tables: Any) -> Step:
        """The Step of a batch, whose tensors are this one's. tables(batch, tokens): as TilewiseAttnBackend has them.

        Raises NotImplementedError for prompts, whose requests have other lengths at each replay.
        """
        mode = batch.forward_mode
        if not (mode.is_decode_or_idle() or mode.is_target_verify()):
            refuse("CUDA graphs of whole prompts", "must be breakable or off (--cuda-graph-backend-prefill)", mode.name)
        requests, added = batch.batch_size, added_tokens(batch)
        each = max(added, 1)
        places, swa_places, swa_out = tables(batch, longest_of(batch, added))
        torch.add(batch.seq_lens, added, out=self.cache_seqlens[:requests])
        self.block_table[:requests, : places.shape[1]].copy_(places)
        if self.swa_block_table is not None and self.swa_out_cache_loc is not None:
            self.swa_block_table[:requests, : swa_places.shape[1]].copy_(swa_places)
            self.swa_out_cache_loc[: len(swa_out)].copy_(swa_out)
            self.swa_out_cache_loc[len(swa_out) : requests * each].zero_()  # padding writes where nothing is kept
        starts = self.starts.get((requests, each))
        if starts is None:
            starts = torch.arange(0, (requests + 1) * each, each, dtype=torch.int32, device=self.block_table.device)
            self.starts[requests, each] = starts
        swa_table, swa_write = self.swa_block_table, self.swa_out_cache_loc
        return Step(
            tokens=requests * each,
            max_seqlen_q=each,
            has_prefix=True,
            cu_seqlens_q=starts,
            cache_seqlens=self.cache_seqlens[:requests],
            block_table=self.block_table[:requests],
            swa_block_table=None if swa_table is None else swa_table[:requests],
            swa_out_cache_loc=None if swa_write is None else swa_write[: requests * each],
        )
