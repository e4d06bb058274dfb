# tilewise::kv_cache_attention, kv_cache_attention_out and append_kv, the torch operators behind the KV cache step.
# Both caches and the scales are declared as mutated: scales per token are, where keys are appended.
"""The KV cache step for torch tensors."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _core
from tilewise._arrays import BLOCK_MASK_NAMES
from tilewise._kv_cache import ARRAYS, borrow_captured, lse_shape, out_shape
from tilewise._torch import private
from tilewise._torch.dtypes import BYTE_DTYPES
from tilewise._torch.errors import raise_known
from tilewise._torch.operators import LIBRARY, implement, registered_by
from tilewise._torch.private import forward_ad
from tilewise._torch.python_kernels import stream_of
from tilewise._torch.refusals import refuse_tangents

_NO_BACKWARD = "must not require gradients, since the KV cache step has no backward pass; pass it detached"


# Of what follows an operator's tensors; None of all others.
_DEFAULTS: dict[str, Any] = {
    "rotary_interleaved": False,
    "rotary_offset": 0,
    "causal": False,
    "window_left": -1,
    "window_right": -1,
    "softcap": 0.0,
    "num_splits": 0,
    "batch_invariant": False,
}


def _scalars(name: str) -> tuple[tuple[str, Any], ...]:
    """What follows an operator's tensors but for the implementation: names and defaults, as its schema lists them."""
    arguments = getattr(torch.ops.tilewise, name).default._schema.arguments
    return tuple((a.name, _DEFAULTS.get(a.name)) for a in arguments if "Tensor" not in str(a.type))[:-1]


_ATTEND_SCALARS = _scalars("kv_cache_attention")
_APPEND_SCALARS = _scalars("append_kv")


def _borrow(name: str, tensor: Optional[Tensor], writable: bool = False) -> Any:
    if tensor is None:
        return None
    if byte := BYTE_DTYPES.get(tensor.dtype):
        return _core.Array(tensor.detach().view(torch.uint8), name, byte, writable)
    return _core.Array(tensor.detach(), name, "", writable)


def _options(arrays: tuple[Optional[Tensor], ...], scalars: dict[str, Any]) -> _core.KvCacheOptions:
    views = {name: _borrow(name, tensor) for name, tensor in zip(ARRAYS, arrays) if tensor is not None}
    return _core.KvCacheOptions(**views, **scalars)


def _arrays_of(others: tuple[Any, ...], k_scale: Any, v_scale: Any) -> tuple[Any, ...]:
    """ARRAYS of what an operator got: scales stand by themselves there, for they are mutated."""
    values = iter(others)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    return tuple(scales[name] if name in scales else next(values) for name in ARRAYS)


def _run(q: Tensor, tensors: tuple[Any, ...], out: Tensor, lse: Optional[Tensor], options: _core.KvCacheOptions,
         implementation: Optional[str], fresh: bool) -> None:  # fmt: skip
    """`tensors`: the caches, and the new keys and values."""
    k_cache, v_cache, k, v = map(_borrow, ("k_cache", "v_cache", "k", "v"), tensors)
    _core.kv_cache_attention(
        _borrow("q", q),
        k_cache,
        v_cache,
        k,
        v,
        _borrow("out", out, writable=True),
        _borrow("softmax_lse", lse, writable=True),
        options,
        implementation or "",
        torch.get_num_threads(),
        fresh,
        stream_of(q),
    )


def _run_operator(q: Tensor, tensors: tuple[Any, ...], out: Tensor, lse: Optional[Tensor], rest: tuple[Any, ...],
                  fresh: bool) -> None:  # fmt: skip
    k_cache, v_cache, k_scale, v_scale, k, v = tensors
    count = len(ARRAYS) - 2
    scalars = dict(zip((name for name, _ in _ATTEND_SCALARS), rest[count:-1]))
    options = _options(_arrays_of(rest[:count], k_scale, v_scale), scalars)
    _run(q, (k_cache, v_cache, k, v), out, lse, options, rest[-1], fresh)


def _new_out(q: Tensor, v_cache: Optional[Tensor], rest: tuple[Any, ...]) -> Tensor:
    head_dim_v = rest[len(ARRAYS) - 2 + [name for name, _ in _ATTEND_SCALARS].index("head_dim_v")]
    return q.new_empty(out_shape(q, v_cache, {} if head_dim_v is None else {"head_dim_v": head_dim_v}))


def _new_lse(q: Tensor) -> Tensor:
    return q.new_empty(lse_shape(q), dtype=torch.float32)


def _kernel(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any,
            *rest: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = _new_out(q, v_cache, rest), _new_lse(q)
    _run_operator(q, (k_cache, v_cache, k_scale, v_scale, k, v), out, lse, rest, fresh=True)
    return out, lse


def _kernel_out(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any, out: Tensor,
                *rest: Any) -> Tensor:  # fmt: skip
    lse = _new_lse(q)
    _run_operator(q, (k_cache, v_cache, k_scale, v_scale, k, v), out, lse, rest, fresh=False)
    return lse


def _kernel_append(k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Tensor, v: Any, *rest: Any) -> None:
    count = len(ARRAYS) - 2
    scalars = dict(zip((name for name, _ in _APPEND_SCALARS), rest[count:-1]))
    _core.append_kv(
        _borrow("k_cache", k_cache),
        _borrow("v_cache", v_cache),
        _borrow("k", k),
        _borrow("v", v),
        _options(_arrays_of(rest[:count], k_scale, v_scale), scalars),
        rest[-1] or "",
        torch.get_num_threads(),
        stream_of(k),
    )


def _check_devices(first: str, device: torch.device, named: Any) -> None:
    """A call with one tensor on the meta device ends here, whatever the others are on."""
    for name, tensor in named:
        if isinstance(tensor, Tensor) and tensor.device != device:
            raise TypeError(f"{name}: must be on {device}, where {first} is (got {tensor.device})")


def _names(rest: tuple[Any, ...]) -> Any:
    return zip((name for name in ARRAYS if not name.endswith("_scale")), rest)


def _kernel_plain(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any, v: Any, *rest: Any) -> Tensor:
    cache_seqlens, block_table, rotary_cos, rotary_sin, causal, softmax_scale = rest
    given = {"cache_seqlens": cache_seqlens, "block_table": block_table, "rotary_cos": rotary_cos,
             "rotary_sin": rotary_sin}  # fmt: skip
    numbers = _numbers({"causal": causal, "softmax_scale": softmax_scale}, _ATTEND_SCALARS)
    operands = (*(given.get(ARRAYS[place]) for place in _OTHERS), *numbers, None)
    out = _new_out(q, v_cache, operands)
    _run_operator(q, (k_cache, v_cache, None, None, k, v), out, None, operands, fresh=True)
    return out


def _fake(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any,
          *rest: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
    given = {"k_cache": k_cache, "v_cache": v_cache, "k_scale": k_scale, "v_scale": v_scale, "k": k, "v": v}
    _check_devices("q", q.device, (*given.items(), *_names(rest)))
    return _new_out(q, v_cache, rest), _new_lse(q)


def _fake_plain(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> Tensor:
    names = ("k_cache", "v_cache", "k", "v", "cache_seqlens", "block_table", "rotary_cos", "rotary_sin")
    _check_devices("q", q.device, zip(names, (k_cache, v_cache, *rest)))
    return _new_out(q, v_cache, (None,) * (len(ARRAYS) - 2 + len(_ATTEND_SCALARS)))


def _fake_out(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any, out: Tensor,
              *rest: Any) -> Tensor:  # fmt: skip
    given = {"k_cache": k_cache, "v_cache": v_cache, "k_scale": k_scale, "v_scale": v_scale, "k": k, "v": v, "out": out}
    _check_devices("q", q.device, (*given.items(), *_names(rest)))
    return _new_lse(q)


def _fake_append(k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Tensor, v: Any, *rest: Any) -> None:
    given = {"k_cache": k_cache, "v_cache": v_cache, "k_scale": k_scale, "v_scale": v_scale, "v": v}
    _check_devices("k", k.device, (*given.items(), *_names(rest)))


def _refusing_gradients(operator: Any) -> Any:
    """What `operator` does with tensors that autograd may follow: it refuses those that require gradients.

    Without it torch would return an out that seems to require one, and leave the gradients None.
    """
    names = [argument.name for argument in operator.default._schema.arguments]
    detached = operator.detached

    def kernel(*operands: Any) -> Any:
        for place, value in enumerate(operands):
            if isinstance(value, Tensor) and value.requires_grad:
                _refuse_gradient(names[place], value)
        refuse_tangents(zip(names, operands))
        return detached(*operands)

    return kernel


def _refuse_gradient(name: str, tensor: Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"{name}: {_NO_BACKWARD}")


_K_SCALE, _V_SCALE = ARRAYS.index("k_scale"), ARRAYS.index("v_scale")
_OTHERS = tuple(place for place, name in enumerate(ARRAYS) if not name.endswith("_scale"))

for _name, _implementation, _shapes in (
    ("kv_cache_attention", _kernel, _fake),
    ("kv_cache_attention_out", _kernel_out, _fake_out),
    ("append_kv", _kernel_append, _fake_append),
):
    _detached = f"{_name}.detached"
    if registered_by != "c++":
        implement({_name: _implementation, _detached: _implementation})
    LIBRARY.impl(_name, _refusing_gradients(getattr(torch.ops.tilewise, _name)), "Autograd")
    LIBRARY.impl(_detached, torch.library.fallthrough_kernel, "Autograd")
    for _overload in (_name, _detached):
        torch.library.register_fake(f"tilewise::{_overload}", _shapes, lib=LIBRARY)
# Of what a serving engine passes; see operators.plain.
_PLAIN = "kv_cache_attention.plain"
if registered_by != "c++":
    implement({_PLAIN: _kernel_plain})
LIBRARY.impl(_PLAIN, torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake(f"tilewise::{_PLAIN}", _fake_plain, lib=LIBRARY)
# The functions below look for gradients themselves.
_attend_plain: Any = torch.ops.tilewise.kv_cache_attention.plain
_attend_plain = private.handle_of(_attend_plain)
_attend: Any = torch.ops.tilewise.kv_cache_attention.detached
_attend_out: Any = torch.ops.tilewise.kv_cache_attention_out.detached
_append: Any = torch.ops.tilewise.append_kv.detached


def _check(like: str, required: int, names: tuple[str, ...], tensors: tuple[Any, ...]) -> None:
    """The first `required` of the tensors must be given. Names are looked at where something is wrong alone."""
    for place, value in enumerate(tensors):
        if value is None and place >= required:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"{names[place]}: must be a torch tensor like {like} (got {type(value).__name__})")
        _refuse_gradient(names[place], value)
    refuse_tangents(zip(names, tensors))


_ATTEND_NAMES = ("q", "k_cache", "v_cache", "k", "v", "out", *ARRAYS)
_APPEND_NAMES = ("k_cache", "k", "v_cache", "v", *ARRAYS)


def _numbers(values: dict[str, Any], scalars: tuple[tuple[str, Any], ...]) -> list[Any]:
    """In the order of an operator's schema."""
    return [values.get(name, default) for name, default in scalars]


_grad_enabled = torch.is_grad_enabled
_transforming = private.are_transforms_active


def nobody_derives() -> bool:
    """Whether there is no transform and no dual level, whose derivatives the plain operator would lose."""
    return forward_ad._current_level < 0 and not _transforming()


def is_plain(q: Any, k_cache: Any, v_cache: Any, others: tuple[Any, ...]) -> bool:
    """Whether plain_attend() may have these: tensors (or None, of `others`) of which nobody wants a derivative."""
    if not (isinstance(q, Tensor) and isinstance(k_cache, Tensor) and isinstance(v_cache, Tensor)):
        return False
    derived = _grad_enabled()
    if derived and (q.requires_grad or k_cache.requires_grad or v_cache.requires_grad):
        return False
    for other in others:
        if other is not None and not (isinstance(other, Tensor) and not (derived and other.requires_grad)):
            return False
    return nobody_derives() and not q.is_nested


def plain_attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> Tensor:
    """out of a call with no other options, of tensors that need no gradient, where no compiler looks on.

    `rest`: k, v, cache_seqlens, block_table, rotary_cos, rotary_sin, whether causal, and the softmax_scale.
    """
    try:
        out: Tensor = _attend_plain(q, k_cache, v_cache, *rest)
    except RuntimeError as error:
        names = ("k", "v", "cache_seqlens", "block_table", "rotary_cos", "rotary_sin")
        raise_known(error, q=q, k_cache=k_cache, v_cache=v_cache, **dict(zip(names, rest)))
        raise
    return out


def attend(
    q: Tensor,
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    arrays: tuple[Any, ...],
    values: dict[str, Any],
    out: Any,
    return_lse: bool,
    implementation: Optional[str],
) -> Any:
    """out, or (out, softmax_lse); see tilewise.kv_cache_attention."""
    given = (q, k_cache, v_cache, k, v, out, *arrays)
    _check("q", 2, _ATTEND_NAMES, given)
    if "tables" in values:
        return _attend_with_functions(q, k_cache, v_cache, k, v, arrays, values, out, return_lse, implementation)
    tensors = (q, k_cache, v_cache, arrays[_K_SCALE], arrays[_V_SCALE], k, v)
    operands = (*[arrays[place] for place in _OTHERS], *_numbers(values, _ATTEND_SCALARS), implementation)
    try:
        if out is None:
            out, lse = _attend(*tensors, *operands)
        else:
            lse = _attend_out(*tensors, out, *operands)
    except RuntimeError as error:
        raise_known(error, **dict(zip(_ATTEND_NAMES, given)))
        raise
    return (out, lse) if return_lse else out


def _with_functions(q: Tensor, k_cache: Any, v_cache: Any, k: Any, v: Any, arrays: tuple[Any, ...], values: Any,
                    out: Any, return_lse: bool, implementation: Optional[str]) -> Any:  # fmt: skip
    """attend() with score_mod, mask_mod or block_mask, which the operators do not take: their kernel in Python does."""
    names = tuple(f"table{i}" for i in range(len(values["tables"])))
    captured = values["tables"]
    if (mask := values["block_mask"]) is not None:
        names, captured = (*names, *BLOCK_MASK_NAMES), (*captured, *mask.arrays())
    _check("q", len(captured), names, captured)
    if not nobody_derives():
        raise NotImplementedError(
            "score_mod: must not be given under torch.func's transforms, nor must mask_mod and block_mask"
        )
    fresh = out is None
    if fresh:
        out = q.new_empty(out_shape(q, v_cache, values))
    lse = _new_lse(q) if return_lse else None
    options = _options(arrays, borrow_captured(values, _borrow))
    _run(q, (k_cache, v_cache, k, v), out, lse, options, implementation, fresh)
    return (out, lse) if return_lse else out


# A compiler that looks on leaves such a call to itself: what is traced would be its stand-ins for tensors.
_attend_with_functions: Any = torch.compiler.disable(_with_functions)


def append(
    k_cache: Any,
    v_cache: Any,
    k: Tensor,
    v: Any,
    arrays: tuple[Any, ...],
    values: dict[str, Any],
    implementation: Optional[str],
) -> None:
    """See tilewise.append_kv."""
    given = (k_cache, k, v_cache, v, *arrays)
    _check("k", 2, _APPEND_NAMES, given)
    operands = (*[arrays[place] for place in _OTHERS], *_numbers(values, _APPEND_SCALARS), implementation)
    try:
        _append(k_cache, v_cache, arrays[_K_SCALE], arrays[_V_SCALE], k, v, *operands)
    except RuntimeError as error:
        raise_known(error, **dict(zip(_APPEND_NAMES, given)))
        raise
