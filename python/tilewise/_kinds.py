# In words, what was given where an array was wanted. Only errors come here, those of the extension
# module among them, so everything that may help is asked for.
"""Descriptions of values for error messages."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def described(value: Any) -> str:
    """Type, dtype and byte order of `value`, the form in which torch keeps it, and why it has no DLPack capsule."""
    return "; ".join(filter(None, (f"{type_name(value)}{_dtype(value)}", form(value) or _refusal(value))))


def type_name(value: Any) -> str:
    """The type as people write it: "numpy.ndarray", "list"."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _dtype(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        order = "big" if sys.byteorder == "little" else "little"
        return f" of dtype {dtype}" if dtype.isnative else f" of dtype {dtype.name}, {order}-endian ({dtype.str})"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return f" of dtype {dtype}"
    name = getattr(dtype, "name", None)  # other libraries' dtypes; a tracing proxy has everything, but no strings
    return f" of dtype {name}" if isinstance(name, str) else ""


def form(value: Any) -> str:
    """What keeps `value` from being rows of numbers in memory, where its type knows; "" for a dense array."""
    if type(value).__module__.startswith("torch.fx."):
        return "it stands for a tensor while torch.fx traces: torch.fx.wrap the function that calls Tilewise"
    tracer = getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", None)
    if tracer is not None and isinstance(value, tracer):
        return "it stands for an array while JAX traces: use tilewise.jax.attention"
    layout = str(getattr(value, "layout", ""))
    if getattr(value, "is_nested", False) is True:
        return f"a nested tensor of layout {layout}"
    if layout.startswith("torch.") and layout != "torch.strided":
        return f"a tensor of layout {layout}"
    return "a quantized tensor" if getattr(value, "is_quantized", False) is True else ""


def _refusal(value: Any) -> str:
    """What the exporter says to whoever asks for a DLPack capsule."""
    if not hasattr(type(value), "__dlpack__"):
        return ""
    try:
        value.__dlpack__()
    except Exception as error:  # whatever a foreign library raises is what there is to say
        first_line = str(error).strip().partition("\n")[0]
        return f"__dlpack__ raises {type(error).__name__}: {first_line}"
    return ""
