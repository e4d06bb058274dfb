# tilewise.compat.sdpa on a GPU: the cases of tests/python, by the same rule.
"""The drop-in for torch's scaled_dot_product_attention on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_all_as_close, results_of
from sdpa_cases import CASES, PAIRS, by_formula, call_of, draw, in_float64

import tilewise
from tilewise.compat.sdpa import routed, scaled_dot_product_attention


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, dtype):
    tensors = draw(CASES[name], dtype)
    exact = results_of(call_of(by_formula, CASES[name]), in_float64(tensors))
    tensors = [tensor.cuda() for tensor in tensors]
    other = results_of(call_of(by_formula, CASES[name]), tensors)
    got = results_of(call_of(scaled_dot_product_attention, CASES[name]), tensors)
    assert_all_as_close(got, other, exact)


@pytest.mark.parametrize("name", [name for name, (*_, dtype) in PAIRS.items() if dtype.itemsize == 2])
def test_pairs_of_options(name):
    case, rows_first, dtype = PAIRS[name]
    tensors = draw(case, dtype, rows_first)
    exact = results_of(call_of(by_formula, case), in_float64(tensors))
    tensors = [tensor.cuda() for tensor in tensors]
    other = results_of(call_of(by_formula, case), tensors)
    assert_all_as_close(results_of(call_of(scaled_dot_product_attention, case), tensors), other, exact)


def test_dropout_draws_from_the_devices_generator():
    q, k, v = (tensor.cuda() for tensor in draw(CASES["plain"], torch.bfloat16))
    torch.manual_seed(5)
    seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device="cuda")
    expected = tilewise.attention(q, k, v, layout="bhsd", dropout_p=0.4, seed=seed)
    torch.manual_seed(5)
    first, second = (scaled_dot_product_attention(q, k, v, dropout_p=0.4) for _ in range(2))
    assert torch.equal(first, expected)
    assert not torch.equal(first, second)


def test_routed_leaves_float32_alone():
    q, k, v = (tensor.cuda() for tensor in draw(CASES["plain"], torch.float32))
    for dropout_p in (0.0, 0.5):
        torch.manual_seed(3)
        expected = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
        torch.manual_seed(3)
        with routed():
            assert torch.equal(F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p), expected)


def test_routed_in_a_captured_graph():
    q, k, v = (tensor.cuda() for tensor in draw(CASES["plain"], torch.bfloat16))
    with routed():
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)  # loads the kernels
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    graph.replay()
    first = out.clone()
    graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, out)  # the generator goes on from replay to replay
