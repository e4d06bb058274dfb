# The operators of torch.library that flash_attn registers, flash_attn::_flash_attn_forward and its three siblings, with
# fake kernels and autograd. Where a flash_attn of its own has registered them they are left alone, and the functions
# here are the raw passes themselves.
"""torch.ops.flash_attn."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from tilewise._torch import autograd
from tilewise.compat.flash_attn import _others, _raw
from tilewise.compat.flash_attn._call import Packed, dense_rows
from tilewise.compat.flash_attn._probabilities import in_bytes

_NAMESPACE = "flash_attn"
_SCORES = (
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left{no_window}, "
    "SymInt window_size_right{no_window}, float softcap{no_cap}, Tensor? alibi_slopes{none}"
)
_REQUIRED = _SCORES.format(no_window="", no_cap="", none="")
_OPTIONAL = _SCORES.format(no_window="=-1", no_cap="=0.0", none="=None")
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_BACKWARD = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq, Tensor(b!)? dk, "
    "Tensor(c!)? dv"
)
_ALL_OF_FORWARD = "(Tensor, Tensor, Tensor, Tensor)"


def _forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
             window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor],
             return_softmax: bool) -> tuple[Tensor, ...]:  # fmt: skip
    q, k, v = _rows(q, k, v)
    found = _raw.fwd(
        q, k, v, None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
        softcap, return_softmax,
    )  # fmt: skip
    return tuple(found)


def _varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
                    max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
                    window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
                    alibi_slopes: Optional[Tensor] = None, return_softmax: bool = False,
                    block_table: Optional[Tensor] = None, leftpad_k: Optional[Tensor] = None,
                    seqused_k: Optional[Tensor] = None, zero_tensors: bool = False,
                    num_splits: int = 0) -> tuple[Tensor, ...]:  # fmt: skip
    q, k, v = _rows(q, k, v)
    found = _raw.varlen_fwd(
        q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes,
        max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left,
        window_size_right, softcap, return_softmax, None, num_splits,
    )  # fmt: skip
    return tuple(found)


def _backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor],
              dk: Optional[Tensor], dv: Optional[Tensor], dropout_p: float, softmax_scale: float, causal: bool,
              window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor],
              deterministic: bool, rng_state: Optional[Tensor] = None) -> Tensor:  # fmt: skip
    dout, q, k, v, out = _rows(dout, q, k, v, out)
    return _raw.bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, deterministic, None, rng_state,
    )[3]  # fmt: skip


def _varlen_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                     dq: Optional[Tensor], dk: Optional[Tensor], dv: Optional[Tensor], cu_seqlens_q: Tensor,
                     cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
                     softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
                     softcap: float, alibi_slopes: Optional[Tensor], deterministic: bool,
                     rng_state: Optional[Tensor] = None, zero_tensors: bool = False) -> Tensor:  # fmt: skip
    dout, q, k, v, out = _rows(dout, q, k, v, out)
    return _raw.varlen_bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q,
        max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right, softcap,
        deterministic, None, rng_state,
    )[3]  # fmt: skip


def _rows(*tensors: Tensor) -> Any:
    """The tensors with contiguous last dimensions."""
    return map(dense_rows, tensors)


def _rounded(length: Any) -> Any:
    return (length + 127) // 128 * 128


def _fake_probabilities(q: Tensor, batch_size: int, num_heads: int, lengths: tuple[Any, Any], packed: bool) -> Tensor:
    if not in_bytes():
        return q.new_empty(batch_size, num_heads, *map(_rounded, lengths))
    shape = (num_heads, q.shape[0], lengths[1]) if packed else (batch_size, num_heads, *lengths)
    return q.new_empty(shape, dtype=torch.uint8)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
                  window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor],
                  return_softmax: bool) -> tuple[Tensor, ...]:  # fmt: skip
    batch_size, seqlen_q, num_heads, _ = q.shape
    lse = q.new_empty((batch_size, num_heads, seqlen_q), dtype=torch.float32)
    lengths = (seqlen_q, k.shape[1])
    weights = _fake_probabilities(q, batch_size, num_heads, lengths, False) if return_softmax else q.new_empty(0)
    return q.new_empty(q.shape), lse, weights, q.new_empty(2, dtype=torch.int64)


def _fake_varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                         max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
                         window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
                         alibi_slopes: Optional[Tensor] = None, return_softmax: bool = False,
                         *others: Any, **more: Any) -> tuple[Tensor, ...]:  # fmt: skip
    total_q, num_heads, _ = q.shape
    lse = q.new_empty((num_heads, total_q), dtype=torch.float32)
    lengths = (max_seqlen_q, max_seqlen_k)
    batch_size = cu_seqlens_q.numel() - 1
    weights = _fake_probabilities(q, batch_size, num_heads, lengths, True) if return_softmax else q.new_empty(0)
    return q.new_empty(q.shape), lse, weights, q.new_empty(2, dtype=torch.int64)


def _fake_backward(dout: Tensor, q: Tensor, *others: Any, **more: Any) -> Tensor:
    batch_size, seqlen_q, num_heads, _ = q.shape
    return q.new_empty((batch_size, num_heads, _rounded(seqlen_q)), dtype=torch.float32)


def _fake_varlen_backward(dout: Tensor, q: Tensor, *others: Any, **more: Any) -> Tensor:
    cu_seqlens_q = more["cu_seqlens_q"] if "cu_seqlens_q" in more else others[7]
    rows = q.shape[0] + 128 * (cu_seqlens_q.numel() - 1)
    return q.new_empty((q.shape[1], rows), dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...], tensors: int, alibi: int) -> None:
    """Keeps what a backward pass needs: q, k, v (and cu_seqlens) first, the slopes, and the outputs."""
    out, lse, _, rng_state = output
    ctx.save_for_backward(*inputs[:tensors], inputs[alibi], out, lse, rng_state)
    ctx.scalars = inputs[tensors:alibi]
    ctx.given = len(inputs)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Any, dlse: Any, saved: tuple[Tensor, ...], options: tuple[Any, ...]) -> Any:
    """The gradient of softmax_lse counts here, which flash_attn's own operator would drop."""
    found = autograd.gradients(dout, dlse, saved, options, (*ctx.needs_input_grad[:3], False, False))
    return (*found[:3], *[None] * (ctx.given - 3))


def _keep_dense(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _keep(ctx, inputs, output, 3, 9)


def _dense_gradients(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], *unused: Any) -> Any:
    q, k, v, alibi_slopes, out, lse, rng_state = ctx.saved_tensors
    options, lse = _raw.dense_backward(q, k, lse, alibi_slopes, ctx.scalars, False, rng_state)
    return _gradients(ctx, dout, dlse, (*_rows(q, k, v), out, lse), options)


def _keep_packed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _keep(ctx, inputs, output, 5, 13)
    given = zip(("block_table", "leftpad_k", "seqused_k"), inputs[15:18])
    ctx.unsupported = [name for name, value in given if value is not None]


def _packed_gradients(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], *unused: Any) -> Any:
    if ctx.unsupported:
        raise NotImplementedError(f"_flash_attn_varlen_forward: there is no backward pass with {ctx.unsupported[0]}")
    q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, out, lse, rng_state = ctx.saved_tensors
    max_seqlen_q, max_seqlen_k, *scores = ctx.scalars
    sequences = Packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options, lse = _raw.packed_backward(q, sequences, lse, alibi_slopes, tuple(scores), False, rng_state)
    return _gradients(ctx, dout, dlse, (*_rows(q, k, v), out, lse), options)


# name: (arguments, what is returned, kernel, fake kernel, how it keeps for a backward pass, the backward pass)
_OPERATORS: dict[str, tuple[str, str, Callable[..., Any], Callable[..., Any], Any, Any]] = {
    "_flash_attn_forward": (
        f"Tensor q, Tensor k, Tensor v, {_REQUIRED}, bool return_softmax", _ALL_OF_FORWARD,
        _forward, _fake_forward, _keep_dense, _dense_gradients,
    ),
    "_flash_attn_varlen_forward": (
        f"Tensor q, Tensor k, Tensor v, {_LENGTHS}, {_OPTIONAL}, bool return_softmax=False, Tensor? block_table=None, "
        "Tensor? leftpad_k=None, Tensor? seqused_k=None, bool zero_tensors=False, SymInt num_splits=0", _ALL_OF_FORWARD,
        _varlen_forward, _fake_varlen_forward, _keep_packed, _packed_gradients,
    ),
    "_flash_attn_backward": (
        f"{_BACKWARD}, {_REQUIRED}, bool deterministic, Tensor? rng_state=None", "Tensor",
        _backward, _fake_backward, None, None,
    ),
    "_flash_attn_varlen_backward": (
        f"{_BACKWARD}, {_LENGTHS}, {_REQUIRED}, bool deterministic, Tensor? rng_state=None, bool zero_tensors=False",
        "Tensor", _varlen_backward, _fake_varlen_backward, None, None,
    ),
}  # fmt: skip

_LIBRARY: Optional[torch.library.Library] = None  # lives as long as its registrations


def _foreign() -> bool:
    """Whether another flash_attn has registered these operators, or would when it is imported."""
    return any(hasattr(torch.ops.flash_attn, name) for name in _OPERATORS) or _others.other("flash_attn") is not None


def register(force: bool = False) -> bool:
    """Registers the operators unless another flash_attn has, or might unless `force`; says whether they are these."""
    global _LIBRARY
    if _LIBRARY is not None:
        return True
    taken = any(hasattr(torch.ops.flash_attn, name) for name in _OPERATORS)
    if taken or (_foreign() and not force):
        return False
    _LIBRARY = torch.library.Library(_NAMESPACE, "FRAGMENT")
    for name, (arguments, returns, kernel, fake, keep, gradients) in _OPERATORS.items():
        _LIBRARY.define(f"{name}({arguments}) -> {returns}")
        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, kernel, key)
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_LIBRARY)
        if gradients is not None:
            torch.library.register_autograd(f"{_NAMESPACE}::{name}", gradients, setup_context=keep, lib=_LIBRARY)
    return True


if register():
    _flash_attn_forward: Any = torch.ops.flash_attn._flash_attn_forward
    _flash_attn_varlen_forward: Any = torch.ops.flash_attn._flash_attn_varlen_forward
    _flash_attn_backward: Any = torch.ops.flash_attn._flash_attn_backward
    _flash_attn_varlen_backward: Any = torch.ops.flash_attn._flash_attn_varlen_backward
else:
    _flash_attn_forward, _flash_attn_varlen_forward = _forward, _varlen_forward
    _flash_attn_backward, _flash_attn_varlen_backward = _backward, _varlen_backward
