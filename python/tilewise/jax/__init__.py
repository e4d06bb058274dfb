# Operations for JAX: a call becomes one custom call of XLA, which the extension module answers. Importing it needs JAX.
"""Fused attention, linear layers and experts on JAX arrays, under jit, grad, vmap, scan, checkpoint and shard_map.

``attention`` is ``tilewise.attention`` for arrays that JAX may trace, ``merge`` joins partial results over disjoint
keys. ``linear``, ``grouped_linear``, ``route``, ``moe``, ``quantize`` and ``dequantize`` are tilewise's functions for
such arrays. Arguments are checked while JAX traces: wrong ones raise before anything is compiled.
"""

from __future__ import annotations

from typing import Any, NoReturn

try:
    import jax
except ImportError as error:
    raise ImportError(f"tilewise.jax needs JAX 0.10 or newer: pip install jax ({error})") from error
if jax.__version_info__ < (0, 10):
    raise ImportError(f"tilewise.jax needs JAX 0.10 or newer (found {jax.__version__})")

import tilewise
from tilewise import _core
from tilewise._public import lists_public_names
from tilewise.jax._attention import attention
from tilewise.jax._merge import merge
from tilewise.jax._operations import is_array as is_array
from tilewise.jax._operations import of_jax
from tilewise.jax._operations import run_operation as run_operation

__all__ = ["attention", "dequantize", "grouped_linear", "linear", "merge", "moe", "quantize", "route"]
__dir__ = lists_public_names(__all__)

for _target, _platform, _capsule in _core.jax_targets():
    jax.ffi.register_ffi_target(_target, _capsule, platform=_platform)

linear = of_jax(tilewise.linear)
grouped_linear = of_jax(tilewise.grouped_linear)
route = of_jax(tilewise.route)
moe = of_jax(tilewise.moe)
quantize = of_jax(tilewise.quantize)
dequantize = of_jax(tilewise.dequantize)


def kv_cache_attention(*arguments: Any, **options: Any) -> NoReturn:
    """Refused: arrays of JAX never change, and the step writes its caches in place.

    Raises:
        NotImplementedError: Always; the message says what to do.
    """
    raise NotImplementedError(
        "kv_cache_attention: writes its caches in place, which JAX's arrays do not allow: write new keys and values "
        "with jax.lax.dynamic_update_slice, then call tilewise.jax.attention with seqused_k"
    )
