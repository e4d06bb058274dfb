# flash_attn.utils.generation: sampling, and a loop that decodes with caches of keys and values.
"""InferenceParams, sample, decode and GenerationMixin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from tilewise.compat.flash_attn._plain import refuse

__all__ = [
    "Decoded",
    "GenerationMixin",
    "InferenceParams",
    "allocate_inference_cache",
    "decode",
    "modify_logits_for_top_k_filtering",
    "modify_logits_for_top_p_filtering",
    "sample",
]


@dataclass
class InferenceParams:
    """Where a generation stands, for layers that keep keys and values.

    Attributes:
        max_seqlen, max_batch_size: How large caches are.
        seqlen_offset: Tokens that the caches hold. batch_size_offset: The first sequence of this call.
        key_value_memory_dict: Each layer's cache by its layer_idx.
        lengths_per_sample: int32 [batch_size], tokens of each sequence; None: seqlen_offset.
    """

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict[Any, Any] = field(default_factory=dict)
    lengths_per_sample: Optional[Tensor] = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        """Starts anew with the same caches."""
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


class Decoded(NamedTuple):
    """What decode() returns: sequences [batch_size, length] and logits [batch_size, vocab_size] of each step."""

    sequences: Tensor
    scores: Optional[tuple[Tensor, ...]]


def modify_logits_for_top_k_filtering(logits: Tensor, top_k: int) -> None:
    """Makes all but the top_k greatest logits of each row -inf, in place."""
    least = torch.topk(logits, top_k).values[..., -1:]
    logits.masked_fill_(logits < least, -torch.inf)


def modify_logits_for_top_p_filtering(logits: Tensor, top_p: float) -> None:
    """Makes the least likely logits of each row, whose probabilities sum to 1 - top_p at most, -inf, in place; nothing
    for a top_p outside (0, 1)."""
    if not 0.0 < top_p < 1.0:
        return
    ascending, order = logits.sort(dim=-1)
    unlikely = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1.0 - top_p
    logits.masked_fill_(torch.zeros_like(unlikely).scatter(-1, order, unlikely), -torch.inf)


def sample(logits: Tensor, top_k: int = 1, top_p: float = 0.0, temperature: float = 1.0) -> Tensor:
    """One token of each row of logits [batch_size, vocab_size]: [batch_size].

    Args:
        top_k: Draw among so many likeliest tokens; 1 takes the likeliest, 0 does not limit them.
        top_p: Draw among the likeliest whose probabilities reach it; 0 does not limit them.
        temperature: Logits are divided by it.
    """
    if top_k == 1:
        return logits.argmax(dim=-1)
    assert top_p <= 1.0, f"top_p: must be at most 1 (got {top_p})"
    tokens = None
    if top_k > 0:
        logits, tokens = torch.topk(logits, min(top_k, logits.shape[-1]), dim=-1)
    logits = logits / temperature
    modify_logits_for_top_p_filtering(logits, top_p)
    drawn = torch.multinomial(logits.softmax(dim=-1), num_samples=1)
    return (drawn if tokens is None else tokens.gather(-1, drawn)).squeeze(-1)


@torch.inference_mode()
def decode(
    input_ids: Tensor,
    model: Any,
    max_length: int,
    top_k: int = 1,
    top_p: float = 0.0,
    temperature: float = 1.0,
    eos_token_id: Optional[int] = None,
    teacher_outputs: Optional[Tensor] = None,
    vocab_size: Optional[int] = None,
    tensor_parallel: int = 1,
    cg: bool = False,
    enable_timing: bool = False,
) -> Decoded:
    """Extends sequences of one length token by token.

    Args:
        input_ids: [batch_size, seqlen].
        model: model(input_ids, position_ids=, inference_params=, num_last_tokens=1).logits is [batch_size, 1, ...].
        max_length: Of the sequences at the end.
        top_k, top_p, temperature: As sample's.
        eos_token_id: Decoding ends where all sequences have it.
        teacher_outputs: [batch_size, length], tokens to take instead of drawn ones.
        vocab_size: Logits behind it do not count.
        cg, enable_timing: False; others are refused. tensor_parallel: Without effect.
    """
    for name, value in (("cg", cg), ("enable_timing", enable_timing)):
        if value:
            raise refuse(name, "False", value)
    state = InferenceParams(max_seqlen=max_length, max_batch_size=input_ids.shape[0])
    known = 0 if teacher_outputs is None else teacher_outputs.shape[1]
    scores: list[Tensor] = []
    sequences = input_ids
    tokens = input_ids
    while True:
        position_ids = torch.full_like(tokens, state.seqlen_offset) if state.seqlen_offset > 0 else None
        output = model(tokens, position_ids=position_ids, inference_params=state, num_last_tokens=1)
        scores.append(output.logits.squeeze(1)[..., :vocab_size])
        state.seqlen_offset += tokens.shape[1]
        if teacher_outputs is not None and state.seqlen_offset < known:
            tokens = teacher_outputs[:, state.seqlen_offset, None]
        else:
            tokens = sample(scores[-1], top_k, top_p, temperature)[:, None]
        sequences = torch.cat([sequences, tokens], dim=1)
        ended = eos_token_id is not None and bool((tokens == eos_token_id).all())
        if ended or state.seqlen_offset >= max_length - 1:
            return Decoded(sequences, tuple(scores))


class GenerationMixin:
    """generate() for a model that decode() takes."""

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: Optional[torch.dtype] = None, **kwargs: Any
    ) -> Any:
        """Caches of all layers by their layer_idx; the model's to say."""
        raise NotImplementedError(f"{type(self).__name__}: must have allocate_inference_cache()")

    def generate(
        self,
        input_ids: Tensor,
        max_length: int,
        top_k: int = 1,
        top_p: float = 0.0,
        temperature: float = 1.0,
        return_dict_in_generate: bool = False,
        output_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        """decode()'s sequences; or with return_dict_in_generate all of it, without scores unless they are asked for."""
        decoded = decode(input_ids, self, max_length, top_k=top_k, top_p=top_p, temperature=temperature, **kwargs)
        if not return_dict_in_generate:
            return decoded.sequences
        return decoded if output_scores else decoded._replace(scores=None)


def allocate_inference_cache(
    max_batch_size: int,
    max_seqlen: int,
    nheads: int,
    headdim: int,
    layers: Union[int, Sequence[int]],
    device: Any,
    dtype: torch.dtype = torch.float16,
) -> dict[int, Tensor]:
    """{layer: [max_batch_size, max_seqlen, 2, nheads, headdim]}, for a number of layers or their names."""
    shape = (max_batch_size, max_seqlen, 2, nheads, headdim)
    names = range(layers) if isinstance(layers, int) else layers
    return {name: torch.empty(shape, device=device, dtype=dtype) for name in names}
