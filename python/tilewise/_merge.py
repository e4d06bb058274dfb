# merge() of partial results. Like attention(), it brings its arguments to one form and hands over to the module of
# the arrays' kind.
"""merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Optional, Union, overload

from tilewise import _arrays
from tilewise._arguments import LAYOUTS, flag, implementation_name, named
from tilewise._attention import _is_torch, _load_torch_backend
from tilewise._keywords import with_known_keywords
from tilewise._types import Array, ArrayT, Layout


@overload
def merge(
    outs: Union[ArrayT, Sequence[ArrayT]],
    lses: Union[ArrayT, Sequence[ArrayT]],
    sink: Optional[Array] = ...,
    *,
    layout: Layout = ...,
    return_lse: Literal[True] = ...,
    out: Optional[Array] = ...,
    implementation: Optional[str] = ...,
) -> tuple[ArrayT, ArrayT]: ...
@overload
def merge(
    outs: Union[ArrayT, Sequence[ArrayT]],
    lses: Union[ArrayT, Sequence[ArrayT]],
    sink: Optional[Array] = ...,
    *,
    layout: Layout = ...,
    return_lse: Literal[False],
    out: Optional[Array] = ...,
    implementation: Optional[str] = ...,
) -> ArrayT: ...
@overload
def merge(
    outs: Union[ArrayT, Sequence[ArrayT]],
    lses: Union[ArrayT, Sequence[ArrayT]],
    sink: Optional[Array] = ...,
    *,
    layout: Layout = ...,
    return_lse: bool,
    out: Optional[Array] = ...,
    implementation: Optional[str] = ...,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...
@with_known_keywords
def merge(
    outs: Union[ArrayT, Sequence[ArrayT]],
    lses: Union[ArrayT, Sequence[ArrayT]],
    sink: Optional[Array] = None,
    *,
    layout: Layout = "bshd",
    return_lse: bool = True,
    out: Optional[Array] = None,
    implementation: Optional[str] = None,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]:
    """Joins partial results of the same queries over disjoint keys, each computed without the sink.

    Sums are fp32 (f64 where out is). A part adds nothing to rows where its lse is -inf, whatever its out holds. Torch
    tensors have autograd (outs, lses and sink) and torch.compile; the gradients of attention()'s softmax_lse carry on.

    Args:
        outs: Results of attention(), at least one: a list or tuple of arrays, or one stacked array [parts, ...]. Each
            in the dtype of the result or in f32.
        lses: Their softmax_lse, in the same order; stacked where outs are.
        sink: f32 or dtype of the result, [num_heads_q]; joins the denominator here, once.
        layout: As attention() took it.
        return_lse: Also return softmax_lse.
        out: Where to write, which decides the dtype of the result; refused for inputs that require gradients. None:
            a new array in the dtype of the first part.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.

    Returns:
        (out, softmax_lse) as one call over all keys would give, or out alone.

    Raises:
        ValueError, TypeError: An argument is wrong, or shapes don't fit.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    named("layout", layout, LAYOUTS)
    return_lse = flag("return_lse", return_lse)
    implementation = implementation_name(implementation)
    _check_parts(outs, lses, layout)
    given = {"outs": outs, "lses": lses, "sink": sink, "layout": layout, "implementation": implementation}
    if _is_torch(outs[0] if isinstance(outs, (list, tuple)) else outs):
        result, softmax_lse = _load_torch_backend().OPERATIONS["merge"](given, {"out": out})
    else:
        result, softmax_lse = _arrays.call("merge", given, {"out": out}, () if return_lse else ("softmax_lse",))
    return (result, softmax_lse) if return_lse else result


def _check_parts(outs: Any, lses: Any, layout: str) -> None:
    """Both are lists, or stacked arrays."""
    rank = 3 if layout == "thd" else 4
    if isinstance(outs, (list, tuple)):
        if not isinstance(lses, (list, tuple)):
            raise TypeError(f"lses: must be a list or tuple of arrays as outs is (got {type(lses).__name__})")
        if len(outs) == 0 or len(outs) != len(lses):
            raise ValueError(f"lses: must have as many arrays as outs, at least one (got {len(outs)} and {len(lses)})")
        if len(outs) == 1 and len(getattr(outs[0], "shape", ())) == rank + 1:
            raise ValueError(f"outs[0]: rank must be {rank} (got {rank + 1}); a stacked array goes without a list")
    elif not hasattr(outs, "__dlpack__"):
        raise TypeError(
            f"outs: must be a list or tuple of arrays, or one array [parts, ...] (got {type(outs).__name__})"
        )
    elif not hasattr(lses, "__dlpack__"):
        raise TypeError(f"lses: must be one array [parts, ...] as outs is (got {type(lses).__name__})")
    elif len(outs.shape) != rank + 1:
        raise ValueError(
            f"outs: rank must be {rank + 1}, [parts, ...] of layout {layout} (got {len(outs.shape)}); "
            "parts that are arrays of their own go into a list"
        )
