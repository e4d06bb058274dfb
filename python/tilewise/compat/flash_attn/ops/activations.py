# flash_attn.ops.activations: each with its derivative by hand, so that a graph keeps the inputs alone; in fp32, rounded
# once.
"""GELU by tanh, squared ReLU and SwiGLU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tilewise.compat.flash_attn._plain import wide

__all__ = [
    "FastGeLUFunction",
    "GeLUFunction",
    "SwiGLUFunction",
    "bias_gelu",
    "bias_gelu_back",
    "bias_gelu_impl",
    "fast_gelu_impl",
    "gelu_bwd",
    "gelu_fwd",
    "relu_bwd",
    "sqrelu_bwd",
    "sqrelu_fwd",
    "swiglu",
    "swiglu_bwd",
    "swiglu_fwd",
]

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def gelu_fwd(x: Tensor) -> Tensor:
    """GELU's approximation by tanh, in x's dtype."""
    return F.gelu(wide(x), approximate="tanh").to(x.dtype)


def gelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Its derivative at x times g."""
    dtype, x = x.dtype, wide(x)
    tanh = torch.tanh(_SCALE * x * (1 + _CUBIC * x * x))
    slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * _SCALE * (1 + 3 * _CUBIC * x * x)
    return (slope * wide(g)).to(dtype)


def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    """gelu_fwd(y + bias), the sum in fp32."""
    return F.gelu(wide(y) + wide(bias), approximate="tanh").to(y.dtype)


def bias_gelu_back(g: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of y and of bias."""
    dy = gelu_bwd(wide(g), wide(y) + wide(bias))
    return dy.to(y.dtype), dy.sum_to_size(bias.shape).to(bias.dtype)


def relu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """ReLU's derivative at x times g; 1 at 0."""
    return torch.where(x >= 0, g, 0.0).to(x.dtype)


def sqrelu_fwd(x: Tensor) -> Tensor:
    """The square of ReLU."""
    positive = F.relu(wide(x))
    return (positive * positive).to(x.dtype)


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Its derivative at x times g."""
    return (2.0 * wide(g) * F.relu(wide(x))).to(x.dtype)


def swiglu_fwd(x: Tensor, y: Tensor) -> Tensor:
    """silu(x) * y."""
    return (F.silu(wide(x)) * wide(y)).to(x.dtype)


def swiglu_bwd(x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of y."""
    gate, dout = wide(x), wide(g)
    sigmoid = torch.sigmoid(gate)
    dx = sigmoid * (1 + gate * (1 - sigmoid)) * dout * wide(y)
    return dx.to(x.dtype), (gate * sigmoid * dout).to(y.dtype)


class GeLUFunction(torch.autograd.Function):
    """bias_gelu with a gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor) -> Tensor:
        """Of input [..., dim] and bias [dim]."""
        ctx.save_for_backward(input, bias)
        return bias_gelu(input, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        """Gradients of both."""
        return bias_gelu_back(grad_output, *ctx.saved_tensors)


class FastGeLUFunction(torch.autograd.Function):
    """gelu_fwd with a gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        """Of any shape."""
        ctx.save_for_backward(input)
        return gelu_fwd(input)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        """The gradient of input."""
        return gelu_bwd(grad_output, *ctx.saved_tensors)


class SwiGLUFunction(torch.autograd.Function):
    """swiglu_fwd with a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        """Of two tensors of one shape."""
        ctx.save_for_backward(x, y)
        return swiglu_fwd(x, y)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        """Gradients of both."""
        x, y = ctx.saved_tensors
        return swiglu_bwd(x, y, dout)


bias_gelu_impl: Any = GeLUFunction.apply
fast_gelu_impl: Any = FastGeLUFunction.apply
swiglu: Any = SwiGLUFunction.apply
