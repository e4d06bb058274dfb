# The backward pass as a function of its own, for arrays without autograd and for programs that
# keep their own graph. Like attention(), it hands over to the module of the arrays' kind.
"""attention_backward and its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, Union

from tilewise import _arrays
from tilewise._arguments import DEFAULT_TAIL, DROPOUT_IN_TAIL, head_and_tail
from tilewise._attention import _load_torch_backend
from tilewise._keywords import with_known_keywords

if TYPE_CHECKING:
    from tilewise._types import Alignment, Gradient, Layout, Mask

ArrayT = TypeVar("ArrayT")


class AttentionGradients(NamedTuple):
    """Gradients by name, each of its input's kind, shape and dtype; None where not asked for."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any
    dsink: Any


@with_known_keywords
def attention_backward(
    dout: ArrayT,
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    out: ArrayT,
    softmax_lse: ArrayT,
    *,
    dlse: Optional[ArrayT] = None,
    gradients: Optional[Sequence[Gradient]] = None,
    mask: Mask = None,
    alignment: Alignment = "bottom_right",
    window: tuple[int, int] = (-1, -1),
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    bias: Optional[ArrayT] = None,
    alibi_slopes: Optional[ArrayT] = None,
    sink: Optional[ArrayT] = None,
    dropout_p: float = 0.0,
    seed: Optional[Union[int, ArrayT]] = None,
    cu_seqlens_q: Optional[ArrayT] = None,
    cu_seqlens_k: Optional[ArrayT] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    seqused_q: Optional[ArrayT] = None,
    seqused_k: Optional[ArrayT] = None,
    leftpad_k: Optional[ArrayT] = None,
    layout: Layout = "bshd",
    deterministic: bool = False,
    batch_invariant: bool = False,
    implementation: Optional[str] = None,
) -> AttentionGradients:
    """Gradients of attention() from what it took and gave, without the score matrix.

    NumPy arrays (bfloat16 through ml_dtypes) and DLPack arrays, on the CPU or a GPU, give new arrays of their own
    kind. Torch tensors work too, jagged ones included, and their gradients have no graph; attention() itself has
    autograd for them.

    Args:
        dout: Gradient of out, in its shape and dtype; any strides with a contiguous last dimension will do.
        q, k, v: As attention() took them.
        out, softmax_lse: What attention(q, k, v, return_lse=True) returned.
        dlse: Gradient of softmax_lse, in its shape and dtype; None stands for zeros.
        gradients: Which ones to compute: a tuple or list of "dq", "dk", "dv", "dbias" and "dsink". None: dq, dk and
            dv, dbias with a bias that is not bool, dsink with a sink.
        mask, alignment, window, softmax_scale, softcap, bias, alibi_slopes, sink, dropout_p, cu_seqlens_q,
            cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, leftpad_k, layout: As attention() took
            them.
        seed: The one attention() took; with dropout it must be given.
        deterministic: dq, dbias and dsink are bit-reproducible too (dk and dv always are).
        batch_invariant: A sequence's gradients do not depend on what else is in the batch.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.

    Returns:
        A named tuple (dq, dk, dv, dbias, dsink), None where not asked for. Each has the shape and dtype of its
        input; dbias of a bias that broadcasts is the sum over what it was broadcast to.

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it, what was expected and what came.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    head, tail = head_and_tail(
        mask, alignment, window, softmax_scale, softcap, dropout_p, max_seqlen_q, max_seqlen_k, layout, deterministic,
        batch_invariant, implementation,
    )  # fmt: skip
    if seed is None and (tail or DEFAULT_TAIL)[DROPOUT_IN_TAIL] != 0.0:
        raise ValueError("seed: must be given with dropout, as attention() took it (got None)")
    options = _arrays.call_options(
        head,
        (bias, sink, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, None, None, None),
        tail,
        seed,
    )
    tensors = {"dout": dout, "dlse": dlse, "q": q, "k": k, "v": v, "out": out, "softmax_lse": softmax_lse}
    backend = _load_torch_backend()
    if backend is not None and isinstance(q, backend.Tensor):
        return AttentionGradients(*backend.attention_backward(tensors, gradients, options))
    for name, tensor in tensors.items():
        if backend is not None and isinstance(tensor, backend.Tensor):
            raise TypeError(f"q: must be a torch tensor as {name} is (got {type(q).__name__})")
    return AttentionGradients(*_arrays.attention_backward(tensors, gradients, options))
