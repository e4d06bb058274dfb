# Jagged tensors and attention_backward on a GPU: against packed calls, and without waiting for the
# GPU where torch knows the longest sequence.
"""Jagged tensors on a GPU."""

import pytest
import torch
from gpu_support import qkv
from torch.nested import nested_tensor_from_jagged

import tilewise

OFFSETS = [0, 70, 70, 205]
KNOWN = {"min_seqlen": 0, "max_seqlen": 135}


def _offsets():
    return torch.tensor(OFFSETS, device="cuda")


def _jagged(offsets, **more):
    values = qkv((int(OFFSETS[-1]), 4, 64), (int(OFFSETS[-1]), 2, 64))
    return [nested_tensor_from_jagged(tensor, offsets, **more).requires_grad_() for tensor in values]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("known", [{}, KNOWN], ids=["unknown_max_seqlen", "known_max_seqlen"])
def test_the_same_as_a_packed_call(layout, known):
    leaves = _jagged(_offsets(), **known)
    given = [tensor.transpose(1, 2) for tensor in leaves] if layout == "bhsd" else leaves
    out, lse = tilewise.attention(*given, layout=layout, mask="causal", return_lse=True, deterministic=True)
    out = out.transpose(1, 2) if layout == "bhsd" else out
    packed = [leaf.values().detach().requires_grad_() for leaf in leaves]
    cu_seqlens = _offsets().int()
    expected, expected_lse = tilewise.attention(
        *packed, layout="thd", mask="causal", return_lse=True, deterministic=True,
        cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=135, max_seqlen_k=135,
    )  # fmt: skip
    assert (leaves[0] + out).shape == leaves[0].shape
    assert torch.equal(out.values(), expected)
    assert torch.equal(lse, expected_lse)
    dout = torch.randn_like(expected)
    grads = torch.autograd.grad(out.values(), leaves, dout)
    for gradient, wanted in zip(grads, torch.autograd.grad(expected, packed, dout)):
        assert torch.equal(gradient.values(), wanted)


def test_a_known_max_seqlen_needs_no_waiting():
    leaves = _jagged(_offsets(), **KNOWN)
    tilewise.warmup(*leaves)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        tilewise.attention(*leaves).values().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("starts", [[0, 0], [3, 1]])
def test_lengths(starts):
    dense = qkv((2, 90, 4, 64), (2, 90, 2, 64))
    narrowed = [
        torch.nested.narrow(
            tensor, 1, torch.tensor(starts, device="cuda"), torch.tensor([80, 41], device="cuda"), layout=torch.jagged
        )
        for tensor in dense
    ]
    out, lse = tilewise.attention(*narrowed, mask="causal", return_lse=True)
    assert lse.shape == (4, narrowed[0].values().shape[0])
    for b, (start, size) in enumerate(zip(starts, (80, 41))):
        part = slice(start, start + size)
        alone, alone_lse = tilewise.attention(
            *(each[b : b + 1, part] for each in dense), mask="causal", return_lse=True
        )
        torch.testing.assert_close(out.unbind()[b], alone[0], atol=2e-2, rtol=0)
        rows = slice(90 * b + start, 90 * b + start + size)
        torch.testing.assert_close(lse[:, rows], alone_lse[0], atol=1e-3, rtol=0)


def test_attention_backward():
    leaves = _jagged(_offsets())
    out, lse = tilewise.attention(*leaves, return_lse=True, deterministic=True)
    values = torch.randn_like(out.values())
    expected = torch.autograd.grad(out.values(), leaves, values)
    dout = nested_tensor_from_jagged(values, leaves[0].offsets())
    result = tilewise.attention_backward(dout, *leaves, out, lse, deterministic=True)
    for gradient, wanted in zip(result[:3], expected):
        assert torch.equal(gradient.values(), wanted.values())
