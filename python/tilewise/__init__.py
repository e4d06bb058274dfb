# Tilewise: fused attention on NumPy arrays, torch tensors and anything else that speaks DLPack.
# Importing it imports neither torch nor an array library beyond NumPy.
"""Fused attention for CPUs and GPUs.

``attention`` computes, ``attention_backward`` its gradients where no autograd does, ``explain`` shows
which implementation would and why, ``warmup`` prepares a call without running it, ``merge`` joins
partial results over disjoint keys.
``tilewise.semantics`` says what every argument means: ``help("tilewise.semantics")``.
"""

import inspect

from tilewise import semantics
from tilewise._attention import attention, explain, merge, warmup
from tilewise._backward import AttentionGradients, attention_backward
from tilewise._core import ExplainRow, Explanation, version
from tilewise._threads import get_num_threads, set_num_threads

__version__: str = version()

if attention.__doc__:  # python -OO has none
    attention.__doc__ = f"{inspect.cleandoc(attention.__doc__)}\n\n{semantics.__doc__}"

__all__ = [
    "AttentionGradients",
    "ExplainRow",
    "Explanation",
    "__version__",
    "attention",
    "attention_backward",
    "explain",
    "get_num_threads",
    "merge",
    "semantics",
    "set_num_threads",
    "warmup",
]
