# Fake kernels: the shapes and dtypes of the operators' results, for tracing and for the meta
# device. They repeat no rule of the core; a wrong call is refused when it runs.
"""Fake kernels of the torch operators."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._options import Options, Short, form_parts
from tilewise._torch.operators import LIBRARY
from tilewise._torch.python_kernels import lse_dtype, new_rows, out_dtype


def _check_devices(q: Tensor, options: Options, **others: Tensor) -> None:
    """A call with one tensor on the meta device ends here, whatever the others are on."""
    for name, tensor in (*others.items(), *zip(Options._fields, options)):
        if isinstance(tensor, Tensor) and tensor.device != q.device:
            argument = "seed" if name == "seed_and_offset" else name
            raise TypeError(f"{argument}: must be on {q.device}, where q is (got {tensor.device})")


def _new_lse(q: Tensor, layout: str) -> Tensor:
    if q.dim() != (3 if layout == "thd" else 4):
        raise ValueError(f"q: rank must be {3 if layout == 'thd' else 4} with layout={layout} (got {q.dim()})")
    order = {"bshd": (0, 2, 1), "sbhd": (1, 2, 0), "bhsd": (0, 1, 2), "thd": (1, 0)}[layout]
    return q.new_empty([q.shape[axis] for axis in order], dtype=lse_dtype(q))


def forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    options = Options(*args, **kwargs)
    _check_devices(q, options, k=k, v=v)
    out = new_rows(q, (*q.shape[:-1], v.shape[-1]), options.layout, out_dtype(q))
    return out, _new_lse(q, options.layout)


def plain_lse(
    q: Tensor, k: Tensor, v: Tensor, form: int = 0, softmax_scale: Optional[float] = None
) -> tuple[Tensor, Tensor]:
    return forward(q, k, v, layout=form_parts(form)[1])


def plain(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return plain_lse(q, k, v, *args, **kwargs)[0]


def short_lse(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return forward(q, k, v, *Short(*args).options())


def short(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Tensor:
    return short_lse(q, k, v, *args)[0]


def functions_lse(q: Tensor, k: Tensor, v: Tensor, form: int, *args: Any) -> tuple[Tensor, Tensor]:
    return plain_lse(q, k, v, form)


def functions(q: Tensor, k: Tensor, v: Tensor, form: int, *args: Any) -> Tensor:
    return plain_lse(q, k, v, form)[0]


def forward_out(q: Tensor, k: Tensor, v: Tensor, out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    options = Options(*args, **kwargs)
    _check_devices(q, options, k=k, v=v, out=out)
    return _new_lse(q, options.layout)


def backward(
    dout: Tensor,
    dlse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    need_dq: bool,
    need_dk: bool,
    need_dv: bool,
    need_dbias: bool,
    need_dsink: bool,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, ...]:
    options = Options(*args, **kwargs)
    _check_devices(q, options, dout=dout, k=k, v=v, out=out, softmax_lse=softmax_lse)
    inputs = ((q, need_dq), (k, need_dk), (v, need_dv), (options.bias, need_dbias), (options.sink, need_dsink))
    layouts = (options.layout,) * 3 + ("",) * 2
    return tuple(
        new_rows(like, like.shape, layout) if needed and like is not None else q.new_empty(0)
        for (like, needed), layout in zip(inputs, layouts)
    )


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
    given = {"dout": dout, "k": k, "v": v, "out": out, "softmax_lse": softmax_lse, "dq": dq, "dk": dk, "dv": dv}
    present = {name: tensor for name, tensor in given.items() if tensor is not None}
    _check_devices(q, Options(*args, **kwargs), **present)


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
    needs = (bool(needed & 1), bool(needed & 2), bool(needed & 4), False, False)
    return backward(dout, dlse, q, k, v, out, softmax_lse, *needs, layout=form_parts(form)[1])[:3]


def functions_backward(*args: Any) -> tuple[Any, ...]:
    dout, dlse, q, k, v, out, softmax_lse, needed, _, form, _, _, _, tensors, num_tables, *_ = args
    of_rows = plain_backward(dout, dlse, q, k, v, out, softmax_lse, needed, form)
    of_tables = [
        table.new_empty(table.shape) if needed >> 3 + place & 1 else q.new_empty(0)
        for place, table in enumerate(tensors[:num_tables])
    ]
    return (*of_rows, of_tables)


for _name, _fake in (
    ("attention_forward", forward),
    ("attention_forward.plain", plain),
    ("attention_forward.plain_lse", plain_lse),
    ("attention_forward.short", short),
    ("attention_forward.short_lse", short_lse),
    ("attention_forward.functions", functions),
    ("attention_forward.functions_lse", functions_lse),
    ("attention_forward_out", forward_out),
    ("attention_backward", backward),
    ("attention_backward.plain", plain_backward),
    ("attention_backward.functions", functions_backward),
    ("attention_backward_out", backward_out),
):
    torch.library.register_fake(f"tilewise::{_name}", _fake, lib=LIBRARY)
