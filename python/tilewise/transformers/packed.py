"""Attention of sequences that are packed into one row and told apart by cu_seq_lens_q and cu_seq_lens_k.

The lengths decide which tokens belong together, whatever mask comes beside them. Of the mask the band counts (causal,
windows), and the padding; one that is no band within the sequences is refused by name.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

import tilewise
from tilewise.transformers.masks import Band, LazyMask
from tilewise.transformers.support import NAME

__all__ = ["Lengths", "attend", "check_passed_on", "goes_on", "install"]

# A number this low hides a key: what models add for it is finfo.min of some dtype, -1e9 or -1e4.
_HIDES = -1e4

# The model that runs now and was given lengths, "" where it was given none.
_given_to: ContextVar[str] = ContextVar("tilewise_lengths_given_to", default="")


@dataclass(frozen=True)
class Lengths:
    """Where each sequence begins in the rows of the queries and of the keys; rows past the last one belong to none.

    cu_q, cu_k: int32 [sequences + 1]. max_q, max_k: the longest sequence; None: not known on the host yet.
    """

    cu_q: torch.Tensor
    cu_k: torch.Tensor
    max_q: int | None
    max_k: int | None

    @staticmethod
    def of(cu_q: torch.Tensor | None, cu_k: torch.Tensor | None, max_q: Any, max_k: Any) -> Lengths:
        """From the keywords that models pass."""
        if cu_q is None or cu_k is None:
            side = "q" if cu_q is None else "k"
            raise ValueError(f"cu_seq_lens_{side}: cu_seq_lens_q and cu_seq_lens_k go together (got None)")
        longest = (None if given is None else int(given) for given in (max_q, max_k))
        return Lengths(cu_q.to(torch.int32), cu_k.to(torch.int32), *longest)

    @property
    def sequences(self) -> int:
        return self.cu_q.shape[0] - 1

    def measured(self) -> Lengths:
        """With the longest sequences, for which the host waits where they were not given."""
        if self.max_q is not None and self.max_k is not None:
            return self
        if torch.compiler.is_compiling():
            name = "max_length_q" if self.max_q is None else "max_length_k"
            raise ValueError(f"{name}: must be given under torch.compile (got None)")
        max_q, max_k = (
            (int(cu.diff().max()) if self.sequences else 0) if given is None else given
            for cu, given in ((self.cu_q, self.max_q), (self.cu_k, self.max_k))
        )
        return replace(self, max_q=max_q, max_k=max_k)

    def places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of each sequence's queries [sequences, max_q] and keys [sequences, max_k], some of them past its end."""
        assert self.max_q is not None and self.max_k is not None
        device = self.cu_q.device
        rows_q = self.cu_q[:-1, None] + torch.arange(self.max_q, device=device)
        rows_k = self.cu_k[:-1, None] + torch.arange(self.max_k, device=device)
        return rows_q, rows_k


def goes_on(mask: torch.Tensor | None, lengths: Lengths, module: torch.nn.Module) -> bool:
    """Whether the lengths are those of one sequence that goes on from a cache, which its mask alone describes.

    Raises NotImplementedError for several of them, whose keys lie apart in the cache.
    """
    source = mask.source if isinstance(mask, LazyMask) else None
    if source is None or source.shift <= 0:
        return False
    if lengths.sequences > 1:
        raise NotImplementedError(
            f"cu_seq_lens_q: {lengths.sequences} packed sequences cannot go on from a cache, where each one's keys lie "
            f"apart, with attn_implementation={NAME!r} (passed by {type(module).__name__})"
        )
    return True


def _no_band(mask: torch.Tensor, module: torch.nn.Module, why: str) -> NotImplementedError:
    return NotImplementedError(
        f"attention_mask: beside cu_seq_lens_q it must be a band (causal, a window, or all keys) within each sequence "
        f"with attn_implementation={NAME!r}; {why} (got {list(mask.shape)}, passed to {type(module).__name__})"
    )


def _band_of_array(mask: torch.Tensor, lengths: Lengths, module: torch.nn.Module) -> Band:
    """The band that an array is within each sequence; what it says of others makes no difference.

    mask: [1, heads or 1, rows of q, rows of k], bool (true = visible) or additive.
    """
    if mask.shape[0] != 1:
        raise _no_band(mask, module, "one array for each row of a batch is not supported")
    visible = mask[0]
    if mask.dtype != torch.bool:
        visible = mask[0] == 0
        if not bool((visible | (mask[0] <= _HIDES)).all()):
            raise _no_band(mask, module, "this one adds numbers to scores")
    rows_q, rows_k = lengths.places()
    ends_q, ends_k = lengths.cu_q[1:, None], lengths.cu_k[1:, None]
    real = (rows_q < ends_q)[:, :, None] & (rows_k < ends_k)[:, None, :]
    # How far a key is behind its query, both counted from the sequence's end.
    distance = (rows_k - ends_k)[:, None, :] - (rows_q - ends_q)[:, :, None]
    at_q, at_k = (rows.clamp(max=size - 1).long() for rows, size in zip((rows_q, rows_k), visible.shape[1:]))
    blocks = visible[:, at_q[:, :, None], at_k[:, None, :]]
    seen = distance[(blocks & real).any(dim=0)]
    if seen.numel() == 0:
        if bool(real.any()):
            raise _no_band(mask, module, "this one hides every key")
        return Band()
    left, right = -int(seen.min()), int(seen.max())
    inside = (distance >= -left) & (distance <= right)
    if left < 0 or right < 0 or not bool(((blocks == inside) | ~real).all()):
        raise _no_band(mask, module, "this one is none")
    farthest = distance[real]
    return Band(None if -left <= int(farthest.min()) else left, None if right >= int(farthest.max()) else right)


def _blocks(array: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    """What [1, heads, rows of q, rows of k] says of each sequence: [sequences, heads, max_q, max_k]."""
    rows_q, rows_k = lengths.places()
    at_q, at_k = (rows.clamp(max=size - 1).long() for rows, size in zip((rows_q, rows_k), array.shape[2:]))
    return array[0][:, at_q[:, :, None], at_k[:, None, :]].transpose(0, 1)


def _padding_bias(padding: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    """Visible keys of each sequence, bool [sequences, 1, 1, max_k]."""
    at = lengths.places()[1].clamp(max=padding.numel() - 1).long()
    return padding.reshape(-1)[at][:, None, None, :]


def _band_arguments(band: Band, longest: int | None) -> dict[str, Any]:
    """Arguments of tilewise.attention for a band, without bounds that no pair of tokens reaches."""
    far = longest is not None and band.left is not None and band.left >= longest - 1
    left = -1 if band.left is None or far else band.left
    right = -1 if band.right is None else band.right
    return {"mask": "causal", "window": (left, -1)} if right == 0 else {"window": (left, right)}


def _mask_arguments(
    mask: torch.Tensor | None, band: Band, lengths: Lengths, module: torch.nn.Module
) -> tuple[dict[str, Any], Lengths]:
    """Arguments that mean the mask within the sequences. band: what is meant where no mask is given."""
    if mask is None:
        return _band_arguments(band, lengths.max_k), lengths
    if torch.compiler.is_compiling():  # the array cannot be asked what it is, and so it is taken as it is
        lengths = lengths.measured()
        return {"bias": _blocks(mask, lengths)}, lengths
    source = mask.source if isinstance(mask, LazyMask) else None
    if source is None:
        lengths = lengths.measured()
        array = mask.array() if isinstance(mask, LazyMask) else mask
        return _band_arguments(_band_of_array(array, lengths, module), lengths.max_k), lengths
    found = source.band(None if lengths.max_q is None or lengths.max_k is None else max(lengths.max_q, lengths.max_k))
    if found is None:
        lengths = lengths.measured()
        assert isinstance(mask, LazyMask)
        found = source.band(lengths.max_k) or _band_of_array(mask.array(), lengths, module)
    arguments = _band_arguments(found, lengths.max_k)
    if source.padding is not None:
        lengths = lengths.measured()
        arguments["bias"] = _padding_bias(source.padding, lengths)
    return arguments, lengths


def _add_position_bias(arguments: dict[str, Any], position_bias: torch.Tensor, dtype: torch.dtype) -> None:
    """Joins a learned bias [sequences, heads, max_q, max_k] to the mask's. It keeps its gradient."""
    bias = position_bias if position_bias.dtype == torch.float32 else position_bias.to(dtype)
    mask = arguments.get("bias")
    if mask is not None:
        bias = torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else bias + mask.to(bias.dtype)
    arguments["bias"] = bias


def _check_rows(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, lengths: Lengths, causal: bool
) -> None:
    """That the lengths are those of these rows, where the shapes alone do not say that they may be.

    Keys that are not as many as queries are another sequence's, or lie in a cache that is not full.
    """
    batch_size, q_length, kv_length = query.shape[0], query.shape[2], key.shape[2]
    if (batch_size == 1 and q_length == kv_length) or torch.compiler.is_compiling():
        return
    if batch_size > 1 and q_length != kv_length:
        raise ValueError(
            f"cu_seq_lens_k: packed sequences on a cache or beside others' keys lie in a batch of 1 (got {batch_size})"
        )
    rows_q, rows_k = batch_size * q_length, batch_size * kv_length
    source = mask.source if isinstance(mask, LazyMask) else None
    own = causal and source is not None  # keys of the queries' own tokens, in a cache of a fixed size
    for side, cu, rows in (("q", lengths.cu_q, rows_q), ("k", lengths.cu_k, rows_q if own else rows_k)):
        if int(cu[-1]) != rows:
            raise ValueError(
                f"cu_seq_lens_{side}: must end at {rows}, the tokens of its side of this attention (got {int(cu[-1])})"
            )


def attend(
    module: torch.nn.Module,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    band: Band,
    lengths: Lengths,
    position_bias: torch.Tensor | None,
    options: dict[str, Any],
) -> torch.Tensor:
    """Attention within each sequence. A batch of several rows is read as one row after the other.

    tensors: query [batch_size, heads, length, head_dim], key, value. band: what no mask means. options: of
    tilewise.attention. Returns [batch_size, length, heads, head_dim_v]. Raises NotImplementedError for a mask that is
    no band, ValueError for lengths that are not those of the tensors.
    """
    query, key, _ = tensors
    arguments, lengths = _mask_arguments(mask, band, lengths, module)
    _check_rows(query, key, mask, lengths, arguments.get("mask") == "causal")
    if position_bias is not None:
        if position_bias.shape[0] != 1:
            raise NotImplementedError(
                f"position_bias: beside cu_seq_lens_q it must be one for the batch (got {list(position_bias.shape)})"
            )
        lengths = lengths.measured()
        expanded = position_bias.expand(-1, -1, query.shape[2], key.shape[2])
        _add_position_bias(arguments, _blocks(expanded, lengths), query.dtype)
    if query.is_cuda:
        lengths = lengths.measured()
    rows = (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)
    q, k, v = (x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in rows)
    out: torch.Tensor = tilewise.attention(
        q, k, v, layout="thd", cu_seqlens_q=lengths.cu_q, cu_seqlens_k=lengths.cu_k, max_seqlen_q=lengths.max_q,
        max_seqlen_k=lengths.max_k, **arguments, **options,
    )  # fmt: skip
    return out.view(query.shape[0], query.shape[2], *out.shape[1:])


def install() -> None:
    """Has models remember, while they run, that they were given lengths. Again is harmless.

    Some models take them and pass them on to no attention, which would then see all of the row. Under torch.compile
    nothing is remembered.
    """
    call = PreTrainedModel.__call__
    if hasattr(call, "__wrapped__"):
        return

    @functools.wraps(call)
    def remembering_call(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("cu_seq_lens_q") is not None or kwargs.get("cu_seq_lens_k") is not None
        if torch.compiler.is_compiling() or not (given or _given_to.get()):
            return call(self, *args, **kwargs)
        before = _given_to.set(type(self).__name__ if given else "")
        try:
            return call(self, *args, **kwargs)
        finally:
            _given_to.reset(before)

    PreTrainedModel.__call__ = remembering_call


def check_passed_on(module: torch.nn.Module) -> None:
    """Raises NotImplementedError in a layer that was given no lengths, of a model that was."""
    if not torch.compiler.is_compiling() and _given_to.get():
        raise NotImplementedError(
            f"cu_seq_lens_q: {_given_to.get()} does not pass it on to {type(module).__name__}, so that "
            f"attn_implementation={NAME!r} cannot keep packed sequences apart; without it position_ids that restart do"
        )
