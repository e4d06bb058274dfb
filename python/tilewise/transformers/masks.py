"""Masks of transformers as arguments of tilewise.attention: causal, windows and padding never exist as an array."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from tilewise._torch.private import tree_leaves, tree_map_only
from tilewise.transformers.support import NAME

__all__ = ["Band", "LazyMask", "MaskSource", "attention_mask"]


@dataclass(frozen=True)
class Band:
    """Bounds on (key position - query position): -left <= difference <= right; None: unbounded."""

    left: int | None = None
    right: int | None = None

    def intersect(self, other: Band) -> Band:
        lefts = [x for x in (self.left, other.left) if x is not None]
        rights = [x for x in (self.right, other.right) if x is not None]
        return Band(min(lefts, default=None), min(rights, default=None))


def _made_by(function: Callable[..., Any], factory: Callable[..., Any]) -> bool:
    """Whether `function` is the inner function of `factory`: the same code object, other captured values."""
    return getattr(function, "__code__", None) in factory.__code__.co_consts


def _band_of(mask_function: Callable[..., Any], longest: int | None = None) -> Band | None:
    """The band that one of transformers' own mask functions describes; None for anything else.

    longest: of sequences that are told apart already, and in which alone the band has to hold; 0 where it is not
    known, None where nothing tells them apart.
    """
    if mask_function is masking_utils.causal_mask_function:
        return Band(right=0)
    if mask_function is masking_utils.bidirectional_mask_function:
        return Band()
    captured = inspect.getclosurevars(mask_function).nonlocals if inspect.isfunction(mask_function) else {}
    if _made_by(mask_function, masking_utils.sliding_window_overlay):
        return Band(left=int(captured["sliding_window"]) - 1)
    if _made_by(mask_function, masking_utils.sliding_window_bidirectional_overlay):
        return Band(int(captured["sliding_window"]), int(captured["sliding_window"]))
    if _made_by(mask_function, masking_utils.and_masks):
        bands = [_band_of(part, longest) for part in captured["mask_functions"]]
        known = [band for band in bands if band is not None]
        return functools.reduce(Band.intersect, known) if len(known) == len(bands) else None
    if longest is None:
        return None
    if _made_by(mask_function, masking_utils.packed_sequence_mask_function):
        return Band()
    if _made_by(mask_function, masking_utils.remap_positions_for_packed_sequence):
        return _band_of(captured["mask_function"], longest)
    if _made_by(mask_function, masking_utils.chunked_overlay) and 0 < longest <= int(captured["chunk_size"]):
        return Band()
    return None


def _tells_apart(mask_function: Callable[..., Any]) -> bool:
    """Whether transformers found packed sequences in the positions, and forbade itself to skip the mask for that."""
    if not _made_by(mask_function, masking_utils.and_masks):
        return False
    parts = inspect.getclosurevars(mask_function).nonlocals["mask_functions"]
    return any(_made_by(part, masking_utils.packed_sequence_mask_function) or _tells_apart(part) for part in parts)


@dataclass(frozen=True)
class MaskSource:
    """What transformers asked a mask of: the rule, the padding, and where the queries are."""

    function: Callable[..., Any] | None  # None: one that tells of each place by itself
    padding: torch.Tensor | None  # bool [batch_size, kv_length], true = a token; None: no padding
    shift: int  # position of the first query minus position of the first key

    def band(self, longest: int | None) -> Band | None:
        """The band that it is within sequences that are told apart already, the longest of `longest` tokens."""
        return None if self.function is None else _band_of(self.function, longest or 0)


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
    band: Band, shift: int, q_length: int, kv_length: int, begins: list[int], ends: list[int], device: torch.device
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


# What a mask of true (visible) and false may be asked: parts of it, and logic. Anything else reads it as numbers.
_LOGIC = frozenset((
    *("all", "any", "equal", "sum", "where", "masked_fill", "gather", "index", "index_select"),
    *("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"),
    *("logical_and", "logical_not", "logical_or", "logical_xor"),
    *("_reshape_alias", "_to_copy", "_unsafe_view", "alias", "as_strided", "clone", "copy_", "detach", "expand"),
    *("narrow", "permute", "repeat", "reshape", "select", "slice", "split", "squeeze", "t", "transpose", "unbind"),
    *("unsqueeze", "view"),
))  # fmt: skip


class LazyMask(torch.Tensor):
    """A boolean mask [batch_size, 1, q_length, kv_length] that is only built if someone computes with it.

    `arguments` hold what it means to tilewise.attention. Parts of it and logic with it are masks again. A
    model (`owner`) that adds it to scores, as it would an "eager" mask, or writes into it, is refused. `source` is
    None where it is no longer what transformers asked for. One that is not `guarded` may be read as numbers too: its
    caller may have asked for an array.
    """

    owner: str
    guarded: bool
    source: MaskSource | None
    _arguments: dict[str, Any] | None
    _build: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, ...],
        device: torch.device,
        arguments: dict[str, Any] | None,
        build: Callable[[], torch.Tensor],
        owner: str = "the model",
        source: MaskSource | None = None,
        guarded: bool = True,
    ) -> LazyMask:
        mask: LazyMask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask._arguments = arguments
        mask.owner = owner
        mask.source = source
        mask.guarded = guarded
        mask._build = functools.cache(build)
        return mask

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of tilewise.attention: the array itself where they have no other name for the mask."""
        return {"bias": self._build()} if self._arguments is None else self._arguments

    def array(self) -> torch.Tensor:
        """The mask as a plain boolean tensor. Built once."""
        return self._build()

    @classmethod
    def of(cls, array: torch.Tensor, owner: str) -> LazyMask:
        """A mask that is an array already."""
        return cls(tuple(array.shape), array.device, None, lambda: array, owner)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyMask(shape={tuple(self.shape)}, arguments={self._arguments})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        masks = [x for x in tree_leaves((args, kwargs)) if isinstance(x, LazyMask)]
        owner = masks[0].owner if masks else "the model"
        name = function.overloadpacket.__name__
        if function._schema.is_mutable and (name != "copy_" or isinstance(args[0], LazyMask)):
            raise NotImplementedError(
                f"attention_mask: {owner} writes into a mask shared by all layers ({name}), "
                f"which attn_implementation={NAME!r} cannot serve; clone it"
            )
        dense_args, dense_kwargs = tree_map_only(LazyMask, lambda mask: mask._build(), (args, kwargs or {}))
        result = function(*dense_args, **dense_kwargs)
        if not all(mask.guarded for mask in masks):
            return result
        numbers = name == "_to_copy" and result.dtype != torch.bool
        if name not in _LOGIC or numbers:
            raise NotImplementedError(
                f"attention_mask: {owner} reads the mask as numbers ({name}), and attn_implementation={NAME!r} gives "
                'true for visible; load it with "eager"'
            )

        def again(part: torch.Tensor) -> torch.Tensor:
            return cls.of(part, owner) if part.dtype == torch.bool and part.ndim > 1 else part

        return tree_map_only(torch.Tensor, again, result)


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
    """transformers' mask interface: a LazyMask, in Tilewise's own words where it has a name for the mask.

    attention_mask is the padding, bool [batch_size, kv_length]. Where the caller asks for an array (neither
    skip allowed) the result is that of "sdpa"; under torch.compile it is None or, as under "eager", floating.
    """
    array: Callable[..., Any] = functools.partial(
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
    skips = {"allow_is_causal_skip": allow_is_causal_skip, "allow_is_bidirectional_skip": allow_is_bidirectional_skip}
    if is_tracing(attention_mask) or is_tracing(q_offset):
        # Nothing watches over a mask in a graph, so it is of the kind that every model reads rightly.
        mask: torch.Tensor | None = array(**skips)
        dtype = kwargs.get("dtype") or torch.float32
        return None if mask is None else torch.where(mask, mask.new_zeros((), dtype=dtype), torch.finfo(dtype).min)
    packed = not use_vmap and _tells_apart(mask_function)
    if not any(skips.values()) and not packed:
        asked_for: torch.Tensor = array(**skips)
        return asked_for
    owner = str(getattr(kwargs.get("config"), "model_type", None) or "the model")

    build = functools.partial(array, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    runs: tuple[list[int], list[int]] | None = ([0] * batch_size, [kv_length] * batch_size)
    if padding is not None:
        runs = _padding_runs(padding, kv_length, kv_offset)
    function = None if use_vmap else mask_function
    band = None if function is None else _band_of(function)
    device = torch.device(device)
    shift = int(q_offset) - kv_offset
    arguments = None
    if band is not None and runs is not None:
        arguments = _native_arguments(band, shift, q_length, kv_length, *runs, device)
    whole = runs is not None and all(n == 0 for n in runs[0]) and all(n == kv_length for n in runs[1])
    if padding is not None:
        padding = None if whole else padding[:, kv_offset : kv_offset + kv_length]
    source = MaskSource(function, padding, shift)
    return LazyMask(
        (batch_size, 1, q_length, kv_length), device, arguments, build, owner, source, guarded=any(skips.values())
    )
