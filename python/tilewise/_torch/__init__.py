# Attention on torch tensors: the torch operators behind an autograd.Function in eager mode, the
# operators alone (with their registered autograd) where a compiler or a transform looks on.
"""The torch side of attention() and merge(). Importing this registers the torch operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from tilewise._arguments import seed_value
from tilewise._functions import Functions
from tilewise._kinds import form
from tilewise._options import ARRAY_NAMES, DEFAULT_TAIL, DROPOUT_IN_TAIL, FORMS, NO_ARRAYS, Options, with_seed
from tilewise._torch import autocast, autograd, batching, fake, flops, functions, jagged, operators  # noqa: F401 (they register)
from tilewise._torch import formula as formula
from tilewise._torch import kv_cache as kv_cache
from tilewise._torch import private as private
from tilewise._torch import sharding as sharding
from tilewise._torch import without_memory as without_memory
from tilewise._torch.backward import attention_backward as attention_backward
from tilewise._torch.by_schema import OPERATIONS as OPERATIONS
from tilewise._torch.errors import raise_known
from tilewise._torch.operators import registered_by as registered_by
from tilewise._torch.private import forward_ad as forward_ad
from tilewise._torch.refusals import has_tangents, refuse_gradient, refuse_tangents

# Looked up once: a call of a few microseconds notices every attribute of torch.
_autocast_enabled = torch.is_autocast_enabled
compiling = torch.compiler.is_compiling
any_autocast: Callable[[], bool] = private.is_any_autocast_enabled
_grad_enabled = torch.is_grad_enabled
_apply_plain = autograd.apply_plain
_apply_usual = autograd.apply_usual
attention_by_functions = functions.short_attention
_eager_plain = operators.eager_plain
_eager_plain_lse = operators.eager_plain_lse
transforming: Callable[[], bool] = private.are_transforms_active


_WITHOUT_GRADIENT = [(ARRAY_NAMES.index(name), name) for name in ("alibi_slopes", "q_scale", "k_scale", "v_scale")]


def _check_tensors(k: Any, v: Any, out: Any, arrays: Sequence[Any]) -> None:
    for value in (k, v, *[value for value in (out, *arrays) if value is not None]):
        if not isinstance(value, Tensor):
            _refuse_others(k, v, out, arrays)
    for place, name in _WITHOUT_GRADIENT:
        if arrays[place] is not None:
            refuse_gradient(name, arrays[place])
    if forward_ad._current_level >= 0:
        refuse_tangents((("out", out), *zip(ARRAY_NAMES[2:], arrays[2:])))  # bias and sink have derivatives


def _refuse_others(k: Any, v: Any, out: Any, arrays: Sequence[Any]) -> None:
    """TypeError that names the first of them that is no tensor."""
    for name, value in (("k", k), ("v", v), ("out", out), *zip(ARRAY_NAMES, arrays)):
        if not isinstance(value, Tensor) and (value is not None or name in ("k", "v")):
            kind = type(value)
            got = "; ".join(filter(None, (f"{kind.__module__}.{kind.__qualname__}", form(value))))
            raise TypeError(f"{name}: must be a torch tensor like q (got {got})")


def drawn_seed(device: torch.device, generator: Optional[torch.Generator] = None) -> Tensor:
    """Seed and offset from `generator`, or torch's own of that device, which advances."""
    limits = -(2**63), 2**63 - 1
    return torch.randint(*limits, (2,), dtype=torch.int64, device=device, generator=generator)


def _seeded(q: Tensor, seed: Any, tail: tuple[Any, ...]) -> tuple[Optional[Tensor], tuple[Any, ...]]:
    """(tensor of seed and offset or None, tail with an integer seed)."""
    if tail[DROPOUT_IN_TAIL] != 0.0 and sharding.is_sharded(q):
        got = tail[DROPOUT_IN_TAIL]
        raise NotImplementedError(f"dropout_p: must be 0 with DTensors, whose shards would all drop alike (got {got})")
    if isinstance(seed, Tensor):
        return seed, tail
    if seed is not None:
        return None, with_seed(tail, seed_value(seed))
    if tail[DROPOUT_IN_TAIL] == 0.0:
        return None, tail
    return drawn_seed(q.device), tail


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    form: int,
    softmax_scale: Optional[float],
    return_lse: bool,
) -> Any:
    """out, or (out, softmax_lse), of a call with no other options where no compiler or transform looks on.

    Not in a dual level: the operators behind it would drop tangents. A check here would not do, since torch.compile,
    where it gave up on the caller, begins with this frame and sees no tangents in its stand-ins for tensors.
    """
    try:
        if _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            if softmax_scale is None and not return_lse:
                return _apply_usual[form](q, k, v)
            return _apply_plain(q, k, v, form, softmax_scale, return_lse)
        if return_lse:
            return _eager_plain_lse(q, k, v, form, softmax_scale)
        if softmax_scale is None:  # an argument less
            return _eager_plain(q, k, v, form)
        return _eager_plain(q, k, v, form, softmax_scale)
    except RuntimeError as error:
        if sharding.register_for(q, k, v):  # the first of their kind
            return plain_attention(q, k, v, form, softmax_scale, return_lse)
        raise_known(error, q=q, k=k, v=v)
        raise


def attention(
    q: Tensor,
    k: Any,
    v: Any,
    out: Any,
    seed: Any,
    head: tuple[Any, ...],
    arrays: Optional[tuple[Any, ...]],
    tail: Optional[tuple[Any, ...]],
    return_lse: bool,
) -> Any:
    """out, or (out, softmax_lse); see tilewise.attention.

    `arrays` are in ARRAY_NAMES' order, or None where there is none; a tail of None has its defaults.
    """
    if q.is_nested:
        return jagged.attention(attention, q, k, v, out, seed, head, arrays, tail, return_lse)
    if not (isinstance(k, Tensor) and isinstance(v, Tensor)) or arrays is not None or out is not None:
        _check_tensors(k, v, out, arrays or NO_ARRAYS)
    traced = compiling()
    if (traced or any_autocast()) and _autocast_enabled(device_type := "cuda" if q.is_cuda else "cpu"):
        bias = None if arrays is None else arrays[0]
        q, k, v, bias = autocast.cast(q, k, v, bias, torch.get_autocast_dtype(device_type))
        arrays = None if arrays is None else (bias, *arrays[1:])
    dual_level = forward_ad._current_level >= 0
    if not (traced or dual_level or transforming()) and arrays is tail is seed is out is None:
        causal, softmax_scale, layout = head
        return plain_attention(q, k, v, FORMS["causal" if causal else None, layout], softmax_scale, return_lse)
    if dual_level and out is not None and not traced:
        refuse_tangents(zip(("q", "k", "v", *ARRAY_NAMES), (q, k, v, *(arrays or NO_ARRAYS))))
    options = head
    if tail is not None or arrays is not None or seed is not None:
        arrays, tail = arrays or NO_ARRAYS, tail or DEFAULT_TAIL
        seed_and_offset, tail = _seeded(q, seed, tail)
        options = (*head, *arrays, seed_and_offset, *tail)
    try:
        if out is not None:
            if _needs_graph(q, k, v, *(arrays or ())[:2]):
                raise ValueError("out: cannot be given with inputs that require gradients")
            lse = autograd.eager_forward_out(q, k, v, out, options, traced)
            return (out, lse) if return_lse else out
        bias, sink = (None, None) if arrays is None else arrays[:2]
        return forward(q, k, v, options, bias, sink, return_lse)
    except RuntimeError as error:
        if sharding.register_for(q, k, v):
            return attention(q, k, v, out, seed, head, arrays, tail, return_lse)
        raise_known(error, q=q, k=k, v=v, out=out, **dict(zip(ARRAY_NAMES, arrays or ())))
        raise


def attention_with_functions(
    q: Tensor,
    k: Any,
    v: Any,
    out: Any,
    seed: Any,
    head: tuple[Any, ...],
    arrays: Optional[tuple[Any, ...]],
    tail: Optional[tuple[Any, ...]],
    return_lse: bool,
    score_functions: Functions,
) -> Any:
    """attention() with score_mod or mask_mod, which the operators do not take."""
    arrays, tail = arrays or NO_ARRAYS, tail or DEFAULT_TAIL
    _check_tensors(k, v, out, arrays)
    if any_autocast() and _autocast_enabled(device_type := "cuda" if q.is_cuda else "cpu"):
        q, k, v, bias = autocast.cast(q, k, v, arrays[0], torch.get_autocast_dtype(device_type))
        arrays = (bias, *arrays[1:])
    seed_and_offset, tail = _seeded(q, seed, tail)
    return functions.attention(
        q, k, v, out, Options._make((*head, *arrays, seed_and_offset, *tail)), return_lse, score_functions
    )


def _needs_graph(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor] = None, sink: Optional[Tensor] = None) -> bool:
    return _grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (sink is not None and sink.requires_grad)
    )


def _with_tangents(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse) in a dual level, whose transforms do not say which tensors are dual ones."""
    own = Options(*options)
    formula.say("forward AD", q, k, own)
    return formula.forward(formula.Inputs(q, k, v, own.bias, own.sink), own)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: tuple[Any, ...],
    bias: Optional[Tensor] = None,
    sink: Optional[Tensor] = None,
    return_lse: bool = True,
) -> Any:
    """(out, softmax_lse), or out, by the operators: eager, traced by a compiler or under a transform, with a graph
    where one is needed. `options` are those of the operators; `bias` and `sink`, which may need gradients, are among
    them. Errors are torch's: whoever calls this asks raise_known() about them."""
    if compiling():
        out, lse = operators.forward(q, k, v, *options)
    elif forward_ad._current_level >= 0 and (transforming() or has_tangents((q, k, v, bias, sink))):
        out, lse = _with_tangents(q, k, v, options)
    elif transforming():
        out, lse = autograd.TransformedAttention.apply(q, k, v, *options)
    elif _needs_graph(q, k, v, bias, sink):
        return autograd.apply(q, k, v, bias, sink, options, return_lse)
    else:
        return autograd.eager_forward(q, k, v, options, return_lse)
    return (out, lse) if return_lse else out
