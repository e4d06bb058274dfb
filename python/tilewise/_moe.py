# moe(), a whole layer of experts. It brings its arguments to one form and hands over to the module of the arrays' kind.
"""moe."""

from __future__ import annotations

import functools
from typing import Any, Literal, Optional

from tilewise import _calls, _dispatch
from tilewise._arguments import dtype_name, flag, implementation_name, integer, named, number
from tilewise._keywords import with_known_keywords
from tilewise._linear import _w_scale
from tilewise._types import Array, ArrayT, BlockFormat

Gate = Literal["none", "concatenated", "interleaved"]
Activation = Literal["identity", "silu", "gelu", "gelu_tanh", "relu", "relu_squared", "swiglu_oai"]
Clamp = Literal["before", "after"]

_NAMES = {field.name: {name: name for name in field.names} for field in _calls.CALLS["moe"].fields}
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_CLAMPS = {name: name for name in _NAMES["clamp"] if name != "none"}


@with_known_keywords
def moe(
    x: ArrayT,
    topk_ids: Array,
    topk_weights: Array,
    gate_up: Array,
    down: Array,
    *,
    gate_up_bias: Optional[Array] = None,
    down_bias: Optional[Array] = None,
    gate: Gate = "concatenated",
    activation: Activation = "silu",
    alpha: float = 1.702,
    limit: Optional[float] = None,
    clamp: Clamp = "before",
    weight_on_input: bool = False,
    first_expert: int = 0,
    norm_weight: Optional[Array] = None,
    norm_epsilon: float = 1e-6,
    w_format: BlockFormat = "none",
    gate_up_scale: Optional[Array] = None,
    down_scale: Optional[Array] = None,
    gate_up_global_scale: Optional[Array] = None,
    down_global_scale: Optional[Array] = None,
    x_format: BlockFormat = "none",
    x_scale: Optional[Array] = None,
    h_format: BlockFormat = "none",
    out_dtype: object = None,
    batch_invariant: bool = False,
    save_gate_up: bool = False,
    out: Optional[Array] = None,
    implementation: Optional[str] = None,
) -> ArrayT:
    """A whole layer of experts: both products, the activation between them and the weighted sum, in one call.

    out[t] is the sum over j of topk_weights[t, j] * (down[e] h + down_bias[e]), e = topk_ids[t, j] - first_expert, with
    h = activation(gate[e] x[t] + bias) * (up[e] x[t] + bias'). Sums are fp32 (f64 of f64); h is rounded once to the
    dtype of x, and so is out. The sum is in the order of j: results repeat bit for bit. Torch tensors have autograd (x,
    topk_weights, weights and biases; h is computed again, not stored, unless save_gate_up says so) and torch.compile.

    Args:
        x: Tokens [tokens, hidden] in f32, bf16, f16 or f64; hidden contiguous.
        topk_ids: int32 or int64 [tokens, top_k]. An id outside [first_expert, first_expert + num_experts) is somebody
            else's and adds 0, whatever its weight: -1, num_experts, or any other number.
        topk_weights: f32, bf16 or f16 (f64 of f64) [tokens, top_k].
        gate_up: Dtype of x, [num_experts, 2 * intermediate, hidden]; without a gate [num_experts, intermediate,
            hidden]. Weights stored the other way round come as a transposed view, without a copy.
        down: Likewise [num_experts, hidden, intermediate].
        gate_up_bias, down_bias: [num_experts, 2 * intermediate] (or intermediate), [num_experts, hidden].
        gate: How gate_up holds its rows: "concatenated" [gate; up], "interleaved" gate, up, gate, up, or "none".
        activation: Of the gate, or of up where there is none. "swiglu_oai" is gpt-oss's gate * sigmoid(alpha * gate) *
            (up + 1).
        alpha: Of swiglu_oai.
        limit: The gate is at most this, and up within [-limit, limit]. None: no clamp.
        clamp: Whether limit holds "before" the activation, or "after" it.
        weight_on_input: topk_weights multiply x instead, before the first bias.
        first_expert: The id of the first expert whose weights are given: of a rank of expert parallelism.
        norm_weight: [num_experts, hidden] of an RMS norm of each expert's output before its weight; no gradients then.
        norm_epsilon: Of that norm.
        w_format: Format of quantised weights: "fp8_tensor", "fp8_row", "fp8_1x128", "fp8_128x128" (the last two with
            "_e8m0" too), "mxfp8", "mxfp4" or "nvfp4". Elements are fp8_e4m3, or two of fp4_e2m1 in each byte along the
            last dimension; bytes (uint8) do in place of both, and of scales. Gradients of such weights are refused.
        gate_up_scale, down_scale: With w_format: one for each block of the last two dimensions, and of each expert.
            [num_experts] does with "fp8_tensor", [num_experts, rows] with "fp8_row".
        gate_up_global_scale, down_global_scale: With nvfp4: f32 [num_experts].
        x_format, x_scale: Likewise of x in fp8, row by row.
        h_format: What h is quantised to: "fp8_row", "fp8_1x128", "fp8_1x128_e8m0" or "mxfp8". Without: the dtype of x.
        out_dtype: Of the result: float32, bfloat16 or float16, as a dtype of torch or NumPy or by name. None: that of
            x, bfloat16 where x is quantised.
        batch_invariant: A token's result does not depend on which other tokens there are.
        save_gate_up: Keep the first product's sums for gradients, which then don't multiply x by gate_up again:
            tokens * top_k * 2 * intermediate elements (without a gate half as many) of the dtype of x, until the
            backward pass. They are rounded to that, a rounding more in gradients of bf16 and f16. For calls that a
            backward pass follows; on GPUs Hopper's kernels take it.
        out: Where to write; refused for inputs that require gradients. None: a new array.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.

    Returns:
        [tokens, hidden].

    Raises:
        ValueError, TypeError: An argument is wrong, or shapes don't fit.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    stated = (
        gate, activation, alpha, limit, clamp, weight_on_input, first_expert, norm_epsilon, w_format, x_format,
        h_format, out_dtype, batch_invariant, save_gate_up, implementation,
    )  # fmt: skip
    plain = {type(alpha), type(limit), type(first_expert), type(norm_epsilon)} <= _PLAIN_NUMBERS
    fields = (_read_before if plain and not _dispatch.is_traced() else _read)(*stated)
    inputs = {
        "x": x,
        "topk_ids": topk_ids,
        "topk_weights": topk_weights,
        "gate_up": gate_up,
        "down": down,
        "gate_up_bias": gate_up_bias,
        "down_bias": down_bias,
        "norm_weight": norm_weight,
        "x_scale": x_scale,
        "gate_up_scale": _w_scale(gate_up_scale, w_format, 3),
        "down_scale": _w_scale(down_scale, w_format, 3),
        "gate_up_global_scale": gate_up_global_scale,
        "down_global_scale": down_global_scale,
    }
    if out is None and plain:
        results = _dispatch.call_packed("moe", inputs, fields)
        if results is not None:
            return results[0]  # type: ignore[no-any-return]
    given = {**inputs, **fields}
    forward_only = [name for name in ("x_format", "h_format") if given[name] != "none"]
    if norm_weight is not None:
        forward_only.append("norm_weight")
    result, *_ = _dispatch.call("moe", given, {"out": out}, forward_only)
    return result  # type: ignore[no-any-return]


_PLAIN_NUMBERS = {int, float, type(None)}  # which do not change


def _read(
    gate: Any, activation: Any, alpha: Any, limit: Any, clamp: Any, weight_on_input: Any, first_expert: Any,
    norm_epsilon: Any, w_format: Any, x_format: Any, h_format: Any, out_dtype: Any, batch_invariant: Any,
    save_gate_up: Any, implementation: Any,
) -> dict[str, Any]:  # fmt: skip
    """What a call states beside its tensors, checked."""
    return {
        "gate": named("gate", gate, _NAMES["gate"]),
        "activation": named("activation", activation, _NAMES["activation"]),
        "alpha": number("alpha", alpha),
        "clamp": _clamp(clamp, limit),
        "limit": 0.0 if limit is None else number("limit", limit),
        "weight_on_input": flag("weight_on_input", weight_on_input),
        "first_expert": integer("first_expert", first_expert),
        "norm_epsilon": number("norm_epsilon", norm_epsilon),
        "w_format": w_format,
        "x_format": x_format,
        "h_format": h_format,
        "out_dtype": dtype_name("out_dtype", out_dtype, _DTYPES) or "none",
        "batch_invariant": flag("batch_invariant", batch_invariant),
        "save_gate_up": flag("save_gate_up", save_gate_up),
        "implementation": implementation_name(implementation),
    }


_remembered = functools.lru_cache(maxsize=256, typed=True)(_read)


def _read_before(*stated: Any) -> dict[str, Any]:
    """_read(), which takes 5 us, of calls like earlier ones."""
    try:
        return _remembered(*stated)
    except TypeError:  # of what can't be remembered, or what is wrong
        return _read(*stated)


def _clamp(clamp: Any, limit: Any) -> str:
    name: str = named("clamp", clamp, _CLAMPS)
    return "none" if limit is None else name
