# Attention in torch's own operations, which have every derivative: the way of forward AD and of second and higher
# derivatives. It makes the array of scores that the kernels never make.
"""attention() and its gradients as torch formulas."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from tilewise import _log
from tilewise._options import Options
from tilewise._torch.dropout_formula import growth, keep_of

_TO_BHSD = {"bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3), "bhsd": (0, 1, 2, 3)}
_FROM_BHSD = {"bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3), "bhsd": (0, 1, 2, 3)}


class Inputs(NamedTuple):
    """What has derivatives. bias may be bool, and then has none."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Optional[Tensor]
    sink: Optional[Tensor]


def say(what: str, q: Tensor, k: Tensor, options: Options) -> None:
    """The line of the dispatch log about a derivative that comes from here."""
    if not _log.wanted():
        return
    if options.layout == "thd":
        scores = f"{q.shape[-2]} heads' scores of each sequence"
    else:
        batch, heads, rows, _ = (q.shape[axis] for axis in _TO_BHSD[options.layout])
        keys = k.shape[_TO_BHSD[options.layout][2]]
        scores = f"scores {[batch, heads, rows, keys]}"
    _log.dispatch(f"{what} of attention -> torch's operations, which hold {scores} in memory")


def forward(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse) with every derivative by the inputs, which stand for those among the options too."""
    dtype = torch.float64 if inputs.q.dtype == torch.float64 else torch.float32
    if inputs.q.dtype == torch.float8_e4m3fn:
        raise NotImplementedError("q: attention of fp8 has no derivatives (got fp8_e4m3)")
    if options.layout == "thd":
        out, lse = _packed(inputs, options, dtype)
    else:
        order = _TO_BHSD[options.layout]
        q, k, v = (tensor.permute(order) for tensor in inputs[:3])
        bias = inputs.bias
        out, lse = _dense(inputs._replace(q=q, k=k, v=v, bias=bias), options, dtype, 0)
        out = out.permute(_FROM_BHSD[options.layout])
    return out.to(inputs.q.dtype), lse


def _packed(inputs: Inputs, options: Options, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sequence by sequence, which reads cu_seqlens. Rows of no sequence are 0, their log-sum-exp -inf."""
    starts_q, starts_k = (offsets.tolist() for offsets in (options.cu_seqlens_q, options.cu_seqlens_k))
    outs = [inputs.v.new_zeros((starts_q[0], inputs.q.shape[1], inputs.v.shape[2]), dtype=dtype)]
    lses = [inputs.q.new_full((inputs.q.shape[1], starts_q[0]), -math.inf, dtype=dtype)]
    for b, (i, end_q, j, end_k) in enumerate(zip(starts_q, starts_q[1:], starts_k, starts_k[1:])):
        q, k, v = inputs.q[i:end_q], inputs.k[j:end_k], inputs.v[j:end_k]
        bias = _bias_of_sequence(inputs.bias, b, end_q - i, end_k - j)
        lengths: dict[str, Any] = {
            name: None if getattr(options, name) is None else getattr(options, name)[b : b + 1]
            for name in ("seqused_q", "seqused_k", "leftpad_k")
        }
        slopes = options.alibi_slopes
        own = options._replace(alibi_slopes=slopes[b : b + 1] if slopes is not None and slopes.dim() == 2 else slopes,
                               **lengths)  # fmt: skip
        if options.key_indices is not None:
            own = own._replace(key_indices=options.key_indices[None, i:end_q])
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        sequence = Inputs(q, k, v, bias, inputs.sink)
        out, lse = _dense(sequence, own, dtype, b)
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    rest = inputs.q.shape[0] - starts_q[-1]
    outs.append(outs[0].new_zeros((rest, *outs[0].shape[1:])))
    lses.append(lses[0].new_full((inputs.q.shape[1], rest), -math.inf))
    return torch.cat(outs), torch.cat(lses, 1)


def _bias_of_sequence(bias: Optional[Tensor], b: int, rows: int, keys: int) -> Optional[Tensor]:
    """The bias, broadcastable to [batch_size, num_heads_q, max_seqlen_q, max_seqlen_k], as one sequence has it."""
    if bias is None:
        return None
    bias = bias[(None,) * (4 - bias.dim())]
    bias = bias if bias.shape[0] == 1 else bias[b : b + 1]
    bias = bias if bias.shape[2] == 1 else bias[:, :, :rows]
    return bias if bias.shape[3] == 1 else bias[..., :keys]


class _Places:
    """Rows and keys of each sequence's used part: [batch_size or 1, 1, rows or 1, keys or 1]."""

    def __init__(self, q: Tensor, k: Tensor, options: Options) -> None:
        rows = torch.arange(q.shape[2], device=q.device)[:, None]
        keys = torch.arange(k.shape[2], device=q.device)[None, :]
        leftpad = _lengths(options.leftpad_k, 0)
        used_q = _lengths(options.seqused_q, q.shape[2])
        used_k = _lengths(options.seqused_k, k.shape[2] - leftpad)
        key = keys - leftpad  # its place in the used part
        shift = 0 if options.top_left else used_k - used_q
        self.row_used = rows < used_q
        self.key_used = (key >= 0) & (key < used_k)
        distance = key - rows - shift  # from the diagonal
        self.visible = self.row_used & self.key_used
        if options.window_left >= 0:
            self.visible = self.visible & (distance >= -options.window_left)
        right = 0 if options.causal else options.window_right
        if right >= 0:
            self.visible = self.visible & (distance <= right)
        self.distance = distance
        self.row, self.key = rows, key
        self.leftpad, self.used_k = leftpad, used_k


def _times_selected(indices: Tensor, places: _Places, keys: int, group: int) -> Tensor:
    """How often each key is selected, [batch_size, 1 or num_heads_q, rows, keys]."""
    indices = indices.to(torch.int64).transpose(1, 2)
    exists = (indices >= 0) & (indices < places.used_k)
    column = torch.where(exists, indices + places.leftpad, keys)  # one column more takes what selects no key
    counts = indices.new_zeros((*indices.shape[:3], keys + 1))
    counts = counts.scatter_add(3, column, torch.ones_like(column))[..., :keys]
    return counts if counts.shape[1] == 1 else counts.repeat_interleave(group, 1)


def _lengths(given: Any, otherwise: Any) -> Any:
    return otherwise if given is None else given[:, None, None, None].to(torch.int64)


def _scores(inputs: Inputs, places: _Places, options: Options, dtype: torch.dtype) -> Tensor:
    """[batch_size, num_heads_q, rows, keys], -inf where nothing is visible."""
    q, k, _, bias, _ = inputs
    scale = 1 / math.sqrt(q.shape[3]) if options.softmax_scale is None else options.softmax_scale
    s = scale * (q @ k.transpose(-1, -2))
    if options.softcap > 0:
        s = options.softcap * torch.tanh(s / options.softcap)
    visible = places.visible
    if bias is not None and bias.dtype == torch.bool:
        visible = visible & bias
    elif bias is not None:
        s = s + bias.to(dtype)
    if options.alibi_slopes is not None:
        slopes = options.alibi_slopes.to(dtype)[..., None, None]
        s = s - slopes * places.distance.abs()
    return torch.where(visible, s, -math.inf)


def _dense(inputs: Inputs, options: Options, dtype: torch.dtype, first: int) -> tuple[Tensor, Tensor]:
    """(out, lse) in `dtype` of tensors [batch_size, heads, rows, dim], which are sequences `first` and on of the call.

    The greatest score of a row is taken off as a constant: neither result depends on it.
    """
    q, k, v, bias, sink = inputs
    places = _Places(q, k, options)
    used = places.key_used.transpose(-1, -2)
    group = q.shape[1] // max(k.shape[1], 1)
    q = torch.where(places.row_used, q.to(dtype), 0.0)  # what is not used may hold anything
    k, v = (torch.where(used, tensor.to(dtype), 0.0).repeat_interleave(group, 1) for tensor in (k, v))
    s = _scores(Inputs(q, k, v, bias, sink), places, options, dtype)
    counts = None
    if options.key_indices is not None:
        counts = _times_selected(options.key_indices, places, k.shape[2], group)
        s = torch.where(counts > 0, s, -math.inf)
    top = s.detach().amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -math.inf)
    logit = None if sink is None else torch.where(places.row_used, sink.to(dtype)[:, None, None], -math.inf)
    if logit is not None:
        top = torch.maximum(top, logit.detach())
    top = torch.where(torch.isneginf(top), 0.0, top)
    weights = torch.exp(s - top)
    if counts is not None:
        weights = weights * counts
    total = weights.sum(-1, keepdim=True)
    if logit is not None:
        total = total + torch.exp(logit - top)
    nothing = total == 0
    total = torch.where(nothing, 1.0, total)
    lse = torch.where(nothing, -math.inf, top + torch.log(total)).squeeze(-1)
    weights = weights / total
    if options.dropout_p > 0.0:
        kept = keep_of(options, places.row, places.key, s.shape[0], s.shape[1], first)
        weights = torch.where(kept, weights * growth(options), 0.0)
    return weights @ v, lse


def _derived(inputs: Inputs) -> list[int]:
    """Places of the inputs that may have derivatives."""
    return [i for i, tensor in enumerate(inputs) if tensor is not None and tensor.dtype != torch.bool]


def gradients(
    dout: Tensor, dlse: Optional[Tensor], inputs: Inputs, options: Options, wanted: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """Gradients by the inputs at the places `wanted`, with derivatives of their own."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        results = forward(_with(inputs, wanted, tensors), options)
        return results if dlse is not None else results[:1]

    pull: Any = torch.func.vjp(run, *(inputs[i] for i in wanted))[1]
    found: tuple[Tensor, ...] = pull((dout,) if dlse is None else (dout, dlse))
    return found


def _with(inputs: Inputs, places: tuple[int, ...], tensors: tuple[Tensor, ...]) -> Inputs:
    values: list[Any] = list(inputs)
    for place, tensor in zip(places, tensors):
        values[place] = tensor
    return Inputs(*values)


def second_gradients(
    given: tuple[Optional[Tensor], ...],
    dout: Tensor,
    dlse: Optional[Tensor],
    inputs: Inputs,
    options: Options,
) -> tuple[Optional[Tensor], ...]:
    """Gradients by dout, dlse and the inputs (None where there is none) of the call's gradients, whose own are `given`
    by place: those of q, k, v, bias and sink, None standing for zeros."""
    wanted = tuple(i for i, tensor in enumerate(given) if tensor is not None and inputs[i] is not None)
    count = 1 if dlse is None else 2
    derived = tuple(_derived(inputs))
    if not wanted:
        return (None,) * 7
    say("double backward", inputs.q, inputs.k, options)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        own_dlse = tensors[1] if count == 2 else None
        return gradients(tensors[0], own_dlse, _with(inputs, derived, tensors[count:]), options, wanted)

    rows = (dout,) if dlse is None else (dout, dlse)
    pull: Any = torch.func.vjp(run, *rows, *(inputs[i] for i in derived))[1]
    found = pull(tuple(given[i] for i in wanted))
    results: list[Optional[Tensor]] = [None] * 7
    for place, gradient in zip((*range(count), *(2 + i for i in derived)), found):
        results[place] = gradient
    return tuple(results)
