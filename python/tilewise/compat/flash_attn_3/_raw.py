# FlashAttention-3's raw passes, which rings of processes and other autograd functions are made of: no graph, every
# argument in its place.
"""_flash_attn_forward and _flash_attn_backward."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._options import Options
from tilewise.compat.flash_attn import _raw
from tilewise.compat.flash_attn._autograd import new_gradient
from tilewise.compat.flash_attn._call import dense_rows
from tilewise.compat.flash_attn_3 import _kvcache
from tilewise.compat.flash_attn_3._arguments import refuse, sides
from tilewise.compat.flash_attn_3._attention import flash_attn_func, flash_attn_varlen_func


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Optional[Tensor] = None,
    v_new: Optional[Tensor] = None,
    qv: Optional[Tensor] = None,
    out_: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    cu_seqlens_k_new: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    page_table: Optional[Tensor] = None,
    kv_batch_idx: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    seqlens_rotary: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    k_descale: Optional[Tensor] = None,
    v_descale: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, softmax_lse, two empty tensors) without a graph: flash_attn_func, flash_attn_varlen_func with cu_seqlens_k,
    or flash_attn_with_kvcache where k and v are a cache; see there for the arguments. out_: where out goes."""
    refuse(q, k, v, attention_chunk)
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    common: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "softcap": softcap, **descales}
    common["window_size"] = window_size_left, window_size_right
    with torch.no_grad():
        if cu_seqlens_k is not None and page_table is None:
            found = flash_attn_varlen_func(
                q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k,  # type: ignore[arg-type]
                qv=qv, return_attn_probs=True, **common,
            )  # fmt: skip
        elif k_new is page_table is kv_batch_idx is leftpad_k is seqused_k is cu_seqlens_q is None:
            found = flash_attn_func(q, k, v, qv=qv, return_attn_probs=True, **common)
        else:
            found = _kvcache.flash_attn_with_kvcache(
                q, k, v, k_new, v_new, qv, rotary_cos, rotary_sin, seqused_k, kv_batch_idx, leftpad_k, page_table,
                cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q, seqlens_rotary, rotary_interleaved=rotary_interleaved,
                num_splits=num_splits if num_splits > 1 else 0, return_softmax_lse=True, **common,
            )  # fmt: skip
    out, lse = found[:2]
    return (out if out_ is None else out_.copy_(out)), lse, lse.new_empty(0), lse.new_empty(0)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    sequed_q: Optional[Tensor] = None,
    sequed_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    dq: Optional[Tensor] = None,
    dk: Optional[Tensor] = None,
    dv: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> Tensor:
    """Writes the gradients into dq, dk and dv, of a forward pass with these arguments.

    Returns:
        The sums of dout · out, f32 [batch_size, num_heads, seqlen_q rounded up to 128], or packed [num_heads, total_q +
        128 * batch_size] with each sequence at the multiple of 128 before cu_seqlens_q[b] + 128 * b.
    """
    left, right = sides((window_size_left, window_size_right), is_causal)
    packed = cu_seqlens_q is not None
    options = Options(
        causal=bool(is_causal), softmax_scale=softmax_scale, layout="thd" if packed else "bshd",
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=sequed_q, seqused_k=sequed_k,
        max_seqlen_q=max_seqlen_q if packed else None, max_seqlen_k=max_seqlen_k if packed else None,
        window_left=left, window_right=right, softcap=max(softcap, 0.0), deterministic=bool(deterministic),
    )  # fmt: skip
    tensors = tuple(dense_rows(tensor) for tensor in (dout, q, k, v, out))
    given = zip((q, k, v), (dq, dk, dv), (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k))
    gradients = [new_gradient(like, starts) if into is None else into for like, into, starts in given]
    _raw.run_backward((*tensors, softmax_lse), gradients, tuple(options))
    if cu_seqlens_q is not None:
        return _raw.packed_sums(dout, out, cu_seqlens_q)
    sums = (dout.float() * out.float()).sum(-1).transpose(1, 2)
    return torch.nn.functional.pad(sums, (0, -q.shape[1] % 128))
