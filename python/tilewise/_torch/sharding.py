# DTensor: which placements of its inputs the operators take as they lie. Each shard of a batch, or of heads together
# with the key heads that they read, is a call of its own. Registered for the first DTensor that comes, since importing
# torch's module takes a second.
"""Sharding rules of the torch operators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from tilewise._options import Options, Short, form_parts
from tilewise._torch import operators
from tilewise._torch.private import name_of

_MODULE = "torch.distributed.tensor"
_AXES: dict[str, tuple[Optional[int], int]] = {"bshd": (0, 2), "sbhd": (1, 2), "bhsd": (0, 1), "thd": (None, 1)}
_done = False


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor."""
    kind = getattr(sys.modules.get(_MODULE), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def register_for(*tensors: Any) -> bool:
    """Registers the rules where one of these is a DTensor and there are none yet; whether it did so."""
    if _done or not any(map(is_sharded, tensors)):
        return False
    register()
    return True


class _Placements(NamedTuple):
    """How one way to shard places every kind of tensor: axes of rows and of log-sum-exps, and a "batch" or "heads"."""

    what: str
    rows: Any
    keys: Any
    lse: Any

    def of_option(self, name: str, spec: Any, tensors: Any) -> Any:
        """Placement of one of the Options' arrays."""
        rank, shape = len(spec.shape), spec.shape
        batch = self.what == "batch"
        axis: Optional[int] = None
        if name == "bias":
            axis = rank - (4 if batch else 3)
            axis = axis if axis >= 0 and shape[axis] != 1 else None
        elif name in ("seqused_q", "seqused_k", "leftpad_k"):
            axis = 0 if batch else None
        elif name == "key_indices":
            axis = 0 if batch else rank - 2 if shape[rank - 2] != 1 else None
        elif name in ("sink", "alibi_slopes", "q_scale", "k_scale", "v_scale"):
            axis = (0 if rank == 2 else None) if batch else rank - 1
            if axis is not None and (axis < 0 or shape[axis] == 1):
                axis = None
        return tensors.Replicate() if axis is None or self.what == "" else tensors.Shard(axis)


def _shards(spec: Any, axis: int) -> int:
    """Into how many parts an axis of a tensor lies sharded."""
    count = 1
    for size, placement in zip(spec.mesh.shape, spec.placements):
        count *= size if placement.is_shard(axis) else 1
    return count


def _ways(q: Any, k: Any, v: Any, layout: str, tensors: Any) -> list[_Placements]:
    """Replicated, by batch, and by heads where some are and every shard has the key heads that it reads."""
    whole = tensors.Replicate()
    ways = [_Placements("", whole, whole, whole)]
    batch, heads = _AXES[layout]
    if batch is not None:
        ways.append(_Placements("batch", tensors.Shard(batch), tensors.Shard(batch), tensors.Shard(0)))
    count = max(_shards(spec, heads) for spec in (q, k, v))
    heads_q, heads_k = q.shape[heads], k.shape[heads]
    lse = tensors.Shard(0 if layout == "thd" else 1)
    if count > 1 and heads_k % count == 0:
        ways.append(_Placements("heads", tensors.Shard(heads), tensors.Shard(heads), lse))
    elif count > 1 and heads_k == 1 and heads_q % count == 0:  # all of them read that one
        ways.append(_Placements("heads", tensors.Shard(heads), whole, lse))
    return ways


def _options(rest: tuple[Any, ...]) -> tuple[Any, tuple[str, ...]]:
    """Options of an operator's arguments after its tensors, and the names of these arguments."""
    if rest and type(rest[0]) is int:
        if len(rest) > 2:
            return Short(*rest).options(), Short._fields
        causal, layout = form_parts(rest[0])
        return Options(causal=causal, layout=layout), ("form", "softmax_scale")
    return Options(*rest), Options._fields


def _placed_options(way: _Placements, rest: tuple[Any, ...], names: tuple[str, ...], tensors: Any) -> list[Any]:
    return [
        way.of_option(name, value, tensors) if hasattr(value, "placements") else None
        for name, value in zip(names, rest)
    ]


def _forward(results: int) -> Callable[..., Any]:
    def rule(q: Any, k: Any, v: Any, *rest: Any) -> list[Any]:
        tensors: Any = sys.modules[_MODULE]
        options, names = _options(rest)
        return [
            (
                [way.rows, way.lse][:results],
                [way.rows, way.keys, way.keys, *_placed_options(way, rest, names, tensors)],
            )
            for way in _ways(q, k, v, options.layout, tensors)
        ]

    return rule


def _needed(rest: tuple[Any, ...]) -> tuple[tuple[bool, ...], int]:
    """Which gradients attention_backward is asked for, and how many arguments say so."""
    if type(rest[0]) is bool:
        return rest[:5], 5
    return tuple(bool(rest[0] >> place & 1) for place in range(3)), 1


def _backward(dout: Any, dlse: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, *rest: Any) -> list[Any]:
    tensors: Any = sys.modules[_MODULE]
    needed, count = _needed(rest)
    rest = rest[count:] or ((0,) if count == 1 else ())
    options, names = _options(rest)
    rules = []
    for way in _ways(q, k, v, options.layout, tensors):
        inputs = [way.rows, way.lse if dlse is not None else None, way.rows, way.keys, way.keys, way.rows, way.lse]
        placed = _placed_options(way, rest, names, tensors)
        others = [placed[names.index(name)] if name in names[: len(placed)] else None for name in ("bias", "sink")]
        # What a way does not shard, all of its shards have a part in.
        gradients = [way.rows, way.keys, way.keys, *others][: len(needed)]
        outputs = []
        for gradient, wanted in zip(gradients, needed):
            whole = gradient is None or not wanted or way.what == ""
            outputs.append(tensors.Replicate() if whole else tensors.Partial() if gradient.is_replicate() else gradient)
        rules.append((outputs, [*inputs, *[None] * count, *placed]))
    return rules


def register() -> None:
    """Tells torch's DTensor of the operators."""
    global _done
    register_sharding = name_of("register_sharding", "torch.distributed.tensor.experimental")
    schema_info = name_of("RuntimeSchemaInfo", "torch.distributed.tensor._op_schema")
    schemas = name_of("DTensor._op_dispatcher.sharding_propagator.op_to_schema_info", "torch.distributed.tensor")
    for operator, rule, tensors in (
        (operators.forward, _forward(2), 3),
        (operators.plain, _forward(1), 3),
        (operators.plain_lse, _forward(2), 3),
        (operators.short, _forward(1), 3),
        (operators.short_lse, _forward(2), 3),
        (operators.backward, _backward, 7),
        (operators.plain_backward, _backward, 7),
    ):
        register_sharding(operator)(rule)
        # The layout and what is needed tell calls apart whose tensors are alike: all after the tensors is remembered.
        schemas[operator] = schema_info(tensors, needs_pytree=True)
    _done = True


if _MODULE in sys.modules:
    register()  # so that code that is compiled finds them
