# Runs a function on stand-ins that note what is done to them. torch is met through its own protocol for foreign types,
# __torch_function__, and is not imported here.
"""Tracing of score functions."""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tilewise import _core
from tilewise._traced_words import DTYPES, FILLED, METHODS, OPERATORS, REFLECTED, SWAPPED

_OWN = Path(__file__).parent


class TraceError(ValueError):
    """A function that can't be traced; the message has the line that can't."""


class Value:
    """Stands for one number of the function that is traced."""

    def __init__(self, tracer: Tracer, term: int) -> None:
        self._tracer, self._term = tracer, term

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[dict[str, Any]] = None
    ) -> Any:
        return tracer_of((args, kwargs)).call(function, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        raise TypeError(f"NumPy's {ufunc.__name__} takes numbers and arrays alone; use Python's operators or torch's")

    @property
    def type(self) -> str:
        return self._tracer.build.type(self._term)

    @property
    def dtype(self) -> Any:
        """What torch would have it be: the dtype that indices and fp32 scores have."""
        names = {"bool": "bool", "int": "int32", "float": "float32"}
        torch: Any = sys.modules.get("torch", np)
        return getattr(torch, names[self.type])

    @property
    def device(self) -> Any:
        return self._tracer.device

    shape = ()
    ndim = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in _METHODS:
            raise AttributeError(f"a value of a traced function has no {name!r}")
        return lambda *args, **kwargs: self._tracer.call_named(name, (self, *args), kwargs)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("a value of a traced function is one number, which has no elements")

    def __iter__(self) -> Any:
        raise TypeError("a value of a traced function is one number, which has no elements")

    def _as_number(self, *_: Any) -> Any:
        raise TypeError("Python can't know this value while the function is traced")

    __int__ = __float__ = __index__ = __complex__ = __round__ = __trunc__ = _as_number

    def __bool__(self) -> bool:
        raise TypeError("Python can't decide by a value while the function is traced; use torch.where, &, | and ~")

    __hash__ = None  # type: ignore[assignment]


def _operator(name: str) -> Any:
    return lambda self, *others: self._tracer.call_named(name, (self, *others), {})


for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lt", "le", "gt", "ge", "eq", "ne"),
    *("neg", "invert", "abs", "pow", "pos"),
    *REFLECTED[:-1],
):
    setattr(Value, f"__{_name}__", _operator(_name))

_METHODS = frozenset(METHODS)
# Of what is not negative, they make what is not.
_KEEP_SIGN = ("+", "*", "min", "//", "%")


class Captured:
    """A captured array with some of its indices given: those of its first dimensions."""

    def __init__(self, tracer: Tracer, array: Any, indices: tuple[Any, ...]) -> None:
        self._tracer, self._array, self._indices = tracer, array, indices

    def __getitem__(self, index: Any) -> Any:
        return self._tracer.look_up(self._array, (*self._indices, *(index if isinstance(index, tuple) else (index,))))

    def __getattr__(self, name: str) -> Any:
        missing = len(self._array.shape) - len(self._indices)
        raise TypeError(f"a captured tensor must be indexed down to one element ({missing} indices are missing)")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[dict[str, Any]] = None
    ) -> Any:
        return tracer_of((args, kwargs)).call(function, args, kwargs or {})


def found_tracer(values: Any) -> Optional[Tracer]:
    """The tracer of a stand-in among arguments, however they are nested."""
    if isinstance(values, (Value, Captured)):
        return object.__getattribute__(values, "_tracer")  # type: ignore[no-any-return]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return None
    return next((tracer for tracer in map(found_tracer, values) if tracer is not None), None)


def tracer_of(values: Any) -> Tracer:
    tracer = found_tracer(values)
    assert tracer is not None  # torch calls this for a stand-in among the arguments
    return tracer


def _watching_torch(tracer: Tracer) -> contextlib.AbstractContextManager[Any]:
    """Within it torch shows calls on its own tensors too: what an index is, only the call itself tells."""
    return _watching_class()(tracer) if "torch" in sys.modules else contextlib.nullcontext()


# What says nothing of a tensor but what kind of tensor it is.
_WITHOUT_VALUES = frozenset({"shape", "dtype", "device", "ndim", "dim", "size", "numel", "__len__"})


@functools.cache
def _watching_class() -> Any:
    from torch.overrides import TorchFunctionMode

    class Watching(TorchFunctionMode):
        def __init__(self, tracer: Tracer) -> None:
            super().__init__()
            self.tracer = tracer

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tracer = found_tracer((args, kwargs))
            if tracer is not None:
                return tracer.call(func, args, kwargs or {})
            name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
            self.tracer.reads_values |= name not in _WITHOUT_VALUES
            return func(*args, **(kwargs or {}))

    return Watching


class Tracer:
    """One function while it is traced.

    device: What the stand-ins say where they are asked; None is torch's default.
    from_the_end: Whether an index below 0 that is not known before counts from the end, as in torch, and reads no 0.
    """

    def __init__(self, name: str, device: Any = None, from_the_end: bool = False) -> None:
        self.name = name
        self.build = _core.ExpressionBuilder(name)
        self.tables: list[Any] = []
        self.reads_values = False  # of tensors, or makes some
        self.default_device: Any = None  # torch's, once the function has asked for it
        self._device, self._from_the_end = device, from_the_end
        self._never_negative: set[int] = set()  # terms
        self._lines: dict[int, tuple[Any, Any]] = {}  # of scalars by their id, which holds while they are kept

    def run(self, function: Callable[..., Any], arguments: Sequence[str]) -> str:
        """The text of what `function` computes; TraceError where that is no expression."""
        values = [Value(self, self.build.variable(argument)) for argument in arguments]
        self._never_negative.update(value._term for value in values if value.type == "int")
        try:
            with _watching_torch(self):
                result = function(*values)
            term = self._operand(result)
        except Exception as error:
            raise TraceError(f"{self.name}: {error} ({_place_of(error, function)})") from error
        try:
            return self.build.finish(term)
        except ValueError as error:
            raise TraceError(f"{error} ({_name_of(function)})") from error

    @property
    def device(self) -> Any:
        torch: Any = sys.modules.get("torch")
        if self._device is not None or torch is None:
            return self._device
        self.default_device = torch.get_default_device()
        return self.default_device

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A call of torch's function or method, or of a property, on a stand-in."""
        name = getattr(function, "__name__", str(function))
        return self.call_named(name.strip("_"), args, kwargs)

    def call_named(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if name == "getitem":
            array, index = args
            return self.look_up(array, index if isinstance(index, tuple) else (index,))
        if name in ("detach", "clone", "contiguous", "pos", "positive") and not kwargs:
            return args[0]
        if name in ("clamp", "clip"):
            return self._clamp(*args, **kwargs)
        if name in ("float", "to", "type_as", "int", "long", "bool"):
            return self._converted(name, *args, **kwargs)
        if name in FILLED:
            return self._filled(name, *args, **kwargs)
        if name in ("square", "pow", "float_power"):
            return self._power(args[0], 2 if name == "square" else args[1])
        if name == "relu":
            return self._apply("max", args[0], 0)
        if name in ("max", "min") and len(args) == 2:
            return self._apply(name, *args)
        return self._operation(name, args, kwargs)

    def _operation(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        rounding = kwargs.pop("rounding_mode", None) if name in ("div", "divide") else None
        if kwargs.get("alpha", 1) == 1:
            kwargs.pop("alpha", None)
        plain = name[1:] if name in REFLECTED and name != "rsub" else name
        word = OPERATORS.get(plain, SWAPPED.get(plain))
        if rounding is not None:
            word = "//" if rounding == "floor" else None
        if word is None or kwargs:
            given = "".join(f", {key}" for key in (*kwargs, *(["rounding_mode"] if rounding else [])))
            raise TypeError(f"no expression does what '{name}{given}' does")
        if plain in SWAPPED or plain != name:
            args = tuple(reversed(args))
        if name in ("logical_xor", "bitwise_xor", "xor", "rxor"):
            self._expect_bools(name, args)
        return self._apply(word, *args)

    def _expect_bools(self, name: str, args: Sequence[Any]) -> None:
        for arg in args:
            if self.build.type(self._operand(arg)) != "bool":
                raise TypeError(f"'{name}' takes bools; compare numbers first")

    def _apply(self, word: str, *args: Any) -> Value:
        if word == "select" and len(args) != 3:
            raise TypeError("torch.where takes a condition and two values")
        terms = [self._operand(arg) for arg in args]
        term = self.build.apply(word, terms)
        remainder = word == "%" and isinstance(args[1], int) and args[1] > 0
        if remainder or self._is_never_negative(word, terms):
            self._never_negative.add(term)
        return Value(self, term)

    def _is_never_negative(self, word: str, terms: list[int]) -> bool:
        known = [term in self._never_negative for term in terms]
        if word == "select":
            return known[1] and known[2]
        return word == "abs" or (word == "max" and any(known)) or (word in _KEEP_SIGN and all(known))

    def _clamp(self, value: Any, min: Any = None, max: Any = None) -> Any:
        if min is not None:
            value = self._apply("max", value, min)
        return value if max is None else self._apply("min", value, max)

    def _power(self, base: Any, exponent: Any) -> Value:
        """Of a small integer, as products."""
        if not isinstance(exponent, int) or isinstance(exponent, bool) or not 1 <= exponent <= 8:
            raise TypeError("a power's exponent must be an int from 1 to 8")
        power = self._apply("*", base, 1)
        for _ in range(exponent - 1):
            power = self._apply("*", power, base)
        return power

    def _filled(self, name: str, like: Any, *args: Any, **kwargs: Any) -> Value:
        """What torch's new_ones() and its kin make where their size is that of one number."""
        dtype = kwargs.pop("dtype", None)
        for ignored in ("device", "requires_grad", "pin_memory", "memory_format"):
            kwargs.pop(ignored, None)
        given = [*args, *kwargs.values()]
        size = tuple(given.pop(0) if name.startswith("new") else ())
        number = FILLED[name] if FILLED[name] is not None else given.pop(0)
        if size or given:
            raise TypeError(f"'{name}' makes one number alone, of the size () (got {size})")
        return self._converted("to", number, dtype if dtype is not None else like)

    def _converted(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Value:
        device: Any = getattr(sys.modules.get("torch"), "device", str)
        args = tuple(arg for arg in args if not isinstance(arg, (str, device)))
        kwargs.pop("device", None)
        wanted = kwargs.pop("dtype", args[0] if args else None if name == "to" else name)
        if wanted is None and not kwargs:  # to a device alone
            return Value(self, self._operand(value))
        dtype = str(getattr(wanted, "dtype", wanted)).removeprefix("torch.")
        kinds = {"float": ("float",), "int": ("int", "long"), "bool": ("bool",)}
        kind = next((kind for kind, starts in kinds.items() if dtype.startswith((*starts, "bfloat"))), None)
        if dtype.startswith("bfloat") or kwargs:
            kind = None
        own = self.build.type(self._operand(value))
        if kind is None or (kind == "int" and own == "float"):
            raise TypeError(f"no expression turns a {own} into {dtype}")
        if kind == own:
            return Value(self, self._operand(value))
        if kind == "bool":
            return self._apply("!=", value, 0)
        return self._apply("float", value) if kind == "float" else self._apply("select", value, 1, 0)

    def look_up(self, array: Any, indices: tuple[Any, ...]) -> Any:
        """An element of a captured array, or where indices lack, what the others are asked for."""
        if isinstance(array, (Value, Captured)):
            return array[indices]
        rank = len(array.shape)
        for index in indices:
            number = isinstance(index, (Value, Captured, int, np.integer)) and not isinstance(index, bool)
            if not number and not _is_scalar(index):
                raise TypeError(f"captured tensors take numbers as indices (got {type(index).__name__})")
        if len(indices) > rank:
            raise TypeError(f"a captured tensor takes {rank} indices (got {len(indices)})")
        if len(indices) < rank:
            return Captured(self, array, indices)
        terms = [
            self.build.integer(int(index) + (int(size) if index < 0 else 0))
            if isinstance(index, (int, np.integer))
            else self._counted_from_the_end(self._operand(index), int(size))
            for index, size in zip(indices, array.shape)
        ]
        term = self.build.lookup(self._table(array), terms)
        if DTYPES[str(array.dtype).removeprefix("torch.")] in ("u8", "bool"):
            self._never_negative.add(term)
        return Value(self, term)

    def _counted_from_the_end(self, index: int, size: int) -> int:
        if not self._from_the_end or index in self._never_negative or self.build.type(index) != "int":
            return index
        negative = self.build.apply("<", [index, self.build.integer(0)])
        wrapped = self.build.apply("+", [index, self.build.integer(size)])
        return self.build.apply("select", [negative, wrapped, index])

    def _table(self, array: Any) -> int:
        for number, table in enumerate(self.tables):
            if table is array:
                return number
        dtype = str(array.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise TypeError(f"captured tensors must be {', '.join(DTYPES)} (got {dtype})")
        number = self.build.add_table(DTYPES[dtype], len(array.shape))
        self.tables.append(array)
        return number

    def _operand(self, value: Any) -> int:
        """The term of whatever stands in an operation."""
        if isinstance(value, Value):
            return value._term
        if isinstance(value, Captured):
            missing = len(value._array.shape) - len(value._indices)
            raise TypeError(f"a captured tensor must be indexed down to one element ({missing} indices are missing)")
        if isinstance(value, (bool, np.bool_)):
            return self.build.boolean(bool(value))
        if isinstance(value, (int, np.integer)):
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"a constant must fit in 64 bits (got {value})")
            term = self.build.integer(int(value))
            if value >= 0:
                self._never_negative.add(term)
            return term
        if isinstance(value, (float, np.floating)):
            return self.build.real(float(value))
        shape = getattr(value, "shape", None)
        if shape is None or not hasattr(value, "dtype"):
            raise TypeError(f"an expression is made of numbers (got {type(value).__name__})")
        if len(shape) > 0:
            raise TypeError(f"a captured tensor must be indexed down to one element ({len(shape)} indices are missing)")
        element: Value = self.look_up(self._line_of(value), (0,))
        return element._term

    def _line_of(self, scalar: Any) -> Any:
        """A tensor of one number as one of one dimension, in the same memory."""
        known = self._lines.get(id(scalar))
        if known is None:
            before = self.reads_values
            known = self._lines[id(scalar)] = (scalar, scalar.reshape(1))
            self.reads_values = before
        return known[1]

    def scalar_of(self, table: Any) -> Any:
        """The tensor of one number that a table is a line of; None of others."""
        return next((scalar for scalar, line in self._lines.values() if line is table), None)


def _is_scalar(index: Any) -> bool:
    return getattr(index, "shape", None) == () and hasattr(index, "dtype")


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _place_of(error: BaseException, function: Callable[..., Any]) -> str:
    """The line of the caller's that failed, or the function's name where none did: what it returned is wrong."""
    found, trace = _name_of(function), error.__traceback__
    torch = sys.modules.get("torch")
    packages = [_OWN] if torch is None else [_OWN, Path(str(torch.__file__)).parent]
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith("<") and not any(package in Path(path).parents for package in packages):
            line = linecache.getline(path, trace.tb_lineno).strip()
            found = f"{path}, line {trace.tb_lineno}: {line}" if line else f"{path}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found
