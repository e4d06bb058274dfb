# tilewise::merge, the torch operator behind merge(). It runs once per partial result set and
# has no gradient, so Python is fast enough for it.
"""merge() for torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _core
from tilewise._torch.errors import raise_known
from tilewise._torch.operators import LIBRARY
from tilewise._torch.python_kernels import borrow
from tilewise._torch.refusals import refuse_tangents


def _kernel(outs: list[Tensor], lses: list[Tensor], sink: Optional[Tensor], layout: str) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(outs[0], memory_format=torch.contiguous_format)
    lse = torch.empty_like(lses[0], memory_format=torch.contiguous_format)
    _core.merge(
        [borrow(f"outs[{i}]", tensor) for i, tensor in enumerate(outs)],
        [borrow(f"lses[{i}]", tensor) for i, tensor in enumerate(lses)],
        None if sink is None else borrow("sink", sink),
        borrow("out", out, writable=True),
        borrow("softmax_lse", lse, writable=True),
        layout,
        torch.get_num_threads(),
    )
    return out, lse


def _kernel_on_gpu(
    outs: list[Tensor], lses: list[Tensor], sink: Optional[Tensor], layout: str
) -> tuple[Tensor, Tensor]:
    """The same sum in torch's own operations: small beside the attention it follows, and it can be captured."""
    weights = torch.stack(lses)  # [n, batch_size, num_heads_q, seqlen_q]; packed [n, num_heads_q, total_q]
    own_sink = None if sink is None else sink.reshape(-1, 1).expand_as(lses[0])
    everything = weights if own_sink is None else torch.cat((weights, own_sink.unsqueeze(0)))
    lse = torch.logsumexp(everything, 0)
    # A row that saw nothing has lse -inf, weight 0 and out 0.
    weights = torch.where(torch.isneginf(lse), 0.0, torch.exp(weights - lse))
    order = {"bshd": (0, 1, 3, 2), "sbhd": (0, 3, 1, 2), "bhsd": (0, 1, 2, 3), "thd": (0, 2, 1)}[layout]
    stacked = torch.stack(outs).to(lse.dtype)
    scaled = weights.permute(order).unsqueeze(-1) * stacked
    scaled = torch.where(weights.permute(order).unsqueeze(-1) == 0.0, 0.0, scaled)
    return scaled.sum(0).to(outs[0].dtype), lse


def _fake(outs: list[Tensor], lses: list[Tensor], sink: Optional[Tensor], layout: str) -> tuple[Tensor, Tensor]:
    for i, (out, lse) in enumerate(zip(outs, lses)):
        for name, tensor in ((f"outs[{i}]", out), (f"lses[{i}]", lse), ("sink", sink)):
            if tensor is not None and tensor.device != outs[0].device:
                raise TypeError(f"{name}: must be on {outs[0].device}, where outs[0] is (got {tensor.device})")
    contiguous = torch.contiguous_format
    return torch.empty_like(outs[0], memory_format=contiguous), torch.empty_like(lses[0], memory_format=contiguous)


LIBRARY.define("merge(Tensor[] outs, Tensor[] lses, Tensor? sink, str layout) -> (Tensor, Tensor)")
LIBRARY.impl("merge", _kernel, "CPU")
LIBRARY.impl("merge", _kernel_on_gpu, "CUDA")
torch.library.register_fake("tilewise::merge", _fake, lib=LIBRARY)
_merge: Any = torch.ops.tilewise.merge.default


def merge(outs: Sequence[Any], lses: Sequence[Any], sink: Any, layout: str) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse); see tilewise.merge."""
    given = {"sink": sink} if sink is not None else {}
    for kind, tensors in (("outs", outs), ("lses", lses)):
        given.update((f"{kind}[{i}]", tensor) for i, tensor in enumerate(tensors))
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: must be a torch tensor like outs[0] (got {type(tensor).__name__})")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(f"{name}: merge has no gradient; pass detached tensors or use torch.no_grad()")
    refuse_tangents(given.items())
    try:
        out, lse = _merge(list(outs), list(lses), sink, layout)
    except RuntimeError as error:
        raise_known(error, **given)
        raise
    return out, lse
