# flash_attn's extension module, flash_attn_2_cuda: raw forward and backward passes without a graph, every argument in
# its place, outputs where the caller wants them. The torch operators stand on these.
"""fwd, bwd, varlen_fwd, varlen_bwd and fwd_kvcache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _torch
from tilewise._torch import autograd, operators
from tilewise._torch.errors import raise_known
from tilewise.compat.flash_attn import _kvcache, _probabilities, _refusals
from tilewise.compat.flash_attn._autograd import new_gradient, with_determinism
from tilewise.compat.flash_attn._call import Packed, dense_options, packed_options, window_sides
from tilewise.compat.flash_attn._lse import (
    drops_row_constant,
    from_flash_attn,
    packed_row_constants,
    places,
    row_constants,
    to_flash_attn,
)

_Generator = Optional[torch.Generator]


def _seed(q: Tensor, dropout_p: float, generator: _Generator) -> Optional[Tensor]:
    return _torch.drawn_seed(q.device, generator) if dropout_p > 0.0 else None


def _rng_state(q: Tensor, seed: Optional[Tensor]) -> Tensor:
    """int64 [2]: what bwd() needs to drop the same weights."""
    return torch.zeros(2, dtype=torch.int64, device=q.device) if seed is None else seed


def _check_probabilities(return_softmax: bool, dropout_p: float) -> None:
    if return_softmax and not dropout_p > 0.0:
        raise RuntimeError(f"return_softmax is only supported when p_dropout > 0.0 (got {dropout_p})")


def _forward(q: Tensor, k: Tensor, v: Tensor, out: Optional[Tensor], options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """(out, softmax_lse in Tilewise's form)."""
    try:
        if out is None:
            result: tuple[Tensor, Tensor] = autograd.eager_forward(q, k, v, options)
            return result
        return out, autograd.eager_forward_out(q, k, v, out, options)
    except RuntimeError as error:
        raise_known(error, q=q, k=k, v=v, out=out)
        raise


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    p_dropout: float,
    softmax_scale: Optional[float],
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    generator: _Generator = None,
) -> list[Tensor]:
    """[out, softmax_lse, S_dmask, rng_state] of tensors [batch_size, seqlen, num_heads, head_dim]."""
    _refusals.dense(q, k, v, softcap, p_dropout, alibi_slopes)
    _check_probabilities(return_softmax, p_dropout)
    window = window_sides((window_size_left, window_size_right), k.shape[1], is_causal)
    seed = _seed(q, p_dropout, generator)
    options = dense_options(is_causal, softmax_scale, window, softcap, alibi_slopes, p_dropout, seed, False)
    out, lse = _forward(q, k, v, out, options)
    lse = to_flash_attn(lse, _row_constants(q, k, alibi_slopes, is_causal, window))
    probabilities = _probabilities.of_call(q, k, options, None, p_dropout, seed if return_softmax else None)
    return [out, lse, probabilities, _rng_state(q, seed)]


def _row_constants(
    q: Tensor, k: Tensor, alibi_slopes: Optional[Tensor], causal: bool, window: tuple[int, int]
) -> Optional[Tensor]:
    if alibi_slopes is None or not drops_row_constant(alibi_slopes, causal, window):
        return None
    return row_constants(alibi_slopes, q.shape[1], k.shape[1])


def _packed_row_constants(
    q: Tensor, sequences: Packed, alibi_slopes: Optional[Tensor], causal: bool, window: tuple[int, int]
) -> Optional[Tensor]:
    if alibi_slopes is None or not drops_row_constant(alibi_slopes, causal, window):
        return None
    return packed_row_constants(alibi_slopes, sequences, q.shape[0])


def paged_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    sequences: Packed,
    block_table: Tensor,
    alibi_slopes: Optional[Tensor],
    p_dropout: float,
    softmax_scale: Optional[float],
    is_causal: bool,
    window_size: Any,
    softcap: float,
    num_splits: int = 0,
) -> list[Tensor]:
    """varlen_fwd of keys in pages, which drops nothing."""
    _refusals.packed(q, k, v, sequences, softcap, p_dropout, alibi_slopes, block_table, num_splits)
    if p_dropout > 0.0:
        raise NotImplementedError(f"block_table: must come without dropout (got dropout_p {p_dropout})")
    out, lse = _kvcache.attend_packed(
        q, k, v, sequences, block_table, softmax_scale, is_causal, window_size, softcap, alibi_slopes, out
    )
    return [out, lse, _probabilities.none(q), _rng_state(q, None)]


def varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Optional[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Optional[Tensor],
    leftpad_k: Optional[Tensor],
    block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: Optional[float],
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    generator: _Generator = None,
    num_splits: int = 0,
) -> list[Tensor]:
    """[out, softmax_lse, S_dmask, rng_state] of packed tensors; zero_tensors: rows of no sequence are 0, -inf."""
    sequences = Packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, leftpad_k)
    _check_probabilities(return_softmax, p_dropout)
    if zero_tensors and out is not None:
        out.zero_()
    window = window_size_left, window_size_right
    if block_table is not None:
        result = paged_fwd(
            q, k, v, out, sequences, block_table, alibi_slopes, p_dropout, softmax_scale, is_causal, window, softcap,
            num_splits,
        )  # fmt: skip
    else:
        _refusals.packed(q, k, v, sequences, softcap, p_dropout, alibi_slopes)
        window = window_sides(window, max_seqlen_k, is_causal)
        seed = _seed(q, p_dropout, generator)
        options = packed_options(
            sequences, is_causal, softmax_scale, window, softcap, alibi_slopes, p_dropout, seed, False
        )
        out, lse = _forward(q, k, v, out, options)
        lse = to_flash_attn(lse, _packed_row_constants(q, sequences, alibi_slopes, is_causal, window))
        drawn = seed if return_softmax else None
        result = [out, lse, _probabilities.of_call(q, k, options, sequences, p_dropout, drawn), _rng_state(q, seed)]
    if zero_tensors:
        result[1][:, torch.arange(q.shape[0], device=q.device) >= cu_seqlens_q[-1]] = -math.inf
    return result


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, given: Sequence[Optional[Tensor]], sequences: Optional[Packed], zero: bool
) -> list[Tensor]:
    """Where dq, dk and dv go: what the caller gave, or new tensors."""
    starts = (None,) * 3 if sequences is None else (sequences.cu_seqlens_q, *[sequences.cu_seqlens_k] * 2)
    made = [new_gradient(like, cu) if to is None else to for like, to, cu in zip((q, k, v), given, starts)]
    if zero:
        for gradient in made:
            gradient.zero_()
    return made


def run_backward(inputs: tuple[Tensor, ...], gradients: list[Tensor], options: tuple[Any, ...]) -> None:
    """`inputs`: dout, q, k, v, out and softmax_lse in Tilewise's form."""
    dout, *others = inputs
    try:
        with autograd.below_autograd():
            operators.backward_out(dout, None, *others, *gradients, *with_determinism(options))
    except RuntimeError as error:
        raise_known(error, dout=dout, q=others[0], k=others[1], v=others[2])
        raise


_Scores = tuple[float, Optional[float], bool, int, int, float]  # dropout_p, scale, causal, both sides, softcap


def dense_backward(
    q: Tensor,
    k: Tensor,
    softmax_lse: Tensor,
    alibi_slopes: Optional[Tensor],
    scores: _Scores,
    deterministic: bool,
    rng_state: Optional[Tensor],
) -> tuple[tuple[Any, ...], Tensor]:
    """(options of the operators, softmax_lse in Tilewise's form) of a backward pass."""
    dropout_p, scale, causal, left, right, softcap = scores
    window = window_sides((left, right), k.shape[1], causal)
    seed = rng_state if dropout_p > 0.0 else None
    options = dense_options(causal, scale, window, softcap, alibi_slopes, dropout_p, seed, deterministic)
    return options, from_flash_attn(softmax_lse, _row_constants(q, k, alibi_slopes, causal, window))


def packed_backward(
    q: Tensor,
    sequences: Packed,
    softmax_lse: Tensor,
    alibi_slopes: Optional[Tensor],
    scores: _Scores,
    deterministic: bool,
    rng_state: Optional[Tensor],
) -> tuple[tuple[Any, ...], Tensor]:
    """As dense_backward, of packed tensors."""
    dropout_p, scale, causal, left, right, softcap = scores
    window = window_sides((left, right), sequences.max_seqlen_k, causal)
    seed = rng_state if dropout_p > 0.0 else None
    options = packed_options(sequences, causal, scale, window, softcap, alibi_slopes, dropout_p, seed, deterministic)
    return options, from_flash_attn(softmax_lse, _packed_row_constants(q, sequences, alibi_slopes, causal, window))


def bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    p_dropout: float,
    softmax_scale: Optional[float],
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    generator: _Generator = None,
    rng_state: Optional[Tensor] = None,
) -> list[Tensor]:
    """[dq, dk, dv, softmax_d]; softmax_d [batch_size, num_heads, seqlen_q rounded up to 128]: sums of dout · out."""
    _refusals.dense(q, k, v, softcap, p_dropout, alibi_slopes)
    _refusals.backward(q, k, v, out, dout, {"dq": dq, "dk": dk, "dv": dv})
    scores = p_dropout, softmax_scale, is_causal, window_size_left, window_size_right, softcap
    seed = _seed(q, p_dropout, generator) if rng_state is None else rng_state
    options, lse = dense_backward(q, k, softmax_lse, alibi_slopes, scores, deterministic, seed)
    gradients = _gradients(q, k, v, (dq, dk, dv), None, zero=False)
    run_backward((dout, q, k, v, out, lse), gradients, options)
    sums = (dout.float() * out.float()).sum(-1).transpose(1, 2)
    return [*gradients, torch.nn.functional.pad(sums, (0, -q.shape[1] % 128))]


def varlen_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    alibi_slopes: Optional[Tensor],
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: Optional[float],
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    generator: _Generator = None,
    rng_state: Optional[Tensor] = None,
) -> list[Tensor]:
    """[dq, dk, dv, softmax_d] of packed tensors; softmax_d [num_heads, total_q + 128 * batch_size] has each sequence
    at the multiple of 128 before cu_seqlens_q[b] + 128 * b."""
    sequences = Packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    _refusals.packed(q, k, v, sequences, softcap, p_dropout, alibi_slopes)
    _refusals.backward(q, k, v, out, dout, {"dq": dq, "dk": dk, "dv": dv})
    scores = p_dropout, softmax_scale, is_causal, window_size_left, window_size_right, softcap
    seed = _seed(q, p_dropout, generator) if rng_state is None else rng_state
    options, lse = packed_backward(q, sequences, softmax_lse, alibi_slopes, scores, deterministic, seed)
    gradients = _gradients(q, k, v, (dq, dk, dv), sequences, zero_tensors)
    run_backward((dout, q, k, v, out, lse), gradients, options)
    return [*gradients, packed_sums(dout, out, cu_seqlens_q)]


def packed_sums(dout: Tensor, out: Tensor, cu_seqlens: Tensor) -> Tensor:
    sums = (dout.float() * out.float()).sum(-1)
    sequence, row = places(cu_seqlens, out.shape[0])
    padded = sums.new_zeros(out.shape[1], out.shape[0] + 128 * (cu_seqlens.numel() - 1))
    owned = torch.arange(out.shape[0], device=out.device) < cu_seqlens[-1]
    target = (cu_seqlens[sequence] + 128 * sequence) // 128 * 128 + row
    padded[:, target[owned]] = sums[owned].T
    return padded


def fwd_kvcache(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    seqlens_k: Optional[Tensor],
    rotary_cos: Optional[Tensor],
    rotary_sin: Optional[Tensor],
    cache_batch_idx: Optional[Tensor],
    leftpad_k: Optional[Tensor],
    block_table: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    out: Optional[Tensor],
    softmax_scale: Optional[float],
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    is_rotary_interleaved: bool,
    num_splits: int,
) -> list[Tensor]:
    """[out, softmax_lse] of flash_attn_with_kvcache."""
    found = _kvcache.attend(
        q, kcache, vcache, k, v, rotary_cos, rotary_sin, seqlens_k, cache_batch_idx, leftpad_k, block_table,
        softmax_scale, is_causal, (window_size_left, window_size_right), softcap, is_rotary_interleaved, alibi_slopes,
        num_splits, True, out,
    )  # fmt: skip
    return list(found)
