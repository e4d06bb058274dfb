# tilewise.compat.transformer_engine on a GPU: the cases of tests/python, by the same rule, and what only a GPU has.
"""The drop-in for Transformer Engine's attention on a GPU."""

import pytest
import torch
from closeness import assert_all_as_close, results_of
from te_cases import CASES, PAIRS, by_formula, by_module, draw
from te_reference import KINDS, attend, lengths_to_cu, visible

from tilewise.compat.transformer_engine import DotProductAttention


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("qkv_format", ["bshd", "sbhd"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, qkv_format, dtype):
    case = CASES[name]
    tensors = draw(case, dtype)
    exact = results_of(by_formula(case), [tensor.double() for tensor in tensors])
    other = results_of(by_formula(case), tensors)
    got = results_of(by_module(case, qkv_format), [tensor.cuda() for tensor in tensors])
    assert_all_as_close(got, other, exact)


@pytest.mark.parametrize("name", [name for name, (_, _, dtype) in PAIRS.items() if dtype != torch.float32])
def test_pairs_of_options(name):
    case, qkv_format, dtype = PAIRS[name]
    tensors = draw(case, dtype)
    exact = results_of(by_formula(case), [tensor.double() for tensor in tensors])
    other = results_of(by_formula(case), tensors)
    got = results_of(by_module(case, qkv_format), [tensor.cuda() for tensor in tensors])
    assert_all_as_close(got, other, exact)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_the_mask_table(kind):
    torch.manual_seed(0)
    used = [(5, 5), (2, 4)]
    for window in (None, (2, 0)) if "causal" in kind else (None, (2, 1)):
        for diagonal in (None, False):
            cells = torch.stack([visible(kind, window, diagonal, (5, 8), lengths) for lengths in used])[:, None]
            q, k = (torch.randn(2, n, 2, 8).half() for n in (5, 8))
            v = torch.eye(8).half()[None, :, None].expand(2, -1, 2, -1)
            given = {}
            if "padding" in kind:
                cu = [lengths_to_cu(lengths).cuda() for lengths in zip(*used)]
                given["cu_seqlens_q"], given["cu_seqlens_kv"] = cu
            if kind == "arbitrary":
                hidden = torch.rand(2, 1, 5, 8) < 0.3
                given["attention_mask"], cells = hidden.cuda(), cells & ~hidden
            dpa = DotProductAttention(
                2, 8, qkv_format="bshd", attn_mask_type=kind, window_size=window, bottom_right_diagonal=diagonal
            )
            weights = dpa(q.cuda(), k.cuda(), v.cuda(), **given).cpu().double()
            exact = attend(q.double(), k.double(), v.double(), cells)
            assert (weights - exact).abs().max() < 2e-3, f"{kind} window={window} bottom_right_diagonal={diagonal}"


def test_packed_sequences_in_a_captured_graph():
    q = torch.randn(9, 2, 32, device="cuda", dtype=torch.bfloat16)
    cu = lengths_to_cu([5, 4]).cuda()
    dpa = DotProductAttention(2, 32, qkv_format="thd", attn_mask_type="padding_causal")
    given = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu, "max_seqlen_q": 9, "max_seqlen_kv": 9}
    expected = dpa(q, q, q, **given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dpa(q, q, q, **given)
    graph.replay()
    assert torch.equal(out, expected)
    cu.copy_(lengths_to_cu([2, 7]))
    graph.replay()
    assert torch.equal(out, dpa(q, q, q, **given))
