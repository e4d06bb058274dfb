# Every feature of docs/semantics.md on the GPU, forward and backward, against float64 formulas on the CPU.
"""Results on a GPU."""

import pytest
import torch
from cases import CASES, TOLERANCE, assert_close, draw, in_float64, lengths, to_layout
from checking import check, check_gradients, leaves_of
from formulas import Call, dense, packed
from gpu_support import run_on_gpu

import tilewise

DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_forward(name, dtype):
    tensors, options = draw(name, dtype)
    leaves, given = leaves_of([tensor.double() for tensor in tensors], in_float64(options))
    exact_out, exact_lse = dense(Call(**given), *leaves[:3])
    out, lse = run_on_gpu(*tensors, **options)
    assert_close(out, exact_out, TOLERANCE[dtype])
    assert_close(lse, exact_lse, max(TOLERANCE[dtype] / 4, 2e-5), "softmax_lse")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name, dtype):
    tensors, options = draw(name, dtype)
    check(tensors, options, run_on_gpu, TOLERANCE[dtype])


@pytest.mark.parametrize("layout", ["sbhd", "bhsd"])
@pytest.mark.parametrize("name", ["causal", "everything", "head_dims"])
def test_layouts(name, layout):
    def run(*qkv, **options):
        qkv = [to_layout(tensor, layout) for tensor in qkv]
        out, lse = run_on_gpu(*qkv, layout=layout, **options)
        return to_layout(out, layout), lse

    tensors, options = draw(name, torch.bfloat16)
    check(tensors, options, run, TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_packed(mask, heads):
    torch.manual_seed(11)
    cu_q, cu_k = [0, 5, 5, 75], [0, 9, 20, 150]
    tensors = [torch.randn(cu[-1], h, 40).half() for cu, h in ((cu_q, heads[0]), (cu_k, heads[1]), (cu_k, heads[1]))]
    options = {"mask": mask}
    leaves, given = leaves_of(tensors, options)
    cu = {"cu_seqlens_q": lengths(*cu_q), "cu_seqlens_k": lengths(*cu_k), "max_seqlen_q": 70, "max_seqlen_k": 130}
    out, lse = run_on_gpu(*leaves, layout="thd", **given, **cu)
    exact_leaves, _ = leaves_of([tensor.double() for tensor in tensors], {})
    exact_out, exact_lse = packed(Call(mask=mask), *exact_leaves, cu_q, cu_k)
    tolerance = TOLERANCE[torch.float16]
    assert_close(out, exact_out, tolerance)
    assert_close(lse, exact_lse, tolerance, "softmax_lse")
    check_gradients(out, leaves, exact_out, exact_leaves, tolerance)


def test_packed_rows_of_no_sequence():
    q = torch.randn(20, 2, 64, dtype=torch.bfloat16)
    cu = {"cu_seqlens_q": lengths(0, 12), "cu_seqlens_k": lengths(0, 12), "max_seqlen_q": 12, "max_seqlen_k": 12}
    leaves = [q.clone().requires_grad_() for _ in range(3)]
    out, lse = run_on_gpu(*leaves, layout="thd", **cu)
    assert torch.equal(out[12:], torch.zeros_like(out[12:]))
    assert torch.equal(lse[:, 12:], torch.full_like(lse[:, 12:], -torch.inf))
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert torch.equal(gradient[12:], torch.zeros_like(gradient[12:]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_half_precision_bias(dtype):
    (q, k, v), options = draw("bias", dtype)
    options["bias"] = options["bias"].to(dtype)
    check([q, k, v], options, run_on_gpu, TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["causal", "bias_head", "sink", "dropout_causal"])
def test_deterministic_and_batch_invariant(name):
    (q, k, v), options = draw(name, torch.bfloat16)
    check([q, k, v], options, lambda *a, **o: run_on_gpu(*a, deterministic=True, batch_invariant=True, **o), 2e-2)


def test_merge():
    (q, k, v), _ = draw("plain", torch.bfloat16)
    q, k, v = q.cuda(), k.cuda(), v.cuda()
    sink = torch.randn(q.shape[2], device="cuda")
    whole = tilewise.attention(q, k, v, sink=sink, return_lse=True)
    parts = [tilewise.attention(q, k[:, part], v[:, part], return_lse=True) for part in (slice(0, 4), slice(4, None))]
    merged = tilewise.merge([out for out, _ in parts], [lse for _, lse in parts], sink)
    assert_close(merged[0], whole[0], 2e-2)
    assert_close(merged[1], whole[1], 1e-3, "softmax_lse")
