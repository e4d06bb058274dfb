"""Masks of transformers as arguments of tilewise.attention: causal, windows and padding never exist as an array."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

__all__ = ["LazyMask", "attention_mask"]


@dataclass(frozen=True)
class _Band:
    """Bounds on (key position - query position): -left <= difference <= right; None: unbounded."""

    left: int | None = None
    right: int | None = None

    def intersect(self, other: _Band) -> _Band:
        lefts = [x for x in (self.left, other.left) if x is not None]
        rights = [x for x in (self.right, other.right) if x is not None]
        return _Band(min(lefts, default=None), min(rights, default=None))


def _made_by(function: Callable[..., Any], factory: Callable[..., Any]) -> bool:
    """Whether `function` is the inner function of `factory`: the same code object, other captured values."""
    return getattr(function, "__code__", None) in factory.__code__.co_consts


def _band_of(mask_function: Callable[..., Any]) -> _Band | None:
    """The band that one of transformers' own mask functions describes; None for anything else."""
    if mask_function is masking_utils.causal_mask_function:
        return _Band(right=0)
    if mask_function is masking_utils.bidirectional_mask_function:
        return _Band()
    captured = inspect.getclosurevars(mask_function).nonlocals if inspect.isfunction(mask_function) else {}
    if _made_by(mask_function, masking_utils.sliding_window_overlay):
        return _Band(left=int(captured["sliding_window"]) - 1)
    if _made_by(mask_function, masking_utils.sliding_window_bidirectional_overlay):
        return _Band(int(captured["sliding_window"]), int(captured["sliding_window"]))
    if _made_by(mask_function, masking_utils.and_masks):
        bands = [_band_of(part) for part in captured["mask_functions"]]
        known = [band for band in bands if band is not None]
        return functools.reduce(_Band.intersect, known) if len(known) == len(bands) else None
    return None


def _padding_runs(padding: torch.Tensor, kv_length: int, kv_offset: int) -> tuple[list[int], list[int]] | None:
    """First and one-past-last visible key of each sequence, or None where a row is not one run.

    padding: bool [batch_size, >= kv_offset + kv_length], true = a token.
    """
    padding = padding[:, kv_offset : kv_offset + kv_length]
    count = padding.sum(dim=-1)
    place = torch.arange(kv_length, device=padding.device)
    first = torch.where(padding, place, kv_length).amin(dim=-1)
    last = torch.where(padding, place, -1).amax(dim=-1)
    counts, firsts, lasts = torch.stack([count, first, last]).tolist()
    if any(n > 0 and end - begin + 1 != n for n, begin, end in zip(counts, firsts, lasts)):
        return None
    return [b if n else 0 for n, b in zip(counts, firsts)], [e + 1 if n else 0 for n, e in zip(counts, lasts)]


def _lengths(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _native_arguments(
    band: _Band, shift: int, q_length: int, kv_length: int, begins: list[int], ends: list[int], device: torch.device
) -> dict[str, Any] | None:
    """Arguments of tilewise.attention that mean this mask, or None where none do.

    shift: position of the first query minus position of the first key. Keys are visible from
    begins[b] up to ends[b]. Tilewise counts from the first visible key and aligns either the first
    query with the first visible key or the last with the last, so one of both must fit every sequence.
    """
    reach = kv_length if band.right is None else min(kv_length, max(0, shift + q_length + band.right))
    ends = [min(end, reach) for end in ends]
    begins = [min(begin, end) for begin, end in zip(begins, ends)]
    # A bound that every visible key of every query meets is dropped, so that the plain kernels serve it.
    left = -1 if band.left is None or band.left >= shift + q_length - 1 - min(begins, default=0) else band.left
    right = -1 if band.right is None or shift + band.right >= max(ends, default=0) - 1 else band.right

    arguments: dict[str, Any] = {"mask": "causal", "window": (left, -1)} if right == 0 else {"window": (left, right)}
    if left >= 0 or right >= 0:
        runs = [(begin, end) for begin, end in zip(begins, ends) if begin < end]
        if any(end != shift + q_length for _, end in runs):
            if any(begin != shift for begin, _ in runs):
                return None
            arguments["alignment"] = "top_left"
    if any(begins):
        arguments["leftpad_k"] = _lengths(begins, device)
    if any(end != kv_length for end in ends):
        arguments["seqused_k"] = _lengths([end - begin for begin, end in zip(begins, ends)], device)
    return arguments


class LazyMask(torch.Tensor):
    """A boolean mask [batch_size, 1, q_length, kv_length] that is only built if someone computes with it.

    `arguments` hold what it means to tilewise.attention. A model that slices or combines the mask
    gets ordinary tensors; writing into it is refused.
    """

    arguments: dict[str, Any]
    _build: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(
        cls, shape: tuple[int, ...], device: torch.device, arguments: dict[str, Any], build: Callable[[], torch.Tensor]
    ) -> LazyMask:
        mask: LazyMask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.arguments = arguments
        mask._build = functools.cache(build)
        return mask

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyMask(shape={tuple(self.shape)}, arguments={self.arguments})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function._schema.is_mutable:
            raise NotImplementedError(f"attention_mask: {function} writes into a mask shared by all layers; clone it")
        dense_args, dense_kwargs = tree_map_only(LazyMask, lambda mask: mask._build(), (args, kwargs or {}))
        return function(*dense_args, **dense_kwargs)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """transformers' mask interface: a LazyMask where Tilewise has a name for the mask, else a boolean array.

    attention_mask is the padding, bool [batch_size, kv_length]. Under torch.compile, and where the
    caller asks for an array (neither skip allowed), the result is that of "sdpa".
    """
    array: Callable[..., torch.Tensor] = functools.partial(
        masking_utils.sdpa_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        device=device,
        **kwargs,
    )
    tracing = is_tracing(attention_mask) or is_tracing(q_offset)
    if tracing or not (allow_is_causal_skip or allow_is_bidirectional_skip):
        return array(allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip)

    build = functools.partial(array, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    runs: tuple[list[int], list[int]] | None = ([0] * batch_size, [kv_length] * batch_size)
    if padding is not None:
        runs = _padding_runs(padding, kv_length, kv_offset)
    band = None if use_vmap else _band_of(mask_function)
    if band is None or runs is None:
        return build()
    device = torch.device(device)
    arguments = _native_arguments(band, int(q_offset) - kv_offset, q_length, kv_length, *runs, device)
    if arguments is None:
        return build()
    return LazyMask((batch_size, 1, q_length, kv_length), device, arguments, build)
