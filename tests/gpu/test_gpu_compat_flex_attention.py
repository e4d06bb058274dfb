# tilewise.compat.flex_attention on a GPU: the cases of tests/python, with what they capture there too, by the same
# rule; given tables of blocks; a graph that is captured.
"""The drop-in for torch's flex_attention on a GPU."""

import flex_attention_cases as cases
import pytest
import torch
from closeness import assert_all_as_close, results_of

from tilewise.compat.flex_attention import BlockMask, create_block_mask, flex_attention

DEVICE = "cuda"


@pytest.fixture(autouse=True)
def captured_there(monkeypatch):
    for name in ("SLOPES", "DOCUMENTS", "SCALE"):
        monkeypatch.setattr(cases, name, getattr(cases, name).to(DEVICE))
    monkeypatch.setattr(cases, "RELATIVE", cases.RELATIVE.float().to(DEVICE))


def draw(case, dtype):
    return [tensor.to(DEVICE) for tensor in cases.draw(case.heads_k, dtype)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", cases.CASES)
def test_results_and_gradients(name, dtype):
    case = cases.CASES[name]
    tensors, options = draw(case, dtype), cases.options_of(case, create_block_mask, DEVICE)
    got = results_of(lambda *t: flex_attention(*t, **options), tensors)
    exact = results_of(lambda *t: cases.by_torch(*t, **options), [tensor.double() for tensor in tensors])
    assert_all_as_close(got, results_of(lambda *t: cases.by_torch(*t, **options), tensors), exact)


def test_given_tables():
    counts = torch.tensor([[[2, 1, 4]]], dtype=torch.int32, device=DEVICE)
    columns = torch.tensor([[[[3, 0, 1, 2], [2, 0, 0, 0], [0, 1, 2, 3]]]], dtype=torch.int32, device=DEVICE)
    block_mask = BlockMask.from_kv_blocks(
        counts, columns, BLOCK_SIZE=cases.BLOCK, seq_lengths=cases.SEQLENS, compute_q_blocks=False
    )
    q, k, v = draw(cases.CASES["plain"], torch.bfloat16)
    out = flex_attention(q, k, v, block_mask=block_mask)
    for row, listed in enumerate(((0, 3), (2,), (0, 1, 2, 3))):
        keys = [place for column in listed for place in range(column * cases.BLOCK, (column + 1) * cases.BLOCK)]
        keys = [key for key in keys if key < cases.SEQLENS[1]]
        rows = slice(row * cases.BLOCK, (row + 1) * cases.BLOCK)
        expected = flex_attention(q[:, :, rows], k[:, :, keys], v[:, :, keys])
        torch.testing.assert_close(out[:, :, rows], expected, rtol=2e-2, atol=2e-2)


def test_a_captured_graph():
    case = cases.CASES["relative by documents"]
    tensors, options = draw(case, torch.bfloat16), cases.options_of(case, create_block_mask, DEVICE)
    expected = flex_attention(*tensors, **options)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(*tensors, **options)
    graph.replay()
    assert torch.equal(out, expected)
