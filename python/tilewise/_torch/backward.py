# attention_backward() for torch tensors: the operator that autograd calls, without a graph.
"""The torch side of attention_backward()."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise._functions import Functions
from tilewise._options import ARRAY_NAMES, Options, wanted_gradients
from tilewise._torch import jagged, operators, python_kernels
from tilewise._torch.errors import raise_known
from tilewise._torch.functions import refuse_jagged


def attention_backward(
    tensors: dict[str, Any], gradients: Any, options: Options, functions: Optional[Functions] = None
) -> tuple[Optional[Tensor], ...]:
    """(dq, dk, dv, dbias, dsink), None where not wanted. `tensors`: dout, dlse, q, k, v, out, softmax_lse by name."""
    if functions is not None:
        refuse_jagged(tensors["q"])
    if tensors["q"].is_nested:
        return jagged.attention_backward(attention_backward, tensors, gradients, options)
    for name, value in (*tensors.items(), *zip(ARRAY_NAMES, (getattr(options, name) for name in ARRAY_NAMES))):
        if not isinstance(value, Tensor) and (value is not None or (name in tensors and name != "dlse")):
            kind = type(value)
            raise TypeError(f"{name}: must be a torch tensor like q (got {kind.__module__}.{kind.__qualname__})")
    wanted = wanted_gradients(gradients, options, options.bias is not None and options.bias.dtype == torch.bool)
    if torch.are_deterministic_algorithms_enabled():
        options = options._replace(deterministic=True)
    try:
        with torch.no_grad():
            if functions is None:
                results = operators.backward(*tensors.values(), *wanted, *options)
            else:
                results = python_kernels.run_backward(tuple(tensors.values()), wanted, options, functions)
    except RuntimeError as error:
        given = {**tensors, **{name: getattr(options, name) for name in ARRAY_NAMES}}
        raise_known(error, **given)
        raise
    return tuple(result if want else None for result, want in zip(results, wanted))
