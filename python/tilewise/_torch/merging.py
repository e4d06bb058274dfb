# tilewise::merge, merge_out and merge_backward, the torch operators behind merge(). They run once per set of partial
# results, so Python is fast enough for them. Where parts are stacked, each list holds one tensor [parts, ...].
"""merge() for torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _core, _log
from tilewise._torch import autograd, merge_formula
from tilewise._torch.errors import raise_known
from tilewise._torch.operators import LIBRARY
from tilewise._torch.private import are_transforms_active as transforming
from tilewise._torch.python_kernels import borrow, stream_of
from tilewise._torch.refusals import has_tangents, refuse_tangents

Tensors = list[Tensor]
Maybe = Optional[Tensor]
Name = Optional[str]


def _is_stacked(outs: Sequence[Tensor], layout: str) -> bool:
    return len(outs) == 1 and outs[0].dim() == (4 if layout == "thd" else 5)


def _borrow_all(role: str, tensors: Sequence[Tensor], stacked: bool, writable: bool = False) -> list[_core.Array]:
    return [borrow(role if stacked else f"{role}[{i}]", tensor, writable=writable) for i, tensor in enumerate(tensors)]


def _new_lse(outs: Sequence[Tensor], lses: Sequence[Tensor], layout: str, out_dtype: torch.dtype) -> Tensor:
    statistics = torch.float64 if out_dtype == torch.float64 else torch.float32
    return outs[0].new_empty(lses[0].shape[int(_is_stacked(outs, layout)) :], dtype=statistics)


def _new_results(outs: Sequence[Tensor], lses: Sequence[Tensor], layout: str) -> tuple[Tensor, Tensor]:
    out = outs[0].new_empty(outs[0].shape[int(_is_stacked(outs, layout)) :])
    return out, _new_lse(outs, lses, layout, out.dtype)


def _no_kernel(outs: Sequence[Tensor], implementation: Optional[str]) -> bool:
    """Whether the formula serves a call that all implementations refuse."""
    return outs[0].is_cuda and implementation is None


def _stack(tensors: Sequence[Tensor], stacked: bool, dtype: Optional[torch.dtype] = None) -> Tensor:
    return tensors[0] if stacked else torch.stack([tensor.to(dtype or tensor.dtype) for tensor in tensors])


def _run(
    outs: Tensors, lses: Tensors, sink: Maybe, out: Tensor, lse: Tensor, layout: str, implementation: Name
) -> None:
    stacked = _is_stacked(outs, layout)
    try:
        _core.merge(
            _borrow_all("outs", outs, stacked),
            _borrow_all("lses", lses, stacked),
            None if sink is None else borrow("sink", sink),
            borrow("out", out, writable=True),
            borrow("softmax_lse", lse, writable=True),
            layout,
            implementation or "",
            torch.get_num_threads(),
            stream_of(out),
        )
    except NotImplementedError:
        if not _no_kernel(outs, implementation):
            raise
        results = merge_formula.forward(
            _stack(outs, stacked, lse.dtype), _stack(lses, stacked), sink, out.dtype, layout
        )
        for target, result in zip((out, lse), results):
            target.copy_(result)


def _kernel(
    outs: Tensors, lses: Tensors, sink: Maybe, layout: str = "bshd", implementation: Name = None
) -> tuple[Tensor, Tensor]:
    out, lse = _new_results(outs, lses, layout)
    _run(outs, lses, sink, out, lse, layout, implementation)
    return out, lse


def _kernel_out(
    outs: Tensors, lses: Tensors, sink: Maybe, out: Tensor, layout: str = "bshd", implementation: Name = None
) -> Tensor:
    lse = _new_lse(outs, lses, layout, out.dtype)
    _run(outs, lses, sink, out, lse, layout, implementation)
    return lse


def _kernel_backward(
    dout: Tensor,
    dlse: Maybe,
    outs: Tensors,
    lses: Tensors,
    sink: Maybe,
    need_douts: bool,
    need_dlses: bool,
    need_dsink: bool,
    layout: str = "bshd",
    implementation: Name = None,
) -> tuple[Tensors, Tensors, Tensor]:
    douts, dlses, dsink = _fake_backward(dout, dlse, outs, lses, sink, need_douts, need_dlses, need_dsink)
    stacked = _is_stacked(outs, layout)
    try:
        _core.merge_backward(
            borrow("dout", dout),
            None if dlse is None else borrow("dlse", dlse),
            _borrow_all("outs", outs, stacked),
            _borrow_all("lses", lses, stacked),
            None if sink is None else borrow("sink", sink),
            _borrow_all("douts", douts, stacked, writable=True),
            _borrow_all("dlses", dlses, stacked, writable=True),
            borrow("dsink", dsink, writable=True) if need_dsink else None,
            layout,
            implementation or "",
            torch.get_num_threads(),
            stream_of(dout),
        )
    except NotImplementedError:
        if not _no_kernel(outs, implementation):
            raise
        statistics = lses[0].dtype
        results = merge_formula.backward(
            dout, dlse, _stack(outs, stacked, statistics), _stack(lses, stacked), sink, layout
        )
        for targets, result in ((douts, results[0]), (dlses, results[1])):
            for target, part in zip(targets, [result] if stacked else result):
                target.copy_(part)
        if need_dsink and results[2] is not None:
            dsink.copy_(results[2])
    return douts, dlses, dsink


def _check_devices(
    first: str, device: torch.device, outs: Sequence[Tensor], lses: Sequence[Tensor], **others: Maybe
) -> None:
    for i, (out, lse) in enumerate(zip(outs, lses)):
        for name, tensor in ((f"outs[{i}]", out), (f"lses[{i}]", lse), *others.items()):
            if tensor is not None and tensor.device != device:
                raise TypeError(f"{name}: must be on {device}, where {first} is (got {tensor.device})")


def _fake(
    outs: Tensors, lses: Tensors, sink: Maybe, layout: str = "bshd", implementation: Name = None
) -> tuple[Tensor, Tensor]:
    _check_devices("outs[0]", outs[0].device, outs, lses, sink=sink)
    return _new_results(outs, lses, layout)


def _fake_out(
    outs: Tensors, lses: Tensors, sink: Maybe, out: Tensor, layout: str = "bshd", implementation: Name = None
) -> Tensor:
    _check_devices("out", out.device, outs, lses, sink=sink)
    return _new_lse(outs, lses, layout, out.dtype)


def _fake_backward(
    dout: Tensor,
    dlse: Maybe,
    outs: Tensors,
    lses: Tensors,
    sink: Maybe,
    need_douts: bool,
    need_dlses: bool,
    need_dsink: bool,
    layout: str = "bshd",
    implementation: Name = None,
) -> tuple[Tensors, Tensors, Tensor]:
    _check_devices("dout", dout.device, outs, lses, dlse=dlse, sink=sink)
    if need_dsink and sink is None:
        raise ValueError("dsink: cannot be asked for without its input")
    return (
        [tensor.new_empty(tensor.shape) for tensor in outs] if need_douts else [],
        [tensor.new_empty(tensor.shape) for tensor in lses] if need_dlses else [],
        sink.new_empty(sink.shape) if need_dsink and sink is not None else dout.new_empty(0),
    )


_PARTS = "Tensor[] outs, Tensor[] lses, Tensor? sink"
_TAIL = 'str layout="bshd", str? implementation=None'
for _name, _schema, _implementation, _shapes in (
    ("merge", f"({_PARTS}, {_TAIL}) -> (Tensor, Tensor)", _kernel, _fake),
    ("merge_out", f"({_PARTS}, Tensor(a!) out, {_TAIL}) -> Tensor", _kernel_out, _fake_out),
    (
        "merge_backward",
        f"(Tensor dout, Tensor? dlse, {_PARTS}, bool need_douts, bool need_dlses, bool need_dsink, {_TAIL})"
        " -> (Tensor[], Tensor[], Tensor)",
        _kernel_backward,
        _fake_backward,
    ),
):
    LIBRARY.define(_name + _schema)
    for _key in ("CPU", "CUDA"):  # ROCm's builds of torch call their GPU CUDA too
        LIBRARY.impl(_name, _implementation, _key)
    torch.library.register_fake(f"tilewise::{_name}", _shapes, lib=LIBRARY)
_merge: Any = torch.ops.tilewise.merge.default
_merge_out: Any = torch.ops.tilewise.merge_out.default
_merge_backward: Any = torch.ops.tilewise.merge_backward.default


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    outs, lses, sink, layout, implementation = (*inputs, "bshd", None)[:5]
    ctx.save_for_backward(*outs, *lses, sink)
    ctx.count = len(outs)
    ctx.options = layout, implementation
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Optional[Tensor], dlse: Optional[Tensor]) -> tuple[Any, ...]:
    *tensors, sink = ctx.saved_tensors
    outs, lses = tensors[: ctx.count], tensors[ctx.count :]
    need_outs, need_lses, need_sink = ctx.needs_input_grad[:3]
    layout, implementation = ctx.options
    refuse_tangents((("dout", dout), ("dlse", dlse)))
    if dout is None:
        dout = torch.zeros_like(_new_results(outs, lses, layout)[0])
    elif dout.stride(-1) != 1:
        dout = dout.contiguous()  # such as the expanded gradient of a sum
    try:
        douts, dlses, dsink = _merge_backward(
            dout, dlse, outs, lses, sink, any(need_outs), any(need_lses), need_sink, layout, implementation
        )
    except RuntimeError as error:
        raise_known(error, dout=dout, dlse=dlse)
        raise
    results = (
        [douts[i] if needed else None for i, needed in enumerate(need_outs)],
        [dlses[i] if needed else None for i, needed in enumerate(need_lses)],
        dsink if need_sink else None,
    )
    # Arguments that equal their defaults are missing from the call that torch recorded.
    return (*results, *[None] * (len(ctx.needs_input_grad) - len(results)))


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dout, dlse, outs, lses, sink, *_ = inputs
    ctx.save_for_backward(dout, dlse, *outs, *lses, sink)
    ctx.count = len(outs)
    ctx.layout = (*inputs, "bshd")[8]
    ctx.set_materialize_grads(False)


def _second_gradients(ctx: Any, ddouts: Any, ddlses: Any, ddsink: Optional[Tensor]) -> tuple[Any, ...]:
    """Gradients of merge_backward, by the formula."""
    dout, dlse, *parts, sink = ctx.saved_tensors
    _log.dispatch("double backward of merge -> torch's operations")
    found = merge_formula.second_gradients(
        (ddouts, ddlses, ddsink), dout, dlse, parts[: ctx.count], parts[ctx.count :], sink, ctx.layout
    )
    return (*found, *[None] * (len(ctx.needs_input_grad) - len(found)))


autograd.register("merge", _gradients, _setup)
autograd.register("merge_backward", _second_gradients, _setup_second)
autograd.refuse_autograd("merge_out")


def merge(
    outs: Sequence[Any], lses: Sequence[Any], sink: Any, layout: str, out: Any, return_lse: bool, implementation: Name
) -> tuple[Tensor, Maybe]:
    """(out, softmax_lse); see tilewise.merge."""
    given = {name: tensor for name, tensor in (("sink", sink), ("out", out)) if tensor is not None}
    stacked = _is_stacked(outs, layout)
    for kind, tensors in (("outs", outs), ("lses", lses)):
        given.update((kind if stacked else f"{kind}[{i}]", tensor) for i, tensor in enumerate(tensors))
    first = "outs" if stacked else "outs[0]"
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: must be a torch tensor like {first} (got {type(tensor).__name__})")
    derived = [tensor for name, tensor in given.items() if name != "out"]
    if out is None and (transforming() or has_tangents(derived)):
        _log.dispatch("merge under a transform or with dual tensors -> torch's operations")
        return merge_formula.of_parts(list(outs), list(lses), sink, layout)
    refuse_tangents(given.items())
    try:
        if out is None:
            result, lse = _merge(list(outs), list(lses), sink, layout, implementation)
            return result, lse
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given.values()):
            raise ValueError("out: cannot be given with inputs that require gradients")
        return out, _merge_out(list(outs), list(lses), sink, out, layout, implementation)
    except RuntimeError as error:
        raise_known(error, **given)
        raise
