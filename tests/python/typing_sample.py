# Uses of the public functions that a strict type checker must accept; test_typing.py runs mypy on
# it, and on copies with a mistake put in. reveal_type lines are checked against their comments.
"""A sample of typed code on top of Tilewise."""

# ruff: noqa: F821 (reveal_type is mypy's)

import numpy as np
import numpy.typing as npt
import torch

import tilewise

Array = npt.NDArray[np.float32]


def numpy_call(q: Array, k: Array, v: Array) -> Array:
    out = tilewise.attention(q, k, v, mask="causal", window=(128, -1), softcap=30.0)
    reveal_type(out)  # numpy.ndarray[
    return out


def torch_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out, lse = tilewise.attention(q, k, v, dropout_p=0.1, seed=torch.tensor([1, 2]), return_lse=True)
    reveal_type(lse)  # torch._tensor.Tensor
    merged, _ = tilewise.merge([out, out], [lse, lse], layout="bshd")
    stacked = tilewise.merge(torch.stack([out, out]), torch.stack([lse, lse]), return_lse=False)
    reveal_type(stacked)  # torch._tensor.Tensor
    return merged


def gradients(dout: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    result = tilewise.attention_backward(dout, q, k, v, out, lse, gradients=("dq", "dk"), mask="causal_top_left")
    reveal_type(result)  # tuple[Any, Any, Any, Any, Any, fallback=tilewise._backward.AttentionGradients]
    return result.dq, result.dk


def explained(q: Array) -> list[str]:
    tilewise.warmup(q, q, q, mask="causal")
    tilewise.warmup(q, q, q, return_lse=True)
    explanation = tilewise.explain(q, q, q, layout="bhsd", implementation="reference")
    reveal_type(explanation.chosen)  # str | None
    print(explanation, tilewise.explain("attention_forward seqlen_q=8 head_dim=8").problem, tilewise.__version__)
    tilewise.set_num_threads(tilewise.get_num_threads())
    return [row.reason for row in explanation.rows if not row.accepted]
