# flash_attn.modules.mha: projections around the attention of _mixer.py, under the same parameter names.
"""MHA and ParallelMHA."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from tilewise.compat.flash_attn._call import WHOLE
from tilewise.compat.flash_attn.layers.rotary import RotaryEmbedding
from tilewise.compat.flash_attn.modules._attention import (
    CrossAttention,
    FlashCrossAttention,
    FlashSelfAttention,
    SelfAttention,
    get_alibi_slopes,
)
from tilewise.compat.flash_attn.modules._mixer import Mixer
from tilewise.compat.flash_attn.modules._mixer import update_kv_cache as _update_kv_cache
from tilewise.compat.flash_attn.ops.fused_dense import ColumnParallelLinear, RowParallelLinear
from tilewise.compat.flash_attn.utils.distributed import get_dim_for_local_rank

__all__ = [
    "MHA",
    "CrossAttention",
    "FlashCrossAttention",
    "FlashSelfAttention",
    "ParallelMHA",
    "RotaryEmbedding",
    "SelfAttention",
    "_update_kv_cache",
    "get_alibi_slopes",
]


def _check_heads(embed_dim: int, num_heads: int, num_heads_kv: int) -> int:
    """The head_dim."""
    words = f"num_heads: must be a multiple of num_heads_kv (got {num_heads} and {num_heads_kv})"
    assert num_heads % num_heads_kv == 0, words
    words = f"embed_dim: must be a multiple of num_heads (got {embed_dim} and {num_heads})"
    assert embed_dim % num_heads == 0, words
    return embed_dim // num_heads


class MHA(Mixer):
    """Multi-head attention with its projections: self-attention (Wqkv) or cross-attention (Wq, Wkv), and out_proj.

    Args:
        num_heads_kv: Heads of keys and values; None means num_heads.
        qkv_proj_bias, out_proj_bias: Whether the projections have biases.
        dropout: Of the attention weights, while training.
        softmax_scale: None means 1/sqrt(head_dim).
        causal: Whether a query sees no key behind its own place.
        layer_idx: This layer's key in a generation's caches.
        dwconv: A depthwise causal convolution over three tokens after the projections.
        rotary_emb_dim: Columns of a head that are rotated; 0: none. rotary_emb_base, rotary_emb_scale_base,
            rotary_emb_interleaved: As RotaryEmbedding's.
        use_alibi, window_size: With use_flash_attn alone.
        fused_bias_fc: Without effect.
        use_flash_attn: The inner attention is flash_attn's function.
        return_residual: forward() returns (out, x).
        checkpointing: The inner attention is computed again for its gradient.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_heads_kv: Optional[int] = None,
        cross_attn: bool = False,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        layer_idx: Optional[int] = None,
        dwconv: bool = False,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_scale_base: Optional[float] = None,
        rotary_emb_interleaved: bool = False,
        use_alibi: bool = False,
        window_size: Any = WHOLE,
        fused_bias_fc: bool = False,
        use_flash_attn: bool = False,
        return_residual: bool = False,
        checkpointing: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.cross_attn, self.causal, self.layer_idx = embed_dim, cross_attn, causal, layer_idx
        self.dwconv, self.rotary_emb_dim, self.use_flash_attn = dwconv, rotary_emb_dim, use_flash_attn
        self.return_residual, self.checkpointing = return_residual, checkpointing
        self.num_heads, self.num_heads_kv = num_heads, num_heads if num_heads_kv is None else num_heads_kv
        self.head_dim = _check_heads(embed_dim, num_heads, self.num_heads_kv)
        assert not (cross_attn and rotary_emb_dim > 0), "rotary_emb_dim: must be 0 with cross_attn"
        slopes = torch.tensor(get_alibi_slopes(num_heads), device=device) if use_alibi else None
        rotary = {"base": rotary_emb_base, "scale_base": rotary_emb_scale_base, "interleaved": rotary_emb_interleaved}
        self._make_inner(causal, softmax_scale, dropout, slopes, window_size, {**rotary, "device": device})
        kv_dim = 2 * self.head_dim * self.num_heads_kv
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, bias=qkv_proj_bias, **made)
            self.Wkv = nn.Linear(embed_dim, kv_dim, bias=qkv_proj_bias, **made)
        else:
            self.Wqkv = nn.Linear(embed_dim, embed_dim + kv_dim, bias=qkv_proj_bias, **made)
        if dwconv and self.num_heads_kv == num_heads:
            self.dwconv_qkv = _convolution(embed_dim + kv_dim, made)
        elif dwconv:
            self.dwconv_q, self.dwconv_kv = _convolution(embed_dim, made), _convolution(kv_dim, made)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias, **made)

    def _check_call(self, x_kv: Any, padding: Any, cu_seqlens: Any, max_seqlen: Any, subset: Any, cache: Any) -> None:
        if cu_seqlens is not None:
            assert max_seqlen is not None, "max_seqlen: must be given with cu_seqlens (got None)"
            assert padding is None, "key_padding_mask: must be None with cu_seqlens"
            assert self.use_flash_attn, "cu_seqlens: must come with use_flash_attn=True"
            assert not self.dwconv, "cu_seqlens: must be None with dwconv"
        if cache is not None:
            assert padding is None, "key_padding_mask: must be None with inference_params"
            assert cu_seqlens is None, "cu_seqlens: must be None with inference_params"
            assert not self.dwconv, "inference_params: must be None with dwconv"
        if not self.cross_attn:
            for name, value in (("x_kv", x_kv), ("mixer_subset", subset)):
                assert value is None, f"{name}: must be None without cross_attn"

    def forward(
        self,
        x: Tensor,
        x_kv: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None,
        max_seqlen: Optional[int] = None,
        mixer_subset: Any = None,
        inference_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Attention of x.

        Args:
            x: [batch_size, seqlen, embed_dim], or with cu_seqlens [total, embed_dim].
            x_kv: What keys and values are projected from in cross-attention; None means x.
            key_padding_mask: bool [batch_size, seqlen], False where a key is padding.
            cu_seqlens: int32 [batch_size + 1], with the longest sequence as max_seqlen; with use_flash_attn.
            mixer_subset: Index of the tokens whose queries are wanted, in cross-attention.
            inference_params: utils.generation.InferenceParams; keys and values go into its caches.
            kwargs: Further arguments of the inner attention, such as cu_seqlens_k and max_seqlen_k.

        Returns:
            As x; or (out, x) with return_residual.
        """
        self._check_call(x_kv, key_padding_mask, cu_seqlens, max_seqlen, mixer_subset, inference_params)
        options = {"key_padding_mask": key_padding_mask, **kwargs}
        if self.use_flash_attn:
            options |= {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
        q, kv = self._projected(x, x_kv, mixer_subset)
        if kv is None and inference_params is None:
            context = self._attended_packed(q, options)
        elif kv is None:
            context = self._attended(q[:, :, 0], q[:, :, 1:], inference_params, options)
        else:
            if cu_seqlens is not None and not self.cross_attn:
                options = {"cu_seqlens_k": cu_seqlens, "max_seqlen_k": max_seqlen, **options}
            context = self._attended(q, kv, inference_params, options)
        out = self.out_proj(context.flatten(-2))
        return (out, x) if self.return_residual else out

    def _projected(self, x: Tensor, x_kv: Optional[Tensor], subset: Any) -> tuple[Tensor, Optional[Tensor]]:
        """(q, kv) by heads, or (qkv, None) where all have the same number of heads."""
        if not self.cross_attn and self.num_heads_kv == self.num_heads:
            qkv = self.Wqkv(x)
            if self.dwconv:
                qkv = _convolved(qkv, self.dwconv_qkv)
            return qkv.unflatten(-1, (3, self.num_heads, self.head_dim)), None
        if self.cross_attn:
            q = self.Wq(x if subset is None else x[:, subset])
            kv = self.Wkv(x if x_kv is None else x_kv)
        else:
            qkv = self.Wqkv(x)
            q, kv = qkv[..., : self.embed_dim], qkv[..., self.embed_dim :]
        if self.dwconv and self.num_heads_kv == self.num_heads:
            both = _convolved(torch.cat([q, kv], dim=-1), self.dwconv_qkv)
            q, kv = both[..., : self.embed_dim], both[..., self.embed_dim :]
        elif self.dwconv:
            q, kv = _convolved(q, self.dwconv_q), _convolved(kv, self.dwconv_kv)
        return (
            q.unflatten(-1, (self.num_heads, self.head_dim)),
            kv.unflatten(-1, (2, self.num_heads_kv, self.head_dim)),
        )


def _convolution(channels: int, made: dict[str, Any]) -> nn.Conv1d:
    return nn.Conv1d(channels, channels, kernel_size=3, padding=2, groups=channels, **made)


def _convolved(x: Tensor, convolution: nn.Conv1d) -> Tensor:
    """x [batch_size, seqlen, channels] after a convolution that sees no later token."""
    rows: Tensor = convolution(x.transpose(1, 2))
    return rows[..., :-2].transpose(1, 2).contiguous()


class ParallelMHA(Mixer):
    """Self-attention whose heads a group of processes shares; arguments as MHA's.

    Args:
        process_group: The processes.
        sequence_parallel: Each has a part of x's rows, and of out's.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        process_group: Any,
        num_heads_kv: Optional[int] = None,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        layer_idx: Optional[int] = None,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_scale_base: Optional[float] = None,
        rotary_emb_interleaved: bool = False,
        use_alibi: bool = False,
        window_size: Any = WHOLE,
        use_flash_attn: bool = False,
        checkpointing: bool = False,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.causal, self.layer_idx = embed_dim, causal, layer_idx
        self.rotary_emb_dim, self.use_flash_attn, self.checkpointing = rotary_emb_dim, use_flash_attn, checkpointing
        self.process_group = process_group
        self.world_size = torch.distributed.get_world_size(process_group)
        self.local_rank = torch.distributed.get_rank(process_group)
        all_kv = num_heads if num_heads_kv is None else num_heads_kv
        self.head_dim = _check_heads(embed_dim, num_heads, all_kv)
        self.num_heads, self.num_heads_kv, shared = num_heads, all_kv, num_heads // all_kv
        own = [get_dim_for_local_rank(all_kv, self.world_size, rank) for rank in range(self.local_rank + 1)]
        self.num_heads_kv_per_rank, self.num_heads_per_rank = own[-1], own[-1] * shared
        slopes = None
        if use_alibi:
            first = sum(own[:-1]) * shared
            slopes = torch.tensor(get_alibi_slopes(num_heads), device=device)[first:][: self.num_heads_per_rank]
        rotary = {"base": rotary_emb_base, "scale_base": rotary_emb_scale_base, "interleaved": rotary_emb_interleaved}
        self._make_inner(causal, softmax_scale, dropout, slopes, window_size, {**rotary, "device": device})
        made: dict[str, Any] = {"sequence_parallel": sequence_parallel, "device": device, "dtype": dtype}
        self.Wqkv = ColumnParallelLinear(
            embed_dim, self.head_dim * (num_heads + 2 * all_kv), process_group, bias=qkv_proj_bias,
            multiple_of=self.head_dim * (shared + 2), **made,
        )  # fmt: skip
        self.out_proj = RowParallelLinear(
            embed_dim, embed_dim, process_group, bias=out_proj_bias,
            multiple_of=self.head_dim * shared, **made,
        )  # fmt: skip

    def forward(self, x: Tensor, seqlen: Optional[int] = None, inference_params: Any = None, **kwargs: Any) -> Any:
        """Attention of x [batch_size, seqlen, embed_dim], or with seqlen [batch_size * seqlen, embed_dim], of which
        each process may have some rows: as x."""
        qkv = self.Wqkv(x)
        if seqlen is not None:
            qkv = qkv.unflatten(0, (-1, seqlen))
        columns = self.num_heads_per_rank * self.head_dim
        q = qkv[..., :columns].unflatten(-1, (self.num_heads_per_rank, self.head_dim))
        kv = qkv[..., columns:].unflatten(-1, (2, self.num_heads_kv_per_rank, self.head_dim))
        context = self._attended(q, kv, inference_params, kwargs).flatten(-2)
        return self.out_proj(context if seqlen is None else context.flatten(0, 1))

    def _cached_heads(self) -> int:
        return self.num_heads_kv_per_rank
