# Tensors without elements, forward and backward, in every layout: their strides are nobody's business.
"""Batches of 0, sequences of 0 queries or keys, and packed rows of none."""

import numpy as np
import pytest
import torch
from cases import lengths, to_layout

import tilewise

OPTIONS = {
    "plain": {},
    "causal": {"mask": "causal"},
    "window": {"window": (3, -1)},
    "bias": {"bias": torch.zeros(1, 4, 1, 1)},
    "sink": {"sink": torch.zeros(4)},
}
SIZES = {"no_batch": (0, 6, 9), "no_queries": (2, 0, 9), "no_keys": (2, 6, 0), "nothing": (0, 0, 0)}


def _leaves(batch_size, seqlen_q, seqlen_k, layout):
    q = torch.randn(batch_size, seqlen_q, 4, 8)
    k, v = torch.randn(batch_size, seqlen_k, 2, 8), torch.randn(batch_size, seqlen_k, 2, 16)
    return [to_layout(tensor, layout).requires_grad_() for tensor in (q, k, v)]


def _check_zeros(leaves):
    for leaf in leaves:
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_gradients_of_a_sum(sizes, options, layout):
    leaves = _leaves(*SIZES[sizes], layout)
    tilewise.attention(*leaves, layout=layout, **OPTIONS[options]).sum().backward()  # dout: one zero, expanded
    _check_zeros(leaves)


@pytest.mark.parametrize("sizes", SIZES)
def test_gradients_of_both_results(sizes):
    leaves = _leaves(*SIZES[sizes], "bshd")
    out, lse = tilewise.attention(*leaves, return_lse=True)
    (out.sum() + torch.where(torch.isfinite(lse), lse, 0.0).sum()).backward()
    if sizes != "no_keys":
        _check_zeros(leaves)


@pytest.mark.parametrize("bounds", [(0,), (0, 0), (0, 0, 0)], ids=str)
def test_packed_rows_of_none(bounds):
    leaves = [torch.randn(0, heads, 8, requires_grad=True) for heads in (4, 2, 2)]
    cu_seqlens = lengths(*bounds)
    out = tilewise.attention(*leaves, layout="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)
    out.sum().backward()
    _check_zeros(leaves)


def test_any_strides_and_outputs():
    """Views that no tensor with elements may be, and a broadcast out."""
    q = torch.zeros(1).expand(2, 0, 4, 8)
    k = torch.randn(2, 9, 2, 8)
    out = torch.zeros(1).expand(2, 0, 4, 8)
    assert tilewise.attention(q, k, k, out=out) is out
    assert tilewise.attention(k.transpose(2, 3)[:, :0], k[:, :, :, :2], k[:, :, :, :2]).shape == (2, 0, 8, 2)
    empty = np.zeros((2, 9, 4, 16), np.float32)[:, :0, :, ::2]
    assert tilewise.attention(empty, k.numpy(), k.numpy()).shape == (2, 0, 4, 8)
