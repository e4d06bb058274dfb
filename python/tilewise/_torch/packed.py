# NAME.packed: an operator by schema whose tensors come in one list and all else in one text, since torch takes a
# quarter of a microsecond for every argument.
"""Packed calls of operations that are stated by a schema."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from tilewise._torch import operators, private
from tilewise._torch.operators import LIBRARY

_MOST_TEXTS = 256
_TENSORS = (Tensor, torch.nn.Parameter)  # subclasses have rules of the whole operator


class Packed:
    """The packed form of an operator."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        overload = getattr(torch.ops.tilewise, operator.name).packed
        self.handle: Callable[..., Any] = private.handle_of(overload)
        self._inputs = [tensor.name for tensor in operator.kind.inputs]
        self._stated = operator.names[len(self._inputs) :]
        self._types = [str(argument.type) for argument in operator.handle._schema.arguments[len(self._inputs) :]]
        self._texts: dict[int, tuple[dict[str, Any], str]] = {}  # by the address of the fields, which are kept
        name = f"{operator.name}.packed"
        LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")  # who calls it looks after gradients
        torch.library.register_fake(
            f"tilewise::{name}", lambda *args: operator.fake(*self.unpacked(*args)), lib=LIBRARY
        )
        for key in ("CPU", "CUDA"):
            if operators.is_left_to_python(operator.name, key):
                LIBRARY.impl(name, lambda *args: operator.kernel(*self.unpacked(*args)), key)

    @staticmethod
    def of(operator: Any) -> Optional[Packed]:
        has_one = "packed" in getattr(torch.ops.tilewise, operator.name).overloads()
        return Packed(operator) if has_one else None

    def unpacked(self, tensors: list[Tensor], given: int, stated: str) -> list[Any]:
        """The operator's arguments."""
        rest = iter(tensors)
        inputs = [next(rest) if given >> place & 1 else None for place in range(len(self._inputs))]
        read: dict[str, Callable[[str], Any]] = {"bool": lambda word: word == "1", "int": int, "float": float}
        words = zip(self._types, stated.split("\n"))
        return [*inputs, *(read.get(kind, lambda word: word or None)(word) for kind, word in words)]

    def arguments(self, inputs: dict[str, Any], fields: dict[str, Any]) -> Optional[tuple[list[Tensor], int, str]]:
        """What it takes of a call; None of one with other than plain tensors, or that needs a gradient."""
        tensors, places, place = [], 0, 1
        needs_graph = False
        for name in self._inputs:
            value = inputs[name]
            if value is not None:
                if type(value) not in _TENSORS:
                    return None
                needs_graph |= value.requires_grad
                tensors.append(value)
                places += place
            place += place
        if needs_graph and torch.is_grad_enabled():
            return None
        known = self._texts.get(id(fields))
        text = known[1] if known is not None else self._text(fields)
        return None if text is None else (tensors, places, text)

    def _text(self, fields: dict[str, Any]) -> Optional[str]:
        """A line for each of them; None of what is no such value."""
        values = [fields[name] for name in self._stated]
        words = ["" if value is None else str(int(value) if isinstance(value, bool) else value) for value in values]
        if not all(isinstance(value, (bool, int, float, str, type(None))) for value in values) or any(
            "\n" in word for word in words
        ):
            return None
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        text = "\n".join(words)
        self._texts[id(fields)] = fields, text
        return text
