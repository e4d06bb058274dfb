"""moe() on a GPU: both passes against the CPU, Hopper's kernels and the portable ones, hostile ids, captured graphs."""

import pytest
import torch
from cases import assert_close

import tilewise

EXPERTS, HIDDEN, INTERMEDIATE = 12, 264, 136
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
IMPLEMENTATIONS = ["cuda.sm80", *(["cuda.hopper"] if HOPPER else [])]
OPTIONS = [
    {},
    {"gate": "interleaved", "activation": "swiglu_oai", "limit": 0.5},
    {"gate": "none", "activation": "relu_squared"},
    {"activation": "gelu_tanh", "limit": 0.3, "clamp": "after"},
    {"weight_on_input": True},
    {"gate": "none", "activation": "gelu", "first_expert": 5},
]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def _drawn(tokens, top_k=3, dtype=torch.bfloat16, gate="concatenated", biased=True):
    """Arguments of moe(): some ids nobody's, one expert twice in a token, one expert without tokens."""
    torch.manual_seed(tokens)
    rows = INTERMEDIATE if gate == "none" else 2 * INTERMEDIATE
    ids = torch.randint(0, EXPERTS - 1, (tokens, top_k), device="cuda")
    if tokens > 1:
        ids[0] = torch.tensor([-1, EXPERTS, 2**40])[:top_k]
    ids[-1, 0] = ids[-1, -1]
    given = {
        "x": torch.randn(tokens, HIDDEN, device="cuda"),
        "topk_weights": torch.rand(tokens, top_k, device="cuda"),
        "gate_up": torch.randn(EXPERTS, rows, HIDDEN, device="cuda") / HIDDEN**0.5,
        "down": torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, device="cuda") / INTERMEDIATE**0.5,
    }
    if biased:
        given["gate_up_bias"] = torch.randn(EXPERTS, rows, device="cuda")
        given["down_bias"] = torch.randn(EXPERTS, HIDDEN, device="cuda")
    weights = given.pop("topk_weights")
    given = {name: tensor.to(dtype) for name, tensor in given.items()}
    return {**given, "topk_weights": weights, "topk_ids": ids}


def _on_cpu(given, dtype=torch.float64):
    return {name: t.detach().cpu().to(dtype) if t.is_floating_point() else t.cpu() for name, t in given.items()}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 8, 40, 300, 2000])
def test_is_the_layer(tokens, dtype, options, implementation):
    given = _drawn(tokens, dtype=dtype, gate=options.get("gate", "concatenated"))
    out = tilewise.moe(**given, **options, implementation=implementation)
    expected = tilewise.moe(**_on_cpu(given), **options)
    assert_close(out.double().cpu(), expected, TOLERANCES[dtype])
    assert torch.equal(out, tilewise.moe(**given, **options, implementation=implementation))


def _check_gradients(given, dtype, options, implementation=None):
    theirs = _on_cpu(given)
    for each in (given, theirs):
        for name, tensor in each.items():
            each[name] = tensor.requires_grad_() if tensor.is_floating_point() else tensor
    out = tilewise.moe(**given, **options, implementation=implementation)
    expected = tilewise.moe(**theirs, **options)
    derivative = torch.randn_like(out)
    out.backward(derivative)
    expected.backward(derivative.double().cpu())
    for name, tensor in given.items():
        if tensor.is_floating_point():
            assert_close(tensor.grad.double().cpu(), theirs[name].grad, 4 * TOLERANCES[dtype], name)
    assert not given["down"].grad[EXPERTS - 1].any(), "an expert without tokens"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [5, 300])
def test_gradients(tokens, dtype, options):
    _check_gradients(_drawn(tokens, dtype=dtype, gate=options.get("gate", "concatenated")), dtype, options)


@pytest.mark.skipif(not HOPPER, reason="needs a GPU of sm_90")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [5, 900])
def test_gradients_of_hoppers_kernels(tokens, dtype, options):
    biased = "weight_on_input" not in options
    given = _drawn(tokens, dtype=dtype, gate=options.get("gate", "concatenated"), biased=biased)
    _check_gradients(given, dtype, options, "cuda.hopper")


@pytest.mark.skipif(not HOPPER, reason="needs a GPU of sm_90")
@pytest.mark.parametrize("options", [options for options in OPTIONS if "limit" not in options], ids=str)
@pytest.mark.parametrize("tokens", [5, 900])
def test_gradients_of_saved_sums(tokens, options):
    """With rows of nobody's behind those of experts. A rounded sum may cross a limit, where derivatives jump."""
    biased = "weight_on_input" not in options
    given = _drawn(tokens, gate=options.get("gate", "concatenated"), biased=biased)
    _check_gradients(given, torch.bfloat16, {**options, "save_gate_up": True}, "cuda.hopper")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("tokens", [3, 700])
def test_hostile_ids_reach_nothing(tokens, implementation):
    given = _drawn(tokens)
    hostile = torch.tensor([-(2**62), 2**62, -1, 2**32, EXPERTS, -EXPERTS], device="cuda")
    given["topk_ids"] = hostile[torch.randint(0, 6, (tokens, 3), device="cuda")]
    assert not tilewise.moe(**given, implementation=implementation).any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("tokens", [2, 60, 900])
def test_captured_graphs_follow_the_routing(tokens, implementation):
    given = _drawn(tokens)
    tilewise.moe(**given, implementation=implementation)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tilewise.moe(**given, implementation=implementation)
    for seed in range(3):
        torch.manual_seed(seed)
        given["topk_ids"].copy_(torch.randint(0, EXPERTS, (tokens, 3), device="cuda"))
        given["x"].normal_()
        graph.replay()
        assert torch.equal(out, tilewise.moe(**given, implementation=implementation))


def test_explain_chooses_the_kernel():
    problem = "moe device=cuda dtype=bf16 tokens=64 hidden=256 intermediate=128 num_experts=8 top_k=2"
    assert tilewise.explain(problem).chosen == IMPLEMENTATIONS[-1]
