# The operators' kernels in Python, through DLPack: for a torch without the symbols that the C++ registration needs, for
# comparing the two, and for functions of scores, which the operators do not take.
"""Kernels of the torch operators in Python, for the CPU and for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from tilewise import _core
from tilewise._arrays import core_options
from tilewise._block_mask import BlockMask
from tilewise._functions import Functions
from tilewise._options import ARRAYS, HEAD, TAIL, Options, Short, form_parts
from tilewise._torch.dtypes import BYTE_DTYPES


def lse_dtype(q: Tensor) -> torch.dtype:
    """The dtype of softmax_lse beside this q."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def out_dtype(q: Tensor) -> torch.dtype:
    """The dtype of a new out beside this q."""
    return torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype


def new_rows(like: Tensor, shape: Sequence[int], layout: str, dtype: Optional[torch.dtype] = None) -> Tensor:
    """A new tensor of `like`'s kind, and dtype unless given, contiguous, but in layout "bhsd" with heads and rows
    stored in the order in which `like` stores them, as the operators' kernels in C++ do it (in_order_of)."""
    if layout == "bhsd" and like.dim() == 4 and len(shape) == 4 and 0 < like.stride(1) < like.stride(2):
        return like.new_empty((shape[0], shape[2], shape[1], shape[3]), dtype=dtype).transpose(1, 2)
    return like.new_empty(shape, dtype=dtype)


def borrow(name: str, tensor: Tensor, writable: bool = False) -> _core.Array:
    if byte := BYTE_DTYPES.get(tensor.dtype):
        return _core.Array(tensor.detach().view(torch.uint8), name, byte, writable)
    return _core.Array(tensor.detach(), name, "", writable)


def _core_options(
    options: Options, functions: Optional[Functions] = None, dtables: Sequence[Any] = ()
) -> _core.AttentionOptions:
    values: tuple[Any, ...] = options
    arrays = (None if tensor is None else tensor.detach() for tensor in values[ARRAYS])
    if functions is not None:
        functions = functions._replace(tables=tuple(table.detach() for table in functions.tables))
    return core_options(Options._make((*values[HEAD], *arrays, *values[TAIL])), functions, dtables)


def stream_of(q: Tensor) -> int:
    """torch's current stream on q's GPU as a number; 0 on the CPU."""
    return torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0


def run_forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, functions: Optional[Functions] = None
) -> tuple[Tensor, Tensor]:
    core_options = _core_options(options, functions)
    views = borrow("q", q), borrow("k", k), borrow("v", v)
    out_shape, lse_shape = _core.output_shapes(*views, core_options)
    out, lse = new_rows(q, out_shape, options.layout, out_dtype(q)), q.new_empty(lse_shape, dtype=lse_dtype(q))
    outputs = borrow("out", out, True), borrow("softmax_lse", lse, True)
    threads = torch.get_num_threads()
    _core.attention_forward(*views, *outputs, core_options, options.implementation or "", threads, stream=stream_of(q))
    return out, lse


def forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return run_forward(q, k, v, Options(*args, **kwargs))


def plain_lse(
    q: Tensor, k: Tensor, v: Tensor, form: int = 0, softmax_scale: Optional[float] = None
) -> tuple[Tensor, Tensor]:
    causal, layout = form_parts(form)
    return forward(q, k, v, causal, softmax_scale, layout)


def plain(q: Tensor, k: Tensor, v: Tensor, form: int = 0, softmax_scale: Optional[float] = None) -> Tensor:
    return plain_lse(q, k, v, form, softmax_scale)[0]


def short_lse(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return forward(q, k, v, *Short(*args).options())


def short(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Tensor:
    return short_lse(q, k, v, *args)[0]


def run_forward_out(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, options: Options, functions: Optional[Functions] = None
) -> Tensor:
    core_options = _core_options(options, functions)
    views = borrow("q", q), borrow("k", k), borrow("v", v)
    _, lse_shape = _core.output_shapes(*views, core_options)
    lse = q.new_empty(lse_shape, dtype=lse_dtype(q))
    outputs = borrow("out", out, True), borrow("softmax_lse", lse, True)
    threads = torch.get_num_threads()
    _core.attention_forward(
        *views, *outputs, core_options, options.implementation or "", threads, fresh_out=False, stream=stream_of(q)
    )
    return lse


def forward_out(q: Tensor, k: Tensor, v: Tensor, out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return run_forward_out(q, k, v, out, Options(*args, **kwargs))


def _run_backward(
    inputs: Sequence[Optional[Tensor]], gradients: list[Any], options: Options, functions: Optional[Functions] = None
) -> None:
    """`gradients`: where dq, dk, dv, dbias, dsink and those of tables go, borrowed; None where they are not wanted."""
    dout, dlse, q, k, v, out, softmax_lse = inputs
    assert dout is not None and q is not None and k is not None  # the schema says so; dlse alone may be None
    assert v is not None and out is not None and softmax_lse is not None
    _core.attention_backward(
        borrow("dout", dout),
        None if dlse is None else borrow("dlse", dlse),
        borrow("q", q),
        borrow("k", k),
        borrow("v", v),
        borrow("out", out),
        borrow("softmax_lse", softmax_lse),
        gradients[0],
        gradients[1],
        gradients[2],
        gradients[3],
        gradients[4],
        _core_options(options, functions, gradients[5:]),
        options.implementation or "",
        torch.get_num_threads(),
        stream_of(q),
    )


def run_backward(
    inputs: Sequence[Any], needed_gradients: Sequence[bool], options: Options, functions: Optional[Functions] = None
) -> tuple[Tensor, ...]:
    """`inputs`: dout, dlse, q, k, v, out and softmax_lse. Gradients, those of tables last, are empty if not needed."""
    q, k, v = inputs[2:5]
    gradients, views = [], []
    tables = () if functions is None else functions.tables
    likes = (("dq", q), ("dk", k), ("dv", v), ("dbias", options.bias), ("dsink", options.sink))
    for (name, like), needed in zip(
        (*likes, *((f"dtable{i}", table) for i, table in enumerate(tables))), needed_gradients
    ):
        if needed and like is None:
            raise ValueError(f"{name}: cannot be asked for without its input")
        layout = options.layout if name in ("dq", "dk", "dv") else ""
        gradient = new_rows(like, like.shape, layout) if needed and like is not None else q.new_empty(0)
        gradients.append(gradient)
        views.append(borrow(name, gradient, True) if needed else None)
    _run_backward(inputs, views, options, functions)
    return tuple(gradients)


def backward(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    return run_backward(args[:7], args[7:12], Options(*args[12:], **kwargs))


def backward_out(
    dout: Tensor,
    dlse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    *args: Any,
    **kwargs: Any,
) -> None:
    given = (("dq", dq), ("dk", dk), ("dv", dv))
    views = [None if tensor is None else borrow(name, tensor, True) for name, tensor in given]
    _run_backward((dout, dlse, q, k, v, out, softmax_lse), [*views, None, None], Options(*args, **kwargs))


def plain_backward(
    dout: Tensor,
    dlse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    needed: int,
    form: int = 0,
    softmax_scale: Optional[float] = None,
) -> tuple[Tensor, ...]:
    causal, layout = form_parts(form)
    needs = (bool(needed & 1), bool(needed & 2), bool(needed & 4), False, False)
    inputs = dout, dlse, q, k, v, out, softmax_lse
    return run_backward(inputs, needs, Options(causal, softmax_scale, layout))[:3]


def _functions_of(score_mod: str, mask_mod: str, tensors: list[Tensor], num_tables: int, *block: int) -> Functions:
    """Of what the operators for calls with functions of scores take."""
    tables, lists = tensors[:num_tables], tensors[num_tables:]
    if not lists:
        return Functions(score_mod, mask_mod, tuple(tables))
    counts, indices, full_counts, full_indices = lists if len(lists) > 2 else (*lists, None, None)
    mask = BlockMask(None, counts, indices, full_counts, full_indices, (block[0], block[1]))
    return Functions(score_mod, mask_mod, tuple(tables), mask)


def functions_lse(
    q: Tensor, k: Tensor, v: Tensor, form: int, softmax_scale: Optional[float], *args: Any
) -> tuple[Tensor, Tensor]:
    causal, layout = form_parts(form)
    return run_forward(q, k, v, Options(causal, softmax_scale, layout), _functions_of(*args))


def functions(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Tensor:
    return functions_lse(q, k, v, *args)[0]


def functions_backward(*args: Any) -> tuple[Any, ...]:
    inputs, (needed, deterministic, form, softmax_scale, *given) = args[:7], args[7:]
    causal, layout = form_parts(form)
    options = Options(causal, softmax_scale, layout, deterministic=deterministic)
    own = _functions_of(*given)
    needs = (*(bool(needed >> bit & 1) for bit in range(3)), False, False)
    of_tables = (bool(needed >> 3 + place & 1) for place in range(len(own.tables)))
    gradients = run_backward(inputs, (*needs, *of_tables), options, own)
    return (*gradients[:3], list(gradients[5:]))


KERNELS: dict[str, Callable[..., Any]] = {
    "attention_forward": forward,
    "attention_forward.plain": plain,
    "attention_forward.plain_lse": plain_lse,
    "attention_forward.short": short,
    "attention_forward.short_lse": short_lse,
    "attention_forward.functions": functions,
    "attention_forward.functions_lse": functions_lse,
    "attention_forward_out": forward_out,
    "attention_backward": backward,
    "attention_backward.plain": plain_backward,
    "attention_backward.functions": functions_backward,
    "attention_backward_out": backward_out,
}
