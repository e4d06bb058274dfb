# The inner attention of flash_attn.modules.mha: without padding masks by flash_attn's functions, with them by
# tilewise.attention, whose bias they are.
"""FlashSelfAttention, FlashCrossAttention, SelfAttention and CrossAttention."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor

import tilewise
from tilewise.compat.flash_attn._call import WHOLE
from tilewise.compat.flash_attn._plain import refuse
from tilewise.compat.flash_attn.flash_attn_interface import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)


def get_alibi_slopes(nheads: int) -> list[float]:
    """ALiBi's slopes: powers of 2 ** (-8 / n) for a power of two n of heads; others take every second slope of the
    next power of two after those of the one before."""
    power = 2 ** math.floor(math.log2(nheads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    return slopes if power == nheads else slopes + get_alibi_slopes(2 * power)[::2][: nheads - power]


def _lower_right(seqlen_q: int, seqlen_k: int, padding: Tensor) -> Tensor:
    """bool [batch_size, 1, seqlen_q, seqlen_k] of a causal mask that ends at the last key that is no padding."""
    rows = torch.arange(seqlen_q, device=padding.device)[:, None]
    columns = torch.arange(seqlen_k, device=padding.device)
    return columns <= rows + padding.sum(-1)[:, None, None, None] - seqlen_q


class _Inner(torch.nn.Module):
    """What all of them share. Rows that see nothing are 0."""

    alibi_slopes: Optional[Tensor]

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: Optional[float] = None,
        attention_dropout: float = 0.0,
        window_size: Any = WHOLE,
        alibi_slopes: Optional[Tensor] = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = torch.nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size, self.deterministic = tuple(window_size), deterministic

    def _slopes(self) -> Optional[Tensor]:
        return None if self.alibi_slopes is None else self.alibi_slopes.float()

    def _dropout(self) -> float:
        return self.drop.p if self.training else 0.0

    def _options(self, causal: Optional[bool]) -> dict[str, Any]:
        """Of flash_attn's functions."""
        return {
            "dropout_p": self._dropout(),
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "window_size": self.window_size,
            "alibi_slopes": self._slopes(),
            "deterministic": self.deterministic,
        }

    def _masked(
        self, tensors: tuple[Tensor, ...], causal: Optional[bool], padding: Optional[Tensor], by_length: bool
    ) -> Tensor:
        """Attention of (q, k, v) that sees no key where `padding` is False. `by_length`: a causal mask ends at the last
        key that is no padding, as if padding stood behind the keys."""
        q, k, v = tensors
        causal = self.causal if causal is None else causal
        bias = None if padding is None else padding.bool()[:, None, None]
        if by_length and padding is not None and bias is not None:
            if self.window_size != WHOLE:
                raise refuse("window_size", "(-1, -1) where keys have a padding mask", self.window_size)
            if self.alibi_slopes is not None:
                raise refuse("alibi_slopes", "None where keys have a padding mask", "a tensor")
            if causal:
                bias, causal = bias & _lower_right(q.shape[1], k.shape[1], padding.bool()), False
        left, right = self.window_size
        out: Tensor = tilewise.attention(
            q, k, v, mask="causal" if causal else None, softmax_scale=self.softmax_scale, bias=bias,
            window=(left, -1 if causal else right), alibi_slopes=self._slopes(), dropout_p=self._dropout(),
            deterministic=self.deterministic,
        )  # fmt: skip
        return out


class FlashSelfAttention(_Inner):
    """Attention of packed queries, keys and values.

    Args:
        causal: Whether a query sees no key behind its own place.
        softmax_scale: None means 1/sqrt(head_dim).
        attention_dropout: Probability of dropping a weight while training.
        window_size: (left, right); -1 is unbounded.
        alibi_slopes: [num_heads].
        deterministic: The gradient of queries is bit-reproducible too.
    """

    def forward(
        self,
        qkv: Tensor,
        causal: Optional[bool] = None,
        cu_seqlens: Optional[Tensor] = None,
        max_seqlen: Optional[int] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Any:
        """Attention of qkv.

        Args:
            qkv: [batch_size, seqlen, 3, num_heads, head_dim], or with cu_seqlens [total, 3, num_heads, head_dim].
            causal: None means the module's.
            cu_seqlens: int32 [batch_size + 1], with the longest sequence as max_seqlen.
            key_padding_mask: bool [batch_size, seqlen], False where a key is padding; without cu_seqlens.

        Returns:
            [batch_size, seqlen, num_heads, head_dim], or [total, num_heads, head_dim].
        """
        if key_padding_mask is not None:
            assert cu_seqlens is None, "key_padding_mask: must be None with cu_seqlens"
            return self._masked(qkv.unbind(2), causal, key_padding_mask, by_length=False)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **self._options(causal))
        assert max_seqlen is not None, "max_seqlen: must be given with cu_seqlens (got None)"
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **self._options(causal))


class FlashCrossAttention(_Inner):
    """Attention of queries and packed keys and values; arguments as FlashSelfAttention's."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: Optional[float] = None,
        attention_dropout: float = 0.0,
        alibi_slopes: Optional[Tensor] = None,
        window_size: Any = WHOLE,
        deterministic: bool = False,
    ) -> None:
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: Optional[bool] = None,
        cu_seqlens: Optional[Tensor] = None,
        max_seqlen: Optional[int] = None,
        cu_seqlens_k: Optional[Tensor] = None,
        max_seqlen_k: Optional[int] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Any:
        """Attention of q and kv.

        Args:
            q: [batch_size, seqlen_q, num_heads, head_dim], or packed [total_q, num_heads, head_dim].
            kv: [batch_size, seqlen_k, 2, num_heads_k, head_dim], or packed [total_k, 2, num_heads_k, head_dim].
            causal: None means the module's.
            cu_seqlens, cu_seqlens_k: int32 [batch_size + 1], with the longest sequences.
            key_padding_mask: bool [batch_size, seqlen_k], False where a key is padding; without cu_seqlens.

        Returns:
            As q.
        """
        if key_padding_mask is not None:
            assert cu_seqlens is None, "key_padding_mask: must be None with cu_seqlens"
            return self._masked((q, *kv.unbind(2)), causal, key_padding_mask, by_length=True)
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **self._options(causal))
        lengths = {"max_seqlen": max_seqlen, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": max_seqlen_k}
        for name, value in lengths.items():
            assert value is not None, f"{name}: must be given with cu_seqlens (got None)"
        assert max_seqlen is not None and cu_seqlens_k is not None and max_seqlen_k is not None
        return flash_attn_varlen_kvpacked_func(
            q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **self._options(causal)
        )


class SelfAttention(_Inner):
    """FlashSelfAttention without its rarer options, and with a padding mask."""

    def __init__(
        self, causal: bool = False, softmax_scale: Optional[float] = None, attention_dropout: float = 0.0
    ) -> None:
        super().__init__(causal, softmax_scale, attention_dropout)

    def forward(
        self, qkv: Tensor, causal: Optional[bool] = None, key_padding_mask: Optional[Tensor] = None
    ) -> Tensor:  # fmt: skip
        """Attention of qkv [batch_size, seqlen, 3, num_heads, head_dim], padding being False in the mask [batch_size,
        seqlen]: [batch_size, seqlen, num_heads, head_dim]."""
        return self._masked(qkv.unbind(2), causal, key_padding_mask, by_length=False)


class CrossAttention(_Inner):
    """FlashCrossAttention without its rarer options, and with a padding mask."""

    def __init__(
        self, causal: bool = False, softmax_scale: Optional[float] = None, attention_dropout: float = 0.0
    ) -> None:
        super().__init__(causal, softmax_scale, attention_dropout)

    def forward(
        self, q: Tensor, kv: Tensor, causal: Optional[bool] = None, key_padding_mask: Optional[Tensor] = None
    ) -> Tensor:  # fmt: skip
        """Attention of q [batch_size, seqlen_q, num_heads, head_dim] and kv [batch_size, seqlen_k, 2, num_heads_k,
        head_dim], padding being False in the mask [batch_size, seqlen_k]: as q."""
        return self._masked((q, *kv.unbind(2)), causal, key_padding_mask, by_length=True)
