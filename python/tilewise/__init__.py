# Tilewise: fused attention on NumPy arrays, torch tensors and anything else that speaks DLPack.
# Importing it imports neither torch nor an array library beyond NumPy.
"""Fused attention for CPUs and GPUs.

``attention`` computes, ``attention_backward`` its gradients where no autograd does, ``explain`` shows
which implementation would and why, ``warmup`` prepares a call without running it, ``merge`` joins
partial results over disjoint keys, ``kv_cache_attention`` and ``append_kv`` are a serving engine's step
over caches of keys and values, ``linear`` and ``grouped_linear`` are linear layers of all rows and of rows
by expert, ``route`` chooses the experts of tokens, ``quantize`` and ``dequantize`` make narrow numbers and
undo it.
``tilewise.semantics`` says what every argument means: ``help("tilewise.semantics")``.
"""

import importlib
import inspect
from typing import TYPE_CHECKING

from tilewise import semantics
from tilewise._attention import attention, explain, warmup
from tilewise._backward import AttentionGradients, attention_backward
from tilewise._block_mask import BlockMask, block_mask
from tilewise._core import ExplainRow, Explanation, version
from tilewise._kv_cache import append_kv, kv_cache_attention
from tilewise._linear import grouped_linear, linear
from tilewise._merge import merge
from tilewise._moe import moe
from tilewise._public import lists_public_names
from tilewise._quantize import dequantize, quantize
from tilewise._route import route
from tilewise._threads import get_num_threads, set_num_threads

__version__: str = version()

if attention.__doc__:  # python -OO has none
    attention.__doc__ = f"{inspect.cleandoc(attention.__doc__)}\n\n{semantics.__doc__}"

__all__ = [
    "AttentionGradients",
    "BlockMask",
    "ExplainRow",
    "Explanation",
    "__version__",
    "append_kv",
    "attention",
    "attention_backward",
    "block_mask",
    "dequantize",
    "explain",
    "get_num_threads",
    "grouped_linear",
    "kv_cache_attention",
    "linear",
    "merge",
    "moe",
    "quantize",
    "route",
    "semantics",
    "set_num_threads",
    "warmup",
]

_ON_USE = ("compat", "expression", "jax", "nn")  # imported where they are first used: most need torch, or JAX
__dir__ = lists_public_names([*__all__, *_ON_USE])

if TYPE_CHECKING:
    from tilewise import compat as compat
    from tilewise import expression as expression
    from tilewise import jax as jax
    from tilewise import nn as nn
else:  # a type checker would take every name for one of the module's

    def __getattr__(name: str) -> object:
        if name in _ON_USE:
            return importlib.import_module(f"tilewise.{name}")
        raise AttributeError(f"module 'tilewise' has no attribute {name!r}")
