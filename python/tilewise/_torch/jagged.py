# Jagged tensors (torch.nested with layout=torch.jagged): their values are a packed tensor already,
# their offsets are cu_seqlens and their lengths seqused, so a call on them is one of layout "thd".
"""Calls on jagged tensors as calls on their values."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from tilewise._kinds import described
from tilewise._options import ARRAY_NAMES, ARRAYS, DEFAULT_TAIL, HEAD, NO_ARRAYS, TAIL, Options
from tilewise._torch.errors import refuse_forms
from tilewise._torch.private import of_jagged

_JAGGED_DIM = {"bshd": 1, "bhsd": 2}
_MOST_ROWS = 2**31 - 1  # that cu_seqlens, which are int32, can count


class Rows(NamedTuple):
    """Where the sequences of a jagged tensor lie in its values."""

    like: Any  # the jagged tensor
    dim: int  # its jagged dimension
    first: int  # rows of its values before the first sequence

    def packed(self, tensor: Any) -> Tensor:
        """The values of a jagged tensor with these rows, [total, num_heads, dim], without a copy."""
        values: Tensor = tensor.values()
        values = values.transpose(0, 1) if self.dim == 2 else values
        return values[self.first :] if self.first else values

    def jagged(self, values: Tensor) -> Tensor:
        """A packed result as a jagged tensor with the offsets and lengths of `like` themselves."""
        if self.first:
            values = torch.nn.functional.pad(values, (0, 0, 0, 0, self.first, 0))
        values = values.transpose(0, 1) if self.dim == 2 else values
        like = self.like
        known = (of_jagged(like, "_maybe_min_seqlen"), of_jagged(like, "_maybe_max_seqlen"))
        result: Tensor = torch.nested.nested_tensor_from_jagged(
            values, like.offsets(), like.lengths(), self.dim, *known
        )
        return result


class Call(NamedTuple):
    """A call of layout "thd" and where its rows come from."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: Options
    rows_q: Rows
    rows_k: Rows


def _check(name: str, tensor: Any, dim: int) -> None:
    """The errors of a tensor that is not jagged in this dimension of four."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.jagged:
        if name == "q":  # another kind of nested tensor
            refuse_forms(q=tensor)
        raise TypeError(f"{name}: must be a jagged tensor like q (got {described(tensor)})")
    if tensor.dim() != 4:
        raise ValueError(f"{name}: rank must be 4, the batch and the jagged dimension included (got {tensor.dim()})")
    own: int = of_jagged(tensor, "_ragged_idx")
    if own != dim:
        layout = next(layout for layout, jagged_dim in _JAGGED_DIM.items() if jagged_dim == dim)
        raise ValueError(f"{name}: the jagged dimension must be {dim} with layout={layout} (got {own})")


def _check_same_rows(name: str, tensor: Any, like_name: str, like: Any, dim: int) -> None:
    """ValueError unless two jagged tensors have their sequences at the same places."""
    if tensor.lengths() is None and tensor.shape[dim] == like.shape[dim]:  # torch's one size for one offsets object
        return
    for what in ("offsets", "lengths"):
        own, expected = getattr(tensor, what)(), getattr(like, what)()
        both = own is not None and expected is not None
        if own is not expected and not (both and torch.equal(own, expected)):
            raise ValueError(f"{name}: must have the {what} of {like_name} (got {own}, expected {expected})")


def _refuse_given(name: str, value: Any, why: str) -> None:
    if value is not None:
        raise ValueError(f"{name}: must be None with jagged tensors, {why} (got {type(value).__name__})")


def _place(side: str, tensor: Any, dim: int, options: dict[str, Any]) -> Rows:
    """The Rows of a jagged q or k; what the packed call needs to know of them goes into the options."""
    offsets, lengths, max_seqlen = tensor.offsets(), tensor.lengths(), options[f"max_seqlen_{side}"]
    _refuse_given(f"cu_seqlens_{side}", options[f"cu_seqlens_{side}"], f"the offsets of {side} take its place")
    if lengths is None:
        first = 0
        if max_seqlen is None and (tensor.is_cuda or of_jagged(tensor, "_max_seqlen_tensor") is not None):
            longest = of_jagged(tensor, "_get_max_seqlen")  # torch keeps it once it is known
            max_seqlen = longest() if tensor.shape[0] > 0 else 0
    else:  # sequences with gaps between them, the first one anywhere
        _refuse_given(f"seqused_{side}", options[f"seqused_{side}"], f"the lengths of {side} take its place")
        if side == "k":
            _refuse_given("leftpad_k", options["leftpad_k"], "the lengths of k count from its offsets")
        options[f"seqused_{side}"] = lengths.to(torch.int32)
        starts = offsets.cpu()
        first = int(starts[0])
        if max_seqlen is None and tensor.is_cuda:
            max_seqlen = max(starts.diff().tolist(), default=0)
        offsets = offsets - first if first else offsets
    options[f"cu_seqlens_{side}"] = offsets.to(torch.int32)
    options[f"max_seqlen_{side}"] = max_seqlen
    return Rows(tensor, dim, first)


def packed_call(q: Any, k: Any, v: Any, options: Options) -> Call:
    """The call of layout "thd" that a call on jagged tensors stands for. Only offsets and lengths are copied."""
    if options.layout not in _JAGGED_DIM:
        raise ValueError(f"layout: must be 'bshd' or 'bhsd' with jagged tensors (got {options.layout!r})")
    dim = _JAGGED_DIM[options.layout]
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check(name, tensor, dim)
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k: must have the batch_size of q, {q.shape[0]} (got {k.shape[0]})")
    _check_same_rows("v", v, "k", k, dim)
    values = options._asdict()
    rows_q, rows_k = _place("q", q, dim, values), _place("k", k, dim, values)
    values["layout"] = "thd"
    call = Call(rows_q.packed(q), rows_k.packed(k), rows_k.packed(v), Options(**values), rows_q, rows_k)
    for name, packed in (("q", call.q), ("k", call.k)):
        if packed.shape[0] > _MOST_ROWS:
            raise ValueError(f"{name}: must have at most {_MOST_ROWS} rows in all (got {packed.shape[0]})")
    return call


def _packed_like_q(name: str, tensor: Any, q: Any, call: Call) -> Optional[Tensor]:
    """The values of a jagged tensor that has q's rows; None stays None."""
    if tensor is None:
        return None
    _check(name, tensor, call.rows_q.dim)
    _check_same_rows(name, tensor, "q", q, call.rows_q.dim)
    return call.rows_q.packed(tensor)


def unwrap(given: dict[str, Any], options: Options) -> Options:
    """Puts the packed call's arguments into `given`, attention()'s by name, and returns the Options it has."""
    call = packed_call(given["q"], given["k"], given["v"], options)
    out = _packed_like_q("out", given["out"], given["q"], call)
    arrays = {name: getattr(call.options, name) for name in ARRAY_NAMES}
    given.update(q=call.q, k=call.k, v=call.v, out=out, **arrays)
    return call.options


def attention(
    run: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    seed: Any,
    head: tuple[Any, ...],
    arrays: Optional[tuple[Any, ...]],
    tail: Optional[tuple[Any, ...]],
    return_lse: bool,
) -> Any:
    """What run(), attention() of torch tensors, gives for jagged ones: out has q's offsets, softmax_lse is packed."""
    call = packed_call(q, k, v, Options._make((*head, *(arrays or NO_ARRAYS), None, *(tail or DEFAULT_TAIL))))
    options: tuple[Any, ...] = call.options
    own_out = _packed_like_q("out", out, q, call)
    packed_arrays = options[ARRAYS][: len(ARRAY_NAMES)]  # without the seed
    result = run(call.q, call.k, call.v, own_out, seed, options[HEAD], packed_arrays, options[TAIL], return_lse)
    new_out, lse = result if return_lse else (result, None)
    out = call.rows_q.jagged(new_out) if out is None else out
    return (out, _whole_lse(lse, call.rows_q.first)) if return_lse else out


def _whole_lse(lse: Any, first: int) -> Any:
    """softmax_lse, [num_heads_q, total], with the rows before the first sequence."""
    return torch.nn.functional.pad(lse, (first, 0), value=-torch.inf) if first else lse


def attention_backward(
    run: Callable[..., Any], tensors: dict[str, Any], gradients: Any, options: Options
) -> tuple[Optional[Tensor], ...]:
    """What run(), attention_backward() of torch tensors, gives for jagged ones: jagged dq, dk and dv."""
    call = packed_call(tensors["q"], tensors["k"], tensors["v"], options)
    rows = call.rows_q
    packed = {**tensors, "q": call.q, "k": call.k, "v": call.v}
    for name in ("dout", "out"):
        packed[name] = _packed_like_q(name, tensors[name], tensors["q"], call)
    for name in ("softmax_lse", "dlse"):
        if rows.first and isinstance(tensors[name], Tensor):
            packed[name] = tensors[name][..., rows.first :]
    dq, dk, dv, dbias, dsink = run(packed, gradients, call.options)
    placed = ((dq, rows), (dk, call.rows_k), (dv, call.rows_k))
    return (*(None if each is None else place.jagged(each) for each, place in placed), dbias, dsink)
