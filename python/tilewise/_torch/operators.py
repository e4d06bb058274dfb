# Registers the operators, which have kernels in C++: from there where torch has the symbols for it (torch 2.10 and
# newer), else from Python, same schemas.
"""The torch operators. TILEWISE_TORCH_OPS=python asks for the Python registration."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from tilewise import _core
from tilewise._torch import private, python_kernels
from tilewise._torch.formulas import PYTHON_ON_GPU

LIBRARY = torch.library.Library("tilewise", "FRAGMENT")  # lives as long as its registrations


def _libtorch_path() -> str:
    name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    return os.path.join(os.path.dirname(torch.__file__), "lib", name)


def _register() -> str:
    """Returns "c++", or "python" and in brackets why."""
    asked = os.environ.get("TILEWISE_TORCH_OPS", "")
    if asked not in ("", "c++", "python"):
        raise ValueError(f"TILEWISE_TORCH_OPS: must be c++ or python (got {asked!r})")
    reason = "TILEWISE_TORCH_OPS=python"
    if asked != "python":
        reason = _core.register_torch_operators(_libtorch_path(), PYTHON_ON_GPU)
        if not reason:
            return "c++"
        if asked == "c++":
            raise RuntimeError(f"TILEWISE_TORCH_OPS=c++: the torch operators can't be registered from C++: {reason}")
    for schema in _core.torch_schemas():
        LIBRARY.define(schema)
    implement(python_kernels.KERNELS)
    return f"python ({reason})"


def implement(kernels: dict[str, Any]) -> None:
    """Kernels in Python, where torch lacks what those in C++ need."""
    for name, kernel in kernels.items():
        for key in ("CPU", "CUDA"):  # ROCm's builds of torch call their GPU CUDA too
            LIBRARY.impl(name, kernel, key)


registered_by: str = _register()


def is_left_to_python(name: str, key: str) -> bool:
    """Whether an operator has no kernel in C++ for a dispatch key."""
    return registered_by != "c++" or (key == "CUDA" and name in PYTHON_ON_GPU)


forward: Any = torch.ops.tilewise.attention_forward.default
forward_out: Any = torch.ops.tilewise.attention_forward_out.default
backward: Any = torch.ops.tilewise.attention_backward.default
backward_out: Any = torch.ops.tilewise.attention_backward_out.default

eager_forward: Any = private.handle_of(forward)

# Overloads for calls without other options. They have no autograd, not even torch's own layer that would say so:
# torch goes straight to their kernels, and who calls them looks after gradients.
for _name in ("plain", "plain_lse", "short", "short_lse", "functions", "functions_lse"):
    LIBRARY.impl(f"attention_forward.{_name}", torch.library.fallthrough_kernel, "Autograd")
for _name in ("plain", "functions"):
    LIBRARY.impl(f"attention_backward.{_name}", torch.library.fallthrough_kernel, "Autograd")
plain: Any = torch.ops.tilewise.attention_forward.plain
plain_lse: Any = torch.ops.tilewise.attention_forward.plain_lse
plain_backward: Any = torch.ops.tilewise.attention_backward.plain
eager_plain: Any = private.handle_of(plain)
eager_plain_lse: Any = private.handle_of(plain_lse)
short: Any = torch.ops.tilewise.attention_forward.short
short_lse: Any = torch.ops.tilewise.attention_forward.short_lse
eager_short: Any = private.handle_of(short)
eager_short_lse: Any = private.handle_of(short_lse)
functions: Any = torch.ops.tilewise.attention_forward.functions
functions_lse: Any = torch.ops.tilewise.attention_forward.functions_lse
functions_backward: Any = torch.ops.tilewise.attention_backward.functions
eager_functions: Any = private.handle_of(functions)
eager_functions_lse: Any = private.handle_of(functions_lse)
eager_functions_backward: Any = private.handle_of(functions_backward)
