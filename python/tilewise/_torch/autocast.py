# Autocast: q, k and v take the autocast dtype, like the matrix products they are part of. What
# is fp32 by definition (sink, slopes, an fp32 bias) stays.
"""Autocast rule of attention."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from tilewise._arguments import Options
from tilewise._torch import operators, private
from tilewise._torch.operators import LIBRARY


def cast(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
    """The inputs as autocast wants them; float64 and other dtypes are left for the core to judge."""
    castable = (torch.float32, torch.bfloat16, torch.float16)
    q, k, v = (tensor.to(dtype) if tensor.dtype in castable else tensor for tensor in (q, k, v))
    if bias is not None and bias.dtype in castable[1:]:
        bias = bias.to(dtype)
    return q, k, v, bias


def _kernel(operator: Any, device_type: str, key: Any) -> Callable[..., Any]:
    def run(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Any:
        options = Options(*args)
        with private.ExcludeDispatchKeyGuard(private.DispatchKeySet(key)):
            q, k, v, bias = cast(q, k, v, options.bias, torch.get_autocast_dtype(device_type))
            return operator(q, k, v, *options._replace(bias=bias))

    return run


for _device_type, _key in private.autocast_keys.items():
    LIBRARY.impl("attention_forward", _kernel(operators.forward, _device_type, _key), f"Autocast{_device_type.upper()}")
