# A traced function need not be traced again while everything that tracing could see is as it was. What it could see is
# walked through at each call: nothing of the caller's is kept, and no address stands for an object that may be gone.
"""What functions of scores capture."""

from __future__ import annotations

import builtins
import dis
import functools
import math
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, NamedTuple, Optional

import numpy as np

from tilewise import _core
from tilewise._traced_words import DTYPES, FILLED, METHODS, OPERATORS, SWAPPED

_MOST_KNOWN = 512  # functions; then all are forgotten

# What a function may ask of modules, tensors and stand-ins: what gives the same for the same.
_ATTRIBUTES = frozenset({
    *OPERATORS, *SWAPPED, *FILLED, *METHODS, *DTYPES, *(name for name in dir(math) if not name.startswith("_")),
    "shape", "size", "numel", "dim", "ndim", "dtype", "device", "nn", "functional", "Tensor", "half", "double",
})  # fmt: skip
_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min",
    "pow", "range", "reversed", "round", "sorted", "sum", "tuple", "zip",
})  # fmt: skip
_REFUSED = (
    "IMPORT", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME", "LOAD_NAME", "STORE_ATTR", "DELETE_ATTR",
    "LOAD_BUILD_CLASS", "LOAD_SUPER", "LOAD_CLASSDEREF", "LOAD_FROM_DICT", "LOAD_LOCALS", "YIELD", "RETURN_GENERATOR",
)  # fmt: skip


class _Code(NamedTuple):
    """What there is to know of code; with the code, so that its address stays its own."""

    code: CodeType
    names: Optional[tuple[str, ...]]  # of globals; None: it does what may differ from call to call


class _Known(NamedTuple):
    """What tracing a function gave: `made` without its tables, and which of the captured tensors these are.

    Those of one number are looked up as lines of one. device: torch's default one, where the function asked for it.
    """

    made: Any
    places: tuple[tuple[int, bool], ...]
    device: Any
    codes: tuple[CodeType, ...]  # whose addresses are in the key


_codes: dict[int, _Code] = {}
_known: dict[tuple[Any, ...], _Known] = {}


@functools.cache
def _facts_of(torch: Any) -> tuple[Any, ...]:
    """What _core.captured_parts() takes, where torch is that module or None."""
    values: list[Any] = [int, bool, str, bytes, type(None)]
    tensors: list[Any] = []
    modules: list[Any] = [math]
    if torch is not None:
        values += [torch.dtype, torch.device, torch.Size]
        tensors += [torch.Tensor, torch.nn.Parameter]
        modules += [torch, torch.nn, torch.nn.functional]
    names = ("dtype", "shape", "device", "__code__", "__dict__", "__closure__", "cell_contents", "__globals__")
    return (
        frozenset(values), frozenset(tensors), frozenset(modules), _BUILTINS, FunctionType, _codes, _looked_through,
        _rarer, *names, "__defaults__", "__kwdefaults__",
    )  # fmt: skip


def _rarer(value: Any) -> Optional[tuple[Any, tuple[Any, ...]]]:
    """A part and values to walk through, of what functions seldom capture; None of what is unknown."""
    kind = type(value)
    if kind is functools.partial and not value.__dict__:
        return kind, (value.func, value.args, *value.keywords.items())
    if isinstance(value, np.generic):
        return kind, (value.tobytes(),)
    if kind is BuiltinFunctionType or kind is type:
        name, home = value.__name__, getattr(value, "__self__", None)
        of_torch = isinstance(home, type) and home.__module__.startswith("torch") and name in _ATTRIBUTES
        if of_torch or home is math or (name in _BUILTINS and value is getattr(builtins, name)):
            return value, ()
    return None


def _looked_through(code: CodeType) -> _Code:
    if len(_codes) >= _MOST_KNOWN:
        _codes.clear()
    found = _codes[id(code)] = _Code(code, _globals_of(code))
    return found


def _globals_of(code: CodeType) -> Optional[tuple[str, ...]]:
    names: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        name, what = instruction.opname, instruction.argval
        if name.startswith(_REFUSED) or (name == "STORE_DEREF" and what in code.co_freevars):
            return None
        if name.startswith(("LOAD_ATTR", "LOAD_METHOD")) and what not in _ATTRIBUTES:
            return None
        if name == "LOAD_GLOBAL":
            names[what] = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _globals_of(constant)
            if inner is None:
                return None
            names.update(dict.fromkeys(inner))
    return tuple(names)


def remembered(function: Callable[..., Any], options: tuple[Any, ...], trace: Callable[..., tuple[Any, Any]]) -> Any:
    """What trace(function, *options) gives, with the tensors that the function captures now; traced again only where
    that may differ.

    trace: Returns a NamedTuple that ends with its tables, and the tracer.
    """
    parts: Any = _core.captured_parts(function, options, _facts_of(sys.modules.get("torch")))
    if parts is None:
        return trace(function, *options)[0]
    key, tensors, _ = parts
    known = _known.get(key)
    if known is None or (known.device is not None and known.device != sys.modules["torch"].get_default_device()):
        made, tracer = trace(function, *options)
        _remember(function, options, key, made, tracer)
        return made
    made = known.made
    if not known.places:
        return made
    tables = [tensors[place].reshape(1) if is_line else tensors[place] for place, is_line in known.places]
    return type(made)(*made[:-1], tuple(tables))


def _remember(function: Any, options: tuple[Any, ...], key: tuple[Any, ...], made: Any, tracer: Any) -> None:
    """Where tracing read no tensor's numbers, looked nothing up in tensors that it made, and changed nothing that it
    could see."""
    parts: Any = _core.captured_parts(function, options, _facts_of(sys.modules.get("torch")))
    if parts is None or parts[0] != key or tracer.reads_values or any(vars(tensor) for tensor in parts[1]):
        return
    place_of = {id(tensor): place for place, tensor in reversed([*enumerate(parts[1])])}
    places = []
    for table in made.tables:
        scalar = tracer.scalar_of(table)
        place = place_of.get(id(table if scalar is None else scalar))
        if place is None:
            return
        places.append((place, scalar is not None))
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[key] = _Known(made._replace(tables=()), tuple(places), tracer.default_device, tuple(parts[2]))


def forget() -> None:
    """All functions that were traced."""
    _codes.clear()
    _known.clear()
