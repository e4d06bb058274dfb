# Operations in torch's own operations, for what no implementation or no operator can do.
"""Which operations have a formula: a module with

- write(given, outputs): writes the outputs that are not None, of a call that no implementation on a GPU accepts;
- differentiable(given): the outputs of a forward call with every derivative, for forward AD and torch.func transforms;
- second(given, derivatives): gradients of the backward operator's inputs, by name.

`given` are an operator's arguments by name.
"""

from __future__ import annotations

from types import ModuleType

from tilewise._torch import merge_formula

FORMULAS: dict[str, ModuleType] = {"merge": merge_formula}

# Their kernels on GPUs are Python's, which know what to do where no implementation accepts a call.
PYTHON_ON_GPU = [name + kind for name in FORMULAS for kind in ("", "_out", "_backward")]
