"""The "tilewise" attention implementation of Hugging Face transformers.

Importing this module registers it: `AutoModel.from_pretrained(..., attn_implementation="tilewise")`.
Masks that Tilewise can name (causal, windows, padding) never exist as an array.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.modeling_utils import AttentionInterface
from transformers.utils.import_utils import is_tracing

import tilewise

__all__ = ["LazyMask", "attention_forward", "attention_mask", "register"]

NAME = "tilewise"

# Keywords that change what attention computes and that the hook cannot honour, with the reason.
_REFUSED_KEYWORDS = {
    "block_indices": "block-sparse selection is not supported",
    "block_table": "paged caches are not supported yet",
    "cache": "the paged cache of continuous batching is not supported yet",
    "head_mask": "masking whole heads is not supported",
    "indices": "sparse key selection is not supported",
    "layer_head_mask": "masking whole heads is not supported",
    "output_attentions": "the attention weights are never stored",
    "seq_idx": "sequence indices are not supported; pass cu_seq_lens_q and cu_seq_lens_k or position_ids",
    "sinks": "sinks of each position are not supported (s_aux, one sink of each head, is)",
}


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


def _mask_arguments(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, causal: bool, sliding_window: int | None
) -> dict[str, Any]:
    """Arguments of tilewise.attention for a mask as models pass it; query, key: [batch_size, heads, length, ...]."""
    q_length, kv_length = query.shape[2], key.shape[2]
    if mask is None:
        # As with "sdpa", one query is a decoding step on a full cache, and more of them start at the first key.
        arguments: dict[str, Any] = {"alignment": "bottom_right" if q_length == 1 else "top_left"}
        if causal and q_length > 1:
            arguments["mask"] = "causal"
        if sliding_window is not None:
            left = sliding_window - 1
            arguments["window"] = (left, -1 if causal else left)
        return arguments
    if mask.ndim != 4 or mask.shape[-2] not in (1, q_length) or mask.shape[-1] not in (1, kv_length):
        raise ValueError(
            f"attention_mask: expected [batch_size, heads, {q_length}, {kv_length}] or sizes of 1 "
            f"(got {list(mask.shape)})"
        )
    if isinstance(mask, LazyMask):
        return mask.arguments
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(f"attention_mask: dtype must be bool (true = visible) or floating (added) (got {mask.dtype})")
    return {"bias": mask if mask.dtype in (torch.bool, torch.float32) else mask.to(query.dtype)}


def _add_position_bias(arguments: dict[str, Any], position_bias: torch.Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Joins a learned bias, e.g. T5's relative positions, to the mask. It keeps its gradient."""
    bias = position_bias if position_bias.dtype == torch.float32 else position_bias.to(dtype)
    mask = arguments.get("bias")
    if mask is not None:
        bias = torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else bias + mask.to(bias.dtype)
    return {**arguments, "bias": bias}


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """[batch_size, heads, length, head_dim] seen as [batch_size, length, heads, head_dim], without a copy as a rule."""
    return (tensor if tensor.stride(-1) == 1 else tensor.contiguous()).transpose(1, 2)


def _packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, arguments: dict[str, Any], **lengths: Any
) -> torch.Tensor:
    """Attention over sequences packed into one row.

    query: [1, heads, total, head_dim]. Returns [1, total, heads, head_dim_v].
    """
    if query.shape[0] != 1:
        raise ValueError(f"cu_seq_lens_q: packed sequences lie in a batch of 1 (got a batch of {query.shape[0]})")
    q, k, v = _rows(query)[0], _rows(key)[0], _rows(value)[0]
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if lengths[name] is None:
            raise ValueError(f"cu_seq_lens_{name[-1]}: cu_seq_lens_q and cu_seq_lens_k go together (got None)")
        lengths[name] = lengths[name].to(torch.int32)
    for name in ("max_seqlen_q", "max_seqlen_k"):
        lengths[name] = None if lengths[name] is None else int(lengths[name])
    out: torch.Tensor = tilewise.attention(q, k, v, layout="thd", **arguments, **lengths)
    return out.unsqueeze(0)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    deterministic: bool | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface.

    query: [batch_size, num_heads_q, q_length, head_dim]; key, value: [batch_size, num_heads_k, kv_length, ...],
    shared heads as they are. attention_mask: from attention_mask(), or any 4D boolean (true = visible) or
    additive mask; None: causal where the module (or is_causal) says so. Returns ([batch_size, q_length,
    num_heads_q, head_dim_v], None). Raises NotImplementedError for keywords it cannot honour.
    """
    for name, reason in _REFUSED_KEYWORDS.items():
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise NotImplementedError(f"{name}: {reason} by attn_implementation={NAME!r}")
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))

    arguments = _mask_arguments(query, key, attention_mask, is_causal, sliding_window)
    if position_bias is not None:
        arguments = _add_position_bias(arguments, position_bias, query.dtype)
    arguments = {
        **arguments,
        "softmax_scale": scaling,
        "softcap": 0.0 if softcap is None else softcap,
        "sink": None if s_aux is None else s_aux.flatten().float(),
        "dropout_p": dropout,
        "deterministic": bool(deterministic),
    }
    # A mask already separates packed sequences; without one their boundaries do.
    if attention_mask is None and (cu_seq_lens_q is not None or cu_seq_lens_k is not None):
        out = _packed_attention(
            query,
            key,
            value,
            arguments,
            cu_seqlens_q=cu_seq_lens_q,
            cu_seqlens_k=cu_seq_lens_k,
            max_seqlen_q=max_length_q,
            max_seqlen_k=max_length_k,
        )
    else:
        out = tilewise.attention(_rows(query), _rows(key), _rows(value), **arguments)
    return out, None


def register() -> None:
    """Makes attn_implementation="tilewise" known to transformers.

    Importing this module calls it; calling again is harmless. Raises ImportError for transformers before 5.
    """
    if "q_offset" not in inspect.signature(masking_utils.sdpa_mask).parameters:
        raise ImportError(
            f"transformers: need a version whose masks take q_offset, 5.x (got {transformers.__version__})"
        )
    AttentionInterface.register(NAME, attention_forward)
    masking_utils.AttentionMaskInterface.register(NAME, attention_mask)


register()
