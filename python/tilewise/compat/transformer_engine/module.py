# DotProductAttention. The usual call (no padding, bias or sink, the mask that the module was made with) is handed on
# at once; every other one is translated argument by argument.
"""Transformer Engine's attention module."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tilewise._arguments import flag, integer, named, number
from tilewise._attention import attention
from tilewise._keywords import check_keywords, keywords_of
from tilewise.compat._names import REFUSALS, renamed
from tilewise.compat.transformer_engine.masks import Mask, resolve
from tilewise.compat.transformer_engine.translate import (
    FORMATS,
    NAMES,
    SEQLEN_AXIS,
    SOFTMAX_TYPES,
    attend,
    length_options,
    score_options,
    sink_of,
)

__all__ = ["DotProductAttention"]

_attend: Callable[..., Tensor] = attention
_NOTHING = contextlib.nullcontext()
_READ_BY_SHORT_WAY = frozenset(
    ("attn_mask_type", "bottom_right_diagonal", "deterministic", "qkv_format", "softmax_type", "window_size")
)

# forward()'s further keywords: what no call of Tilewise can mean, and the value that says "not asked for".
_REFUSED: dict[str, tuple[Any, str]] = {
    "inference_params": (None, "tilewise.kv_cache_attention attends over caches"),
    "fp8_output": (False, "FP8 attention is not supported"),
    "bf16_backward": (False, "FP8 attention is not supported"),
    "score_mod": (None, "use core_attention_bias, alibi_slopes or window_size"),
    "score_mod_bprop": (None, "use core_attention_bias, alibi_slopes or window_size"),
    "score_mod_tensors": (None, "use core_attention_bias, alibi_slopes or window_size"),
    "score_mod_bprop_tensors": (None, "use core_attention_bias, alibi_slopes or window_size"),
    "g": (None, "Gated DeltaNet is not supported"),
    "beta": (None, "Gated DeltaNet is not supported"),
    "initial_state": (None, "Gated DeltaNet is not supported"),
    "output_final_state": (False, "Gated DeltaNet is not supported"),
    "use_qk_l2norm_in_kernel": (False, "Gated DeltaNet is not supported"),
}


class DotProductAttention(torch.nn.Module):
    """transformer_engine.pytorch.DotProductAttention, on Tilewise.

    Args:
        num_attention_heads: Heads of queries, of all tensor-parallel ranks together.
        kv_channels: head_dim, or (head_dim, head_dim_v).
        num_gqa_groups: Heads of keys and values, a divisor of num_attention_heads; None: as many.
        attention_dropout: Probability in [0, 1) of dropping a weight while training, seeded by torch's generator.
        qkv_format: "sbhd", "bshd", or packed "thd".
        attn_mask_type: "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right",
            "padding_causal_bottom_right" or "arbitrary". Causal masks stand at the top left unless named otherwise.
        window_size: Keys visible to the (left, right) of the diagonal; -1 is unbounded.
        bottom_right_diagonal: Where the diagonal of windows and ALiBi stands in kinds that are not causal; None: at
            the bottom right. Of padded sequences it is that of the tokens alone.
        tp_size, tp_group: Tensor parallelism: each rank has its share of the heads.
        get_rng_state_tracker: A function that gives a tracker, whose fork() surrounds attention with dropout.
        layer_number, attention_type, name, cp_global_ranks, cp_stream, cp_comm_type, sequence_parallel: As there; of
            no effect here but that sequence_parallel leaves the tracker alone.
        cp_group: None; context parallelism is refused.
        softmax_scale: None means 1/sqrt(head_dim).
        softmax_type: "vanilla", "off-by-one" (a sink of logit 0), or "learnable" (a sink of each head, the parameter
            softmax_offset).
        return_max_logit: False; the scores are never stored.

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it, what was expected and what came.
        NotImplementedError: What Tilewise cannot honour, by name.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Union[int, tuple[int, int]],
        num_gqa_groups: Optional[int] = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Optional[Callable[[], Any]] = None,
        tp_group: Any = None,
        layer_number: Optional[int] = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Optional[list[int]] = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: Optional[float] = None,
        softmax_type: str = "vanilla",
        return_max_logit: Optional[bool] = False,
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        if return_max_logit:
            raise NotImplementedError("return_max_logit: must be False, since scores are never stored (got True)")
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        named("attention_type", attention_type, {"self": "self", "cross": "cross"})
        self.attention_type, self.layer_number, self.name = attention_type, layer_number or 1, name
        self.tp_size = tp_size if tp_group is None else torch.distributed.get_world_size(tp_group)
        self.num_attention_heads = integer("num_attention_heads", num_attention_heads)
        self.num_gqa_groups = self.num_attention_heads if num_gqa_groups is None else num_gqa_groups
        for which in ("num_attention_heads", "num_gqa_groups"):
            heads = getattr(self, which)
            if heads < 1 or heads % self.tp_size or self.num_attention_heads % heads:
                raise ValueError(
                    f"{which}: must be a multiple of tp_size = {self.tp_size} and divide num_attention_heads = "
                    f"{self.num_attention_heads} (got {heads})"
                )
        self.num_gqa_groups_per_partition = self.num_gqa_groups // self.tp_size
        head_dims = (kv_channels, kv_channels) if isinstance(kv_channels, int) else tuple(kv_channels)
        self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v = head_dims
        self.attention_dropout = number("attention_dropout", attention_dropout)
        self.qkv_format: str = named("qkv_format", qkv_format, FORMATS)
        self.attn_mask_type, self.window_size = attn_mask_type, window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.softmax_scale = None if softmax_scale is None else number("softmax_scale", softmax_scale)
        self.softmax_type: str = named("softmax_type", softmax_type, SOFTMAX_TYPES)
        offsets = torch.zeros(self.num_attention_heads // self.tp_size)
        self.softmax_offset: Optional[Tensor] = None
        if softmax_type == "learnable":
            del self.softmax_offset  # torch keeps parameters and buffers elsewhere
            self.softmax_offset = torch.nn.Parameter(offsets)
        elif softmax_type == "off-by-one":
            del self.softmax_offset
            self.register_buffer("softmax_offset", offsets, persistent=False)
        self.rng_states_tracker: Any = None
        if get_rng_state_tracker is not None and not sequence_parallel:
            self.rng_states_tracker = get_rng_state_tracker()
        self.deterministic = os.environ.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"
        self._set_short_way()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _READ_BY_SHORT_WAY and "_short" in self.__dict__:
            self._set_short_way()

    def _set_short_way(self) -> None:
        """What the usual call needs: (format, mask); None where the module's own arguments ask for more."""
        mask = resolve(self.attn_mask_type, self.window_size, self.bottom_right_diagonal)
        simple = not (mask.kind.padding or mask.kind.array or self.deterministic) and self.softmax_type == "vanilla"
        window = mask.left >= 0 or (mask.right >= 0 and not mask.kind.causal)
        self._short: Optional[tuple[str, Optional[str]]] = None
        if simple and not window and self.qkv_format != "thd":
            self._short = self.qkv_format, "causal" if mask.kind.causal else None

    def set_context_parallel_group(
        self,
        cp_group: Any,
        cp_global_ranks: Optional[list[int]] = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        **options: Any,
    ) -> None:
        """Refuses every group of more than one rank."""
        for group in cp_group if isinstance(cp_group, list) else [cp_group]:
            if group is not None and torch.distributed.get_world_size(group) > 1:
                raise NotImplementedError("cp_group: context parallelism is not supported; pass None")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Drops the FP8 state that Transformer Engine's checkpoints have, under its places of all versions."""
        for place in ("", "fused_attention."):
            state_dict.pop(f"{prefix}{place}_extra_state", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(
        self,
        query_layer: Optional[Tensor] = None,
        key_layer: Optional[Tensor] = None,
        value_layer: Optional[Tensor] = None,
        attention_mask: Union[Tensor, tuple[Tensor, Tensor], None] = None,
        qkv_format: Optional[str] = None,
        cu_seqlens_q: Optional[Tensor] = None,
        cu_seqlens_kv: Optional[Tensor] = None,
        cu_seqlens_q_padded: Optional[Tensor] = None,
        cu_seqlens_kv_padded: Optional[Tensor] = None,
        max_seqlen_q: Optional[int] = None,
        max_seqlen_kv: Optional[int] = None,
        attn_mask_type: Optional[str] = None,
        window_size: Optional[tuple[int, int]] = None,
        bottom_right_diagonal: Optional[bool] = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Optional[Tensor] = None,
        alibi_slopes: Optional[Tensor] = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: Optional[bool] = None,
        fp8_output: Optional[bool] = False,
        bf16_backward: Optional[bool] = False,
        num_splits: Optional[int] = 1,
        *,
        qkv_layer: Optional[Tensor] = None,
        kv_layer: Optional[Tensor] = None,
        qkv_interleave_dim: int = -3,
        **options: Any,
    ) -> Tensor:
        """Attention; arguments that are None are the module's own.

        Args:
            query_layer: [seqlen_q, batch_size, heads, head_dim] of format "sbhd", [batch_size, seqlen_q, heads,
                head_dim] of "bshd", or [total_q, heads, head_dim] of "thd"; any strides with a contiguous last
                dimension. key_layer, value_layer likewise.
            qkv_layer, kv_layer: Instead of these, packed along dimension qkv_interleave_dim, -3 or -2.
            attention_mask: For padding kinds without cu_seqlens, bool [batch_size, 1, 1, seqlen], true for padding
                after the tokens, or a pair of them for queries and keys; for "arbitrary", bool, broadcastable to
                [batch_size, heads, seqlen_q, seqlen_kv], true for hidden. Other kinds do not read it.
            cu_seqlens_q, cu_seqlens_kv: int32 [batch_size + 1], for padding kinds: sums of the sequences' lengths.
            cu_seqlens_q_padded, cu_seqlens_kv_padded: The same with the padding between sequences of format "thd".
            max_seqlen_q, max_seqlen_kv: Longest sequence of format "thd"; None computes it.
            checkpoint_core_attention: Compute attention again in the backward pass instead of keeping its result.
            core_attention_bias_type: "no_bias", "pre_scale_bias", "post_scale_bias" or "alibi".
            core_attention_bias: Broadcastable to [batch_size, heads, seqlen_q, seqlen_kv], in f32 or query's dtype.
            alibi_slopes: f32 [heads] or [batch_size, heads]; None: the usual ones.
            fast_zero_fill, pad_between_seqs, num_splits: Of no effect: every unused row is written, lengths say where
                padding is, and keys are split by estimated cost.

        Returns:
            [seqlen_q, batch_size, heads * head_dim_v] of format "sbhd", and likewise.
        """
        if (
            self._short is not None
            and query_layer is not None
            and key_layer is not None
            and attn_mask_type is None
            and window_size is None
            and bottom_right_diagonal is None
            and core_attention_bias is None
            and alibi_slopes is None
            and qkv_format is None
            and max_seqlen_q is None
            and max_seqlen_kv is None
            and qkv_layer is None
            and kv_layer is None
            and inference_params is None
            and core_attention_bias_type == "no_bias"
            and not (options or checkpoint_core_attention or fp8_output or bf16_backward)
            and (self.attention_dropout == 0.0 or not self.training)
        ):
            out = self._usual(query_layer, key_layer, value_layer)
            if out is not None:
                return out
        if options or inference_params is not None or fp8_output or bf16_backward:
            given = {"inference_params": inference_params, "fp8_output": fp8_output, "bf16_backward": bf16_backward}
            _refuse({**given, **options})
        return self._translated(
            (query_layer, key_layer, value_layer)
            if qkv_layer is None and kv_layer is None
            else _unpacked(query_layer, key_layer, value_layer, qkv_layer, kv_layer, qkv_interleave_dim),
            self.qkv_format if qkv_format is None else named("qkv_format", qkv_format, FORMATS),
            resolve(
                self.attn_mask_type if attn_mask_type is None else attn_mask_type,
                self.window_size if window_size is None else window_size,
                self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal,
            ),
            attention_mask,
            ((cu_seqlens_q, cu_seqlens_kv), (cu_seqlens_q_padded, cu_seqlens_kv_padded), (max_seqlen_q, max_seqlen_kv)),
            (core_attention_bias_type, core_attention_bias, alibi_slopes),
            flag("checkpoint_core_attention", checkpoint_core_attention),
        )

    def _usual(self, q: Tensor, k: Tensor, v: Any) -> Optional[Tensor]:
        """The call by the short way; None where the shapes are not as the module was told, or lengths differ under a
        causal mask."""
        if self._short is None:
            return None
        qkv_format, mask = self._short
        axis = SEQLEN_AXIS[qkv_format]
        try:
            shape_q, shape_k = q.shape, k.shape
            if (
                len(shape_q) == len(shape_k) == 4
                and shape_q[3] == self.hidden_size_per_attention_head_k
                and shape_k[2] == self.num_gqa_groups_per_partition
                and v.shape[-1] == self.hidden_size_per_attention_head_v
                and (mask is None or shape_q[axis] == shape_k[axis])
            ):
                return _attend(q, k, v, mask=mask, softmax_scale=self.softmax_scale, layout=qkv_format).flatten(2)
        except (AttributeError, *REFUSALS):
            pass  # the careful way says why
        return None

    def _translated(
        self,
        qkv: tuple[Any, Any, Any],
        qkv_format: str,
        mask: Mask,
        attention_mask: Any,
        lengths: tuple[tuple[Any, Any], tuple[Any, Any], tuple[Any, Any]],
        bias: tuple[Any, Optional[Tensor], Optional[Tensor]],
        again: bool,
    ) -> Tensor:
        """forward() of whatever call. `lengths` are cu_seqlens, those with padding, and max_seqlens; `bias` its type,
        itself, and slopes."""
        q, k, v = qkv
        self._check_shapes(qkv_format, q, k, v)
        options = length_options(mask, qkv_format, q, k, attention_mask, *lengths)
        if mask.kind.array or bias[0] != "no_bias" or bias[1] is not None or bias[2] is not None:
            options.update(score_options(mask, q, attention_mask, *bias, self.softmax_scale))
        dense = qkv_format != "thd" and not mask.kind.padding
        same_lengths = dense and q.shape[SEQLEN_AXIS[qkv_format]] == k.shape[SEQLEN_AXIS[qkv_format]]
        options.update(mask.options(same_lengths, "alibi_slopes" in options))
        options["softmax_scale"] = self.softmax_scale
        if self.softmax_type != "vanilla":
            options["sink"] = sink_of(self.softmax_offset, q)
        if self.deterministic:
            options["deterministic"] = True
        if self.training and self.attention_dropout != 0.0:
            options["dropout_p"] = self.attention_dropout
        forks = self.rng_states_tracker is not None and "dropout_p" in options
        try:
            with self.rng_states_tracker.fork() if forks else _NOTHING:
                if again:
                    out: Tensor = checkpoint(functools.partial(attend, **options), q, k, v, use_reentrant=False)
                else:
                    out = attend(q, k, v, **options)
        except REFUSALS as error:
            raise renamed(error, NAMES) from None
        return out.flatten(-2)

    def _check_shapes(self, layout: str, q: Tensor, k: Tensor, v: Tensor) -> None:
        rank = 3 if layout == "thd" else 4
        try:
            shape_k = k.shape
            if (
                q.dim() == len(shape_k) == v.dim() == rank
                and q.shape[-1] == shape_k[-1] == self.hidden_size_per_attention_head_k
                and v.shape[-1] == self.hidden_size_per_attention_head_v
                and shape_k[-2] == self.num_gqa_groups_per_partition
            ):
                return
        except AttributeError:
            pass  # no tensor: which, is said below
        head_dims = (self.hidden_size_per_attention_head_k,) * 2 + (self.hidden_size_per_attention_head_v,)
        for name, tensor, head_dim in zip(("query_layer", "key_layer", "value_layer"), (q, k, v), head_dims):
            if tensor is None:
                raise ValueError(f"{name}: must be given without a packed qkv_layer or kv_layer (got None)")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: must be a tensor (got {type(tensor).__name__})")
            if tensor.dim() != rank:
                raise ValueError(f"{name}: rank must be {rank} with qkv_format={layout} (got {tensor.dim()})")
            if tensor.shape[-1] != head_dim:
                raise ValueError(f"{name}: last dimension must be kv_channels = {head_dim} (got {tensor.shape[-1]})")
        if k.shape[-2] != self.num_gqa_groups_per_partition:
            raise ValueError(
                f"key_layer: must have num_gqa_groups = {self.num_gqa_groups_per_partition} heads (got {k.shape[-2]})"
            )


_KEYWORDS = (*keywords_of(DotProductAttention.forward), *_REFUSED)


def _refuse(given: dict[str, Any]) -> None:
    check_keywords("forward", given, _KEYWORDS)
    for name, value in given.items():
        nothing, reason = _REFUSED[name]
        if value is not None and value is not nothing:
            raise NotImplementedError(f"{name}: {reason} (got {type(value).__name__})")


def _unpacked(
    q: Any, k: Any, v: Any, qkv_layer: Optional[Tensor], kv_layer: Optional[Tensor], axis: Any
) -> tuple[Any, Any, Any]:
    """q, k and v as views of what they come packed in."""
    if axis not in (-3, -2):
        raise ValueError(f"qkv_interleave_dim: must be -3 or -2 (got {axis})")
    packed, parts, name = (qkv_layer, 3, "qkv_layer") if qkv_layer is not None else (kv_layer, 2, "kv_layer")
    others = (q, k, v, kv_layer) if qkv_layer is not None else (k, v)
    if any(other is not None for other in others) or (q is None and qkv_layer is None):
        raise ValueError(f"{name}: must replace the tensors that it packs, and them alone")
    if packed is None or packed.dim() < 4 or packed.shape[axis] != parts:
        raise ValueError(
            f"{name}: must have size {parts} at dimension qkv_interleave_dim = {axis} "
            f"(got {list(packed.shape) if packed is not None else None})"
        )
    views = packed.unbind(axis)
    return (q, *views) if qkv_layer is None else (views[0], views[1], views[2])
