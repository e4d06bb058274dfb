"""Decode context parallelism: ranks hold parts of a sequence's keys, and each its own heads of the queries.

All ranks have a step's new keys and values. So a rank attends its own heads over those, and the heads of all ranks over
its part of what came before; the LSEs join the parts.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

import tilewise

__all__ = ["SharedLengths", "attend_shared"]

_WITHOUT_RANKS = ("window", "alibi_slopes")  # which ask how far a key is, and a rank's part has gaps


class SharedLengths:
    """How many keys a rank holds of what came before a step, where a captured graph finds them again."""

    def __init__(self, vllm_config: Any, device: Any) -> None:
        group = importlib.import_module("vllm.distributed.parallel_state").get_dcp_group()
        self._rank, self._ranks = group.rank_in_group, group.world_size
        self._stride = vllm_config.parallel_config.cp_kv_cache_interleave_size
        requests = vllm_config.scheduler_config.max_num_seqs
        self._lengths = torch.zeros(requests, dtype=torch.int32, device=device)

    def of(self, query_start_loc: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        """int32 [requests]. Tokens go to ranks in turns of _stride."""
        before = seq_lens - (query_start_loc[1:] - query_start_loc[:-1])
        turn = self._stride * self._ranks
        rest = before % turn - self._rank * self._stride
        held = before // turn * self._stride + rest.clamp(0, self._stride)
        lengths = self._lengths[: len(held)]
        lengths.copy_(held)
        return lengths


def _join_ranks() -> Any:
    """vLLM's function, which 0.33 has moved."""
    try:
        return importlib.import_module("vllm.v1.attention.ops.dcp").cp_lse_ag_out_rs
    except ModuleNotFoundError:
        return importlib.import_module("vllm.v1.attention.ops.common").cp_lse_ag_out_rs


def attend_shared(
    q: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: Any,
    options: dict[str, Any],
    scales: dict[str, Any],
    out: torch.Tensor,
) -> None:
    """Writes out. q, key, value: this rank's heads of the step's tokens; `options` are attention()'s.

    Raises NotImplementedError for options that ask for distances.
    """
    for name in _WITHOUT_RANKS:
        if name in options:
            raise NotImplementedError(
                f"{name}: is not supported by tilewise's attention in vLLM with decode context parallelism"
            )
    group = importlib.import_module("vllm.distributed.parallel_state").get_dcp_group()
    join_ranks = _join_ranks()
    sink = options.pop("sink", None)
    mask = options.pop("mask")
    lengths = {"cu_seqlens_q": step.query_start_loc, "max_seqlen_q": step.max_query_len}
    own, own_lse = tilewise.attention(
        q, key, value, layout="thd", cu_seqlens_k=step.query_start_loc, max_seqlen_k=step.max_query_len, mask=mask,
        return_lse=True, **lengths, **options,
    )  # fmt: skip
    everyone = group.all_gather(q.contiguous(), dim=1)
    before, before_lse = tilewise.kv_cache_attention(
        everyone, k_cache, v_cache, cache_seqlens=step.shared_lengths, block_table=step.block_table, return_lse=True,
        **lengths, **scales, **options,
    )  # fmt: skip
    before, before_lse = join_ranks(before, before_lse.T.contiguous(), group, return_lse=True, is_lse_base_on_e=True)
    lses = [own_lse, before_lse.T.contiguous()]
    tilewise.merge([own, before.contiguous()], lses, sink, layout="thd", return_lse=False, out=out)
