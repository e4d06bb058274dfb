# Uses of the public functions that a strict type checker must accept; test_typing.py runs mypy on
# it, and on copies with a mistake put in. reveal_type lines are checked against their comments.
"""A sample of typed code on top of Tilewise."""

# ruff: noqa: F821 (reveal_type is mypy's)

from typing import Optional

import numpy as np
import numpy.typing as npt
import torch

import tilewise

Array = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


def numpy_call(q: Array, k: Array, v: Array, lengths: Integers) -> Array:
    out = tilewise.attention(q, k, v, mask="causal", window=(128, -1), softcap=30.0, seqused_k=lengths)
    reveal_type(out)  # numpy.ndarray[tuple[Any, ...], numpy.dtype[numpy.float
    return out


def torch_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out, lse = tilewise.attention(q, k, v, dropout_p=0.1, seed=torch.tensor([1, 2]), return_lse=True)
    reveal_type(lse)  # torch._tensor.Tensor
    merged, _ = tilewise.merge([out, out], [lse, lse], layout="bshd")
    stacked = tilewise.merge(torch.stack([out, out]), torch.stack([lse, lse]), return_lse=False)
    reveal_type(stacked)  # torch._tensor.Tensor
    return merged


def either(q: torch.Tensor, with_lse: bool) -> None:
    reveal_type(tilewise.attention(q, q, q, return_lse=with_lse))  # torch._tensor.Tensor | tuple[torch._tensor.Tensor,
    reveal_type(tilewise.merge([q], [q], return_lse=with_lse))  # torch._tensor.Tensor | tuple[torch._tensor.Tensor,


def gradients(dout: Array, q: Array, k: Array, v: Array) -> tuple[Array, Optional[Array]]:
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    some = tilewise.attention_backward(dout, q, k, v, out, lse, gradients=("dq", "dk"), mask="causal_top_left")
    reveal_type(some.dv)  # numpy.ndarray[tuple[Any, ...], numpy.dtype[numpy.float
    every = tilewise.attention_backward(dout, q, k, v, out, lse, dlse=lse)
    reveal_type(every.dbias)  # numpy.ndarray[tuple[Any, ...], numpy.dtype[numpy.float
    return every.dq, some.dk


def serving_step(q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    tilewise.append_kv(cache, cache, q, q, cache_seqlens=3, block_table=table)
    out, lse = tilewise.kv_cache_attention(q, cache, cache, mask="causal", cache_seqlens=table[0], return_lse=True)
    reveal_type(lse)  # torch._tensor.Tensor
    values_within = tilewise.kv_cache_attention(q, cache, None, head_dim_v=512, block_table=table)
    reveal_type(values_within)  # torch._tensor.Tensor
    return out


def module_call(q: torch.Tensor) -> torch.Tensor:
    attention = tilewise.nn.FlashAttention(0.5, attention_dropout=0.1, layout="bhsd")
    out, lse = attention(q, q, q, causal=True, window=(7, -1), return_lse=True)
    reveal_type(lse)  # torch._tensor.Tensor
    reveal_type(attention(q, q, q))  # torch._tensor.Tensor
    return out


def explained(q: Array) -> list[str]:
    tilewise.warmup(q, q, q, mask="causal")
    tilewise.warmup(q, q, q, return_lse=True)
    explanation = tilewise.explain(q, q, q, layout="bhsd", implementation="reference")
    reveal_type(explanation.chosen)  # str | None
    print(explanation, tilewise.explain("attention_forward seqlen_q=8 head_dim=8").problem, tilewise.__version__)
    tilewise.set_num_threads(tilewise.get_num_threads())
    return [row.reason for row in explanation.rows if not row.accepted]
