# The public functions. Each brings its arguments to one form and hands over to the module of
# the arrays' kind; torch is imported only where a torch tensor shows that it already is.
"""attention, explain and warmup."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from tilewise import _arrays, _core
from tilewise._arguments import flag, implementation_name, number, without_number
from tilewise._functions import score_functions
from tilewise._keywords import check_keywords, keywords_of
from tilewise._kinds import form
from tilewise._options import (
    ARRAY_NAMES,
    DEFAULT_TAIL,
    FORMS,
    TAIL,
    Options,
    head_and_tail,
    option_parts,
    short_options,
)
from tilewise._threads import torch_threads
from tilewise._types import Alignment, Array, ArrayT, Layout, Mask, ScoreFunction

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tilewise._options import AttentionOptions

_FUNCTIONS = frozenset({"score_mod", "mask_mod", "block_mask"})
_torch_backend: Any = None  # tilewise._torch, from the first eager call with torch loaded on


def _load_torch_backend() -> Any:
    """tilewise._torch if the program has imported torch, else None: then no array can be a tensor."""
    global _torch_backend
    if sys.modules.get("torch") is None:
        return None
    import tilewise._torch

    if not tilewise._torch.compiling():  # a compiler that looks on guards this global, so it must stay
        _torch_backend = tilewise._torch
    return tilewise._torch


def torch_backend() -> Any:
    """tilewise._torch, or None where no array can be a tensor."""
    return _torch_backend or _load_torch_backend()


def _is_torch(array: Any) -> bool:
    backend = torch_backend()
    return backend is not None and isinstance(array, backend.Tensor)


def _with_short_way(careful: Callable[..., Any]) -> Callable[..., Any]:
    """attention() with a short way, at a third of the cost, for eager calls on torch tensors without rarer options than
    functions of scores.

    It answers unknown keywords too, for `careful`.
    """
    known = keywords_of(careful)

    @functools.wraps(careful)
    def attention(
        q: Any,
        k: Any,
        v: Any,
        *,
        mask: Any = None,
        softmax_scale: Any = None,
        layout: Any = "bshd",
        return_lse: Any = False,
        **options: Any,
    ) -> Any:
        torch = _torch_backend
        if (
            torch is not None
            and not torch.compiling()  # first, as the one that a compiler which looks on understands
            and (not options or options.keys() <= _FUNCTIONS)
            and not torch.any_autocast()
            and not torch.transforming()
            and torch.forward_ad._current_level < 0
            and isinstance(q, torch.Tensor)
            and not q.is_nested
            and isinstance(k, torch.Tensor)
            and isinstance(v, torch.Tensor)
            and (return_lse is False or return_lse is True)
        ):
            try:
                form = FORMS[mask, layout]
            except (KeyError, TypeError):  # not such a mask, or no name: the careful way sees to it
                pass
            else:
                if softmax_scale is not None:
                    softmax_scale = number("softmax_scale", softmax_scale)
                if not options:
                    return torch.plain_attention(q, k, v, form, softmax_scale, return_lse)
                functions = score_functions(**options)
                if functions is not None:
                    result = torch.attention_by_functions(q, k, v, form, softmax_scale, return_lse, functions)
                    if result is not None:
                        return result
        check_keywords("attention", options, known)
        return careful(q, k, v, mask=mask, softmax_scale=softmax_scale, layout=layout, return_lse=return_lse, **options)

    return attention


@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, return_lse: Literal[False] = ..., **options: Unpack[AttentionOptions]
) -> ArrayT: ...
@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, return_lse: Literal[True], **options: Unpack[AttentionOptions]
) -> tuple[ArrayT, ArrayT]: ...
@overload
def attention(
    q: ArrayT, k: ArrayT, v: ArrayT, *, return_lse: bool, **options: Unpack[AttentionOptions]
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]: ...
@_with_short_way
def attention(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    *,
    mask: Mask = None,
    alignment: Alignment = "bottom_right",
    window: tuple[int, int] = (-1, -1),
    softmax_scale: Optional[float] = None,
    softcap: float = 0.0,
    bias: Optional[Array] = None,
    alibi_slopes: Optional[Array] = None,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[ScoreFunction] = None,
    block_mask: Optional[object] = None,
    sink: Optional[Array] = None,
    dropout_p: float = 0.0,
    seed: Optional[Union[int, Array]] = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k: Optional[Array] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    seqused_q: Optional[Array] = None,
    seqused_k: Optional[Array] = None,
    leftpad_k: Optional[Array] = None,
    q_scale: Optional[Union[float, Array]] = None,
    k_scale: Optional[Union[float, Array]] = None,
    v_scale: Optional[Union[float, Array]] = None,
    key_indices: Optional[Array] = None,
    layout: Layout = "bshd",
    return_lse: bool = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
    out: Optional[Array] = None,
    implementation: Optional[str] = None,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]:
    """Softmax attention: ``softmax(softmax_scale * q @ k.T + ...) @ v`` per head, without the score matrix.

    Torch tensors have autograd (q, k, v, bias and sink), torch.compile, autocast and vmap. NumPy arrays
    (bfloat16 through ml_dtypes) and DLPack arrays return their own kind. The full definition,
    ``tilewise.semantics``, follows below.

    Jagged tensors of torch.nested, [batch_size, *seqlen, num_heads, head_dim], or with layout "bhsd"
    [batch_size, num_heads, *seqlen, head_dim], are computed on where they lie. out has q's own offsets (and
    lengths, which take the place of seqused), so that q + out works; k and v may have others. softmax_lse is
    that of layout "thd" over q.values(): [num_heads_q, total_q]. max_seqlen_q and max_seqlen_k, which a bias goes
    by, are those that torch keeps, else computed, which on a GPU waits for it once, as lengths do at every call.

    Args:
        q: [batch_size, seqlen_q, num_heads_q, head_dim], f32, bf16, f16 or, without gradients, fp8 e4m3; on the CPU
            f64 too. Any strides with a contiguous last dimension will do; nothing is copied.
        k: [batch_size, seqlen_k, num_heads_k, head_dim], dtype of q. num_heads_k divides num_heads_q.
        v: [batch_size, seqlen_k, num_heads_k, head_dim_v], dtype of q.
        mask: None, "causal", or "causal_top_left", which is causal with alignment "top_left".
        alignment: Where the diagonal of masks and windows stands when seqlen_q and seqlen_k differ.
        window: Keys visible to the (left, right) of the diagonal; -1 is unbounded.
        softmax_scale: Any finite number; None means 1/sqrt(head_dim).
        softcap: Scores become softcap * tanh(score / softcap); 0 switches it off.
        bias: Added to the scores: f32 or dtype of q, broadcastable to [batch_size, num_heads_q, seqlen_q,
            seqlen_k]; or bool, where True is visible.
        alibi_slopes: f32 (f64 where q is) [num_heads_q] or [batch_size, num_heads_q].
        score_mod: Makes another score of each: a function (score, b, h, q_idx, kv_idx) as torch's FlexAttention takes
            it, what tilewise.expression.trace() made of one, or an expression's text. It is the last step before the
            mask; -inf hides. Only the reference computes it so far.
        mask_mod: Says whether a key is visible: likewise a function (b, h, q_idx, kv_idx).
        block_mask: What tilewise.block_mask() made, or torch's BlockMask, instead of mask_mod: blocks that it does not
            list are hidden and cost nothing, full ones are taken at their word.
        sink: f32 or dtype of q, [num_heads_q], one logit per head that joins the softmax's denominator only.
        dropout_p: Probability in [0, 1) of dropping a weight; kept ones grow by 1 / (1 - dropout_p).
        seed: An integer or an int64 tensor [2] of seed and offset. None draws one with torch's generator;
            other arrays must give it.
        cu_seqlens_q, cu_seqlens_k: int32 [batch_size + 1] of layout "thd": where sequences start.
        max_seqlen_q, max_seqlen_k: Longest sequence of layout "thd"; None computes it.
        seqused_q, seqused_k: int32 [batch_size], how many rows of each sequence count.
        leftpad_k: int32 [batch_size], how many keys to skip at the start of each sequence.
        q_scale, k_scale, v_scale: Of q, k and v in fp8, what the stored numbers are multiplied by: a positive number,
            or f32 of no dimension, [its num_heads] or [batch_size, num_heads_k]. None: 1.
        key_indices: int32 [batch_size, seqlen_q, 1 or num_heads_k, top_k], packed [total_q, ...]: the places of the
            only keys that a query sees, in any order; -1 is none, and one that stands twice counts twice.
        layout: Order of the dimensions: "bshd", "sbhd", "bhsd", or packed "thd" [total, num_heads, dim].
        return_lse: Also return softmax_lse, f32 (f64 where q is) [batch_size, num_heads_q, seqlen_q], packed
            [num_heads_q, total_q].
        deterministic: Gradients of q, bias and sink are bit-reproducible too (k's and v's always are).
        batch_invariant: A sequence's result does not depend on what else is in the batch.
        out: Where to write; refused for inputs that require gradients. With q in fp8 it may be bf16 or f16.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.

    Returns:
        out, shaped like q with head_dim_v as the last dimension and in q's dtype, bf16 where that is fp8; or
        (out, softmax_lse). A new torch tensor of layout "bhsd" is stored heads first or rows first as q is, and so are
        gradients beside their inputs.

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it, what was expected and what came.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    head, tail = head_and_tail(
        mask, alignment, window, softmax_scale, softcap, dropout_p, max_seqlen_q, max_seqlen_k, layout, deterministic,
        batch_invariant, implementation, q_scale, k_scale, v_scale,
    )  # fmt: skip
    return_lse = flag("return_lse", return_lse)
    arrays: Optional[tuple[Any, ...]] = (
        bias, sink, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, without_number(q_scale),
        without_number(k_scale), without_number(v_scale), key_indices,
    )  # fmt: skip
    if bias is sink is alibi_slopes is cu_seqlens_q is cu_seqlens_k is seqused_q is seqused_k is leftpad_k is None:
        arrays = None if q_scale is k_scale is v_scale is key_indices is None else arrays
    backend = _torch_backend or _load_torch_backend()
    functions = score_functions(score_mod, mask_mod, block_mask)
    result: Union[ArrayT, tuple[ArrayT, ArrayT]]
    if backend is not None and isinstance(q, backend.Tensor) and functions is not None:
        result = backend.attention_with_functions(q, k, v, out, seed, head, arrays, tail, return_lse, functions)
        return result
    if backend is not None and isinstance(q, backend.Tensor):
        result = backend.attention(q, k, v, out, seed, head, arrays, tail, return_lse)
        return result
    if backend is not None and hasattr(q, "__dlpack__") and isinstance(k, backend.Tensor):
        got = "; ".join(filter(None, (type(q).__name__, form(q))))
        raise TypeError(f"q: must be a torch tensor as k is (got {got})")
    result = _arrays.attention(q, k, v, out, _arrays.call_options(head, arrays, tail, seed), return_lse, functions)
    return result


@overload
def explain(q: str, *, implementation: Optional[str] = ...) -> _core.Explanation: ...
@overload
def explain(
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    *,
    device: object = ...,
    return_lse: bool = ...,
    **options: Unpack[AttentionOptions],
) -> _core.Explanation: ...
def explain(
    q: Union[str, Array],
    k: Optional[Array] = None,
    v: Optional[Array] = None,
    *,
    device: object = None,
    **options: object,
) -> _core.Explanation:
    """Every implementation's verdict on a forward call: accepted with an estimate, or refused with a reason.

    Estimates on the CPU are those of as many threads as the call would use, get_num_threads().

    Args:
        q: As attention() takes it, with all its other arguments; or a problem as text, on its own or with
            implementation=, such as "attention_backward dtype=bf16 seqlen_q=4096 num_heads_q=32 head_dim=128". Torch
            tensors need no memory: those of the meta device and fake ones are taken as aligned as torch allocates.
            Packed ones then need max_seqlen_q and max_seqlen_k.
        device: Of torch tensors, where the call would run, as torch names devices. None: where they are, those of the
            meta device on torch's GPU, or on the CPU where it has none.

    Returns:
        An object that prints as a table; .rows holds the verdicts, .problem the problem as text.

    Raises:
        ValueError, TypeError: The call itself is wrong.
    """
    if isinstance(q, str):
        others = {"k": k, "v": v, "device": device}
        return _core.explain_problem(q, _of_text("explain", others, {}, options), torch_threads())
    given, call = _bound_call("explain", q, k, v, options)
    if _is_torch(q) and (device is not None or not _load_torch_backend().private.has_values(q)):
        given, call = _load_torch_backend().without_memory.placed(given, call, device)
    elif device is not None:
        raise TypeError(f"device: must be None with arrays that are no torch tensors (got {device!r})")
    return _core.explain_forward(
        _arrays.borrow("q", given["q"]),
        _arrays.borrow("k", given["k"]),
        _arrays.borrow("v", given["v"]),
        _arrays.borrow_optional("out", given["out"], writable=True),
        flag("return_lse", given["return_lse"]),
        _arrays.core_options(call, score_functions(given["score_mod"], given["mask_mod"], given["block_mask"])),
        call.implementation or "",
        torch_threads(),
    )


@overload
def warmup(q: str, *, implementation: Optional[str] = ...) -> None: ...
@overload
def warmup(q: ArrayT, k: ArrayT, v: ArrayT, *, return_lse: bool = ..., **options: Unpack[AttentionOptions]) -> None: ...
def warmup(
    q: Union[str, Array],
    k: Optional[Array] = None,
    v: Optional[Array] = None,
    *,
    return_lse: bool = False,
    **options: object,
) -> None:
    """Makes the plan of a call and loads its kernels, compiling them where that is needed, without running it.

    A GPU's stream can only capture kernels that are loaded, so this comes before a capture of calls that have not
    run yet. Where q, k, v, bias or sink require gradients, the backward pass is prepared too, for contiguous
    gradients of out.

    Args:
        q, k, v: As attention() takes them, with all its other arguments; their elements are not read. Or a problem of
            any operation as text, on its own or with implementation=, as explain() takes it.

    Raises:
        ValueError, TypeError, NotImplementedError: As attention() would.
        RuntimeError: A kernel could not be compiled or loaded; the message is the compiler's or the driver's.
    """
    if isinstance(q, str):
        _core.warm_up_problem(q, _of_text("warmup", {"k": k, "v": v}, {"return_lse": return_lse}, options))
        return
    differentiable: tuple[Any, ...] = (q, k, v, options.get("bias"), options.get("sink"))
    wanted = [_is_torch(array) and array.requires_grad for array in differentiable]
    given, call = _bound_call("warmup", q, k, v, {"return_lse": return_lse, **options})
    _core.warm_up(
        _arrays.borrow("q", given["q"]),
        _arrays.borrow("k", given["k"]),
        _arrays.borrow("v", given["v"]),
        _arrays.borrow_optional("out", given["out"], writable=True),
        flag("return_lse", given["return_lse"]) or any(wanted) or (_is_torch(q) and not _is_without_lse(given, call)),
        wanted,
        _arrays.core_options(call, score_functions(given["score_mod"], given["mask_mod"], given["block_mask"])),
        call.implementation or "",
    )


def _is_without_lse(given: dict[str, Any], call: Options) -> bool:
    """Whether a torch operator for few options takes the call. That with all of them always writes softmax_lse."""
    if any(given[name] is not None for name in ("out", "score_mod", "mask_mod", "block_mask")):
        return False
    others = (given["seed"], *(given[name] for name in ARRAY_NAMES))
    if all(other is None for other in others) and call[TAIL] == DEFAULT_TAIL:
        return True
    drawn = not _is_torch(given["seed"])  # a seed that is drawn is not passed where nothing is dropped
    return short_options(call._replace(seed_and_offset=None) if drawn else call) is not None


def _bound_call(function: str, q: Any, k: Any, v: Any, options: dict[str, Any]) -> tuple[dict[str, Any], Options]:
    """All of attention()'s arguments by name, as `function` got them, tensors detached, and the Options they make."""
    check_keywords(function, options, keywords_of(attention))
    bound = inspect.signature(attention).bind(q, k, v, **options)
    bound.apply_defaults()
    given = {name: array.detach() if _is_torch(array) else array for name, array in bound.arguments.items()}
    head, arrays, tail = option_parts(given)
    seed = given["seed"]
    if seed is None:  # torch's operators get a drawn one, as a tensor where q is
        torch: Any = sys.modules.get("torch")
        seed = torch.empty(2, dtype=torch.int64, device=q.device) if _is_torch(q) and q.is_cuda else 0
    call = _arrays.call_options(head, arrays, tail, seed)
    if _is_torch(q) and q.is_nested:
        call = _load_torch_backend().jagged.unwrap(given, call)
    return given, call


def _of_text(function: str, arrays: dict[str, Any], flags: dict[str, Any], others: dict[str, Any]) -> str:
    """The implementation that is asked for beside a problem as text, beside which nothing else may be given."""
    check_keywords(function, others, keywords_of(attention))
    given = {name: array for name, array in arrays.items() if array is not None}
    given |= {name: value for name, value in flags.items() if value is not False} | others
    for name, value in given.items():
        if name != "implementation":
            raise TypeError(f"{name}: must not be given beside a problem as text (got {type(value).__name__})")
    return implementation_name(others.get("implementation")) or ""
