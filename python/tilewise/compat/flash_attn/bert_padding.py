# flash_attn.bert_padding: padded batches to rows without padding and back, in plain torch operations.
"""unpad_input, pad_input and the indexing beneath them."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows `indices` of `input` [rows, ...]."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """[first_axis_dim, ...] of zeros with `values` as its rows `indices`."""
    output = values.new_zeros(first_axis_dim, *values.shape[1:])
    return output.index_put((indices,), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """(rows `indices` of `input`, `input`), whose gradients add up."""
    return index_first_axis(input, indices), input


def _starts(lengths: Tensor) -> Tensor:
    """int32 [batch_size + 1], where sequences of these lengths start."""
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The rows of `hidden_states` [batch_size, seqlen, ...] that a mask [batch_size, seqlen] keeps.

    Args:
        attention_mask: 1 or True where a token counts.
        unused_mask: 1 or True where room is kept for a token that does not.

    Returns:
        (rows [total, ...], their indices in the flattened batch, cu_seqlens int32 [batch_size + 1], the longest
        sequence, int32 [batch_size] of tokens that count).
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    used = attention_mask.sum(-1, dtype=torch.int32)
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, _starts(lengths), int(lengths.max()), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """As unpad_input, where each row of the batch holds several short sequences one after the other.

    Args:
        attention_mask_in_length: int [batch_size, seqlen], the lengths of a row's sequences, then zeros.

    Returns:
        (rows [total, ...], their indices in the flattened batch, cu_seqlens int32, the longest sequence).
    """
    seqlen = attention_mask_in_length.shape[-1]
    places = torch.arange(seqlen, device=attention_mask_in_length.device)
    kept = places < attention_mask_in_length.sum(-1, keepdim=True)
    lengths = attention_mask_in_length[attention_mask_in_length > 0]
    indices = kept.flatten().nonzero().flatten()
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, _starts(lengths), int(lengths.max())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, ...] of zeros with the rows [total, ...] at their `indices`: the inverse of unpad_input."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).view(batch, seqlen, *hidden_states.shape[1:])
