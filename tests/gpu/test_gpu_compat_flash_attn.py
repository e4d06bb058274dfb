# tilewise.compat.flash_attn on a GPU: the cases of tests/python, by the same rule.
"""The drop-in for flash_attn on a GPU."""

import pytest
import torch
from flash_attn_cases import CASES, call, check, problem

import tilewise.compat.flash_attn as flash_attn


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_of_arguments(case):
    check(flash_attn, case, "cuda")


def test_deterministic_gradients():
    case = CASES[0]._replace(form="qkvpacked", lengths=(17, 17), heads=(4, 4), deterministic=True)
    given = problem(case, "cuda")
    torch.manual_seed(1)
    out = call(flash_attn, case, given)
    dout = torch.randn_like(out)
    first, *others = (torch.autograd.grad(out, given.leaves, dout, retain_graph=True) for _ in range(50))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other))


@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
def test_forward_under_load(dropout_p):
    """250 runs agree bit for bit while another stream keeps the GPU busy."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 300, heads, 64, device="cuda").to(torch.bfloat16) for heads in (8, 2, 2))
    busy, other = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    first = None
    for _ in range(250):
        with torch.cuda.stream(other):
            busy = (busy @ busy).clamp_(-1, 1)
        torch.manual_seed(42)
        results = flash_attn.flash_attn_func(q, k, v, dropout_p, causal=True, return_attn_probs=True)[:2]
        first = first or results
        assert all(torch.equal(a, b) for a, b in zip(first, results))
    torch.cuda.synchronize()


def test_lengths_on_the_cpu_are_refused_in_their_words():
    q = torch.ones(10, 4, 32, dtype=torch.bfloat16, device="cuda")
    starts = torch.tensor([0, 10], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="cu_seqlens_q must be on CUDA"):
        flash_attn.flash_attn_varlen_func(q, q, q, starts, starts, 10, 10)


def test_cache_in_a_captured_graph():
    """While a graph is captured no length is read back, so that a table too short for one is not noticed."""
    q = torch.ones(2, 1, 4, 32, dtype=torch.bfloat16, device="cuda")
    pages = torch.randn(4, 256, 2, 32, device="cuda").to(torch.bfloat16)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([300, 5], dtype=torch.int32, device="cuda")
    expected = flash_attn.flash_attn_with_kvcache(q, pages, pages, cache_seqlens=lengths, block_table=table)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flash_attn.flash_attn_with_kvcache(q, pages, pages, cache_seqlens=lengths, block_table=table)
    graph.replay()
    assert torch.equal(out, expected)
    with pytest.raises(RuntimeError, match="block_table"):
        flash_attn.flash_attn_with_kvcache(q, pages, pages, cache_seqlens=lengths + 300, block_table=table)
