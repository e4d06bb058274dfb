# Gradients: an autograd.Function for eager mode, where it costs a third of what registered
# autograd does, register_autograd for traced paths, and functions for torch.func's transforms.
"""Autograd of the torch operators."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _core
from tilewise._options import ARRAYS, FORMS, HEAD, TAIL, Options, form_parts, short_options
from tilewise._torch import batching, formula, operators, private
from tilewise._torch.operators import LIBRARY
from tilewise._torch.private import forward_ad
from tilewise._torch.refusals import has_tangents, refuse_gradient, refuse_tangents

_OTHER_DEFAULTS: tuple[Any, ...] = tuple(Options())[HEAD.stop :]
_BIAS = Options._fields.index("bias")  # sink is next

# Skips the operators' registered autograd, as an autograd.Function has already taken its place.
below_autograd = private.AutoDispatchBelowAutograd


def eager_forward(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...], with_lse: bool = True) -> Any:
    """(out, softmax_lse), or out, without a graph."""
    short = short_options(options) if len(options) > HEAD.stop else None
    if short is not None:
        return (operators.eager_short_lse if with_lse else operators.eager_short)(q, k, v, *short)
    with below_autograd():
        result = operators.eager_forward(q, k, v, *options)
    return result if with_lse else result[0]


def eager_forward_out(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, options: tuple[Any, ...], traced: bool = False
) -> Any:
    """softmax_lse; `out` is written. The caller has refused what requires gradients."""
    if traced:
        return operators.forward_out(q, k, v, out, *options)
    with below_autograd():
        return operators.forward_out(q, k, v, out, *options)


def dense_rows(dout: Optional[Tensor], out: Tensor) -> Tensor:
    """The gradient of `out` as the kernels read it; None stands for zeros."""
    if dout is None:
        return torch.zeros_like(out)
    return dout if dout.stride(-1) == 1 else dout.contiguous()  # such as the expanded gradient of a sum


def gradients(
    dout: Optional[Tensor],
    dlse: Optional[Tensor],
    saved: tuple[Tensor, ...],
    options: tuple[Any, ...],
    needed: tuple[bool, ...],
    operator: Any = operators.backward,
) -> tuple[Optional[Tensor], ...]:
    """(dq, dk, dv, dbias, dsink), None where not needed. `saved`: q, k, v, out, softmax_lse."""
    dout = dense_rows(dout, saved[3])
    if torch.are_deterministic_algorithms_enabled():
        options = Options(*options)._replace(deterministic=True)
    results = operator(dout, dlse, *saved, *needed, *options)
    return tuple(result if wanted else None for result, wanted in zip(results, needed))


def _gradients_with_tangents(
    dout: Tensor, dlse: Optional[Tensor], saved: tuple[Tensor, ...], options: Options, needed: tuple[bool, ...]
) -> tuple[Optional[Tensor], ...]:
    """gradients() of a dout or dlse that is a dual tensor."""
    inputs = formula.Inputs(saved[0], saved[1], saved[2], options.bias, options.sink)
    formula.say("forward AD of the gradients", inputs.q, inputs.k, options)
    wanted = tuple(place for place, each in enumerate(needed) if each)
    found = dict(zip(wanted, formula.gradients(dout, dlse, inputs, options, wanted)))
    return tuple(found.get(place) for place in range(len(needed)))


class AttentionFunction(torch.autograd.Function):
    """attention_forward with gradients for q, k, v, bias and sink.

    `options` are those of the operator, bias and sink among them. Returns out, or (out, softmax_lse) where asked for.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Optional[Tensor],
        sink: Optional[Tensor],
        options: tuple[Any, ...],
        return_lse: bool,
    ) -> Any:
        out, softmax_lse = eager_forward(q, k, v, options)
        ctx.save_for_backward(q, k, v, out, softmax_lse, *options[ARRAYS])
        ctx.scalars = options[HEAD], options[TAIL]
        ctx.set_materialize_grads(False)
        return (out, softmax_lse) if return_lse else out

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor] = None) -> Any:
        head, tail = ctx.scalars
        tensors = ctx.saved_tensors
        options = (*head, *tensors[5:], *tail)
        return (*eager_gradients(dout, dlse, tensors[:5], options, ctx.needs_input_grad[:5]), None, None)


class PlainAttention(torch.autograd.Function):
    """AttentionFunction where the options are a HEAD: it hands torch less, which costs a call a microsecond less."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, form: int, softmax_scale: Optional[float], return_lse: bool
    ) -> Any:
        out, softmax_lse = operators.eager_plain_lse(q, k, v, form, softmax_scale)
        ctx.save_for_backward(q, k, v, out, softmax_lse)
        ctx.scalars = form, softmax_scale
        if not return_lse:
            return out
        ctx.set_materialize_grads(False)
        return out, softmax_lse

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor] = None) -> Any:
        return (*_plain_gradients(ctx, dout, dlse, *ctx.scalars), None, None, None)


def _usual_attention(form: int) -> Any:
    """apply() of PlainAttention for one form, at the default scale and without the log-sum-exp for the caller: a class
    of its own, since three arguments less and no attribute are half a microsecond of a call's six."""

    class UsualAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor
            out, softmax_lse = operators.eager_plain_lse(q, k, v, form)
            ctx.save_for_backward(q, k, v, out, softmax_lse)
            return out

        @staticmethod
        def backward(ctx: Any, dout: Tensor) -> Any:
            return _plain_gradients(ctx, dout, None, form, None)

    return private.unguarded_apply(UsualAttention)


def _plain_gradients(
    ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], form: int, softmax_scale: Optional[float]
) -> tuple[Optional[Tensor], ...]:
    """(dq, dk, dv) of a call whose options are a HEAD."""
    need_dq, need_dk, need_dv, *_ = ctx.needs_input_grad
    if torch.is_grad_enabled() or torch.are_deterministic_algorithms_enabled() or forward_ad._current_level >= 0:
        causal, layout = form_parts(form)
        options = (causal, softmax_scale, layout, *_OTHER_DEFAULTS)
        needed = (need_dq, need_dk, need_dv, False, False)
        return eager_gradients(dout, dlse, ctx.saved_tensors, options, needed)[:3]
    q, k, v, out, softmax_lse = ctx.saved_tensors
    try:
        dq, dk, dv = operators.plain_backward(
            dense_rows(dout, out), dlse, q, k, v, out, softmax_lse,
            need_dq + 2 * need_dk + 4 * need_dv, form, softmax_scale,
        )  # fmt: skip
    except RuntimeError as error:
        _core.rethrow_torch_error(str(error))
        raise
    return dq if need_dq else None, dk if need_dk else None, dv if need_dv else None


def eager_gradients(
    dout: Optional[Tensor],
    dlse: Optional[Tensor],
    saved: tuple[Tensor, ...],
    options: tuple[Any, ...],
    needed: tuple[bool, ...],
) -> tuple[Optional[Tensor], ...]:
    """gradients() from an autograd.Function's backward pass, with errors of their right types."""
    if has_tangents((dout, dlse)):  # asked here, since below autograd none is seen
        return _gradients_with_tangents(dense_rows(dout, saved[3]), dlse, saved, Options(*options), needed)
    try:
        if torch.is_grad_enabled():  # create_graph: the operator's own autograd has the second pass
            return gradients(dout, dlse, saved, options, needed)
        with below_autograd():
            return gradients(dout, dlse, saved, options, needed)
    except RuntimeError as error:
        _core.rethrow_torch_error(str(error))
        raise


apply = private.unguarded_apply(AttentionFunction)
apply_plain = private.unguarded_apply(PlainAttention)
apply_usual = tuple(_usual_attention(form) for form in range(max(FORMS.values()) + 1))


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *options = inputs
    ctx.save_for_backward(q, k, v, *output, *options[ARRAYS])
    ctx.scalars = options[HEAD], options[TAIL]
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor], operator: Any = operators.backward
) -> tuple[Optional[Tensor], ...]:
    head, tail = ctx.scalars
    tensors = ctx.saved_tensors
    # Arguments that equal their defaults may be missing from the call that torch recorded.
    needs = (*ctx.needs_input_grad, *[False] * len(Options._fields))
    needed = (*needs[:3], *needs[3 + _BIAS : 5 + _BIAS])
    refuse_tangents((("dout", dout), ("dlse", dlse)))
    dq, dk, dv, dbias, dsink = gradients(dout, dlse, tensors[:5], (*head, *tensors[5:], *tail), needed, operator)
    return (dq, dk, dv, *[None] * _BIAS, dbias, dsink, *[None] * (len(Options._fields) - _BIAS - 2))


_TENSORS = 7  # of attention_backward, before what is needed: dout, dlse, q, k, v, out, softmax_lse
_NEEDED = 5


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dout, dlse, q, k, v, _, _, *rest = inputs
    options: tuple[Any, ...] = Options(*rest[_NEEDED:])
    ctx.save_for_backward(dout, dlse, q, k, v, *options[ARRAYS])
    ctx.scalars = options[HEAD], options[TAIL]
    ctx.count = len(inputs)
    ctx.set_materialize_grads(False)


def _second_backward(ctx: Any, *given: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    """Gradients of attention_backward. What its out and softmax_lse add goes by q, k, v, bias and sink, which they are
    made of."""
    head, tail = ctx.scalars
    dout, dlse, q, k, v, *arrays = ctx.saved_tensors
    options = Options(*head, *arrays, *tail)
    inputs = formula.Inputs(q, k, v, options.bias, options.sink)
    ddout, ddlse, dq, dk, dv, dbias, dsink = formula.second_gradients(given, dout, dlse, inputs, options)
    before = (ddout, ddlse, dq, dk, dv, None, None, *[None] * (_NEEDED + _BIAS))
    results = (*before, dbias, dsink, *[None] * (len(Options._fields) - _BIAS - 2))
    return results[: ctx.count]


class TransformedAttention(torch.autograd.Function):
    """attention_forward under torch.func's transforms, which refuse registered autograd."""

    forward = staticmethod(operators.forward)
    setup_context = staticmethod(_setup_forward)

    @staticmethod
    def backward(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> Any:
        return _backward(ctx, dout, dlse, TransformedGradients.apply)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Optional[int], ...], *args: Any) -> Any:
        return batching.forward(TransformedAttention.apply, info, in_dims, *args)


class TransformedGradients(torch.autograd.Function):
    """attention_backward under torch.func's transforms."""

    forward = staticmethod(operators.backward)
    setup_context = staticmethod(_setup_second)
    backward = staticmethod(_second_backward)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Optional[int], ...], *args: Any) -> Any:
        return batching.backward(TransformedGradients.apply, info, in_dims, *args)


class _RefusingTangents:
    """Stands in for LIBRARY where torch registers the autograd that it makes of backward functions: that one drops
    the tangents of dual tensors unless a gradient is wanted too."""

    @staticmethod
    def impl(name: str, kernel: Any, key: str, *, with_keyset: bool) -> None:
        def refusing(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            refuse_tangents(_named_tensors(name, args, kwargs))
            return kernel(keyset, *args, **kwargs)

        LIBRARY.impl(name, refusing, key, with_keyset=with_keyset)


def _named_tensors(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(argument, tensor) of an operator's call, the elements of lists with their index."""
    schema = getattr(torch.ops.tilewise, name).default._schema
    for argument, value in (*zip((argument.name for argument in schema.arguments), args), *kwargs.items()):
        if isinstance(value, (list, tuple)):
            yield from ((f"{argument}[{i}]", element) for i, element in enumerate(value))
        else:
            yield argument, value


def refuse_autograd(name: str, reason: str = "") -> None:
    """Makes the operator raise, for this reason, for tensors that require gradients and for dual ones."""
    operator = getattr(torch.ops.tilewise, name).default

    def refusing(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        for argument, value in _named_tensors(name, args, kwargs):
            if isinstance(value, Tensor):
                refuse_gradient(argument, value, reason)
                refuse_tangents([(argument, value)])
        with below_autograd():
            return operator.redispatch(keyset & private.after_autograd_keyset, *args, **kwargs)

    LIBRARY.impl(name, refusing, "Autograd", with_keyset=True)


def register(name: str, backward: Any, setup_context: Any = None) -> None:
    """Registers an operator's backward function."""
    library: Any = _RefusingTangents
    torch.library.register_autograd(f"tilewise::{name}", backward, setup_context=setup_context, lib=library)


register("attention_forward", _backward, _setup_forward)
register("attention_backward", _second_backward, _setup_second)
refuse_autograd("attention_forward_out")
refuse_autograd("attention_backward_out")
