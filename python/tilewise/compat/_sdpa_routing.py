# Torch's own scaled_dot_product_attention while routed() replaces it: which calls go to Tilewise, which stay torch's,
# and the account of both.
"""routed() of tilewise.compat.sdpa."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from tilewise import _log
from tilewise._arguments import flag
from tilewise.compat._names import REFUSALS

_compiling = torch.compiler.is_compiling
_PLAIN = (Tensor, torch.nn.Parameter)
_MOST_REASONS = 256  # told apart in one account
_OTHER_REASONS = "other reasons"


class RefusedCall(RuntimeError):
    """A call that torch's own function does not define either: torch raises RuntimeError for it."""


class LeftToTorch(RuntimeError):
    """Raised within routed(strict=True) in place of leaving a call to torch; the message says why it would be left."""


class RoutedCalls:
    """How many calls of torch's function within a routed() context went to Tilewise, and how many torch kept, from all
    threads. Calls in code that torch.compile has compiled are not counted.

    ``routed`` and ``left`` are numbers of calls, ``reasons`` says how many were left for which reason.
    """

    def __init__(self) -> None:
        self.routed = 0
        self.left = 0
        self.reasons: dict[str, int] = {}

    def __repr__(self) -> str:
        lines = [f"RoutedCalls: {self.routed} routed, {self.left} left to torch"]
        return "\n".join(lines + [f"  {count} x {reason}" for reason, count in self.reasons.items()])

    def _leave(self, reason: str) -> None:
        self.left += 1
        known = reason in self.reasons or len(self.reasons) < _MOST_REASONS
        reason = reason if known else _OTHER_REASONS
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


class _Routing:
    """Torch's own function while it is replaced, and the contexts that replace it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.strict = 0  # contexts that are
        self.accounts: list[RoutedCalls] = []
        self.own: Any = F.scaled_dot_product_attention
        self.function: Any = self.own  # where calls go; the module of the function says so

    def count_routed(self) -> None:
        with self.lock:
            for account in self.accounts:
                account.routed += 1

    def count_left(self, reason: str) -> None:
        with self.lock:
            for account in self.accounts:
                account._leave(reason)


_routing = _Routing()


def serve(function: Any) -> None:
    """Routed calls go to `function`, which refuses them by a RefusedCall or one of the REFUSALS."""
    _routing.function = function


def _why_torchs(tensors: Iterable[Any]) -> str:
    """Why a call is left alone before it is looked at, or "": for tensors of subclasses, whose results are theirs to
    make (or FX's proxies), and where the plain formula is all that sdpa_kernel() allows."""
    for x in tensors:
        if type(x) not in _PLAIN and isinstance(x, Tensor) and not x.is_nested:
            return f"a tensor of the subclass {type(x).__name__}"
    if _compiling():
        return ""  # a compiler that looks on cannot read those
    cuda = torch.backends.cuda
    if cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled():
        return ""
    return "sdpa_kernel() allows the plain formula alone"


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        shape = "jagged" if value.is_nested else str(list(value.shape))
        return f"{str(value.dtype).removeprefix('torch.')} {shape}"
    return repr(value) if isinstance(value, (bool, int, float, type(None))) else type(value).__name__


def _left(reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call by torch itself, with an entry in the accounts and the log; an error where a context is strict."""
    if _routing.strict:
        raise LeftToTorch(f"routed(strict=True): the call would be left to torch: {reason}") from None
    if not _compiling():
        _routing.count_left(reason)
        if _log.wanted():
            given = [_described(value) for value in args]
            given += [f"{name}={_described(value)}" for name, value in kwargs.items()]
            _log.dispatch(f"scaled_dot_product_attention({', '.join(given)}) -> torch ({reason})")
    return _routing.own(*args, **kwargs)


def _one_line(error: BaseException) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


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


def _route(*args: Any, **kwargs: Any) -> Any:
    """torch.nn.functional.scaled_dot_product_attention within routed()."""
    if not _routing.depth:
        return _routing.own(*args, **kwargs)
    reason = _why_torchs((*args, *kwargs.values()))
    if reason:
        return _left(reason, args, kwargs)
    dropout_p = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    generator = _generator(args, kwargs) if dropout_p else None
    state = None if generator is None else generator.get_state()
    try:
        result = _routing.function(*args, **kwargs)
    except (RefusedCall, *REFUSALS) as error:
        if generator is not None and state is not None:
            generator.set_state(state)  # a seed may have been drawn, which torch's own call must not notice
        reason = "Tilewise refuses it" if _compiling() else _one_line(error)
        return _left(reason, args, kwargs)
    if not _compiling():
        _routing.count_routed()
    return result


@contextlib.contextmanager
def routed(*, strict: bool = False) -> Iterator[RoutedCalls]:
    """A context in which torch.nn.functional.scaled_dot_product_attention is Tilewise's wherever it honours the call.

    It holds for all threads, as torch's own sdpa_kernel() does, so that checkpoints which are computed again while
    gradients run on other threads are what they were; contexts nest. Left to torch are: calls that Tilewise refuses,
    tensors of subclasses, eager calls under sdpa_kernel(SDPBackend.MATH), code that holds the function under another
    name already (from torch.nn.functional import ...), and torch's own C++ (TransformerEncoderLayer in evaluation).
    Functions that torch.compile compiled outside are compiled again. The first two kinds and the third are counted,
    and TILEWISE_LOG=dispatch prints each of them once with the reason; the others never come here.

    Args:
        strict: Raise in place of leaving a call to torch, where any of the contexts that hold is strict.

    Yields:
        The account of these calls: ``with routed() as calls: ...`` and then ``print(calls)``.

    Raises:
        LeftToTorch: Within the context, where it is strict: a call would be left to torch; the message says why.
    """
    account = RoutedCalls()
    strict = flag("strict", strict)
    with _routing.lock:
        if _routing.depth == 0 and F.scaled_dot_product_attention is not _route:
            _routing.own = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = _route
        _routing.depth += 1
        _routing.strict += strict
        _routing.accounts.append(account)
    try:
        yield account
    finally:
        with _routing.lock:
            _routing.depth -= 1
            _routing.strict -= strict
            _routing.accounts = [other for other in _routing.accounts if other is not account]
            if _routing.depth == 0 and F.scaled_dot_product_attention is _route:
                F.scaled_dot_product_attention = _routing.own
