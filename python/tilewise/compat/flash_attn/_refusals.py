# What flash_attn 2.8 refuses, in its own words, since programs and tests match on them. Whatever the operators refuse
# too is asked about here only after they have. What flash_attn's kernels cannot do, and Tilewise can, is a limit: it
# holds under TILEWISE_FLASH_ATTN_STRICT=1 alone, and is asked about before, by a cheaper test.
"""Errors in flash_attn's words."""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor

from tilewise.compat.flash_attn._call import HALVES, MAX_HEAD_DIM, Packed
from tilewise.compat.flash_attn._strict import strict

_DTYPES = "FlashAttention only support fp16 and bf16 data type"


def check(holds: bool, words: str) -> None:
    if not holds:
        raise RuntimeError(words)


def limit(holds: bool, words: str) -> None:
    """check() of what only flash_attn's kernels ask for."""
    check(holds or not strict(), words)


def check_tensors(**given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: must be a torch tensor (got {type(value).__name__})")


def check_same_device(q: Tensor, others: dict[str, Any]) -> None:
    for name, tensor in others.items():
        if isinstance(tensor, Tensor) and tensor.device.type != q.device.type:
            wanted = "CUDA" if q.is_cuda else str(q.device)
            raise RuntimeError(f"{name} must be on {wanted} (got {tensor.device})")


def check_dtypes(q: Tensor, k: Tensor, v: Tensor) -> None:
    limit(q.dtype in HALVES, f"{_DTYPES} (got {q.dtype})")
    check(k.dtype == q.dtype, f"query and key must have the same dtype (got {q.dtype} and {k.dtype})")
    check(v.dtype == q.dtype, f"query and value must have the same dtype (got {q.dtype} and {v.dtype})")


def check_heads(q: Tensor, k: Tensor, what: str = "forward") -> None:
    dim, heads, heads_k = q.shape[-1], q.shape[-2], k.shape[-2]
    words = f"FlashAttention {what} only supports head dimension at most {MAX_HEAD_DIM} (got {dim})"
    limit(dim <= MAX_HEAD_DIM, words)
    words = f"Number of heads in key/value must divide number of heads in query (got {heads_k} and {heads})"
    check(heads_k > 0 and heads % heads_k == 0, words)


def check_shape(name: str, tensor: Tensor, *wanted: int) -> None:
    check(tuple(tensor.shape) == wanted, f"{name} must have shape {wanted} (got {tuple(tensor.shape)})")


def check_rank(name: str, tensor: Tensor, rank: int) -> None:
    check(tensor.dim() == rank, f"{name} must have {rank} dimensions (got {tensor.dim()})")


def check_v(name: str, v: Tensor, *shape: int) -> None:
    """`shape` is that of the keys: without a limit the values may have a head_dim of their own."""
    if strict():
        check_shape(name, v, *shape)
    check_rank(name, v, len(shape))
    check_shape(name, v, *shape[:-1], v.shape[-1])


def check_int32(name: str, tensor: Optional[Tensor], *shape: int) -> None:
    if tensor is None:
        return
    check_tensors(**{name: tensor})
    check(str(tensor.dtype) == "torch.int32", f"{name} must have dtype int32 (got {tensor.dtype})")
    check(tensor.is_contiguous(), f"{name} must be contiguous")
    check_shape(name, tensor, *shape)


def score(batch_size: int, num_heads: int, softcap: float, dropout_p: float, alibi_slopes: Optional[Tensor]) -> None:
    """Of what changes scores and weights."""
    check(dropout_p < 1.0, f"p_dropout < 1.f (got {dropout_p})")
    limit(not (softcap > 0.0 and dropout_p > 0.0), "Softcapping does not support dropout for now")
    if alibi_slopes is None:
        return
    check_tensors(alibi_slopes=alibi_slopes)
    words = f"ALiBi slopes must have dtype fp32 (got {alibi_slopes.dtype})"
    check(str(alibi_slopes.dtype) == "torch.float32", words)
    words = f"alibi_slopes must have shape ({num_heads},) or ({batch_size}, {num_heads})"
    fits = tuple(alibi_slopes.shape) in ((num_heads,), (batch_size, num_heads))
    check(fits, f"{words} (got {tuple(alibi_slopes.shape)})")
    check(alibi_slopes.stride(-1) == 1, "ALiBi slopes tensor must have contiguous last dimension")


def dense(q: Any, k: Any, v: Any, softcap: float, dropout_p: float, alibi_slopes: Any) -> None:
    """Of a call on [batch_size, seqlen, num_heads, head_dim] tensors."""
    check_tensors(q=q, k=k, v=v)
    check_same_device(q, {"k": k, "v": v, "alibi_slopes": alibi_slopes})
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_rank(name, tensor, 4)
    check_dtypes(q, k, v)
    batch_size, _, num_heads, head_dim = q.shape
    limit(batch_size > 0, "batch size must be positive (got 0)")
    check_heads(q, k)
    wanted = (batch_size, k.shape[1], k.shape[2], head_dim)
    check_shape("k", k, *wanted)
    check_v("v", v, *wanted)
    score(batch_size, num_heads, softcap, dropout_p, alibi_slopes)


def packed(
    q: Any,
    k: Any,
    v: Any,
    sequences: Packed,
    softcap: float,
    dropout_p: float,
    alibi_slopes: Any,
    block_table: Any = None,
    num_splits: int = 0,
) -> None:
    """Of a call on [total, num_heads, head_dim] tensors, or on pages where a block_table is given."""
    given = {"cu_seqlens_q": sequences.cu_seqlens_q, "cu_seqlens_k": sequences.cu_seqlens_k}
    check_tensors(q=q, k=k, v=v, **given)
    lengths = {"seqused_k": sequences.seqused_k, "leftpad_k": sequences.leftpad_k}
    others = {"alibi_slopes": alibi_slopes, "block_table": block_table}
    check_same_device(q, {"k": k, "v": v, **given, **lengths, **others})
    for name, tensor, rank in (("q", q, 3), ("k", k, 3 if block_table is None else 4)):
        check_rank(name, tensor, rank)
    check_dtypes(q, k, v)
    batch_size = sequences.cu_seqlens_q.numel() - 1
    for name, tensor in given.items():
        check_int32(name, tensor, batch_size + 1)
    for name, tensor in lengths.items():
        check_int32(name, tensor, batch_size)
    limit(batch_size > 0, "batch size must be positive (got 0)")
    check_heads(q, k)
    check_shape("k", k, *k.shape[:-1], q.shape[-1])
    check_v("v", v, *k.shape)
    score(batch_size, q.shape[1], softcap, dropout_p, alibi_slopes)
    if block_table is None:
        return
    page_table(block_table, batch_size, k.shape[1])
    limit(sequences.leftpad_k is None, "We don't support Paged KV and leftpad_k running at the same time yet")
    limit(num_splits <= 1, f"num_splits > 1 is not supported for varlen paged KV (got {num_splits})")


def page_table(block_table: Any, batch_size: int, page_size: int) -> None:
    """Of pages and their table."""
    check_tensors(block_table=block_table)
    words = f"block_table must have dtype torch.int32 (got {block_table.dtype})"
    check(str(block_table.dtype) == "torch.int32", words)
    check(block_table.stride(-1) == 1, "block_table must have contiguous last dimension")
    check_shape("block_table", block_table, batch_size, *block_table.shape[1:])
    words = f"Paged KV cache block size must be divisible by 256 (got {page_size})"
    check(page_size > 0, words)
    limit(page_size % 256 == 0, words)


def backward(q: Any, k: Any, v: Any, out: Any, dout: Any, gradients: dict[str, Any]) -> None:
    """Of a backward pass, beside what the forward pass of its arguments refuses."""
    check_tensors(dout=dout, out=out)
    check_same_device(q, {"out": out, "dout": dout, **gradients})
    check_heads(q, k, "backward")
    for name, tensor in (("out", out), ("dout", dout)):
        words = f"query and {name} must have the same dtype (got {q.dtype} and {tensor.dtype})"
        check(tensor.dtype == q.dtype, words)
        check_shape(name, tensor, *q.shape[:-1], v.shape[-1])
    for (name, tensor), like in zip(gradients.items(), (q, k, v)):
        if tensor is not None:
            check(tensor.dtype == q.dtype, f"{name} must have the same dtype as q (got {tensor.dtype})")
            check(tensor.stride(-1) == 1, f"{name} must have contiguous last dimension")
            check_shape(name, tensor, *like.shape)
