"""route() on a GPU: both passes against the CPU, hostile ids, captured graphs."""

import pytest
import torch
from cases import assert_close

import tilewise

GIVEN = [
    {"top_k": 8, "normalise": "sum_plus_epsilon"},
    {"top_k": 2, "chosen_by": "logits", "weigh": "softmax_of_chosen", "ids_dtype": "int64"},
    {
        "top_k": 8,
        "score": "sigmoid",
        "n_group": 8,
        "topk_group": 4,
        "group_value": "sum_of_two",
        "normalise": "sum_plus_epsilon",
        "epsilon": 1e-20,
        "routed_scaling_factor": 2.5,
    },
    {"top_k": 70, "score": "sqrt_softplus", "normalise": "at_least_epsilon", "epsilon": 1e-9},
    {"top_k": 6, "score": "identity", "weigh": "sigmoid_of_chosen", "weights_dtype": "bfloat16"},
]


def _logits(tokens, experts, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(experts)
    # Far enough apart that no rounding swaps two of them, and ties among them.
    places = torch.stack([torch.randperm(experts, generator=generator, device="cuda") for _ in range(tokens)])
    return ((places // 2) * (6.0 / experts) - 1.5).to(dtype)


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: given.get("score", "softmax"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_both_passes(given, dtype):
    given = dict(given)
    top_k = given.pop("top_k")
    logits = _logits(301, 128, dtype).requires_grad_()
    own = logits.detach().cpu().requires_grad_()
    ids, weights = tilewise.route(logits, top_k, implementation="cuda.sm80", **given)
    expected_ids, expected = tilewise.route(own, top_k, **given)
    assert torch.equal(ids.cpu(), expected_ids)
    tolerance = 1e-2 if "weights_dtype" in given else 1e-5
    assert_close(weights.cpu().float(), expected.detach().float(), tolerance)
    derivative = torch.randn_like(weights)
    weights.backward(derivative)
    expected.backward(derivative.cpu())
    assert_close(logits.grad.cpu().float(), own.grad.float(), 1e-2 if dtype == torch.float16 else 1e-4)


def test_explain_chooses_the_kernel():
    assert tilewise.explain("route device=cuda tokens=64 num_experts=8 top_k=2").chosen == "cuda.sm80"


def test_hostile_ids_reach_nothing():
    logits = _logits(2, 8)
    hostile = torch.tensor([[-1, 2**40, 8], [-(2**62), 3, 3]], device="cuda")
    ones = torch.ones(2, 3, device="cuda")
    gradient = torch.ops.tilewise.route_backward(logits, None, hostile, ones, score="sigmoid")
    assert torch.equal(gradient[0], torch.zeros(8, device="cuda"))
    assert gradient[1].count_nonzero() == 1


def test_captured_graphs():
    logits = _logits(64, 256)
    ids, weights = (torch.empty(64, 8, dtype=dtype, device="cuda") for dtype in (torch.int32, torch.float32))
    tilewise.route(logits, 8, topk_ids=ids, topk_weights=weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilewise.route(logits, 8, topk_ids=ids, topk_weights=weights)
    logits.copy_(-logits)
    expected = tilewise.route(logits, 8)
    graph.replay()
    assert torch.equal(ids, expected[0])
    assert torch.equal(weights, expected[1])
