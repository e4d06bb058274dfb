# What the core says of operations that are stated by a schema. Bindings and the reference's tables are made of it.
"""Kinds of calls, their tensors and their fields."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, cast

from tilewise import _core


class Tensor(NamedTuple):
    """A tensor, or a list of them, of one kind of call."""

    name: str
    written: bool
    optional: bool
    list: bool
    rows: bool  # its last dimension must be contiguous
    like: str  # the tensor whose shape and dtype it has, or ""
    derivative_of: str  # the tensor that it is a gradient by, or ""
    shape: str  # "[rows, columns]"
    packed_shape: str  # where sequences are packed; "" where that changes nothing
    dtypes: str  # "f32, bf16 or that of x"; "" for one that is like another


class Field(NamedTuple):
    """What a call states beside its tensors."""

    name: str
    type: str  # bool, int, float, or str for what comes by name
    required: bool
    by_default: str  # as problem text has it
    names: list[str]  # those that it may have


class Call(NamedTuple):
    """One kind of call of an operation."""

    operation: str
    name: str
    anchor: str  # the tensor that sets the dtype
    inputs: tuple[Tensor, ...]  # in the order of the schema
    outputs: tuple[Tensor, ...]
    fields: tuple[Field, ...]
    choices: tuple[Field, ...]  # of whoever has the outputs made: sizes that no input says, and dtypes


def _call(
    operation: str,
    name: str,
    anchor: str,
    tensors: list[dict[str, Any]],
    fields: list[dict[str, Any]],
    choices: list[dict[str, Any]],
) -> Call:
    described = [Tensor(**words) for words in tensors]
    inputs, outputs = (tuple(each for each in described if each.written is written) for written in (False, True))
    stated, chosen = (tuple(Field(**words) for words in each) for each in (fields, choices))
    return Call(operation, name, anchor, inputs, outputs, stated, chosen)


CALLS: dict[str, Call] = {call.name: call for call in (_call(**cast(Any, words)) for words in _core.described_calls())}


def planned_outputs(name: str, given: dict[str, Any], **arguments: Any) -> list[_core.Output]:
    """What a call would write. Tensors and lists of them as the core's Arrays, those that there are yet; fields.

    given: Has the choices by name, None or nothing for a default.
    """
    choices = {field.name: given[field.name] for field in CALLS[name].choices if given.get(field.name) is not None}
    outputs: list[_core.Output] = getattr(_core, f"{name}_outputs")(**arguments, choices=choices)
    return outputs


def run(name: str, implementation: Optional[str], torch_threads: int, stream: int, **arguments: Any) -> None:
    """Runs a call, which writes the outputs that are given; None or an empty list is not wanted."""
    run_call = getattr(_core, name)
    run_call(**arguments, implementation=implementation or "", torch_threads=torch_threads, stream=stream)
