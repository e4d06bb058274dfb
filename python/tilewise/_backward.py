# The backward pass as a function of its own, for arrays without autograd and for programs that
# keep their own graph. Like attention(), it hands over to the module of the arrays' kind.
"""attention_backward and its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Optional, TypeVar, Union, overload

from tilewise import _arrays
from tilewise._attention import _load_torch_backend, attention
from tilewise._functions import score_functions
from tilewise._keywords import with_options_of
from tilewise._options import DEFAULT_TAIL, DROPOUT_IN_TAIL, option_parts
from tilewise._types import Array, ArrayT, Gradient

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tilewise._options import AttendOptions, BackwardOptions

    RowsT = TypeVar("RowsT")
    OtherT = TypeVar("OtherT")

    class AttentionGradients(NamedTuple, Generic[RowsT, OtherT]):
        """Gradients of rows are arrays, optional ones where a call names those that it wants."""

        dq: RowsT
        dk: RowsT
        dv: RowsT
        dbias: OtherT
        dsink: OtherT

else:  # before Python 3.11 no named tuple is generic

    class AttentionGradients(NamedTuple):
        """Gradients by name, each of its input's kind, shape and dtype; None where not asked for."""

        dq: Optional[Array]
        dk: Optional[Array]
        dv: Optional[Array]
        dbias: Optional[Array]
        dsink: Optional[Array]


@overload
def attention_backward(
    dout: ArrayT,
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    out: ArrayT,
    softmax_lse: ArrayT,
    *,
    gradients: None = ...,
    **options: Unpack[BackwardOptions],
) -> AttentionGradients[ArrayT, Optional[ArrayT]]: ...
@overload
def attention_backward(
    dout: ArrayT,
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    out: ArrayT,
    softmax_lse: ArrayT,
    *,
    gradients: Optional[Sequence[Gradient]],
    **options: Unpack[BackwardOptions],
) -> AttentionGradients[Optional[ArrayT], Optional[ArrayT]]: ...
@with_options_of(attention, without=("q_scale", "k_scale", "v_scale", "return_lse", "out"))
def attention_backward(
    dout: ArrayT,
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    out: ArrayT,
    softmax_lse: ArrayT,
    *,
    dlse: Optional[Array] = None,
    gradients: Optional[Sequence[Gradient]] = None,
    **options: Unpack[AttendOptions],
) -> Union[AttentionGradients[ArrayT, Optional[ArrayT]], AttentionGradients[Optional[ArrayT], Optional[ArrayT]]]:
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
        seed: The one attention() took; with dropout it must be given.
        deterministic: dq, dbias and dsink are bit-reproducible too (dk and dv always are).
        batch_invariant: A sequence's gradients do not depend on what else is in the batch.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.
        All others: As attention() took them.

    Returns:
        A named tuple (dq, dk, dv, dbias, dsink), None where not asked for. Each has the shape and dtype of its
        input; dbias of a bias that broadcasts is the sum over what it was broadcast to.

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it, what was expected and what came.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    head, arrays, tail = option_parts(options)
    if options["seed"] is None and (tail or DEFAULT_TAIL)[DROPOUT_IN_TAIL] != 0.0:
        raise ValueError("seed: must be given with dropout, as attention() took it (got None)")
    call = _arrays.call_options(head, arrays, tail, options["seed"])
    tensors = {"dout": dout, "dlse": dlse, "q": q, "k": k, "v": v, "out": out, "softmax_lse": softmax_lse}
    functions = score_functions(options["score_mod"], options["mask_mod"], options["block_mask"])
    backend = _load_torch_backend()
    if backend is not None and isinstance(q, backend.Tensor):
        return AttentionGradients(*backend.attention_backward(tensors, gradients, call, functions))
    for name, tensor in tensors.items():
        if backend is not None and isinstance(tensor, backend.Tensor):
            raise TypeError(f"q: must be a torch tensor as {name} is (got {type(q).__name__})")
    return AttentionGradients(*_arrays.attention_backward(tensors, gradients, call, functions))
