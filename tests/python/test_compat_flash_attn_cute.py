# tilewise.compat.flash_attn.cute, FlashAttention-4's two functions, FlashAttention-3's raw passes and the older
# functions with a bias, against formulas in float64.
"""flash_attn.cute, flash_attn_interface and flash_attn_triton."""

import inspect

import pytest
import torch
from flash_attn_module_cases import attention, band

import tilewise.compat.flash_attn_3 as flash_attn_3
from tilewise.compat.flash_attn import cute, flash_attn_triton
from tilewise.compat.flash_attn_3 import flash_attn_interface


def _qkv(dtype=torch.float32, dim_v=16, sq=7, sk=9):
    torch.manual_seed(0)
    shapes = (2, sq, 4, 16), (2, sk, 2, 16), (2, sk, 2, dim_v)
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def _by_formula(q, k, v, visible, sink=None, softcap=0.0):
    """(out, lse) in float64, with a sink and a softcap."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(2, 1) for tensor in (k, v))
    scores = q @ k.mT * 0.25
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores.masked_fill(~visible, -torch.inf)
    logits = (
        scores if sink is None else torch.cat([scores, sink.double()[:, None, None].expand(2, -1, q.shape[2], 1)], -1)
    )
    lse = torch.logsumexp(logits, -1)
    weights = torch.nan_to_num(torch.exp(scores - lse[..., None]))
    return (weights @ v).transpose(1, 2), lse


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ({}, band(7, 9)),
        ({"causal": True}, band(7, 9, True)),
        ({"causal": True, "window_size": (3, None)}, band(7, 9, True, (3, 0))),
        ({"causal": True, "window_size": (3, 5)}, band(7, 9, True, (3, 0))),
        ({"window_size": (None, 2)}, band(7, 9, False, (-1, 2))),
        ({"window_size": (2, 1)}, band(7, 9, False, (2, 1))),
        ({"window_size": (-1, -1), "num_splits": 4, "pack_gqa": True}, band(7, 9)),
    ],
    ids=["whole", "causal", "causal_left", "causal_both", "right", "both", "negative"],
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("more", [None, "sink", "softcap"])
def test_cute(options, visible, packed, more):
    q, k, v = _qkv(dim_v=8)
    sink = torch.randn(4, dtype=torch.bfloat16, requires_grad=True) if more == "sink" else None
    options = {**options, "learnable_sink": sink, "softcap": 2.0 if more == "softcap" else 0.0, "return_lse": True}
    if packed:
        starts = torch.tensor([0, 7, 14], dtype=torch.int32), torch.tensor([0, 9, 18], dtype=torch.int32)
        rows = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        out, lse = cute.flash_attn_varlen_func(
            *rows, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], max_seqlen_q=7, max_seqlen_k=9, **options
        )
        out, lse = out.view(2, 7, 4, 8), lse.view(4, 2, 7).transpose(0, 1)
    else:
        out, lse = cute.flash_attn_func(q, k, v, **options)
    want, want_lse = _by_formula(q, k, v, visible, sink, options["softcap"])
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)
    leaves = [q, k, v, *([] if sink is None else [sink])]
    douts = torch.randn_like(out), torch.randn_like(lse)
    actual = torch.autograd.grad((out, lse), leaves, douts)
    expected = torch.autograd.grad((want, want_lse), leaves, [dout.double() for dout in douts])
    for leaf, a, b in zip(leaves, actual, expected):
        loose = 2**-6 if leaf.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(a.double(), b.double(), rtol=loose, atol=loose)


def test_cute_lengths_and_pages():
    q, k, v = (tensor.detach() for tensor in _qkv(torch.bfloat16))
    used_q, used_k = torch.tensor([7, 3], dtype=torch.int32), torch.tensor([9, 5], dtype=torch.int32)
    out, none = cute.flash_attn_varlen_func(q, k, v, seqused_q=used_q, seqused_k=used_k, causal=True)
    assert none is None
    for b in range(2):
        nq, nk = int(used_q[b]), int(used_k[b])
        want = attention(q[b : b + 1, :nq], k[b : b + 1, :nk], v[b : b + 1, :nk], band(nq, nk, True))[0]
        torch.testing.assert_close(out[b, :nq].double(), want, rtol=2**-6, atol=2**-6)
        assert not out[b, nq:].any()
    table = torch.tensor([[2, 0, 5], [1, 4, 3]], dtype=torch.int32)
    pages = [torch.zeros(6, 3, 2, 16, dtype=torch.bfloat16) for _ in range(2)]
    for side, rows in zip(pages, (k, v)):
        side[table.long()] = rows.unflatten(1, (3, 3))
    sink = torch.randn(4)
    leaf = q.clone().requires_grad_()
    paged, lse = cute.flash_attn_varlen_func(
        leaf, *pages, seqused_k=used_k, page_table=table, causal=True, learnable_sink=sink, return_lse=True
    )
    whole, whole_lse = cute.flash_attn_varlen_func(
        q, k, v, seqused_k=used_k, causal=True, learnable_sink=sink, return_lse=True
    )
    torch.testing.assert_close(paged, whole, rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(lse, whole_lse, rtol=1e-4, atol=1e-3)
    with pytest.raises(NotImplementedError, match="there is no backward pass with page_table"):
        paged.sum().backward()


def test_cute_refusals_by_name():
    q, k, v = _qkv()
    known = inspect.signature(cute.flash_attn_func).parameters
    refused = {
        "qv": q, "gather_kv_indices": torch.zeros(1), "score_mod": abs, "score_mod_bwd": abs, "mask_mod": abs,
        "aux_tensors": [q], "aux_scalars": (1,), "block_sparse_tensors": object(), "gather_bwd_recompute_p": True,
        "gather_bwd_token_chunk": 4, "block_sparse_tensors_bwd": object(),
    }  # fmt: skip
    assert refused.keys() <= known.keys()
    for name, value in refused.items():
        for function in (cute.flash_attn_func, cute.flash_attn_varlen_func):
            if name in inspect.signature(function).parameters:
                with pytest.raises(NotImplementedError, match=f"^{name}: must be None in Tilewise's flash_attn"):
                    function(q, k, v, **{name: value})
    with pytest.raises(NotImplementedError, match="window_size: must be two numbers from 0 up, or None"):
        cute.flash_attn_func(q, k, v, window_size=(3, -1))
    with pytest.raises(NotImplementedError, match="cu_seqlens_k: must be given where cu_seqlens_q is"):
        cute.flash_attn_varlen_func(q, k, v, cu_seqlens_q=torch.tensor([0, 7]))
    out, lse = cute.flash_attn_func(q, k, v)
    assert out.requires_grad
    assert not lse.requires_grad


# --- FlashAttention-3 ---


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (3, 0)])
def test_raw_passes_of_flash_attention_3(packed, window):
    q, k, v = _qkv(torch.bfloat16)
    options, lengths = {"softmax_scale": 0.3, "causal": True}, {}
    function = flash_attn_3.flash_attn_func
    if packed:
        q, k, v = (tensor.detach().flatten(0, 1).requires_grad_() for tensor in (q, k, v))
        starts = torch.tensor([0, 7, 14], dtype=torch.int32), torch.tensor([0, 9, 18], dtype=torch.int32)
        lengths = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1], "max_seqlen_q": 7, "max_seqlen_k": 9}
        function = flash_attn_3.flash_attn_varlen_func
    out, lse = function(q, k, v, **lengths, **options, window_size=window, deterministic=True, return_attn_probs=True)
    dout = torch.randn_like(out)
    expected = torch.autograd.grad(out, (q, k, v), dout)
    into = torch.empty_like(out)
    sides = {"window_size_left": window[0], "window_size_right": window[1]}
    raw, raw_lse, *rest = flash_attn_interface._flash_attn_forward(q, k, v, out_=into, **lengths, **options, **sides)
    assert raw is into
    assert torch.equal(raw, out)
    assert torch.equal(raw_lse, lse)
    assert [tensor.numel() for tensor in rest] == [0, 0]
    gradients = {name: torch.zeros_like(x) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    sums = flash_attn_interface._flash_attn_backward(
        dout, q.detach(), k.detach(), v.detach(), out.detach(), lse, **lengths, **gradients, softmax_scale=0.3,
        is_causal=True, deterministic=True, **sides,
    )  # fmt: skip
    assert all(map(torch.equal, gradients.values(), expected))
    wanted = (dout.float() * out.detach().float()).sum(-1)
    assert torch.equal(sums[:, :7] if packed else sums[..., :7], wanted[:7].T if packed else wanted.transpose(1, 2))


def test_raw_passes_over_caches():
    q, k, v = (tensor.detach() for tensor in _qkv(torch.bfloat16))
    used = torch.tensor([5, 9], dtype=torch.int32)
    out, lse, *_ = flash_attn_interface._flash_attn_forward(q, k, v, seqused_k=used, causal=True)
    expected = flash_attn_3.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=used, causal=True, return_softmax_lse=True
    )  # fmt: skip
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_other_functions_of_flash_attention_3():
    q, k, v = _qkv()
    qkv = torch.stack([q, q * 2, q * 3], 2)
    out = flash_attn_interface.flash_attn_qkvpacked_func(qkv, causal=True)
    assert torch.equal(out, flash_attn_3.flash_attn_func(q, q * 2, q * 3, causal=True))
    grouped = torch.cat([q, *(torch.cat([tensor, tensor], 1)[:, :7] for tensor in (k, v))], 2)
    out = flash_attn_interface.flash_attn_qkvpacked_func(grouped, num_heads_q=4)
    assert torch.equal(out, flash_attn_3.flash_attn_func(q, k[:, :7], v[:, :7]))
    parts = [
        flash_attn_3.flash_attn_func(q, k[:, part], v[:, part], return_attn_probs=True)
        for part in (slice(0, 4), slice(4, 9))
    ]
    outs, lses = torch.stack([part[0] for part in parts]), torch.stack([part[1].transpose(1, 2) for part in parts])
    whole, whole_lse = flash_attn_3.flash_attn_func(q, k, v, return_attn_probs=True)
    merged, lse = flash_attn_interface.flash_attn_combine(outs.detach(), lses.detach())
    torch.testing.assert_close(merged, whole.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, whole_lse.detach().transpose(1, 2), rtol=1e-5, atol=1e-5)
    half, _ = flash_attn_interface.flash_attn_combine(outs.detach(), lses.detach(), out_dtype=torch.bfloat16)
    torch.testing.assert_close(half, merged.bfloat16())
    metadata = flash_attn_interface.get_scheduler_metadata(2, 1, 9, 4, 2, 16, torch.tensor([5, 9], dtype=torch.int32))
    step = q[:, :1].detach().bfloat16(), k.detach().bfloat16(), v.detach().bfloat16()
    with_it, without = (
        flash_attn_3.flash_attn_with_kvcache(*step, cache_seqlens=4, scheduler_metadata=given)
        for given in (metadata, None)
    )
    assert torch.equal(with_it, without)
    assert flash_attn_3.__version__ == "3.0.0"


# --- with a bias ---


@pytest.mark.parametrize("causal", [False, True])
def test_older_functions_with_a_bias(causal):
    torch.manual_seed(0)
    qkv = torch.randn(2, 7, 3, 4, 16, requires_grad=True)
    bias = torch.randn(1, 4, 1, 7, requires_grad=True)
    q, k, v = qkv.unbind(2)
    want = attention(q, k, v, band(7, 7, causal), bias.double(), 0.3)
    out = flash_attn_triton.flash_attn_qkvpacked_func(qkv, bias, causal, 0.3)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    dout = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (qkv, bias), dout), torch.autograd.grad(want, (qkv, bias), dout.double())):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert torch.equal(flash_attn_triton.flash_attn_func(q, k, v, bias, causal, 0.3), out)
    kv = torch.stack([k, v], 2)
    torch.testing.assert_close(flash_attn_triton.flash_attn_kvpacked_func(q, kv, bias, causal, 0.3), out)
