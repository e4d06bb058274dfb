# Block masks of tensors on a GPU: interval arithmetic by torch's own operations over all blocks at once, so that
# nothing waits for the device and no score is asked for.
"""What a mask_mod leaves of each block, by bounds alone."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

_Number = Union[int, Tensor]
_MOST = 2**62  # beyond, sums of two might wrap around


class Blocks(NamedTuple):
    """Which blocks there are: of how many sequences, heads, queries and keys, and of how many queries and keys each."""

    batch_size: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int
    rows: int
    keys: int


class _Ints(NamedTuple):
    """Between what an int lies in each block, tensors that broadcast to [batch, heads, rows, columns] of blocks.

    most: no number is further from 0. place: the variable that it is, and what is added to it.
    """

    low: _Number
    high: _Number
    most: int
    place: Optional[tuple[str, int]] = None


class _Bools(NamedTuple):
    """Whether it is true throughout a block, and whether it may be anywhere there."""

    always: Union[bool, Tensor]
    ever: Union[bool, Tensor]


_Bounds = Union[_Ints, _Bools]


class _UnknownError(Exception):
    """Floats, and whatever else these bounds say nothing of."""


def states(text: str, tables: Sequence[Tensor], blocks: Blocks, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which blocks are visible whole, and which in part or perhaps so: bool [batch, heads, rows, columns]."""
    result = _Reader(tables, blocks, device).read(text)
    shape = (
        blocks.batch_size,
        blocks.num_heads,
        -(-blocks.seqlen_q // blocks.rows),
        -(-blocks.seqlen_k // blocks.keys),
    )
    always, ever = (
        part.expand(shape) if isinstance(part, Tensor) else torch.full(shape, part, device=device) for part in result
    )
    return always, ever & ~always


def listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """int32: how many of a row there are, and which, ascending, then 0."""
    columns = blocks.shape[-1]
    places = torch.where(blocks, blocks.cumsum(-1) - 1, columns)
    indices = torch.zeros(*blocks.shape[:-1], columns + 1, dtype=torch.int32, device=blocks.device)
    numbers = torch.arange(columns, dtype=torch.int32, device=blocks.device).expand(blocks.shape)
    indices.scatter_(-1, places, numbers)
    return blocks.sum(-1, dtype=torch.int32), indices[..., :columns].contiguous()


def _least(a: _Number, b: _Number) -> _Number:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.minimum(a, b)
    return a.clamp(max=b) if isinstance(a, Tensor) else _least(b, a)


def _greatest(a: _Number, b: _Number) -> _Number:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.maximum(a, b)
    return a.clamp(min=b) if isinstance(a, Tensor) else _greatest(b, a)


def _not(a: Union[bool, Tensor]) -> Union[bool, Tensor]:
    return ~a if isinstance(a, Tensor) else not a


def _bounded(low: _Number, high: _Number, most: int, place: Optional[tuple[str, int]] = None) -> _Ints:
    if most >= _MOST:
        raise _UnknownError
    return _Ints(low, high, most, place)


class _Reader:
    """Goes through an expression's text, whose operators are Python's."""

    def __init__(self, tables: Sequence[Tensor], blocks: Blocks, device: torch.device) -> None:
        self.tables = tables
        self.blocks = blocks
        self.device = device
        self.names: dict[str, Union[_Bounds, _UnknownError]] = {}
        for axis, (name, size, block) in enumerate(self._sides()):
            first = torch.arange(0, size, block, device=device).reshape([-1 if axis == d else 1 for d in range(4)])
            last = first if block == 1 else (first + (block - 1)).clamp(max=size - 1)
            self.names[name] = _Ints(first, last, size, (name, 0))

    def _sides(self) -> tuple[tuple[str, int, int], ...]:
        """Variables, each an axis of the blocks: how many there are, and how many a block has."""
        of = self.blocks
        return ("b", of.batch_size, 1), ("h", of.num_heads, 1), ("q_idx", of.seqlen_q, of.rows), (
            "kv_idx", of.seqlen_k, of.keys,
        )  # fmt: skip

    def read(self, text: str) -> _Bools:
        result: Union[_Bounds, _UnknownError] = _UnknownError()
        for statement in ast.parse(text.replace(";", "\n")).body:
            value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
            try:
                result = self.visit(value)
            except _UnknownError as unknown:
                result = unknown
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.names[statement.targets[0].id] = result
        return result if isinstance(result, _Bools) else _Bools(False, True)

    def visit(self, node: Any) -> _Bounds:
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return _Bools(node.value, node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return _bounded(node.value, node.value, abs(node.value))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(type(node.ops[0]), self.visit(node.left), self.visit(node.comparators[0]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._called(node.func.id, node.args)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return self._looked_up(self.tables[int(node.value.id.removeprefix("table"))], indices)
        raise _UnknownError

    def _name(self, name: str) -> _Bounds:
        if name in ("True", "False"):
            return _Bools(name == "True", name == "True")
        known = self.names.get(name, _UnknownError())
        if isinstance(known, _UnknownError):
            raise known
        return known

    def _int(self, node: Any) -> _Ints:
        bounds = self.visit(node)
        if not isinstance(bounds, _Ints):
            raise _UnknownError
        return bounds

    def _bool(self, node: Any) -> _Bools:
        """Of what nothing is known: neither."""
        try:
            bounds = self.visit(node)
        except _UnknownError:
            return _Bools(False, True)
        return bounds if isinstance(bounds, _Bools) else _Bools(False, True)

    def _unary(self, node: ast.UnaryOp) -> _Bounds:
        if isinstance(node.op, (ast.Invert, ast.Not)):
            bounds = self._bool(node.operand)
            return _Bools(_not(bounds.ever), _not(bounds.always))
        if not isinstance(node.op, ast.USub):
            raise _UnknownError
        a = self._int(node.operand)
        return _Ints(-a.high, -a.low, a.most)

    def _binary(self, node: ast.BinOp) -> _Bounds:
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            one, other = self._bool(node.left), self._bool(node.right)
            if isinstance(node.op, ast.BitAnd):
                return _Bools(one.always & other.always, one.ever & other.ever)
            return _Bools(one.always | other.always, one.ever | other.ever)
        a, b = self._int(node.left), self._int(node.right)
        if isinstance(node.op, ast.Add):
            place = _moved(a, b) or _moved(b, a)
            return _bounded(a.low + b.low, a.high + b.high, a.most + b.most, place)
        if isinstance(node.op, ast.Sub):
            negative = _Ints(-b.high, -b.low, b.most)
            return _bounded(a.low - b.high, a.high - b.low, a.most + b.most, _moved(a, negative))
        if isinstance(node.op, ast.Mult):
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            low, high = corners[0], corners[0]
            for corner in corners[1:]:
                low, high = _least(low, corner), _greatest(high, corner)
            return _bounded(low, high, a.most * b.most)
        divisor = b.low
        if not isinstance(divisor, int) or divisor != b.high or divisor <= 0:
            raise _UnknownError
        if isinstance(node.op, ast.FloorDiv):
            return _Ints(a.low // divisor, a.high // divisor, a.most)
        if isinstance(node.op, ast.Mod):
            same = a.low // divisor == a.high // divisor
            if isinstance(same, bool):
                return _Ints(a.low % divisor if same else 0, a.high % divisor if same else divisor - 1, divisor)
            low, high = (side % divisor for side in (a.low, a.high))
            return _Ints(torch.where(same, low, 0), torch.where(same, high, divisor - 1), divisor)
        raise _UnknownError

    @staticmethod
    def _compared(kind: type[ast.cmpop], a: _Bounds, b: _Bounds) -> _Bools:
        if not isinstance(a, _Ints) or not isinstance(b, _Ints):
            raise _UnknownError
        if kind is ast.Lt:
            return _Bools(a.high < b.low, a.low < b.high)
        if kind is ast.LtE:
            return _Bools(a.high <= b.low, a.low <= b.high)
        if kind is ast.Gt:
            return _Bools(a.low > b.high, a.high > b.low)
        if kind is ast.GtE:
            return _Bools(a.low >= b.high, a.high >= b.low)
        always = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
        ever = (a.low <= b.high) & (b.low <= a.high)
        return _Bools(always, ever) if kind is ast.Eq else _Bools(_not(ever), _not(always))

    def _called(self, name: str, arguments: list[ast.expr]) -> _Bounds:
        if name == "select":
            return self._selected(*arguments)
        a, *others = (self._int(argument) for argument in arguments)
        if name == "abs":
            least = _greatest(_greatest(a.low, -a.high), 0)
            return _Ints(least, _greatest(a.high, -a.low), a.most)
        if name in ("min", "max"):
            choose = _least if name == "min" else _greatest
            return _Ints(choose(a.low, others[0].low), choose(a.high, others[0].high), max(a.most, others[0].most))
        if name == "clamp":
            low, high = others
            least = _least(_greatest(a.low, low.low), high.low)
            most = _least(_greatest(a.high, low.high), high.high)
            return _Ints(least, most, max(a.most, low.most, high.most))
        raise _UnknownError

    def _selected(self, choice: ast.expr, *operands: ast.expr) -> _Ints:
        chosen, (a, b) = self._bool(choice), (self._int(operand) for operand in operands)

        def side(one: _Number, other: _Number, either: Callable[[_Number, _Number], _Number]) -> _Number:
            if isinstance(chosen.always, bool) or isinstance(chosen.ever, bool):
                return one if chosen.always is True else other if chosen.ever is False else either(one, other)
            return torch.where(chosen.always, one, torch.where(chosen.ever, either(one, other), other))

        return _Ints(side(a.low, b.low, _least), side(a.high, b.high, _greatest), max(a.most, b.most))

    def _looked_up(self, table: Tensor, nodes: list[ast.expr]) -> _Bounds:
        """Of indices that are each a number, or another variable and a number: the least and greatest in each block."""
        if table.is_floating_point() or len(nodes) != table.dim():
            raise _UnknownError
        indices = [self._int(node) for node in nodes]
        is_bool, most = table.dtype == torch.bool, _MOST - 1
        if table.dtype != torch.int64:
            most = 1 if is_bool else 2**31
        places = [index.place for index in indices]
        names = [place[0] for place in places if place is not None]
        if len(set(names)) != len(names):
            raise _UnknownError
        part = table.to(torch.uint8) if is_bool else table
        sides = {name: (axis, size, block) for axis, (name, size, block) in enumerate(self._sides())}
        for dimension, (index, place) in enumerate(zip(indices, places)):
            if place is None and not (isinstance(index.low, int) and index.low is index.high):
                raise _UnknownError
            first, count = (int(index.low), 1) if place is None else (place[1], sides[place[0]][1])
            part = _within(part, dimension, first, count)
        low = high = part
        shape = [1, 1, 1, 1]
        for dimension, place in enumerate(places):
            if place is None:
                continue
            axis, size, block = sides[place[0]]
            shape[axis] = -(-size // block)
            if block > 1:
                low, high = (
                    _of_blocks(low, dimension, block, torch.amin),
                    _of_blocks(high, dimension, block, torch.amax),
                )
        order = sorted(range(len(places)), key=lambda d: -1 if places[d] is None else sides[places[d][0]][0])  # type: ignore[index]
        low, high = (side.permute(order).reshape(shape).to(torch.int64) for side in (low, high))
        return _Bools(low == 1, high == 1) if is_bool else _Ints(low, high, most)


def _moved(a: _Ints, b: _Ints) -> Optional[tuple[str, int]]:
    """The place that a is, where b is a number that is added to it."""
    if a.place is None or not isinstance(b.low, int) or b.low != b.high:
        return None
    return a.place[0], a.place[1] + b.low


def _within(table: Tensor, dimension: int, first: int, count: int) -> Tensor:
    """Places [first, first + count) of a dimension, 0 beyond it."""
    size = table.shape[dimension]
    begin, end = min(max(first, 0), size), max(min(first + count, size), 0)
    end = max(begin, end)
    part = table.narrow(dimension, begin, end - begin)
    before = min(max(-first, 0), count)
    after = count - before - (end - begin)
    if before == 0 and after == 0:
        return part
    return torch.nn.functional.pad(part, [0, 0] * (table.dim() - 1 - dimension) + [before, after])


def _of_blocks(table: Tensor, dimension: int, block: int, combine: Callable[..., Tensor]) -> Tensor:
    """The least or greatest of each block of a dimension, of which the last may be shorter."""
    size = table.shape[dimension]
    whole = size // block * block
    parts = []
    if whole > 0:
        parts.append(combine(table.narrow(dimension, 0, whole).unflatten(dimension, (-1, block)), dimension + 1))
    if whole < size:
        parts.append(combine(table.narrow(dimension, whole, size - whole), dimension, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dimension)
