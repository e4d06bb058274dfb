# Block masks of tensors on a GPU: interval arithmetic by torch's own operations over all blocks at once, so that
# nothing waits for the device and no score is asked for. Both ends of an interval lie in one tensor: each operation of
# torch's takes the host some 4 us.
"""What a mask_mod leaves of each block, by bounds alone."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor

from tilewise._block_mask_constants import Constants, both_ways, numbers, unknown, variable

_Bound = Union[int, Tensor]  # a tensor [2, ...] of the least and the greatest, or one number
_MOST = 2**62  # beyond, sums of two might wrap around


class Blocks(NamedTuple):
    """Which blocks there are: of how many sequences, heads, queries and keys, and of how many queries and keys each."""

    batch_size: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int
    rows: int
    keys: int


class _Ints:
    """Between what an int lies in each block: tensors that broadcast to [2, batch, heads, rows, columns] of blocks.

    most: No number is further from 0. place: The variable that it is, and what is added to it.
    """

    __slots__ = ("_flipped", "ends", "most", "place")

    def __init__(
        self, ends: _Bound, most: int, place: Optional[tuple[str, int]] = None, flipped: Optional[Tensor] = None
    ) -> None:
        if most >= _MOST:
            raise _UnknownError
        self.ends, self.most, self.place, self._flipped = ends, most, place, flipped

    @property
    def flipped(self) -> Any:
        """The greatest and the least."""
        if self._flipped is None and isinstance(self.ends, Tensor):
            self._flipped = self.ends.flip(0)
        return self.ends if self._flipped is None else self._flipped

    def wide(self) -> _Ints:
        """In int64, which tables may not be."""
        if not isinstance(self.ends, Tensor) or self.ends.dtype == torch.int64:
            return self
        return _Ints(self.ends.to(torch.int64), self.most, self.place)


class _Bools(NamedTuple):
    """Likewise whether it is true throughout a block, and whether it may be anywhere there."""

    ends: Union[bool, Tensor]


_Bounds = Union[_Ints, _Bools]


class _UnknownError(Exception):
    """Floats, and whatever else these bounds say nothing of."""


def states(text: str, tables: Sequence[Tensor], blocks: Blocks, device: torch.device) -> Tensor:
    """bool [2, batch, heads, rows, columns]: which blocks are visible whole, and which in part or perhaps so."""
    ends = _Reader(tables, blocks, Constants(device)).read(text).ends
    batch_size, num_heads, seqlen_q, seqlen_k, rows, keys = blocks
    shape = (2, batch_size, num_heads, -(-seqlen_q // rows), -(-seqlen_k // keys))
    if not isinstance(ends, Tensor):
        ends = torch.full(shape, ends, device=device)
    elif ends.shape != shape or ends.numel() == 2:  # which may be kept for other calls
        ends = ends.expand(shape).clone()
    always, ever = ends.unbind()
    ever.gt_(always)
    return ends


def listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """int32: how many of a row there are, and which, ascending, then 0."""
    columns = blocks.shape[-1]
    count = blocks.cumsum(-1)
    indices = torch.zeros(*blocks.shape[:-1], columns + 1, dtype=torch.int32, device=blocks.device)
    places = Constants(blocks.device).made(numbers, columns)
    indices.scatter_(-1, count * blocks, places.expand(blocks.shape))  # those of no block to a place before the first
    return count.select(-1, columns - 1).to(torch.int32), indices.narrow(-1, 1, columns)


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse(text.replace(";", "\n")).body)


def _least(a: _Bound, b: _Bound) -> _Bound:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.minimum(a, b)
    return a.clamp(max=b) if isinstance(a, Tensor) else _least(b, a)


def _greatest(a: _Bound, b: _Bound) -> _Bound:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.maximum(a, b)
    return a.clamp(min=b) if isinstance(a, Tensor) else _greatest(b, a)


def _not(ends: Any) -> Any:
    return ~ends.flip(0) if isinstance(ends, Tensor) else not ends


class _Reader:
    """Goes through an expression's text, whose operators are Python's."""

    def __init__(self, tables: Sequence[Tensor], blocks: Blocks, constants: Constants) -> None:
        self.tables = tables
        self.constants = constants
        # Variables, each an axis of the blocks: how many there are, and how many a block has.
        self.sides = {
            "b": (0, blocks.batch_size, 1),
            "h": (1, blocks.num_heads, 1),
            "q_idx": (2, blocks.seqlen_q, blocks.rows),
            "kv_idx": (3, blocks.seqlen_k, blocks.keys),
        }
        self.names: dict[str, Union[_Bounds, _UnknownError]] = {}
        self.reduced: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def read(self, text: str) -> _Bools:
        result: Union[_Bounds, _UnknownError] = _UnknownError()
        for statement in _parsed(text):
            value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
            try:
                result = self.visit(value)
            except _UnknownError as unknown:
                result = unknown
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.names[statement.targets[0].id] = result
        return result if isinstance(result, _Bools) else self._nothing_known()

    def _nothing_known(self) -> _Bools:
        return _Bools(self.constants.made(unknown))

    def visit(self, node: Any) -> _Bounds:
        kind = type(node)
        if kind is ast.Name:
            return self._name(node.id)
        if kind is ast.Compare and len(node.ops) == 1:
            return self._compared(type(node.ops[0]), node.left, node.comparators[0])
        if kind is ast.BinOp:
            return self._binary(node)
        if kind is ast.Constant and isinstance(node.value, bool):
            return _Bools(node.value)
        if kind is ast.Constant and isinstance(node.value, int):
            return _Ints(node.value, abs(node.value))
        if kind is ast.UnaryOp:
            return self._unary(node)
        if kind is ast.Call and isinstance(node.func, ast.Name):
            return self._called(node.func.id, node.args)
        if kind is ast.Subscript and isinstance(node.value, ast.Name):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return self._looked_up(self.tables[int(node.value.id.removeprefix("table"))], indices)
        raise _UnknownError

    def _name(self, name: str) -> _Bounds:
        if name in ("True", "False"):
            return _Bools(name == "True")
        known = self.names.get(name)
        if known is None and name in self.sides:
            axis, size, block = self.sides[name]
            ends, flipped = self.constants.made(variable, axis, size, block)
            known = self.names[name] = _Ints(ends, size, (name, 0), flipped)
        if known is None or isinstance(known, _UnknownError):
            raise known or _UnknownError
        return known

    def _int(self, node: Any) -> _Ints:
        bounds = self.visit(node)
        if not isinstance(bounds, _Ints):
            raise _UnknownError
        return bounds.wide()

    def _bool(self, node: Any) -> Any:
        """Its ends; of what nothing is known, these."""
        try:
            bounds = self.visit(node)
        except _UnknownError:
            return self._nothing_known().ends
        return bounds.ends if isinstance(bounds, _Bools) else self._nothing_known().ends

    def _unary(self, node: ast.UnaryOp) -> _Bounds:
        if isinstance(node.op, (ast.Invert, ast.Not)):
            return _Bools(_not(self._bool(node.operand)))
        if not isinstance(node.op, ast.USub):
            raise _UnknownError
        a = self._int(node.operand)
        return _Ints(-a.flipped, a.most)

    def _binary(self, node: ast.BinOp) -> _Bounds:
        if isinstance(node.op, ast.BitAnd):
            return _Bools(self._bool(node.left) & self._bool(node.right))
        if isinstance(node.op, ast.BitOr):
            return _Bools(self._bool(node.left) | self._bool(node.right))
        a, b = self._int(node.left), self._int(node.right)
        if isinstance(node.op, ast.Add):
            return _Ints(a.ends + b.ends, a.most + b.most, _moved(a, b.ends) or _moved(b, a.ends))
        if isinstance(node.op, ast.Sub):
            place = None if isinstance(b.ends, Tensor) else _moved(a, -b.ends)
            return _Ints(a.ends - b.flipped, a.most + b.most, place)
        if isinstance(node.op, ast.Mult):
            return _Ints(_product(a, b), a.most * b.most)
        divisor = b.ends
        if not isinstance(divisor, int) or divisor <= 0:
            raise _UnknownError
        if isinstance(node.op, ast.FloorDiv):
            return _Ints(a.ends // divisor, a.most)
        if isinstance(node.op, ast.Mod):
            return _Ints(_remainder(a.ends, divisor), divisor)
        raise _UnknownError

    def _compared(self, kind: type[ast.cmpop], left: ast.expr, right: ast.expr) -> _Bools:
        a, b = self.visit(left), self.visit(right)
        if not isinstance(a, _Ints) or not isinstance(b, _Ints):
            raise _UnknownError
        if not isinstance(a.ends, Tensor) or not isinstance(b.ends, Tensor):  # numbers may be beyond a narrow dtype
            a, b = a.wide(), b.wide()
        if kind is ast.Lt:
            return _Bools(a.flipped < b.ends)
        if kind is ast.LtE:
            return _Bools(a.flipped <= b.ends)
        if kind is ast.Gt:
            return _Bools(a.ends > b.flipped)
        if kind is ast.GtE:
            return _Bools(a.ends >= b.flipped)
        equal: Any = (a.flipped <= b.ends) & (a.ends >= b.flipped)
        return _Bools(equal if kind is ast.Eq else _not(equal))

    def _called(self, name: str, arguments: list[ast.expr]) -> _Bounds:
        if name == "select":
            return self._selected(*arguments)
        a, *others = (self._int(argument) for argument in arguments)
        if name == "abs":
            return _Ints(_magnitude(a), a.most)
        if name in ("min", "max"):
            choose = _least if name == "min" else _greatest
            return _Ints(choose(a.ends, others[0].ends), max(a.most, others[0].most))
        if name == "clamp":
            low, high = others
            return _Ints(_least(_greatest(a.ends, low.ends), high.ends), max(a.most, low.most, high.most))
        raise _UnknownError

    def _selected(self, choice: ast.expr, *operands: ast.expr) -> _Ints:
        chosen, (a, b) = self._bool(choice), (self._int(operand) for operand in operands)
        if not isinstance(chosen, Tensor):
            return a if chosen else b
        always, ever = chosen.unbind()
        (low_a, high_a), (low_b, high_b) = _parts(a.ends), _parts(b.ends)
        low = torch.where(always, low_a, torch.where(ever, _least(low_a, low_b), low_b))
        high = torch.where(always, high_a, torch.where(ever, _greatest(high_a, high_b), high_b))
        return _Ints(torch.stack(torch.broadcast_tensors(low, high)), max(a.most, b.most))

    def _looked_up(self, table: Tensor, nodes: list[ast.expr]) -> _Bounds:
        """Of indices that are each a number, or another variable and a number: the least and greatest in each block."""
        if table.is_floating_point() or len(nodes) != table.dim():
            raise _UnknownError
        is_bool, most = table.dtype == torch.bool, _MOST - 1
        if table.dtype != torch.int64:
            most = 1 if is_bool else 2**31
        indices = [self._int(node) for node in nodes]
        names = [index.place[0] for index in indices if index.place is not None]
        if len(set(names)) != len(names):
            raise _UnknownError
        parts, order, shape = [], [], [2, 1, 1, 1, 1]
        for dimension, index in enumerate(indices):
            if index.place is None:
                if not isinstance(index.ends, int):
                    raise _UnknownError
                parts.append((index.ends, 1, 1))
                order.append((-1, dimension))
            else:
                axis, size, block = self.sides[index.place[0]]
                parts.append((index.place[1], size, block))
                order.append((axis, dimension))
                shape[1 + axis] = -(-size // block)
        ends, flipped = self._reduced(table, tuple(parts))
        if order != sorted(order):
            places = [0, *(1 + dimension for _, dimension in sorted(order))]
            ends, flipped = ends.permute(places), flipped.permute(places)
        ends, flipped = ends.reshape(shape), flipped.reshape(shape)
        return _Bools(ends == 1) if is_bool else _Ints(ends, most, None, flipped)

    def _reduced(self, table: Tensor, parts: tuple[tuple[int, int, int], ...]) -> tuple[Tensor, Tensor]:
        """[2, ...]: the least and greatest of blocks of a part of a table, and flipped. parts: of each dimension the
        first place, how many, and how many a block has."""
        known = self.reduced.get((id(table), parts))
        if known is not None:
            return known
        low = high = table.to(torch.uint8) if table.dtype == torch.bool else table
        for dimension, (first, count, _) in enumerate(parts):
            low = high = _within(low, dimension, first, count)
        for dimension, (_, _, block) in enumerate(parts):
            if block > 1:
                low, high = _of_blocks(low, high, dimension, block)
        made = self.reduced[id(table), parts] = both_ways(low, high)
        return made


def _parts(ends: _Bound) -> tuple[_Bound, _Bound]:
    """The least and the greatest."""
    return ends.unbind() if isinstance(ends, Tensor) else (ends, ends)  # type: ignore[return-value]


def _product(a: _Ints, b: _Ints) -> _Bound:
    if isinstance(b.ends, int):
        return (a.ends if b.ends >= 0 else a.flipped) * b.ends
    if isinstance(a.ends, int):
        return _product(b, a)
    one, other = a.ends * b.ends, a.ends * b.flipped
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    return torch.stack((low.amin(0), high.amax(0)))


def _remainder(ends: _Bound, divisor: int) -> _Bound:
    if isinstance(ends, int):
        return ends % divisor
    low, high = (ends // divisor).unbind()
    least, most = (ends % divisor).unbind()
    same = low == high
    return torch.stack((torch.where(same, least, 0), torch.where(same, most, divisor - 1)))


def _magnitude(a: _Ints) -> _Bound:
    if isinstance(a.ends, int) or isinstance(a.flipped, int):
        return abs(int(a.ends))
    low, high = a.ends.unbind()
    return torch.stack((torch.maximum(low, -high).clamp(min=0), torch.maximum(high, -low)))


def _moved(a: _Ints, by: _Bound) -> Optional[tuple[str, int]]:
    """The place that a is, where what is added to it is a number."""
    return None if a.place is None or not isinstance(by, int) else (a.place[0], a.place[1] + by)


def _within(table: Tensor, dimension: int, first: int, count: int) -> Tensor:
    """Places [first, first + count) of a dimension, 0 beyond it."""
    size = table.shape[dimension]
    if first == 0 and count == size:
        return table
    begin, end = min(max(first, 0), size), max(min(first + count, size), 0)
    end = max(begin, end)
    part = table.narrow(dimension, begin, end - begin)
    before = min(max(-first, 0), count)
    after = count - before - (end - begin)
    if before == 0 and after == 0:
        return part
    return torch.nn.functional.pad(part, [0, 0] * (table.dim() - 1 - dimension) + [before, after])


def _of_blocks(low: Tensor, high: Tensor, dimension: int, block: int) -> tuple[Tensor, Tensor]:
    """The least and greatest of each block of a dimension, of which the last may be shorter."""
    size = low.shape[dimension]
    whole = size // block * block
    parts = []
    if whole > 0:
        parts.append(_reduce(*_sides(low, high, dimension, 0, whole, block), dimension + 1))
    if whole < size:
        rest = _sides(low, high, dimension, whole, size - whole, size - whole)
        parts.append(_reduce(*rest, dimension + 1))
    if len(parts) == 1:
        return parts[0]
    least, most = zip(*parts)
    return torch.cat(least, dimension), torch.cat(most, dimension)


def _sides(
    low: Tensor, high: Tensor, dimension: int, first: int, count: int, block: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Places of a dimension as blocks; one tensor remains one."""
    shape = (*low.shape[:dimension], count // block, block, *low.shape[dimension + 1 :])

    def part(side: Tensor) -> Tensor:
        return (side if count == side.shape[dimension] else side.narrow(dimension, first, count)).reshape(shape)

    own = part(low)
    return own, own if low is high else part(high)


def _reduce(low: Tensor, high: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    if low is high:
        least, most = torch.aminmax(low, dim=dimension)
        return least, most
    return low.amin(dimension), high.amax(dimension)
