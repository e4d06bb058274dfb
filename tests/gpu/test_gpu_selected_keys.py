# key_indices of attention() on the GPU, forward and backward, against the CPU in float64 and a gathered product there.
"""Selected keys on a GPU."""

import pytest
import torch
from gpu_support import qkv

import tilewise


def drawn_indices(batch, rows, heads, top_k, keys):
    """Some twice, some none, some outside."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-2, keys + 3, (batch, rows, heads, top_k), dtype=torch.int32, generator=generator)


def assert_near(actual, expected, tolerance=2e-2):
    for got, want in zip(actual, expected, strict=True):
        scale = max(1.0, float(want.abs().max()))
        assert float((got - want).abs().max()) <= tolerance * scale


def results(given, selected, device, dtype, **options):
    """out, lse and gradients on a device, in float64 on the CPU."""
    leaves = [t.detach().to(device, dtype).requires_grad_() for t in given[:3]]
    options = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    out, lse = tilewise.attention(*leaves, key_indices=selected.to(device), return_lse=True, **options)
    gradients = torch.autograd.grad(out, leaves, given[3].to(device, dtype))
    return [t.detach().cpu().double() for t in (out, lse, *gradients)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "heads_k", "index_heads", "head_dim", "head_dim_v"),
    [(8, 2, 1, 64, 64), (4, 4, 4, 128, 128), (128, 1, 1, 128, 128), (128, 1, 1, 192, 128), (20, 2, 2, 40, 24),
     (33, 1, 1, 256, 256)],
)  # fmt: skip
@pytest.mark.parametrize("mask", [None, "causal"])
def test_against_the_cpu(heads, heads_k, index_heads, head_dim, head_dim_v, mask, dtype):
    rows, keys, top_k = 37, 300, 150
    given = qkv((2, rows, heads, head_dim), (2, keys, heads_k, head_dim), dtype, head_dim_v=head_dim_v)
    given.append(qkv((2, rows, heads, head_dim_v), dtype=dtype, seed=1)[0])
    selected = drawn_indices(2, rows, index_heads, top_k, keys)
    expected = results(given, selected, "cpu", torch.float64, mask=mask)
    assert_near(results(given, selected, "cuda", dtype, mask=mask), expected)


def test_what_goes_by_the_place():
    rows, keys, heads = 20, 200, 8
    given = qkv((2, rows, heads, 64), (2, keys, 2, 64))
    given.append(qkv((2, rows, heads, 64), seed=1)[0])
    options = {
        "bias": torch.randn(heads, rows, keys), "alibi_slopes": torch.rand(heads), "sink": torch.randn(heads),
        "dropout_p": 0.25, "seed": 7, "softcap": 5.0, "score_mod": "score + 0.01 * kv_idx", "window": (150, -1),
    }  # fmt: skip
    selected = drawn_indices(2, rows, 2, 120, keys)
    # The CPU takes tensors of options in the dtype that it computes in.
    exact = {name: v.double() if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    expected = results(given, selected, "cpu", torch.float64, **exact)
    assert_near(results(given, selected, "cuda", torch.bfloat16, **options), expected)


def gathered(q, k, v, selected, dout):
    """Gradients of 1 sequence on one key head by autograd in float32: keys [row, index, head_dim] are gathered."""
    q, k, v = (t.detach().float().requires_grad_() for t in (q, k, v))
    place = selected[0, :, 0].long()
    rows_k, rows_v = k[0, :, 0][place], v[0, :, 0][place]
    weights = torch.softmax(torch.einsum("qhd,qjd->qhj", q[0], rows_k) / q.shape[-1] ** 0.5, -1)
    out = torch.einsum("qhj,qjd->qhd", weights, rows_v)[None]
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout.float())]


def test_the_form_of_mla():
    """128 heads on one key, 512 of 8,192 keys each."""
    rows, keys, top_k = 256, 8192, 512
    q, k, v = qkv((1, rows, 128, 192), (1, keys, 1, 192), head_dim_v=128)
    dout = qkv((1, rows, 128, 128), seed=1)[0]
    generator = torch.Generator("cuda").manual_seed(2)
    selected = torch.rand(rows, keys, generator=generator, device="cuda").topk(top_k, -1).indices.int()[None, :, None]
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = tilewise.attention(*leaves, key_indices=selected.contiguous())
    ours = [out.detach().float(), *(t.float() for t in torch.autograd.grad(out, leaves, dout))]
    assert_near(ours, gathered(q, k, v, selected, dout))


def test_every_query_adds_to_one_key():
    """The most that sums can meet: all of 4,096 queries select the same few keys."""
    q, k, v = qkv((1, 4096, 16, 64), (1, 64, 1, 64))
    dout = qkv((1, 4096, 16, 64), seed=1)[0]
    selected = torch.arange(8, dtype=torch.int32, device="cuda").expand(1, 4096, 1, 8).contiguous()
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = tilewise.attention(*leaves, key_indices=selected)
    ours = [out.detach().float(), *(t.float() for t in torch.autograd.grad(out, leaves, dout))]
    assert_near(ours, gathered(q, k, v, selected, dout))
    assert not ours[2][:, 8:].any()


def test_sums_in_any_order_are_refused_where_they_must_not():
    q, k, v = (t.requires_grad_() for t in qkv((1, 9, 4, 64), (1, 40, 1, 64)))
    selected = drawn_indices(1, 9, 1, 5, 40).cuda()
    out = tilewise.attention(q, k, v, key_indices=selected, deterministic=True)
    with pytest.raises(Exception, match="dk and dv of key_indices must not be deterministic"):
        torch.autograd.grad(out.sum(), (q, k, v))
    out = tilewise.attention(q, k.detach(), v.detach(), key_indices=selected, deterministic=True)
    once, again = (torch.autograd.grad(out.sum(), q, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, again)


def test_models_of_transformers_gather():
    """The hook gives indices, or where sums must have an order hides what they do not name: the same."""
    pytest.importorskip("transformers", minversion="5.23")
    import tilewise.transformers as hook

    q, k, v = (t.transpose(1, 2) for t in qkv((2, 40, 4, 64), (2, 40, 4, 64)))
    generator = torch.Generator("cuda").manual_seed(3)
    indices = torch.rand(2, 40, 40, generator=generator, device="cuda").topk(12, -1).indices
    causal = torch.ones(40, 40, dtype=torch.bool, device="cuda").tril()[None, None]
    results = []
    for deterministic in (False, True):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        options = {"indices": indices, "deterministic": deterministic}
        out = hook.attention_forward(torch.nn.Module(), *leaves, causal, **options)[0]
        results.append([out.float(), *(t.float() for t in torch.autograd.grad(out.float().square().sum(), leaves))])
    assert_near(*results)
