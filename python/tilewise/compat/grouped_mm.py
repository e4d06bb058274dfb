# torch's grouped products over Tilewise's grouped_linear. Every form of operands is one of its calls, by views.
"""torch.nn.functional.grouped_mm and scaled_grouped_mm: the same signatures, the same meaning.

``grouped_mm`` and ``scaled_grouped_mm`` are the functions. ``routed`` is a context manager (or decorator) in which
torch's own go to them wherever Tilewise honours the call; every other call is torch's as before. ``RoutedCalls`` says
how many went which way, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from tilewise._attention import _load_torch_backend
from tilewise._linear import grouped_linear
from tilewise._public import lists_public_names
from tilewise.compat._names import REFUSALS, renamed
from tilewise.compat._routing import LeftToTorch, RefusedCall, RoutedCalls, Routing

if not hasattr(F, "scaled_grouped_mm"):
    raise ImportError(f"tilewise.compat.grouped_mm: needs a torch that has grouped products (got {torch.__version__})")

__all__ = ["LeftToTorch", "RoutedCalls", "grouped_mm", "routed", "scaled_grouped_mm"]
__dir__ = lists_public_names(__all__)

_NAMES = {"x": "mat_a", "w": "mat_b", "offsets": "offs", "x_scale": "scale_a", "w_scale": "scale_b"}


def _linear(x: Tensor, *args: Any, **options: Any) -> Tensor:
    """grouped_linear() in the dtypes that it is given: torch's functions know no autocast."""
    if not torch.is_autocast_enabled(x.device.type):
        return grouped_linear(x, *args, **options)
    with torch.autocast(x.device.type, enabled=False):
        return grouped_linear(x, *args, **options)


_routing = Routing(lambda: "")


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """torch.nn.functional.grouped_mm, on Tilewise, with derivatives of every order.

    ``offs`` are the ends of groups along the dimension that a matrix of two dimensions shares among them; a group
    begins where the one before ends. Groups may be of any size and empty, sizes and strides are free.

    Args:
        mat_a: [rows, k], or [num_groups, rows, k] in f32, bf16 or f16, on the CPU f64 too.
        mat_b: [k, n] or [num_groups, k, n] in the dtype of mat_a.
        offs: int32 or int64 [num_groups]: ends of groups of rows where mat_a alone has two dimensions, of columns
            where mat_b alone has, of k where both have; None where both have three. An end is clamped to what there is
            and to the one before it.
        bias: None: torch has none yet.
        out_dtype: float32, bfloat16 or float16; None is the dtype of mat_a. Where both have two dimensions that.

    Returns:
        [rows, n]; [num_groups, rows, n] where both matrices have two dimensions, or both three. What belongs to no
        group is 0.

    Raises:
        RuntimeError: torch does not define the call either.
        TypeError, ValueError: An argument is wrong.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    _check(mat_a, mat_b, offs, bias, "grouped_mm")
    if mat_a.shape[-1] != mat_b.shape[-2]:
        raise RefusedCall(
            f"contraction dimension of mat_a and mat_b must match (got {mat_a.shape[-1]} and {mat_b.shape[-2]})"
        )
    if mat_a.dtype != mat_b.dtype:
        raise RefusedCall(f"mat_b: dtype must be {mat_a.dtype}, that of mat_a (got {mat_b.dtype})")
    if mat_a.dim() == mat_b.dim() == 2 and out_dtype not in (None, mat_a.dtype):
        raise RefusedCall(f"out_dtype: must be {mat_a.dtype} where both matrices have two dimensions (got {out_dtype})")
    try:
        if torch.is_grad_enabled() and (mat_a.requires_grad or mat_b.requires_grad):
            return _GroupedMm.apply(mat_a, mat_b, offs, out_dtype)  # type: ignore[no-any-return]
        return _product(mat_a, mat_b, offs, out_dtype)
    except REFUSALS as error:
        raise renamed(error, _NAMES) from None


def _check(mat_a: Any, mat_b: Any, offs: Any, bias: Any, function: str) -> None:
    for position, (name, tensor) in enumerate((("mat_a", mat_a), ("mat_b", mat_b)), 1):
        if not isinstance(tensor, Tensor):  # torch's words, as those below
            raise TypeError(
                f"{function}(): argument '{name}' (position {position}) must be Tensor, not {type(tensor).__name__}"
            )
        if tensor.dim() not in (2, 3):
            raise RefusedCall(f"{name} has to be 2 or 3d (got {tensor.dim()})")
    if bias is not None:
        raise RefusedCall("bias: must be None, as torch has none yet")
    both = mat_a.dim() == mat_b.dim() == 3
    if (offs is None) != both:
        raise RefusedCall("Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d")
    if both and mat_a.shape[0] != mat_b.shape[0]:
        raise RefusedCall(f"batched dimension has to match (got {mat_a.shape[0]} and {mat_b.shape[0]})")
    if offs is None:
        return
    if not isinstance(offs, Tensor):
        raise TypeError(f"offs: must be a tensor (got {type(offs).__name__})")
    if offs.dim() != 1:
        raise RefusedCall(f"offs has to be 1D (got {offs.dim()})")
    if offs.dtype not in (torch.int32, torch.int64):
        raise RefusedCall(f"offs: dtype must be torch.int32 or torch.int64 (got {offs.dtype})")
    groups = next((mat.shape[0] for mat in (mat_a, mat_b) if mat.dim() == 3), offs.shape[0])
    if offs.shape[0] != groups:
        raise RefusedCall(f"offs: must be the ends of {groups} groups (got {offs.shape[0]})")


def _product(a: Tensor, b: Tensor, offs: Optional[Tensor], out_dtype: Optional[torch.dtype] = None) -> Tensor:
    """grouped_mm() without derivatives."""
    if offs is None:
        groups, rows = a.shape[:2]
        counts = torch.full((groups,), rows, dtype=torch.int64, device=a.device)
        out = _linear(_rows(a).flatten(0, 1), _matrix(b).transpose(1, 2), counts=counts, out_dtype=out_dtype)
        return out.reshape(groups, rows, b.shape[-1])
    if a.dim() == b.dim() == 2:
        return _over_parts(a, b, _starts(offs))
    if a.dim() == 2:
        return _linear(_rows(a), _matrix(b).transpose(1, 2), _starts(offs), out_dtype=out_dtype)
    # Columns of b in groups are rows of its transpose.
    out = _linear(_rows(b.t()), _matrix(a), _starts(offs), out_dtype=out_dtype)
    return out.t().contiguous()


def _over_parts(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """[num_groups, rows, n]: a's columns of each group by b's rows, as gradients of weights are computed."""
    groups = offsets.shape[0] - 1
    # What the weights are does not matter for their own gradient, only where it goes.
    weights = a.new_empty(groups, a.shape[0], b.shape[1])
    backward = _load_torch_backend().OPERATIONS["linear"].derivatives.backward
    given = backward.bind((), {"x": _rows(b), "w": weights, "dout": _rows(a.t()), "offsets": offsets})
    given |= {f"need_{tensor.name}": tensor.name == "dw" for tensor in backward.made}
    results = backward.handle(*(given[name] for name in backward.names))
    gradients: dict[str, Tensor] = dict(zip((tensor.name for tensor in backward.made), results))
    return gradients["dw"]


def _starts(offs: Tensor) -> Tensor:
    """Ends of groups as grouped_linear() has them, with the first one's start."""
    return torch.cat((offs.new_zeros(1), offs))


def _rows(mat: Tensor) -> Tensor:
    return mat if mat.stride(-1) == 1 else mat.contiguous()


def _matrix(mat: Tensor) -> Tensor:
    """One whose rows or whose columns are contiguous."""
    return mat if 1 in mat.stride()[-2:] else mat.contiguous()


class _GroupedMm(torch.autograd.Function):
    """Each form's gradients are products of other forms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, offs: Optional[Tensor], out_dtype: Optional[torch.dtype]) -> Tensor:
        return _product(a, b, offs, out_dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, offs, _ = inputs
        ctx.save_for_backward(a, b, offs)

    @staticmethod
    def backward(ctx: Any, *derivatives: Any) -> Any:
        a, b, offs = ctx.saved_tensors
        dout = derivatives[0].to(a.dtype)
        da = grouped_mm(dout, b.transpose(-1, -2), offs=offs) if ctx.needs_input_grad[0] else None
        db = grouped_mm(a.transpose(-1, -2), dout, offs=offs) if ctx.needs_input_grad[1] else None
        return da, db, None, None


# --- quantised matrices ---

_Recipe = F.ScalingType
_Swizzle = F.SwizzleType
# Recipes of mat_a and mat_b, with their formats here; of scales in e8m0 too.
_FORMATS = {
    (_Recipe.TensorWise, _Recipe.TensorWise): ("fp8_tensor", "fp8_tensor"),
    (_Recipe.RowWise, _Recipe.RowWise): ("fp8_row", "fp8_row"),
    (_Recipe.BlockWise1x128, _Recipe.BlockWise128x128): ("fp8_1x128", "fp8_128x128"),
    (_Recipe.BlockWise1x32, _Recipe.BlockWise1x32): ("mxfp8", "mxfp8"),
}


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | list[Tensor],
    scale_recipe_a: Any,
    scale_b: Tensor | list[Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Optional[Tensor] = None,
    offs: Optional[Tensor] = None,
    output_dtype: Optional[torch.dtype] = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_grouped_mm, on Tilewise, on CPUs too. There are no gradients, as in torch.

    Args:
        mat_a: float8_e4m3fn [rows, k] with offs, or [num_groups, rows, k] without.
        mat_b: float8_e4m3fn [num_groups, k, n], the transpose of contiguous [num_groups, n, k].
        scale_a: f32 [rows] of RowWise, [rows, blocks of k] of BlockWise1x128, one number of TensorWise; e8m0
            [rows, k / 32] of BlockWise1x32. With num_groups before rows where mat_a has.
        scale_recipe_a: torch.nn.functional.ScalingType of mat_a.
        scale_b: f32 [num_groups, n] of RowWise, [num_groups, blocks of n, blocks of k] of BlockWise128x128,
            [num_groups] of TensorWise; e8m0 [num_groups, n, k / 32] of BlockWise1x32.
        scale_recipe_b: Of mat_b.
        swizzle_a: None or NO_SWIZZLE: scales lie in rows.
        swizzle_b: Likewise.
        bias: None.
        offs: Ends of groups of mat_a's rows, as in grouped_mm().
        output_dtype: bfloat16, float16 or float32; None is bfloat16.
        contraction_dim: () or (-1, -2).
        use_fast_accum: Sums are fp32, whatever it says.

    Returns:
        [rows, n] or [num_groups, rows, n]; rows of no group are 0.

    Raises:
        As grouped_mm().
    """
    _check(mat_a, mat_b, offs, bias, "scaled_grouped_mm")
    if mat_b.dim() != 3:
        raise NotImplementedError(
            f"mat_b: must have 3 dimensions, as quantised weights of groups do (got {mat_b.dim()})"
        )
    recipes = (_single("scale_recipe_a", scale_recipe_a), _single("scale_recipe_b", scale_recipe_b))
    if recipes not in _FORMATS:
        raise NotImplementedError(f"scale_recipe_a, scale_recipe_b: no format has {recipes[0]} and {recipes[1]}")
    for name, swizzle in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        if swizzle is not None and _single(name, swizzle) != _Swizzle.NO_SWIZZLE:
            raise NotImplementedError(f"{name}: must be NO_SWIZZLE, scales that lie in rows (got {swizzle})")
    if tuple(contraction_dim) not in ((), (-1, -2), (mat_a.dim() - 1, 1)):
        raise NotImplementedError(f"contraction_dim: must be () or (-1, -2) (got {tuple(contraction_dim)})")
    a_format, b_format = _FORMATS[recipes]
    a_scale, b_scale = _single("scale_a", scale_a), _single("scale_b", scale_b)
    rows = {"offsets": _starts(offs)} if offs is not None else {}
    groups = mat_a.shape[0]
    if mat_a.dim() == 3:
        rows = {"counts": torch.full((groups,), mat_a.shape[1], dtype=torch.int64, device=mat_a.device)}
        a_scale = a_scale if a_format == "fp8_tensor" else a_scale.flatten(0, 1)
    try:
        out = _linear(
            _rows(mat_a.flatten(0, -2)),
            _matrix(mat_b).transpose(1, 2),
            **rows,
            x_format=a_format,
            w_format=b_format,
            x_scale=a_scale,
            w_scale=b_scale,
            out_dtype=output_dtype,
        )
    except REFUSALS as error:
        raise renamed(error, _NAMES) from None
    return out.unflatten(0, (groups, -1)) if mat_a.dim() == 3 else out


def _single(name: str, value: Any) -> Any:
    """torch takes lists for formats whose scales have scales."""
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise NotImplementedError(f"{name}: must be one, no format here has {len(value)} of them")
        return value[0]
    return value


_routing.serve(grouped_mm)
_routing.serve(scaled_grouped_mm)


def routed(*, strict: bool = False) -> AbstractContextManager[RoutedCalls]:
    """A context in which torch.nn.functional.grouped_mm and scaled_grouped_mm are Tilewise's wherever it honours the
    call, for all threads; contexts nest.

    Left to torch are calls that Tilewise refuses, tensors of subclasses, and code that holds the functions, or
    `_grouped_mm`, under another name already. The first two are counted, and TILEWISE_LOG=dispatch prints each of
    them once with the reason.

    Args:
        strict: Raise in place of leaving a call to torch, where any of the contexts that hold is strict.

    Returns:
        A context manager, or a decorator, that gives the account of these calls: ``with routed() as calls: ...`` and
        then ``print(calls)``.

    Raises:
        LeftToTorch: Within the context, where it is strict: a call would be left to torch; the message says why.
    """
    return _routing.context(strict)
