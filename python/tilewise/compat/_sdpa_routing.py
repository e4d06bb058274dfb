# Torch's own scaled_dot_product_attention while routed() replaces it.
"""routed() of tilewise.compat.sdpa."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Optional

import torch
from torch import Tensor

from tilewise.compat._routing import LeftToTorch, RefusedCall, RoutedCalls, Routing

__all__ = ["LeftToTorch", "RefusedCall", "RoutedCalls", "routed", "serve"]

_compiling = torch.compiler.is_compiling


def _why_torchs() -> str:
    """Why calls are left alone: where the plain formula is all that sdpa_kernel() allows."""
    cuda = torch.backends.cuda
    if cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled():
        return ""
    return "sdpa_kernel() allows the plain formula alone"


def _generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optional[torch.Generator]:
    """torch's generator that a call draws its seed with; None where its state cannot be read, as in a capture."""
    query = args[0] if args else kwargs.get("query")
    if _compiling() or not isinstance(query, Tensor):
        return None
    if not query.is_cuda:
        return torch.default_generator
    if torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.default_generators[query.get_device()]


def _undo_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optional[Callable[[], None]]:
    """Gives back a seed that has been drawn, which torch's own call must not notice."""
    dropout_p = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    generator = _generator(args, kwargs) if dropout_p else None
    if generator is None:
        return None
    state = generator.get_state()

    def undo() -> None:
        generator.set_state(state)

    return undo


_routing = Routing(_why_torchs, _undo_of)
serve = _routing.serve


def routed(*, strict: bool = False) -> AbstractContextManager[RoutedCalls]:
    """A context in which torch.nn.functional.scaled_dot_product_attention is Tilewise's wherever it honours the call.

    It holds for all threads, as torch's own sdpa_kernel() does, so that checkpoints which are computed again while
    gradients run on other threads are what they were; contexts nest. Left to torch are: calls that Tilewise refuses,
    tensors of subclasses, eager calls under sdpa_kernel(SDPBackend.MATH), code that holds the function under another
    name already (from torch.nn.functional import ...), and torch's own C++ (TransformerEncoderLayer in evaluation).
    Functions that torch.compile compiled outside are compiled again. The first two kinds and the third are counted,
    and TILEWISE_LOG=dispatch prints each of them once with the reason; the others never come here.

    Args:
        strict: Raise in place of leaving a call to torch, where any of the contexts that hold is strict.

    Returns:
        A context manager, or a decorator, that gives the account of these calls: ``with routed() as calls: ...`` and
        then ``print(calls)``.

    Raises:
        LeftToTorch: Within the context, where it is strict: a call would be left to torch; the message says why.
    """
    return _routing.context(strict)
