# Attention for JAX: a call becomes one custom call of XLA, which the extension module answers. Importing it needs JAX.
"""Fused attention on JAX arrays, under jit, grad, vmap, scan, checkpoint and shard_map.

``attention`` is ``tilewise.attention`` for arrays that JAX may trace, ``merge`` joins partial results over disjoint
keys. Arguments are checked while JAX traces: wrong ones raise before anything is compiled.
"""

from __future__ import annotations

from typing import Any, NoReturn

try:
    import jax
except ImportError as error:
    raise ImportError(f"tilewise.jax needs JAX 0.10 or newer: pip install jax ({error})") from error
if jax.__version_info__ < (0, 10):
    raise ImportError(f"tilewise.jax needs JAX 0.10 or newer (found {jax.__version__})")

from tilewise import _core
from tilewise._public import lists_public_names
from tilewise.jax._attention import attention
from tilewise.jax._merge import merge

__all__ = ["attention", "merge"]
__dir__ = lists_public_names(__all__)

for _target, _platform, _capsule in _core.jax_targets():
    jax.ffi.register_ffi_target(_target, _capsule, platform=_platform)


def kv_cache_attention(*arguments: Any, **options: Any) -> NoReturn:
    """Refused: arrays of JAX never change, and the step writes its caches in place.

    Raises:
        NotImplementedError: Always; the message says what to do.
    """
    raise NotImplementedError(
        "kv_cache_attention: writes its caches in place, which JAX's arrays do not allow: write new keys and values "
        "with jax.lax.dynamic_update_slice, then call tilewise.jax.attention with seqused_k"
    )
