# Functions of torch, and of who calls them, while routed() replaces them: which calls go to Tilewise, which stay
# torch's, and the account of both.
"""routed() of tilewise.compat.sdpa, tilewise.compat.grouped_mm and tilewise.compat.flex_attention."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
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
    """How many calls of torch's functions within a routed() context went to Tilewise, and how many torch kept, from all
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


def _nothing(*args: Any) -> Any:
    return None


class _Place:
    """Where a function is replaced.

    home, name: The module that has it, by name, and what it is called there.
    function: Where calls go; refuses by RefusedCall or the REFUSALS.
    counted: Whether accounts have its calls.
    """

    def __init__(self, home: str, name: str, function: Any, counted: bool) -> None:
        self.home, self.name, self.function, self.counted = home, name, function, counted
        self.own: Any = None
        self.route: Any = None

    def replace(self, routing: Routing) -> None:
        """Puts the route in the function's place, where its module has been imported."""
        home = sys.modules.get(self.home)
        current = getattr(home, self.name, None)
        if current is None or current is self.route:
            return
        self.own = current
        if self.route is None:
            self.route = _route_of(routing, self)
        setattr(home, self.name, self.route)

    def restore(self) -> None:
        home = sys.modules.get(self.home)
        if self.route is not None and getattr(home, self.name, None) is self.route:
            setattr(home, self.name, self.own)


class Routing:
    """Torch's own functions while they are replaced, and the contexts that replace them.

    why_torchs: Says why a call is left alone before it is looked at, "" otherwise.
    undo_of: Of a call's arguments, what undoes that Tilewise has begun with it; None where that is nothing.
    """

    def __init__(
        self,
        why_torchs: Callable[[], str],
        undo_of: Callable[[tuple[Any, ...], dict[str, Any]], Callable[[], None] | None] = _nothing,
    ) -> None:
        self.why_torchs, self.undo_of = why_torchs, undo_of
        self.lock = threading.Lock()
        self.depth = 0
        self.strict = 0  # contexts that are
        self.accounts: list[RoutedCalls] = []
        self.places: list[_Place] = []

    def serve(
        self, function: Any, *, home: str = "torch.nn.functional", name: str | None = None, counted: bool = True
    ) -> None:
        """Calls of `home`'s function of this name, `function`'s own unless another is given, go to `function`."""
        self.places.append(_Place(home, name or function.__name__, function, counted))

    def count_routed(self) -> None:
        with self.lock:
            for account in self.accounts:
                account.routed += 1

    def count_left(self, reason: str) -> None:
        with self.lock:
            for account in self.accounts:
                account._leave(reason)

    def call(self, place: _Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of torch's function."""
        if not self.depth:
            return place.own(*args, **kwargs)
        reason = _of_a_subclass((*args, *kwargs.values())) or ("" if _compiling() else self.why_torchs())
        if reason:
            return self.leave(place, reason, args, kwargs)
        undo = self.undo_of(args, kwargs)
        try:
            result = place.function(*args, **kwargs)
        except (RefusedCall, *REFUSALS) as error:
            if undo is not None:
                undo()
            reason = "Tilewise refuses it" if _compiling() else _one_line(error)
            return self.leave(place, reason, args, kwargs)
        if place.counted and not _compiling():
            self.count_routed()
        return result

    def leave(self, place: _Place, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call by torch itself, with an entry in the accounts and the log; an error where a context is strict."""
        if self.strict:
            raise LeftToTorch(f"routed(strict=True): the call would be left to torch: {reason}") from None
        if place.counted and not _compiling():
            self.count_left(reason)
            if _log.wanted():
                given = [_described(value) for value in args]
                given += [f"{key}={_described(value)}" for key, value in kwargs.items()]
                _log.dispatch(f"{place.name}({', '.join(given)}) -> torch ({reason})")
        return place.own(*args, **kwargs)

    @contextlib.contextmanager
    def context(self, strict: bool) -> Iterator[RoutedCalls]:
        """What routed() returns."""
        account = RoutedCalls()
        strict = flag("strict", strict)
        with self.lock:
            if self.depth == 0:
                for place in self.places:
                    place.replace(self)
            self.depth += 1
            self.strict += strict
            self.accounts.append(account)
        try:
            yield account
        finally:
            with self.lock:
                self.depth -= 1
                self.strict -= strict
                self.accounts = [other for other in self.accounts if other is not account]
                if self.depth == 0:
                    for place in self.places:
                        place.restore()


def _route_of(routing: Routing, place: _Place) -> Any:
    @functools.wraps(place.own)
    def route(*args: Any, **kwargs: Any) -> Any:
        return routing.call(place, args, kwargs)

    return route


def _of_a_subclass(values: tuple[Any, ...]) -> str:
    """Why a call is left alone that has tensors of subclasses, whose results are theirs to make, or FX's proxies."""
    for x in values:
        if type(x) not in _PLAIN and isinstance(x, Tensor) and not x.is_nested:
            return f"a tensor of the subclass {type(x).__name__}"
    return ""


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        shape = "jagged" if value.is_nested else str(list(value.shape))
        return f"{str(value.dtype).removeprefix('torch.')} {shape}"
    return repr(value) if isinstance(value, (bool, int, float, type(None))) else type(value).__name__


def _one_line(error: BaseException) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
