# torch's kernel_options: tile sizes, choices of kernels, and promises about masks. Whatever they say, the result is
# what it is without them, but for rounding.
"""Which kernel_options there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import FlexKernelOptions

from tilewise.compat._routing import RefusedCall

# What the compiler behind torch's function takes besides those that torch documents.
_UNDOCUMENTED = ("FLOAT32_PRECISION", "IS_DIVISIBLE", "SPLIT_KV", "num_buffers_warp_spec", "num_consumer_groups")
_KNOWN = frozenset((*FlexKernelOptions.__annotations__, *_UNDOCUMENTED))


def check_kernel_options(options: Any) -> None:
    """Refuses what is no option, or what torch refuses."""
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise TypeError(f"kernel_options: must be a dict or None (got {type(options).__name__})")
    for name in options:
        bare = name[4:] if str(name).startswith(("fwd_", "bwd_")) else name
        if bare not in _KNOWN:
            raise ValueError(f"kernel_options: must be among FlexKernelOptions (got {name!r})")
    if "BACKEND" in options and options.get("FORCE_USE_FLEX_ATTENTION", False):
        raise RefusedCall("kernel_options: must not have both BACKEND and FORCE_USE_FLEX_ATTENTION")
    backends = get_args(getattr(torchs, "_Backend", None))
    if backends and options.get("BACKEND", backends[0]) not in backends:
        raise ValueError(f"kernel_options: BACKEND must be one of {', '.join(backends)} (got {options['BACKEND']!r})")
