# Shapes that the small cases do not reach: tiles, splits, head dims, strides, and more than 2^31 elements.
"""Shapes and strides on a GPU."""

import pytest
import torch
from cases import assert_close
from checking import check_gradients
from gpu_support import dense64, qkv

import tilewise


def _compare(q, k, v, causal=False, window_left=-1, backward=True, tolerance=2e-2):
    leaves = [tensor.detach().requires_grad_(backward) for tensor in (q, k, v)]
    options = {"mask": "causal"} if causal else {}
    out, lse = tilewise.attention(*leaves, window=(window_left, -1), return_lse=True, **options)
    exact_leaves = [tensor.detach().double().requires_grad_(backward) for tensor in (q, k, v)]
    exact_out, exact_lse = dense64(*exact_leaves, causal, window_left)
    assert_close(out, exact_out, tolerance)
    assert_close(lse, exact_lse, tolerance / 4, "softmax_lse")
    if backward:
        check_gradients(out, leaves, exact_out, exact_leaves, tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlen_q", [1, 63, 64, 65, 128, 200, 517])
@pytest.mark.parametrize("seqlen_k", [31, 64, 129, 1000])
def test_tiles(seqlen_q, seqlen_k, causal):
    if causal and seqlen_q > seqlen_k:
        pytest.skip("rows without a key are among the cases of test_gpu_features")
    _compare(*qkv((2, seqlen_q, 4, 64), (2, seqlen_k, 2, 64)), causal)


HEAD_DIMS = [(8, 8), (24, 24), (33, 33), (40, 72), (64, 128), (80, 80), (96, 96), (100, 60), (128, 128)]
LARGE_HEAD_DIMS = [(160, 160), (192, 128), (255, 255), (256, 256), (1, 3)]


@pytest.mark.parametrize("dims", HEAD_DIMS + LARGE_HEAD_DIMS, ids=str)
def test_head_dims(dims):
    _compare(*qkv((1, 130, 2, dims[0]), (1, 150, 2, dims[0]), torch.float16, dims[1]), True, tolerance=4e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_longer(head_dim, causal):
    _compare(*qkv((1, 2048, 4, head_dim), (1, 2048, 2, head_dim)), causal)


@pytest.mark.parametrize("heads", [(8, 8), (32, 4), (16, 1)])
@pytest.mark.parametrize("seqlen_q", [1, 5])
def test_decode(heads, seqlen_q):
    _compare(*qkv((2, seqlen_q, heads[0], 128), (2, 9001, heads[1], 128)), True, backward=False)


def test_window():
    _compare(*qkv((1, 1000, 2, 64)), True, 100)


@pytest.mark.parametrize("padding", [1, 4, 8])
def test_strides(padding):
    """Rows, heads and batches apart from each other, and (padding 1) rows that start anywhere."""
    tensors = []
    for tensor in qkv((2, 100, 3, 64), (2, 120, 3, 64)):
        wide = tensor.new_full((2, tensor.shape[1] + 3, 5, 64 + padding), torch.nan)
        view = wide[:, 1 : 1 + tensor.shape[1], 1:4, padding:] if padding < 8 else wide[:, 3:, :3, :64]
        view.copy_(tensor)
        tensors.append(view)
    _compare(*tensors, True)


def test_fused_projection():
    """q, k and v as slices of one tensor, as a fused projection gives them."""
    fused = torch.randn(2, 90, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
    _compare(*fused.unbind(2), True)


def test_expanded_keys():
    q, k, v = qkv((3, 50, 4, 64), (1, 70, 4, 64))
    _compare(q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1), backward=False)


def test_results_repeat():
    q, k, v = qkv((2, 500, 8, 128), (2, 700, 2, 128))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    dout = torch.randn_like(q)

    def once():
        out, lse = tilewise.attention(*leaves, mask="causal", return_lse=True, deterministic=True)
        return (out, lse, *torch.autograd.grad(out, leaves, dout))

    for first, second in zip(once(), once()):
        assert torch.equal(first, second)


@pytest.mark.huge
def test_more_than_2_31_elements():
    seqlen, heads, dim, tail = 140_000, 128, 128, 32
    assert seqlen * heads * dim > 2**31
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip(f"needs 60 GB of free GPU memory (got {torch.cuda.mem_get_info()[0] / 1e9:.0f})")
    leaves = [
        torch.randn(1, seqlen, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)
    ]
    out = tilewise.attention(*leaves, mask="causal", window=(127, -1))
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, leaves, dout)
    last = [tensor.detach()[:, -256:].double().requires_grad_() for tensor in leaves]
    exact, _ = dense64(*last, True, 127)
    assert_close(out[:, -tail:], exact[:, -tail:], 2e-2)
    expected = torch.autograd.grad(exact, last, dout[:, -256:].double())
    for name, gradient, value in zip(("dq", "dk", "dv"), gradients, expected):
        assert_close(gradient[:, -tail:], value[:, -tail:], 4e-2, name)


@pytest.mark.huge
def test_offsets_beyond_2_31_between_batches():
    """Few elements, far apart: strides alone pass 32 bits."""
    far = 2**31 + 4096
    pool = torch.zeros(far + 2**20, device="cuda", dtype=torch.bfloat16)
    tensors = []
    for tensor in qkv((2, 64, 2, 64)):
        view = pool.as_strided(tensor.shape, (far, 128, 64, 1), len(tensors) * 2**16)
        view.copy_(tensor)
        tensors.append(view)
    _compare(*tensors, True, backward=False)
