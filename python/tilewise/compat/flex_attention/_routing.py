# torch's own flex_attention while routed() replaces it, and transformers' way to it.
"""routed() of tilewise.compat.flex_attention."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch.nn.attention.flex_attention  # noqa: F401 (what is replaced is there)
from torch import Tensor

from tilewise.compat._routing import LeftToTorch, RoutedCalls, Routing
from tilewise.compat.flex_attention._attention import flex_attention
from tilewise.compat.flex_attention._create import create_block_mask

__all__ = ["LeftToTorch", "RoutedCalls", "routed"]

_routing = Routing(lambda: "")


def _of_transformers(query: Tensor, key: Tensor, value: Tensor, training: bool = False, **options: Any) -> Any:
    """compile_friendly_flex_attention() of transformers, which compiles torch's function once and keeps it."""
    return flex_attention(query, key, value, **options)


_TORCHS, _TRANSFORMERS = "torch.nn.attention.flex_attention", "transformers.integrations.flex_attention"
_routing.serve(flex_attention, home=_TORCHS)
_routing.serve(_of_transformers, home=_TRANSFORMERS, name="compile_friendly_flex_attention")
for _home in (_TORCHS, _TRANSFORMERS, "transformers.masking_utils"):
    _routing.serve(create_block_mask, home=_home, counted=False)


def routed(*, strict: bool = False) -> AbstractContextManager[RoutedCalls]:
    """A context in which torch.nn.attention.flex_attention.flex_attention is Tilewise's wherever it honours the call,
    for all threads; contexts nest. So is create_block_mask, whose result is the same.

    Models of Hugging Face transformers with attn_implementation="flex_attention" run through it too, where
    transformers has been imported before the outermost context begins. Left to torch are calls that Tilewise refuses,
    tensors of subclasses, and code that holds the function under another name already (from ... import, or
    torch.compile(flex_attention) outside). The first two are counted, and TILEWISE_LOG=dispatch prints each of them
    once with the reason.

    Args:
        strict: Raise in place of leaving a call to torch, where any of the contexts that hold is strict.

    Returns:
        A context manager, or a decorator, that gives the account of these calls: ``with routed() as calls: ...`` and
        then ``print(calls)``.

    Raises:
        LeftToTorch: Within the context, where it is strict: a call would be left to torch; the message says why.
    """
    return _routing.context(strict)
