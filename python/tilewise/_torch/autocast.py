# Autocast: q, k and v, tokens and weights take the autocast dtype, like the matrix products they are part of. What
# is fp32 by definition (sink, slopes, an fp32 bias, what experts weigh) stays.
"""Autocast rules of attention, linear layers and experts."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from tilewise._options import Options
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


# Of the operations that are stated by a schema: what takes part in products, quantised weights and rows apart.
_FACTORS = {"linear": ("x", "w"), "moe": ("x", "gate_up", "down", "gate_up_bias", "down_bias")}
_CASTABLE = (torch.float32, torch.bfloat16, torch.float16)


def _by_schema(operator: Any, device_type: str, key: Any) -> Callable[..., Any]:
    names = _FACTORS[operator.name]

    def run(*args: Any, **others: Any) -> Any:
        given = operator.bind(args, others)
        dtype = torch.get_autocast_dtype(device_type)
        if given["x"].dtype in _CASTABLE:
            for name in names:
                if given[name] is not None and given[name].dtype in _CASTABLE:
                    given[name] = given[name].to(dtype)
        with private.ExcludeDispatchKeyGuard(private.DispatchKeySet(key)):
            return operator.handle(*(given[name] for name in operator.names))

    return run


def register(operator: Any) -> None:
    """The rule of an operator by schema, where it has one."""
    if operator.name in _FACTORS:
        for device_type, key in private.autocast_keys.items():
            LIBRARY.impl(operator.name, _by_schema(operator, device_type, key), f"Autocast{device_type.upper()}")


for _device_type, _key in private.autocast_keys.items():
    LIBRARY.impl("attention_forward", _kernel(operators.forward, _device_type, _key), f"Autocast{_device_type.upper()}")
