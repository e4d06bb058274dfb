# flash_attn.modules.embedding.
"""Embeddings of tokens and positions, and theirs for a group of processes."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from tilewise.compat.flash_attn.utils.distributed import all_reduce, reduce_scatter

__all__ = [
    "BertEmbeddings",
    "ColumnParallelEmbedding",
    "GPT2Embeddings",
    "ParallelGPT2Embeddings",
    "VocabParallelEmbedding",
]


def _places(input_ids: Tensor, position_ids: Optional[Tensor]) -> Tensor:
    return torch.arange(input_ids.shape[-1], device=input_ids.device) if position_ids is None else position_ids


class GPT2Embeddings(nn.Module):
    """Embedding of tokens and, for max_position_embeddings > 0, of positions.

    Args:
        word_embed_proj_dim: The tokens' dimension, from which they are projected to embed_dim; None: embed_dim itself.
        padding_idx: As nn.Embedding's.
    """

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        padding_idx: Optional[int] = None,
        word_embed_proj_dim: Optional[int] = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        of_tokens = embed_dim if word_embed_proj_dim is None else word_embed_proj_dim
        self.word_embeddings = nn.Embedding(vocab_size, of_tokens, padding_idx=padding_idx, **made)
        self.project_in = None
        if word_embed_proj_dim is not None:
            self.project_in = nn.Linear(word_embed_proj_dim, embed_dim, bias=False, **made)
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **made)

    def forward(self, input_ids: Tensor, position_ids: Optional[Tensor] = None) -> Tensor:
        """[batch_size, seqlen, embed_dim] of ids [batch_size, seqlen]; positions count from 0 where none are given."""
        embeddings: Tensor = self.word_embeddings(input_ids)
        if self.project_in is not None:
            embeddings = self.project_in(embeddings)
        if self.max_position_embeddings > 0:
            embeddings = embeddings + self.position_embeddings(_places(input_ids, position_ids))
        return embeddings


class BertEmbeddings(nn.Module):
    """Embedding of tokens and, for sizes > 0, of positions and token types."""

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        type_vocab_size: int,
        padding_idx: Optional[int] = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.word_embeddings = nn.Embedding(vocab_size, embed_dim, padding_idx=padding_idx, **made)
        self.max_position_embeddings, self.type_vocab_size = max_position_embeddings, type_vocab_size
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **made)
        if type_vocab_size > 0:
            self.token_type_embeddings = nn.Embedding(type_vocab_size, embed_dim, **made)

    def forward(
        self, input_ids: Tensor, position_ids: Optional[Tensor] = None, token_type_ids: Optional[Tensor] = None
    ) -> Tensor:
        """[batch_size, seqlen, embed_dim] of ids [batch_size, seqlen]; types are 0 where none are given."""
        embeddings: Tensor = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            embeddings = embeddings + self.position_embeddings(_places(input_ids, position_ids))
        if self.type_vocab_size > 0:
            types = torch.zeros_like(input_ids[0]) if token_type_ids is None else token_type_ids
            embeddings = embeddings + self.token_type_embeddings(types)
        return embeddings


def _share(name: str, size: int, process_group: Any) -> int:
    """What one process of a group has of `size`; all of it without a group."""
    world_size = 1 if process_group is None else torch.distributed.get_world_size(process_group)
    if size % world_size:
        raise ValueError(f"{name}: must be a multiple of the group's {world_size} processes (got {size})")
    return size // world_size


class VocabParallelEmbedding(nn.Embedding):
    """Embedding of which each process has some rows; the others' are 0, for a sum over the group."""

    def __init__(
        self,
        num_embeddings: int,
        *args: Any,
        process_group: Any = None,
        padding_idx: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        own = _share("num_embeddings", num_embeddings, process_group)
        if own != num_embeddings and padding_idx is not None:
            raise RuntimeError(f"padding_idx: must be None where processes share the rows (got {padding_idx})")
        super().__init__(own, *args, **{"padding_idx": padding_idx, **kwargs})
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:
        """[..., embedding_dim], 0 for ids of other processes."""
        if self.process_group is None:
            return super().forward(input)
        local = input - torch.distributed.get_rank(self.process_group) * self.num_embeddings
        elsewhere = (local < 0) | (local >= self.num_embeddings)
        return super().forward(local.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0.0)


class ColumnParallelEmbedding(nn.Embedding):
    """Embedding of which each process has some columns."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *args: Any, process_group: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(num_embeddings, _share("embedding_dim", embedding_dim, process_group), *args, **kwargs)
        self.process_group = process_group


class ParallelGPT2Embeddings(nn.Module):
    """GPT2Embeddings of a group of processes: tokens shared by rows, positions by columns.

    Args:
        sequence_parallel: Each process returns its part of the rows of the sum.
    """

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        max_position_embeddings: int,
        process_group: Any,
        padding_idx: Optional[int] = None,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"process_group": process_group, "device": device, "dtype": dtype}
        self.process_group, self.sequence_parallel = process_group, sequence_parallel
        self.word_embeddings = VocabParallelEmbedding(vocab_size, embed_dim, padding_idx=padding_idx, **made)
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = ColumnParallelEmbedding(max_position_embeddings, embed_dim, **made)

    def forward(
        self, input_ids: Tensor, position_ids: Optional[Tensor] = None, combine_batch_seqlen_dim: bool = False
    ) -> Tensor:
        """[batch_size, seqlen, embed_dim], or with combine_batch_seqlen_dim [batch_size * seqlen, embed_dim], of which
        a process may have a part of the rows."""
        embeddings: Tensor = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            columns = self.position_embeddings(_places(input_ids, position_ids))
            rank, size = torch.distributed.get_rank(self.process_group), columns.shape[-1]
            behind = embeddings.shape[-1] - (rank + 1) * size
            embeddings = embeddings + nn.functional.pad(columns, (rank * size, behind))
        if combine_batch_seqlen_dim:
            embeddings = embeddings.flatten(0, 1)
        if torch.distributed.get_world_size(self.process_group) <= 1:
            return embeddings
        summed: Tensor = (reduce_scatter if self.sequence_parallel else all_reduce)(embeddings, self.process_group)
        return summed
