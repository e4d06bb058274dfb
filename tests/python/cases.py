# Small attention problems over the whole feature space, shared by the tests of this folder.
"""Named cases: shapes and a function that draws the options."""

from typing import Any, Callable, NamedTuple

import torch

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class Shape(NamedTuple):
    batch_size: int = 2
    seqlen_q: int = 7
    seqlen_k: int = 11
    num_heads_q: int = 4
    num_heads_k: int = 2
    head_dim: int = 16
    head_dim_v: int = 16


def lengths(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _bool_bias(s: Shape) -> torch.Tensor:
    bias = torch.rand(s.batch_size, 1, s.seqlen_q, s.seqlen_k) > 0.4
    bias[0, 0, 1] = False  # a row that sees nothing
    return bias


def _minus_infinity_bias(s: Shape) -> torch.Tensor:
    bias = torch.randn(s.num_heads_q, s.seqlen_q, s.seqlen_k)
    bias[:, :, 3:6] = -torch.inf
    return bias


# name: (shape, options as keyword arguments of tilewise.attention, in float32 and int32)
CASES: dict[str, tuple[Shape, Callable[[Shape], dict[str, Any]]]] = {
    "plain": (Shape(), lambda s: {}),
    "causal": (Shape(), lambda s: {"mask": "causal"}),
    "causal_more_queries": (Shape(seqlen_q=9, seqlen_k=4), lambda s: {"mask": "causal"}),
    "causal_top_left": (Shape(), lambda s: {"mask": "causal_top_left"}),
    "alignment": (Shape(), lambda s: {"mask": "causal", "alignment": "top_left"}),
    "window": (Shape(seqlen_q=12), lambda s: {"window": (3, 2)}),
    "window_left": (Shape(seqlen_q=12), lambda s: {"window": (2, -1), "alignment": "top_left"}),
    "causal_window": (Shape(seqlen_q=12), lambda s: {"mask": "causal", "window": (4, -1)}),
    "scale": (Shape(), lambda s: {"softmax_scale": 0.7}),
    "scale_zero": (Shape(), lambda s: {"softmax_scale": 0.0}),
    "scale_negative": (Shape(), lambda s: {"softmax_scale": -0.3}),
    "softcap": (Shape(), lambda s: {"softcap": 1.5}),
    "head_dims": (Shape(head_dim=23, head_dim_v=5), lambda s: {}),
    "multi_query": (Shape(num_heads_q=3, num_heads_k=1), lambda s: {"mask": "causal"}),
    "bias": (Shape(), lambda s: {"bias": torch.randn(s.batch_size, s.num_heads_q, s.seqlen_q, s.seqlen_k)}),
    "bias_batch": (Shape(), lambda s: {"bias": torch.randn(s.batch_size, 1, 1, s.seqlen_k)}),
    "bias_head": (Shape(), lambda s: {"bias": torch.randn(s.num_heads_q, 1, s.seqlen_k)}),
    "bias_query": (Shape(), lambda s: {"bias": torch.randn(s.seqlen_q, 1), "softcap": 2.0}),
    "bias_scalar": (Shape(), lambda s: {"bias": torch.randn(())}),
    "bias_infinite": (Shape(), lambda s: {"bias": _minus_infinity_bias(s)}),
    "bias_bool": (Shape(), lambda s: {"bias": _bool_bias(s), "mask": "causal"}),
    "alibi": (Shape(), lambda s: {"alibi_slopes": torch.rand(s.num_heads_q), "mask": "causal"}),
    "alibi_batch": (Shape(), lambda s: {"alibi_slopes": torch.rand(s.batch_size, s.num_heads_q)}),
    "sink": (Shape(), lambda s: {"sink": torch.randn(s.num_heads_q), "mask": "causal"}),
    "sink_alone": (Shape(seqlen_q=9, seqlen_k=4), lambda s: {"sink": torch.randn(s.num_heads_q), "mask": "causal"}),
    "dropout": (Shape(seqlen_k=70), lambda s: {"dropout_p": 0.3, "seed": 0x9E3779B97F4A7C15}),
    "dropout_causal": (Shape(seqlen_q=40, seqlen_k=70), lambda s: {"dropout_p": 0.5, "seed": 7, "mask": "causal"}),
    "seqused": (Shape(), lambda s: {"seqused_q": lengths(7, 2), "seqused_k": lengths(4, 11), "mask": "causal"}),
    "leftpad": (Shape(), lambda s: {"leftpad_k": lengths(3, 0), "seqused_k": lengths(6, 11), "mask": "causal"}),
    "leftpad_bias": (Shape(), lambda s: {"leftpad_k": lengths(4, 1), "bias": torch.randn(s.seqlen_q, s.seqlen_k)}),
    "unused": (Shape(), lambda s: {"seqused_k": lengths(0, 5)}),
    "one_query": (Shape(seqlen_q=1, seqlen_k=33), lambda s: {"mask": "causal"}),
    "no_queries": (Shape(seqlen_q=0), lambda s: {}),
    "no_keys": (Shape(seqlen_k=0), lambda s: {}),
    "longer": (Shape(1, 70, 150, 2, 1, 32, 32), lambda s: {"mask": "causal", "window": (100, -1)}),
    "everything": (
        Shape(seqlen_q=12),
        lambda s: {
            "mask": "causal",
            "window": (6, -1),
            "softcap": 3.0,
            "softmax_scale": 0.4,
            "bias": torch.randn(1, s.num_heads_q, 1, s.seqlen_k),
            "alibi_slopes": torch.rand(s.num_heads_q),
            "sink": torch.randn(s.num_heads_q),
            "dropout_p": 0.2,
            "seed": 99,
            "seqused_q": lengths(12, 5),
            "seqused_k": lengths(9, 7),
            "leftpad_k": lengths(2, 1),
        },
    ),
}


def draw(name: str, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """([q, k, v] in bshd, options) of a case, the same at every call."""
    torch.manual_seed(sum(map(ord, name)))
    s, options = CASES[name]
    q = torch.randn(s.batch_size, s.seqlen_q, s.num_heads_q, s.head_dim)
    k = torch.randn(s.batch_size, s.seqlen_k, s.num_heads_k, s.head_dim)
    v = torch.randn(s.batch_size, s.seqlen_k, s.num_heads_k, s.head_dim_v)
    return [tensor.to(dtype) for tensor in (q, k, v)], options(s)


def in_float64(options: dict[str, Any]) -> dict[str, Any]:
    """The options for the formulas: floating-point tensors in float64."""
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in options.items()
    }


_ORDER = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}


def to_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A bshd tensor as a contiguous one of another dense layout, or back: every order is its own inverse."""
    return tensor.permute(_ORDER[layout]).contiguous()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str = "out") -> None:
    """Within tolerance * (1 + the largest finite expected value); infinities must agree, NaN never does."""
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(actual), finite), f"{what}: finite where {actual[~finite]}, expected infinities"
    assert torch.equal(actual[~finite], expected[~finite]), f"{what}: infinities differ"
    if finite.any():
        error = (actual[finite] - expected[finite]).abs().max().item()
        bound = tolerance * (1 + expected[finite].abs().max().item())
        assert error <= bound, f"{what}: error {error:.3g} exceeds {bound:.3g}"
