# Attention as a torch module, for models that keep it among their parts.
"""torch modules: FlashAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

import torch
from torch import Tensor

from tilewise._arguments import LAYOUTS, flag, named, number
from tilewise._attention import attention
from tilewise._keywords import check_keywords, keywords_of, with_known_keywords
from tilewise._public import lists_public_names
from tilewise._types import Layout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tilewise._options import ModuleOptions

__all__ = ["FlashAttention"]
__dir__ = lists_public_names(__all__)

_attend: Callable[..., Any] = attention
# attention()'s arguments that a call of the module does not have, and what to do instead.
_NOT_OPTIONS = {
    "mask": "use causal=",
    "softmax_scale": "the module has it, FlashAttention(softmax_scale=)",
    "dropout_p": "the module's attention_dropout is applied while it trains",
    "layout": "the module has it, FlashAttention(layout=)",
    "deterministic": "the module has it, FlashAttention(deterministic=)",
}
_OPTIONS = ("causal", *(name for name in keywords_of(attention) if name not in _NOT_OPTIONS))
# Likewise those that the module is not made with.
_NOT_THE_MODULES = {
    **{name: f"calls of the module take {name}=" for name in _OPTIONS},
    "mask": "calls of the module take causal=",
    "dropout_p": "use attention_dropout=",
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
        layout: Layout = "bshd",
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.softmax_scale = None if softmax_scale is None else number("softmax_scale", softmax_scale)
        self.attention_dropout = number("attention_dropout", attention_dropout)
        if not 0.0 <= self.attention_dropout < 1.0:
            raise ValueError(f"attention_dropout: must be in [0, 1) (got {self.attention_dropout})")
        self.layout: str = named("layout", layout, LAYOUTS)
        self.deterministic = flag("deterministic", deterministic)

    @overload
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = ...,
        *,
        return_lse: Literal[False] = ...,
        **options: Unpack[ModuleOptions],
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = ...,
        *,
        return_lse: Literal[True],
        **options: Unpack[ModuleOptions],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = ...,
        *,
        return_lse: bool,
        **options: Unpack[ModuleOptions],
    ) -> Union[Tensor, tuple[Tensor, Tensor]]: ...
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, **options: Any
    ) -> Union[Tensor, tuple[Tensor, Tensor]]:
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
        check_keywords("FlashAttention.forward", options, _OPTIONS, _NOT_OPTIONS)
        if flag("causal", causal):
            options["mask"] = "causal"
        if self.attention_dropout != 0.0 and self.training:
            options["dropout_p"] = self.attention_dropout
        if self.deterministic:
            options["deterministic"] = True
        result: Union[Tensor, tuple[Tensor, Tensor]]
        result = _attend(q, k, v, softmax_scale=self.softmax_scale, layout=self.layout, **options)
        return result

    if TYPE_CHECKING:  # torch says of a module's call no more than that it is one
        __call__ = forward
    else:
        __init__ = with_known_keywords(__init__, _NOT_THE_MODULES)

    def extra_repr(self) -> str:
        """What the module was made with, as far as it is not the default."""
        given = {
            "softmax_scale": (self.softmax_scale, None),
            "attention_dropout": (self.attention_dropout, 0.0),
            "layout": (self.layout, "bshd"),
            "deterministic": (self.deterministic, False),
        }
        return ", ".join(f"{name}={value!r}" for name, (value, default) in given.items() if value != default)
