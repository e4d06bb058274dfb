# FlashAttention-4's two functions as far as their arguments mean what Tilewise's do; the others are refused by name.
"""flash_attn.cute.interface over Tilewise."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._options import Options
from tilewise._torch.errors import raise_known
from tilewise.compat.flash_attn import _attend
from tilewise.compat.flash_attn._autograd import without_backward
from tilewise.compat.flash_attn._call import dense_rows
from tilewise.compat.flash_attn._plain import refuse
from tilewise.compat.flash_attn_3 import _kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]

_NONE = (None, None)
_PAGED_BACKWARD = "flash_attn_varlen_func: there is no backward pass with page_table"


def _sides(window_size: Any, causal: bool) -> tuple[int, int]:
    """(left, right), -1 for unbounded, which there is None, or both sides negative."""
    left, right = window_size
    if left is not None and right is not None and left < 0 and right < 0:
        left = right = None
    right = None if causal else right
    for side in (left, right):
        if side is not None and side < 0:
            raise refuse("window_size", "two numbers from 0 up, or None for an unbounded side", tuple(window_size))
    return (-1 if left is None else int(left)), (-1 if right is None else int(right))


def _refuse_given(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise refuse(name, "None", type(value).__name__)


def _sink(learnable_sink: Optional[Tensor], q: Tensor) -> Optional[Tensor]:
    usable = learnable_sink is None or learnable_sink.dtype in (q.dtype, torch.float32)
    return learnable_sink if usable or learnable_sink is None else learnable_sink.float()


def _returned(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool) -> tuple[Tensor, Optional[Tensor]]:
    try:
        out, lse = _attend.run(dense_rows(q), dense_rows(k), dense_rows(v), None, tuple(options), True, options.sink)
    except RuntimeError as error:
        given = {name: getattr(options, name) for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")}
        raise_known(error, q=q, k=k, v=v, sink=options.sink, **given)
        raise
    if return_lse:
        return out, lse
    return out, lse.detach() if out.requires_grad else None


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Optional[Tensor] = None,
    gather_kv_indices: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = _NONE,
    learnable_sink: Optional[Tensor] = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    aux_tensors: Any = None,
    aux_scalars: Any = None,
    block_sparse_tensors: Any = None,
    block_sparse_tensors_bwd: Any = None,
    return_lse: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: Optional[int] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """Attention of q [batch_size, seqlen_q, num_heads, head_dim] and k, v [batch_size, seqlen_k, num_heads_k, dim].

    Args:
        q, k, v: Of one dtype; v may have a head_dim of its own.
        softmax_scale: None means 1/sqrt(head_dim).
        causal: Whether a query sees no key behind its own place, the last ones being side by side.
        window_size: (left, right); None is unbounded.
        learnable_sink: [num_heads], a logit that joins the softmax's denominator; has a gradient.
        softcap: Scores become softcap * tanh(score / softcap); 0 switches it off.
        deterministic: The gradients of q and of the sink are bit-reproducible too.
        num_splits, pack_gqa: Without effect.
        return_lse: softmax_lse is wanted, with a gradient.
        Others: None or False; refused by name otherwise.

    Returns:
        (out, softmax_lse f32 [batch_size, num_heads, seqlen_q], -inf where a row sees nothing; or None where it was
        not asked for and nothing requires a gradient).

    Raises:
        ValueError, TypeError, NotImplementedError: The call is refused; the message says why.
    """
    _refuse_given(
        qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod, score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod, aux_tensors=aux_tensors, aux_scalars=aux_scalars, block_sparse_tensors=block_sparse_tensors,
        block_sparse_tensors_bwd=block_sparse_tensors_bwd, gather_bwd_recompute_p=gather_bwd_recompute_p,
        gather_bwd_token_chunk=gather_bwd_token_chunk,
    )  # fmt: skip
    left, right = _sides(window_size, causal)
    options = Options(
        causal=bool(causal), softmax_scale=softmax_scale, sink=_sink(learnable_sink, q), window_left=left,
        window_right=right, softcap=softcap or 0.0, deterministic=bool(deterministic),
    )  # fmt: skip
    return _returned(q, k, v, options, return_lse)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    min_seqlen_k: Optional[int] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    gather_kv_indices: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Any = _NONE,
    learnable_sink: Optional[Tensor] = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    score_mod: Any = None,
    score_mod_bwd: Any = None,
    mask_mod: Any = None,
    block_sparse_tensors: Any = None,
    aux_tensors: Any = None,
    aux_scalars: Any = None,
    return_lse: bool = False,
    scheduler_metadata: Any = None,
    seqlen_k_per_split: Optional[int] = None,
    disable_scheduler_metadata: bool = False,
    gather_bwd_recompute_p: bool = False,
    gather_bwd_token_chunk: Optional[int] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """flash_attn_func of sequences of several lengths.

    Args:
        q: Packed [total_q, num_heads, head_dim] with cu_seqlens_q, or [batch_size, seqlen_q, num_heads, head_dim].
        k, v: Packed as q is, with cu_seqlens_k; or not as q is not; or with a page_table [num_pages, page_size,
            num_heads_k, head_dim] of any page_size.
        cu_seqlens_q, cu_seqlens_k: int32 [batch_size + 1]. max_seqlen_q, max_seqlen_k: Longest sequences.
        seqused_q, seqused_k: int32 [batch_size], how many rows count.
        page_table: int32 [batch_size, pages], beside which seqused_k must be given; there is no backward pass.
        min_seqlen_k, scheduler_metadata, seqlen_k_per_split, disable_scheduler_metadata: Without effect.
        Others: As flash_attn_func's.

    Returns:
        As flash_attn_func; softmax_lse of packed queries is [num_heads, total_q].
    """
    _refuse_given(
        qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod, score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod, aux_tensors=aux_tensors, aux_scalars=aux_scalars, block_sparse_tensors=block_sparse_tensors,
        gather_bwd_recompute_p=gather_bwd_recompute_p, gather_bwd_token_chunk=gather_bwd_token_chunk,
    )  # fmt: skip
    left, right = _sides(window_size, causal)
    sink = _sink(learnable_sink, q)
    if page_table is not None:
        if seqused_k is None or seqused_q is not None:
            raise refuse("seqused_k", "given, and seqused_q None, with page_table", None)
        places = {"block_table": page_table, "cache_seqlens": seqused_k, "cu_seqlens_q": cu_seqlens_q, "sink": sink}
        numbers: dict[str, Any] = {
            "causal": bool(causal), "window_left": left, "window_right": right, "softmax_scale": softmax_scale,
            "softcap": softcap or 0.0, "max_seqlen_q": max_seqlen_q if cu_seqlens_q is not None else None,
        }  # fmt: skip
        out, lse = _kvcache.attend(dense_rows(q), k, v, None, None, None, places, (None, None, None), numbers)
        return without_backward(out, _PAGED_BACKWARD, q, k, v), lse if return_lse else None
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        raise refuse("cu_seqlens_k", "given where cu_seqlens_q is, and there alone", type(cu_seqlens_k).__name__)
    options = Options(
        causal=bool(causal), softmax_scale=softmax_scale, layout="bshd" if cu_seqlens_q is None else "thd", sink=sink,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k,
        max_seqlen_q=None if cu_seqlens_q is None else max_seqlen_q,
        max_seqlen_k=None if cu_seqlens_q is None else max_seqlen_k, window_left=left, window_right=right,
        softcap=softcap or 0.0, deterministic=bool(deterministic),
    )  # fmt: skip
    return _returned(q, k, v, options, return_lse)
