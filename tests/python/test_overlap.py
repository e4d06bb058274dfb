# Outputs that share memory with something else are refused on every way into the library; views of
# one storage that share no element are not.
"""out=, dq, dk, dv that overlap."""

import numpy as np
import pytest
import torch
from checking import assert_close

import tilewise
from tilewise import _core

SEQLEN = 2049  # from here on the CPU kernels read keys again after they have written rows


def _qkv(seqlen=64):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, seqlen, 2, 16, generator=generator) for _ in range(3))


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("function", [tilewise.attention, tilewise.explain, tilewise.warmup])
def test_out_is_not_an_input(function, index):
    qkv = _qkv(SEQLEN)
    before = qkv[index].clone()
    for arrays in (qkv, [tensor.numpy() for tensor in qkv]):
        with pytest.raises(ValueError, match=f"out: must not overlap {'qkv'[index]} in memory"):
            function(*arrays, out=arrays[index])
    assert torch.equal(qkv[index], before)


def test_out_overlaps_in_part_or_itself():
    q, k, v = _qkv()
    storage = torch.zeros(4096)
    shifted = storage[:2048].view(1, 64, 2, 16).copy_(q), storage[2047:4095].view(1, 64, 2, 16)
    with pytest.raises(ValueError, match=r"out: must not overlap q in memory \(got .* that starts 8188 bytes from"):
        tilewise.attention(shifted[0], k, v, out=shifted[1])
    with pytest.raises(ValueError, match="out: elements of an output must not share memory"):
        tilewise.attention(q, k, v, out=storage.as_strided((1, 64, 2, 16), (2048, 31, 16, 1)))
    with pytest.raises(ValueError, match="out: must not overlap bias in memory"):
        tilewise.attention(q, k, v, bias=storage[:64], out=storage[:2048].view(1, 64, 2, 16))


def test_operator_refuses_too():
    q, k, v = _qkv()
    with pytest.raises(RuntimeError, match="out: must not overlap k in memory"):
        torch.ops.tilewise.attention_forward_out(q, k, v, k)


def test_interleaved_views_pass():
    q, k, v = _qkv()
    packed = torch.zeros(1, 64, 4, 2, 16)
    packed[:, :, :3] = torch.stack((q, k, v), 2)
    tilewise.attention(*packed[:, :, :3].unbind(2), out=packed[:, :, 3])
    assert_close(packed[:, :, 3], tilewise.attention(q, k, v), 1e-6)


def _backward(tensors, gradients):
    _core.attention_backward(
        _core.Array(np.ones_like(tensors[3]), "dout"), None, *(_core.Array(array, "input") for array in tensors),
        *(_core.Array(array, "gradient", "", True) for array in gradients), None, None, _core.AttentionOptions(),
    )  # fmt: skip


def test_gradients_that_overlap():
    q, k, v = (tensor.numpy() for tensor in _qkv())
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    tensors = q, k, v, out, lse
    apart = [np.empty_like(q) for _ in range(3)]
    _backward(tensors, apart)
    packed = np.empty((1, 64, 3, 2, 16), np.float32)
    _backward(tensors, [packed[:, :, i] for i in range(3)])
    for i in range(3):
        assert np.array_equal(packed[:, :, i], apart[i])
    for gradients, sentence in (
        ([q, *apart[1:]], "dq: must not overlap q"),
        ([*apart[:2], k], "dv: must not overlap k"),
        ([apart[0], apart[0], apart[2]], "dq: must not overlap dk"),
        ([apart[0], out, apart[2]], "dk: must not overlap out"),
        ([apart[0], packed[:, :, 1], packed[:, :, 1]], "dk: must not overlap dv"),
    ):
        with pytest.raises(ValueError, match=sentence):
            _backward(tensors, gradients)
