"""The attention function that models call through transformers' attention interface."""

from __future__ import annotations

from typing import Any

import torch
from transformers.utils.output_capturing import _active_collector

import tilewise
from tilewise.transformers import packed, paged
from tilewise.transformers.masks import Band, LazyMask
from tilewise.transformers.serving import check_version, is_paged_cache
from tilewise.transformers.support import NAME, SELECTIONS

__all__ = ["attention_forward"]

# What continuous batching gives beside its cache, which must then be there.
_PAGES = ("block_table", "k_cache", "v_cache", "read_index", "write_index")

# Keywords that change what attention computes and that the hook cannot honour, with the reason.
_REFUSED_KEYWORDS = {
    **SELECTIONS,
    **dict.fromkeys(_PAGES, "tables of pages go with continuous batching's cache"),
    "cache": "this cache is not the one of continuous batching",
    "head_mask": "masking whole heads is not supported",
    "layer_head_mask": "masking whole heads is not supported",
    "output_attentions": "the attention weights are never stored",
    "seq_idx": "sequence indices are not supported; pass cu_seq_lens_q and cu_seq_lens_k or position_ids",
    "sinks": "sinks of each position are not supported (s_aux, one sink of each head, is)",
}


# Likewise where continuous batching calls, whose cache and tables are served.
_REFUSED_IN_SERVING = {
    **{name: reason for name, reason in _REFUSED_KEYWORDS.items() if name not in (*_PAGES, "cache")},
    "indices": "selected keys are not supported on the paged cache of continuous batching",
    "dropout": "dropping weights while serving is not supported",
    "position_bias": "a bias is not supported on the paged cache of continuous batching",
}


def _refuse_keywords(module: torch.nn.Module, given: dict[str, Any], refused: dict[str, str]) -> None:
    for name, reason in refused.items():
        if given.get(name) is not None and given[name] is not False:
            raise NotImplementedError(
                f"{name}: {reason} by attn_implementation={NAME!r} (passed by {type(module).__name__})"
            )


def _check_mask(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> None:
    q_length, kv_length = query.shape[2], key.shape[2]
    if mask.ndim != 4 or mask.shape[-2] not in (1, q_length) or mask.shape[-1] not in (1, kv_length):
        raise ValueError(
            f"attention_mask: expected [batch_size, heads, {q_length}, {kv_length}] or sizes of 1 "
            f"(got {list(mask.shape)})"
        )
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise TypeError(f"attention_mask: dtype must be bool (true = visible) or floating (added) (got {mask.dtype})")


def _mask_arguments(
    query: torch.Tensor, mask: torch.Tensor | None, causal: bool, sliding_window: int | None
) -> dict[str, Any]:
    """Arguments of tilewise.attention for a mask as models pass it; query: [batch_size, heads, length, head_dim]."""
    q_length = query.shape[2]
    if mask is None:
        # As with "sdpa", one query is a decoding step on a full cache, and more of them start at the first key.
        arguments: dict[str, Any] = {"alignment": "bottom_right" if q_length == 1 else "top_left"}
        if causal and q_length > 1:
            arguments["mask"] = "causal"
        if sliding_window is not None:
            left = sliding_window - 1
            arguments["window"] = (left, -1 if causal else left)
        return arguments
    if isinstance(mask, LazyMask):
        return mask.arguments
    return {"bias": mask if mask.dtype in (torch.bool, torch.float32) else mask.to(query.dtype)}


def _select_keys(
    arguments: dict[str, Any], indices: torch.Tensor, query: torch.Tensor, keys: int, deterministic: bool
) -> dict[str, Any]:
    """With the places of the only keys that a query sees, int [batch_size, q_length, top_k], for all heads alike."""
    batch_size, _, q_length, _ = query.shape
    if indices.ndim != 3 or tuple(indices.shape[:2]) != (batch_size, q_length):
        raise ValueError(f"indices: expected [{batch_size}, {q_length}, top_k] (got {list(indices.shape)})")
    if query.device.type == "cpu" or not deterministic:
        if "leftpad_k" in arguments:  # places count from the first key that counts
            indices = indices - arguments["leftpad_k"][:, None, None]
        return {**arguments, "key_indices": indices.to(torch.int32)[:, :, None]}
    # On a GPU gradients of selected keys come in any order: what is not selected is hidden, as "eager" does it.
    outside = torch.where((indices >= 0) & (indices < keys), indices, keys).to(torch.int64)
    selected = torch.zeros(batch_size, 1, q_length, keys + 1, dtype=torch.bool, device=query.device)
    selected = selected.scatter_(3, outside[:, None], True)[..., :keys]
    bias = arguments.get("bias")
    if bias is not None:
        selected = selected & bias if bias.dtype == torch.bool else torch.where(selected, bias, -torch.inf)
    return {**arguments, "bias": selected}


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


def _unmasked_band(causal: bool, sliding_window: int | None) -> Band:
    """What a layer that is given no mask sees of a packed sequence."""
    left = None if sliding_window is None else sliding_window - 1
    return Band(left, 0 if causal else left)


def _sink(s_aux: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A model's sinks, one a head, in a dtype that goes with queries of `dtype`. They keep their gradient."""
    sink = s_aux.flatten()
    return sink if sink.dtype == dtype else sink.float()


def _paged_attention(
    module: torch.nn.Module,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scaling: float | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
    refusable: dict[str, Any],
    given: dict[str, Any],
) -> torch.Tensor:
    """A layer of a step of continuous batching, on its cache; `given` is what the manager gives."""
    _refuse_keywords(module, refusable | given, _REFUSED_IN_SERVING)
    if "tilewise_step" not in given:  # which comes with the inputs of a version that is known
        check_version()
        given["tilewise_step"] = paged.PagedStep(padded=True)
    options: dict[str, Any] = {"softmax_scale": scaling}
    if softcap is not None:
        options["softcap"] = softcap
    if s_aux is not None:
        options["sink"] = _sink(s_aux, tensors[0].dtype)
    layer: Any = module.layer_idx
    out: torch.Tensor = paged.attend(layer, *tensors, options, given)
    return out


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
    indices: torch.Tensor | None = None,
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
    additive mask; None: causal where the module (or is_causal) says so. cu_seq_lens_q, cu_seq_lens_k: int
    [sequences + 1], where packed sequences begin and end: each attends to itself, by the band that the mask is.
    indices: int [batch_size, q_length, top_k], the places of the only keys that a query sees.
    Returns ([batch_size, q_length, num_heads_q, head_dim_v], None). Raises NotImplementedError for keywords it cannot
    honour, and for masks beside such lengths that are no band.
    """
    if not torch.compiler.is_compiling() and any("attentions" in name for name in _active_collector.get() or ()):
        kwargs["output_attentions"] = True  # asked of the model, which need not pass it on
    if is_paged_cache(kwargs.get("cache")):
        kwargs |= {
            "cu_seq_lens_q": cu_seq_lens_q,
            "cu_seq_lens_k": cu_seq_lens_k,
            "max_length_q": max_length_q,
            "max_length_k": max_length_k,
        }
        refusable = {"position_bias": position_bias, "dropout": dropout or None, "indices": indices}
        return _paged_attention(module, (query, key, value), scaling, softcap, s_aux, refusable, kwargs), None
    lengths = None
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        lengths = packed.Lengths.of(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        kwargs.pop("seq_idx", None)  # which says again what the lengths say
    else:
        packed.check_passed_on(module)
    _refuse_keywords(module, kwargs, _REFUSED_KEYWORDS)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))

    options: dict[str, Any] = {
        "softmax_scale": scaling,
        "softcap": 0.0 if softcap is None else softcap,
        "sink": None if s_aux is None else _sink(s_aux, query.dtype),
        "dropout_p": dropout,
        "deterministic": bool(deterministic),
    }
    if attention_mask is not None:
        _check_mask(query, key, attention_mask)
    if lengths is not None and indices is not None:
        raise NotImplementedError(
            f"indices: selected keys beside cu_seq_lens are not supported by attn_implementation={NAME!r} "
            f"(passed by {type(module).__name__})"
        )
    if lengths is not None and not packed.goes_on(attention_mask, lengths, module):
        band = _unmasked_band(is_causal, sliding_window)
        tensors = (query, key, value)
        return packed.attend(module, tensors, attention_mask, band, lengths, position_bias, options), None
    arguments = _mask_arguments(query, attention_mask, is_causal, sliding_window)
    if indices is not None:
        arguments = _select_keys(arguments, indices, query, key.shape[2], options["deterministic"])
    if position_bias is not None:
        arguments = _add_position_bias(arguments, position_bias, query.dtype)
    return tilewise.attention(_rows(query), _rows(key), _rows(value), **arguments, **options), None
