# Attention as a torch module, for models that keep it among their parts.
"""torch modules: FlashAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._arguments import LAYOUTS, flag, named, number
from tilewise._attention import attention

__all__ = ["FlashAttention"]

_attend: Callable[..., Any] = attention
_NOT_OPTIONS = {
    "mask": "use causal=",
    "softmax_scale": "the module has it",
    "dropout_p": "the module's attention_dropout is applied while it trains",
    "layout": "the module has it",
    "deterministic": "the module has it",
}


class FlashAttention(torch.nn.Module):
    """Scaled dot-product attention without a matrix of scores.

    Args:
        softmax_scale: Any finite number; None means 1/sqrt(head_dim).
        attention_dropout: Probability in [0, 1) of dropping a weight while training, seeded by torch's generator.
        layout: Order of the dimensions: "bshd", "sbhd", "bhsd", or packed "thd".
        deterministic: Gradients of q, bias and sink are bit-reproducible too (k's and v's always are).

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        softmax_scale: Optional[float] = None,
        attention_dropout: float = 0.0,
        *,
        layout: str = "bshd",
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.softmax_scale = None if softmax_scale is None else number("softmax_scale", softmax_scale)
        self.attention_dropout = number("attention_dropout", attention_dropout)
        if not 0.0 <= self.attention_dropout < 1.0:
            raise ValueError(f"attention_dropout: must be in [0, 1) (got {self.attention_dropout})")
        self.layout: str = named("layout", layout, LAYOUTS)
        self.deterministic = flag("deterministic", deterministic)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, **options: Any) -> Any:
        """tilewise.attention(q, k, v) with the module's arguments.

        Args:
            q, k, v: As tilewise.attention() takes them, in the module's layout.
            causal: Whether a query sees the keys up to its own only, aligned at the bottom right.
            options: window, bias, alibi_slopes, sink, softcap, cu_seqlens_q, return_lse and all else that
                tilewise.attention() takes.

        Returns:
            out, or (out, softmax_lse) with return_lse.

        Raises:
            ValueError, TypeError, NotImplementedError: As tilewise.attention() would.
        """
        for name in options:
            if name in _NOT_OPTIONS:
                raise TypeError(f"{name}: must not be given to a call; {_NOT_OPTIONS[name]}")
        if flag("causal", causal):
            options["mask"] = "causal"
        if self.attention_dropout != 0.0 and self.training:
            options["dropout_p"] = self.attention_dropout
        if self.deterministic:
            options["deterministic"] = True
        return _attend(q, k, v, softmax_scale=self.softmax_scale, layout=self.layout, **options)

    def extra_repr(self) -> str:
        """What the module was made with, as far as it is not the default."""
        given = {
            "softmax_scale": (self.softmax_scale, None),
            "attention_dropout": (self.attention_dropout, 0.0),
            "layout": (self.layout, "bshd"),
            "deterministic": (self.deterministic, False),
        }
        return ", ".join(f"{name}={value!r}" for name, (value, default) in given.items() if value != default)
