"""route(): routers of transformers, ties and NaN, groups, every kind of array, gradients, torch.compile, messages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from cases import assert_close
from checking import Exporter
from route_table import OWN_RULES, SERVED, options

import tilewise

ROUTERS = pytest.mark.parametrize("router", SERVED, ids=lambda router: router.name)


def _logits(tokens=7, experts=16, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, experts, generator=generator, dtype=torch.float64).to(dtype)


def _eager(router, logits, bias):
    """(ids, weights) as the router's own code has them, step by step."""
    score = {
        "softmax": lambda x: x.softmax(-1),
        "sigmoid": torch.sigmoid,
        "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
    }[router.score]
    biased = 0.0 if bias is None else bias
    if router.order.startswith("topk"):
        ids = (logits + biased).topk(router.top_k, -1).indices
        weights = score(logits.gather(-1, ids))
    else:
        scores = score(logits)
        choice = scores + biased
        some, few = router.groups
        if some > 1:
            grouped = choice.view(len(choice), some, -1)
            values = grouped.topk(2, -1).values.sum(-1) if router.group_score == "sum" else grouped.max(-1).values
            stays = torch.zeros_like(values, dtype=torch.bool).scatter(-1, values.topk(few, -1).indices, True)
            outside = 0.0 if router.outside == "0" else -torch.inf
            choice = grouped.masked_fill(~stays[..., None], outside).view_as(choice)
        ids = choice.topk(router.top_k, -1).indices
        weights = scores.gather(-1, ids)
    if router.normalised:
        total = weights.sum(-1, keepdim=True)
        weights = weights / (total.clamp(min=router.epsilon) if router.at_least else total + router.epsilon)
    return ids, weights * router.scale


@ROUTERS
def test_routers_of_transformers(router):
    logits = _logits(23, router.experts, dtype=torch.float64)
    bias = 0.3 * _logits(1, router.experts, seed=1, dtype=torch.float64)[0] if "bias" in router.selected_by else None
    leaf = logits.clone().requires_grad_()
    ids, weights = _eager(router, leaf, bias)
    derivative = _logits(23, router.top_k, seed=2, dtype=torch.float64)
    weights.backward(derivative)

    mine = logits.float().requires_grad_()
    got_ids, got_weights = tilewise.route(mine, router.top_k, bias=bias, **options(router))
    assert torch.equal(got_ids.long(), ids)
    assert_close(got_weights.double(), weights.detach(), 1e-6)
    got_weights.backward(derivative.float())
    assert_close(mine.grad.double(), leaf.grad, 1e-5)


def test_how_many_routers_there_are():
    names = {router.name for router in SERVED}
    assert len(names) == len(SERVED) == 72
    assert len(OWN_RULES) == 8
    assert not names & set(OWN_RULES)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus", "identity"])
def test_ties_go_to_the_lower_expert(score):
    ids, _ = tilewise.route(torch.zeros(3, 40), 5, score=score)
    assert torch.equal(ids, torch.arange(5, dtype=torch.int32).expand(3, 5))
    ids, weights = tilewise.route(torch.tensor([[60.0, 70.0, 80.0, 90.0]]), 2, score="sigmoid")  # all are 1
    assert ids.tolist() == [[0, 1]]
    assert weights.tolist() == [[1.0, 1.0]]


def test_nan_counts_as_greatest_and_stays():
    logits = torch.tensor([[0.0, torch.inf, torch.nan, 2.0, torch.nan]])
    ids, weights = tilewise.route(logits, 4, score="sigmoid", normalise="sum_plus_epsilon")
    assert ids.tolist() == [[2, 4, 1, 3]]
    assert weights.isnan().all()
    ids, weights = tilewise.route(torch.full((1, 4), -torch.inf), 2)
    assert ids.tolist() == [[0, 1]]
    assert weights.isnan().all()


def test_no_token_has_an_expert_twice():
    logits = _logits(200, 24).round()
    ids, _ = tilewise.route(logits, 24, n_group=4, topk_group=4)
    assert torch.equal(ids.sort(-1).values, torch.arange(24, dtype=torch.int32).expand(200, 24))


@pytest.mark.parametrize("ids_dtype", [None, "int32", torch.int64, np.int64])
@pytest.mark.parametrize("weights_dtype", [None, torch.bfloat16, "float16", np.float32])
def test_dtypes_of_results(ids_dtype, weights_dtype):
    ids, weights = tilewise.route(_logits(), 3, ids_dtype=ids_dtype, weights_dtype=weights_dtype)
    assert ids.dtype == (torch.int32 if ids_dtype in (None, "int32") else torch.int64)
    wanted = {None: torch.float32, torch.bfloat16: torch.bfloat16, "float16": torch.float16}
    assert weights.dtype == wanted.get(weights_dtype, torch.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_numpy(dtype):
    logits = _logits().numpy().astype(dtype)
    ids, weights = tilewise.route(logits, 3, score="sigmoid", ids_dtype="int64", weights_dtype="bfloat16")
    assert isinstance(ids, np.ndarray)
    assert ids.dtype == np.int64
    assert weights.dtype == ml_dtypes.bfloat16
    expected, _ = tilewise.route(torch.from_numpy(logits.astype(np.float64)), 3, score="sigmoid")
    np.testing.assert_array_equal(ids, expected.numpy())


def test_dlpack():
    logits = _logits()
    ids, weights = tilewise.route(Exporter(logits.numpy()), 3)
    expected = tilewise.route(logits, 3)
    np.testing.assert_array_equal(np.from_dlpack(ids), expected[0].numpy())
    np.testing.assert_array_equal(np.from_dlpack(weights), expected[1].numpy())


def test_results_that_are_given():
    logits = _logits(9, 16)
    ids, weights = torch.empty(9, 4, dtype=torch.int64), torch.empty(4, 9).t()
    got = tilewise.route(logits, 4, topk_ids=ids, topk_weights=weights)
    assert got[0] is ids
    assert got[1] is weights
    expected = tilewise.route(logits, 4)
    assert torch.equal(ids.int(), expected[0])
    assert torch.equal(weights, expected[1])


def test_strides():
    wide = _logits(14, 32)
    view = wide[::2, ::2]
    for got, wanted in zip(tilewise.route(view, 3), tilewise.route(view.contiguous(), 3)):
        assert torch.equal(got, wanted)


def test_scale_of_expert():
    logits, scale = _logits(), _logits(1, 16, seed=4, dtype=torch.bfloat16)[0]
    ids, weights = tilewise.route(logits, 3, normalise="sum_plus_epsilon")
    _, scaled = tilewise.route(
        logits, 3, normalise="sum_plus_epsilon", scale_of_expert=scale, routed_scaling_factor=2.0
    )
    assert_close(scaled, 2.0 * weights * scale.float()[ids.long()], 1e-6)


def test_without_tokens():
    ids, weights = tilewise.route(torch.empty(0, 8, requires_grad=True), 2)
    assert ids.shape == weights.shape == (0, 2)
    weights.sum().backward()


GRADIENTS = [
    {},
    {"normalise": "sum_plus_epsilon", "epsilon": 1e-3},
    {"score": "sigmoid", "normalise": "at_least_epsilon", "epsilon": 0.1},
    {"score": "sqrt_softplus", "n_group": 3, "topk_group": 2},
    {"score": "identity", "weigh": "softmax_of_chosen"},
    {"chosen_by": "logits", "weigh": "sigmoid_of_chosen", "normalise": "sum_plus_epsilon"},
]


@pytest.mark.parametrize("given", GRADIENTS, ids=str)
def test_gradients(given):
    logits = _logits(4, 9, seed=3, dtype=torch.float64).requires_grad_()

    def weights_of(x):
        return tilewise.route(x, 3, weights_dtype="float64", routed_scaling_factor=2.5, **given)[1]

    assert torch.autograd.gradcheck(weights_of, (logits,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_narrow_logits(dtype):
    logits = _logits(6, 32, dtype=dtype).requires_grad_()
    wide = logits.detach().float().requires_grad_()
    for leaf in (logits, wide):
        tilewise.route(leaf, 4, normalise="sum_plus_epsilon")[1].square().sum().backward()
    assert logits.grad.dtype == dtype
    assert_close(logits.grad.float(), wide.grad, 1e-2)


def test_a_bias_has_no_gradient():
    logits, bias = _logits().requires_grad_(), torch.zeros(16, requires_grad=True)
    _, weights = tilewise.route(logits, 3, bias=bias)
    weights.sum().backward()
    assert bias.grad is None
    assert logits.grad is not None


@pytest.mark.parametrize("given", GRADIENTS, ids=str)
def test_compiles(given):
    logits = _logits(5, 9).requires_grad_()

    def loss(x):
        ids, weights = tilewise.route(x, 3, **given)
        return (weights * (1 + ids)).sum()

    torch._dynamo.reset()  # the same function is compiled for each of these
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    (expected,) = torch.autograd.grad(loss(logits), logits)
    (got,) = torch.autograd.grad(compiled(logits), logits)
    assert torch.equal(got, expected)
    more = _logits(11, 9, seed=5)
    assert torch.equal(compiled(more), loss(more))


def test_opcheck():
    logits, bias = _logits(4, 9).requires_grad_(), torch.zeros(9)
    ids = torch.tensor([[0, 3, 8]] * 4)
    # torch's own check of a compiled operator can't add up integers and floats.
    kinds = ("test_schema", "test_autograd_registration", "test_faketensor")
    operators = torch.ops.tilewise
    torch.library.opcheck(operators.route.default, (logits, bias, None, 3), {"ids_dtype": "i64"}, test_utils=kinds)
    torch.library.opcheck(operators.route_backward.default, (logits.detach(), bias, ids, torch.ones(4, 3)))
    given = (logits.detach(), None, None, torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 3))
    torch.library.opcheck(operators.route_out.default, given)


def test_hostile_ids_reach_nothing():
    logits = _logits(2, 8)
    hostile = torch.tensor([[-1, 2**40, 8], [-(2**62), 3, 3]])
    gradient = torch.ops.tilewise.route_backward(logits, None, hostile, torch.ones(2, 3), score="sigmoid")
    assert torch.equal(gradient[0], torch.zeros(8))
    assert gradient[1, 3] != 0
    assert gradient[1].count_nonzero() == 1


REFUSED = [
    ({"top_k": 17}, ValueError, "top_k: must be <= num_experts, 16 (got 17)"),
    ({"top_k": 0}, ValueError, "top_k: must be >= 1 (got 0)"),
    ({"n_group": 3}, ValueError, "n_group: must divide num_experts, 16 (got 3)"),
    ({"n_group": 4, "topk_group": 5}, ValueError, "topk_group: must be 1 to n_group, 4 (got 5)"),
    (
        {"n_group": 8, "topk_group": 1},
        ValueError,
        "topk_group: groups that stay must hold top_k experts, 4 (got 1, which hold 2)",
    ),
    ({"epsilon": 1e-3}, ValueError, "epsilon: requires normalise (got 0.001 with normalise=no)"),
    ({"score": "relu"}, ValueError, "score: must be one of 'softmax', 'sigmoid', 'sqrt_softplus', 'identity'"),
    ({"ids_dtype": "int8"}, ValueError, "ids_dtype: must be int32 or int64 (got int8)"),
    ({"weights_dtype": "float64"}, TypeError, "topk_weights: dtype must be f32, bf16 or f16 (got f64)"),
    ({"topk_ids": torch.zeros(7, 4)}, ValueError, "topk_weights: must be given where the other result is (got None)"),
    ({"renormalize": True}, TypeError, "use normalise="),
    ({"e_score_correction_bias": None}, TypeError, "use bias="),
    ({"scoring_func": "sigmoid"}, TypeError, "use score="),
    ({"bias": torch.zeros(15)}, ValueError, "bias: shape must be [num_experts] = [16] (got [15])"),
    ({"implementation": "cpu.none"}, ValueError, "implementation: "),
]


@pytest.mark.parametrize(("given", "kind", "sentence"), REFUSED, ids=lambda value: str(value)[:40])
def test_refuses(given, kind, sentence):
    with pytest.raises(kind) as caught:
        tilewise.route(_logits(), given.pop("top_k", 4), **given)
    assert sentence in str(caught.value)


def test_refuses_gradients_that_there_are_not():
    with pytest.raises(NotImplementedError, match="scale_of_expert: has no gradient"):
        tilewise.route(_logits().requires_grad_(), 4, scale_of_expert=torch.ones(16, requires_grad=True))
    out = {"topk_ids": torch.zeros(7, 4, dtype=torch.int32), "topk_weights": torch.zeros(7, 4)}
    with pytest.raises(ValueError, match="topk_ids: cannot be given with inputs that require gradients"):
        tilewise.route(_logits().requires_grad_(), 4, **out)
