# What the reference of a function says of its tensors and of what it takes by name, where a schema says it: nobody
# writes these tables, and none can be wrong.
"""Tables of an operation's tensors and fields, in reStructuredText."""

from typing import Any


def _notes(tensor: Any) -> str:
    notes = (
        ("each of a list" if tensor.list else ""),
        ("written" if tensor.written else "optional" if tensor.optional else ""),
    )
    return ", ".join(filter(None, notes))


def _shape(tensor: Any) -> str:
    return f"``{tensor.shape}``" + (f"; thd ``{tensor.packed_shape}``" if tensor.packed_shape else "")


def _rows(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["", f".. list-table:: {title}", "   :header-rows: 1", ""]
    for row in (head, *rows):
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}".rstrip() for i, cell in enumerate(row)]
    return lines


def tables(call: Any) -> list[str]:
    """Lines of the tables of one kind of call, a Call of tilewise._calls."""
    tensors = [
        (f"``{tensor.name}``", _notes(tensor), _shape(tensor), tensor.dtypes or f"that of {tensor.like}")
        for tensor in (*call.inputs, *call.outputs)
    ]
    lines = _rows("Tensors", ("tensor", "", "shape", "dtype"), tensors)
    named = [
        (f"``{field.name}``", ", ".join(f"``{name}``" for name in field.names), f"``{field.by_default}``")
        for field in call.fields
        if field.names
    ]
    return lines + (_rows("By name", ("argument", "one of", "default"), named) if named else []) + [""]
