# route(): which experts tokens go to. It brings its arguments to one form and hands over to the module of the arrays'
# kind.
"""route."""

from __future__ import annotations

from typing import Any, Optional

from tilewise import _dispatch
from tilewise._arguments import dtype_name, implementation_name, integer, named, number
from tilewise._calls import CALLS
from tilewise._keywords import with_known_keywords
from tilewise._types import Array, ArrayT, ChosenBy, GroupValue, Normalise, OutsideGroups, Score, Weigh

_NAMES = {field.name: {name: name for name in field.names} for field in CALLS["route"].fields}


@with_known_keywords
def route(
    logits: ArrayT,
    top_k: int,
    *,
    score: Score = "softmax",
    chosen_by: ChosenBy = "score",
    bias: Optional[Array] = None,
    n_group: int = 1,
    topk_group: Optional[int] = None,
    group_value: GroupValue = "max",
    outside_groups: OutsideGroups = "minus_infinity",
    weigh: Weigh = "score",
    normalise: Normalise = "no",
    epsilon: float = 0.0,
    routed_scaling_factor: float = 1.0,
    scale_of_expert: Optional[Array] = None,
    ids_dtype: object = None,
    weights_dtype: object = None,
    topk_ids: Optional[Array] = None,
    topk_weights: Optional[Array] = None,
    implementation: Optional[str] = None,
) -> tuple[ArrayT, ArrayT]:
    """Chooses top_k experts for each token, and says what they weigh.

    Scores are fp32 (f64 of f64 logits). Of equal scores the lower expert goes first, NaN counts as greatest, no expert
    is chosen twice. Torch tensors have autograd (the logits, through the weights: the choice has no gradient) and
    torch.compile.

    Args:
        logits: f32, bf16, f16 or f64 [tokens, num_experts], any strides.
        top_k: Experts a token, at most num_experts.
        score: What the logits become: "softmax" over all experts, "sigmoid", "sqrt_softplus" or "identity".
        chosen_by: Experts are chosen by their "score", or by their "logits".
        bias: [num_experts], added to what experts are chosen by. It never weighs, and so has no gradient.
        n_group: Groups of neighbouring experts that are chosen among first.
        topk_group: So many groups stay, which must hold top_k experts. None: all of them.
        group_value: What groups are chosen by: their greatest expert ("max"), or the sum of their two greatest
            ("sum_of_two").
        outside_groups: What experts of other groups count as: "minus_infinity" or "zero".
        weigh: What the chosen experts weigh: their "score", or the softmax or the sigmoid of their logits alone
            ("softmax_of_chosen", "sigmoid_of_chosen").
        normalise: "no", or each weight over the sum of the token's: "sum_plus_epsilon" over sum + epsilon,
            "at_least_epsilon" over max(sum, epsilon).
        epsilon: Of normalise.
        routed_scaling_factor: Times every weight at last.
        scale_of_expert: [num_experts], times the weights likewise. No gradient: one that is learned multiplies the
            result, topk_weights * scale[topk_ids].
        ids_dtype: int32 (None) or int64, as a dtype of torch or NumPy or by name.
        weights_dtype: float32 (None), bfloat16 or float16, and float64 of such logits.
        topk_ids, topk_weights: Where to write, both or none, which decides their dtypes; refused for logits that
            require gradients. None: new arrays.
        implementation: Name of the implementation to use (see explain); None chooses by estimated cost.

    Returns:
        (topk_ids, topk_weights), both [tokens, top_k], in descending order of what was chosen by.

    Raises:
        ValueError, TypeError: An argument is wrong, or shapes don't fit.
        NotImplementedError: No implementation accepts the call; the message lists each one's reason.
    """
    given: dict[str, Any] = {"logits": logits, "bias": bias, "scale_of_expert": scale_of_expert}
    for name, value in (
        ("score", score),
        ("chosen_by", chosen_by),
        ("group_value", group_value),
        ("outside_groups", outside_groups),
        ("weigh", weigh),
        ("normalise", normalise),
    ):
        given[name] = named(name, value, _NAMES[name])
    given |= {"epsilon": number("epsilon", epsilon), "n_group": integer("n_group", n_group)}
    given["topk_group"] = given["n_group"] if topk_group is None else integer("topk_group", topk_group)
    given["routed_scaling_factor"] = number("routed_scaling_factor", routed_scaling_factor)
    given["ids_dtype"] = dtype_name("ids_dtype", ids_dtype, ("int32", "int64"))
    floats = ("float32", "bfloat16", "float16", "float64")
    given["weights_dtype"] = dtype_name("weights_dtype", weights_dtype, floats)
    given["implementation"] = implementation_name(implementation)
    given["top_k"] = _size(integer("top_k", top_k), topk_ids, topk_weights, ids_dtype, weights_dtype)
    out = {"topk_ids": topk_ids, "topk_weights": topk_weights}
    given["bias"] = bias.detach() if hasattr(bias, "detach") else bias  # type: ignore[union-attr]
    ids, weights = _dispatch.call("route", given, out)
    return ids, weights


def _size(top_k: int, topk_ids: Any, topk_weights: Any, ids_dtype: object, weights_dtype: object) -> int:
    """top_k, which outputs that are given must agree with."""
    if top_k < 1:
        raise ValueError(f"top_k: must be >= 1 (got {top_k})")
    if (topk_ids is None) != (topk_weights is None):
        missing = "topk_ids" if topk_ids is None else "topk_weights"
        raise ValueError(f"{missing}: must be given where the other result is (got None)")
    if topk_ids is None:
        return top_k
    for name, dtype in (("ids_dtype", ids_dtype), ("weights_dtype", weights_dtype)):
        if dtype is not None:
            raise ValueError(f"{name}: excludes topk_ids and topk_weights, which have a dtype (got both)")
    columns = topk_ids.shape[-1] if len(topk_ids.shape) == 2 else top_k  # of another rank: the core says what is wrong
    if columns != top_k:
        raise ValueError(f"topk_ids: must have top_k columns, {top_k} (got {columns})")
    return top_k
