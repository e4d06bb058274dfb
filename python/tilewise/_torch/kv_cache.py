# tilewise::kv_cache_attention, kv_cache_attention_out and append_kv, the torch operators behind the KV cache step.
# Both caches and the scales are declared as mutated: scales per token are, where keys are appended.
"""The KV cache step for torch tensors."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _core
from tilewise._kv_cache import ARRAYS, lse_shape, out_shape
from tilewise._torch.errors import raise_known
from tilewise._torch.operators import LIBRARY
from tilewise._torch.python_kernels import stream_of
from tilewise._torch.refusals import refuse_tangents

_NO_BACKWARD = "must not require gradients, since the KV cache step has no backward pass; pass it detached"
_ATTEND_SCALARS = (
    ("rotary_interleaved", "bool", False),
    ("rotary_offset", "int", 0),
    ("cache_seqlen", "SymInt?", None),
    ("max_seqlen_q", "SymInt?", None),
    ("max_seqlen_k_new", "SymInt?", None),
    ("head_dim_v", "int?", None),
    ("k_scale_value", "float?", None),
    ("v_scale_value", "float?", None),
    ("causal", "bool", False),
    ("window_left", "int", -1),
    ("window_right", "int", -1),
    ("softmax_scale", "float?", None),
    ("softcap", "float", 0.0),
    ("num_splits", "int", 0),
    ("batch_invariant", "bool", False),
)
_APPEND_SCALARS = tuple(scalar for scalar in _ATTEND_SCALARS if scalar[0] in (
    "rotary_interleaved", "rotary_offset", "cache_seqlen", "max_seqlen_k_new", "k_scale_value", "v_scale_value",
))  # fmt: skip


def _borrow(name: str, tensor: Optional[Tensor], writable: bool = False) -> Any:
    if tensor is None:
        return None
    if tensor.dtype == torch.float8_e4m3fn:  # older DLPack has no name for it
        return _core.Array(tensor.detach().view(torch.uint8), name, "fp8_e4m3", writable)
    return _core.Array(tensor.detach(), name, "", writable)


def _options(arrays: tuple[Optional[Tensor], ...], scalars: dict[str, Any]) -> _core.KvCacheOptions:
    views = {name: _borrow(name, tensor) for name, tensor in zip(ARRAYS, arrays) if tensor is not None}
    return _core.KvCacheOptions(**views, **scalars)


def _arrays_of(others: tuple[Any, ...], k_scale: Any, v_scale: Any) -> tuple[Any, ...]:
    """ARRAYS of what an operator got: scales stand by themselves there, for they are mutated."""
    values = iter(others)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    return tuple(scales[name] if name in scales else next(values) for name in ARRAYS)


def _run(q: Tensor, tensors: tuple[Any, ...], out: Tensor, lse: Optional[Tensor], rest: tuple[Any, ...],
         fresh: bool) -> None:  # fmt: skip
    k_cache, v_cache, k_scale, v_scale, k, v = tensors
    count = len(ARRAYS) - 2
    scalars = dict(zip((name for name, _, _ in _ATTEND_SCALARS), rest[count:-1]))
    _core.kv_cache_attention(
        _borrow("q", q),
        _borrow("k_cache", k_cache),
        _borrow("v_cache", v_cache),
        _borrow("k", k),
        _borrow("v", v),
        _borrow("out", out, writable=True),
        _borrow("softmax_lse", lse, writable=True),
        _options(_arrays_of(rest[:count], k_scale, v_scale), scalars),
        rest[-1] or "",
        torch.get_num_threads(),
        fresh,
        stream_of(q),
    )


def _new_out(q: Tensor, v_cache: Optional[Tensor], rest: tuple[Any, ...]) -> Tensor:
    head_dim_v = rest[len(ARRAYS) - 2 + [name for name, _, _ in _ATTEND_SCALARS].index("head_dim_v")]
    return q.new_empty(out_shape(q, v_cache, {} if head_dim_v is None else {"head_dim_v": head_dim_v}))


def _new_lse(q: Tensor) -> Tensor:
    return q.new_empty(lse_shape(q), dtype=torch.float32)


def _kernel(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any,
            *rest: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = _new_out(q, v_cache, rest), _new_lse(q)
    _run(q, (k_cache, v_cache, k_scale, v_scale, k, v), out, lse, rest, fresh=True)
    return out, lse


def _kernel_out(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any, out: Tensor,
                *rest: Any) -> Tensor:  # fmt: skip
    lse = _new_lse(q)
    _run(q, (k_cache, v_cache, k_scale, v_scale, k, v), out, lse, rest, fresh=False)
    return lse


def _kernel_append(k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Tensor, v: Any, *rest: Any) -> None:
    count = len(ARRAYS) - 2
    scalars = dict(zip((name for name, _, _ in _APPEND_SCALARS), rest[count:-1]))
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


def _fake(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any,
          *rest: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
    given = {"k_cache": k_cache, "v_cache": v_cache, "k_scale": k_scale, "v_scale": v_scale, "k": k, "v": v}
    _check_devices("q", q.device, (*given.items(), *_names(rest)))
    return _new_out(q, v_cache, rest), _new_lse(q)


def _fake_out(q: Tensor, k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Any, v: Any, out: Tensor,
              *rest: Any) -> Tensor:  # fmt: skip
    given = {"k_cache": k_cache, "v_cache": v_cache, "k_scale": k_scale, "v_scale": v_scale, "k": k, "v": v, "out": out}
    _check_devices("q", q.device, (*given.items(), *_names(rest)))
    return _new_lse(q)


def _fake_append(k_cache: Tensor, v_cache: Any, k_scale: Any, v_scale: Any, k: Tensor, v: Any, *rest: Any) -> None:
    given = {"k_cache": k_cache, "v_cache": v_cache, "k_scale": k_scale, "v_scale": v_scale, "v": v}
    _check_devices("k", k.device, (*given.items(), *_names(rest)))


_CACHES = "Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor(c!)? k_scale, Tensor(d!)? v_scale"
_OTHERS = ", ".join(f"Tensor? {name}" for name in ARRAYS if not name.endswith("_scale"))


def _tail(scalars: Any) -> str:
    return f"{_OTHERS}, {', '.join(f'{kind} {name}' for name, kind, _ in scalars)}, str? implementation"


for _name, _schema, _implementation, _shapes in (
    (
        "kv_cache_attention",
        f"(Tensor q, {_CACHES}, Tensor? k, Tensor? v, {_tail(_ATTEND_SCALARS)}) -> (Tensor, Tensor)",
        _kernel,
        _fake,
    ),
    (
        "kv_cache_attention_out",
        f"(Tensor q, {_CACHES}, Tensor? k, Tensor? v, Tensor(e!) out, {_tail(_ATTEND_SCALARS)}) -> Tensor",
        _kernel_out,
        _fake_out,
    ),
    ("append_kv", f"({_CACHES}, Tensor k, Tensor? v, {_tail(_APPEND_SCALARS)}) -> ()", _kernel_append, _fake_append),
):
    LIBRARY.define(_name + _schema)
    for _key in ("CPU", "CUDA"):  # ROCm's builds of torch call their GPU CUDA too
        LIBRARY.impl(_name, _implementation, _key)
    torch.library.register_fake(f"tilewise::{_name}", _shapes, lib=LIBRARY)
_attend: Any = torch.ops.tilewise.kv_cache_attention.default
_attend_out: Any = torch.ops.tilewise.kv_cache_attention_out.default
_append: Any = torch.ops.tilewise.append_kv.default


def _check(like: str, required: tuple[tuple[str, Any], ...], optional: tuple[tuple[str, Any], ...]) -> None:
    for name, value in (*required, *((n, t) for n, t in optional if t is not None)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: must be a torch tensor like {like} (got {type(value).__name__})")
        if value.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(f"{name}: {_NO_BACKWARD}")
    refuse_tangents((*required, *optional))


def _operands(arrays: tuple[Any, ...], values: dict[str, Any], scalars: Any) -> tuple[Any, ...]:
    """What follows an operator's own tensors, in the order of its schema."""
    others = (array for name, array in zip(ARRAYS, arrays) if not name.endswith("_scale"))
    return (*others, *(values.get(name, default) for name, _, default in scalars))


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
    others = (("v_cache", v_cache), ("k", k), ("v", v), ("out", out), *zip(ARRAYS, arrays))
    _check("q", (("q", q), ("k_cache", k_cache)), others)
    k_scale, v_scale = (arrays[ARRAYS.index(name)] for name in ("k_scale", "v_scale"))
    tensors = (q, k_cache, v_cache, k_scale, v_scale, k, v)
    operands = (*_operands(arrays, values, _ATTEND_SCALARS), implementation)
    try:
        if out is None:
            out, lse = _attend(*tensors, *operands)
        else:
            lse = _attend_out(*tensors, out, *operands)
    except RuntimeError as error:
        raise_known(error, q=q, k_cache=k_cache, **dict(others))
        raise
    return (out, lse) if return_lse else out


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
    others = (("v_cache", v_cache), ("v", v), *zip(ARRAYS, arrays))
    _check("k", (("k_cache", k_cache), ("k", k)), others)
    k_scale, v_scale = (arrays[ARRAYS.index(name)] for name in ("k_scale", "v_scale"))
    try:
        _append(k_cache, v_cache, k_scale, v_scale, k, v, *_operands(arrays, values, _APPEND_SCALARS), implementation)
    except RuntimeError as error:
        raise_known(error, k_cache=k_cache, k=k, **dict(others))
        raise
