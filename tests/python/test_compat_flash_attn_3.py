# tilewise.compat.flash_attn_3 against tilewise.attention, tilewise.kv_cache_attention and formulas in float64.
"""FlashAttention-3's functions."""

import functools
import inspect
import math

import pytest
import torch
from flash_attn_3_cases import CASES, check
from formulas import Call, dense, packed
from torch_support import Recorder

import tilewise
from tilewise.compat import flash_attn_3
from tilewise.compat.flash_attn_3 import _attention

_MORE = (
    "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
    "sm_margin=0, return_attn_probs=False"
)
_SCALES = "q_descale=None, k_descale=None, v_descale=None"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, softmax_scale=None, causal=False, qv=None, {_SCALES}, {_MORE}",
    "flash_attn_varlen_func": (
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, "
        f"softmax_scale=None, causal=False, qv=None, {_SCALES}, {_MORE}"
    ),
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
        f"max_seqlen_q=None, rotary_seqlens=None, {_SCALES}, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, "
        "num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(flash_attn_3, name)).parameters.values()
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    assert ", ".join(map(str, plain)) == SIGNATURES[name]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_of_arguments(case):
    check(flash_attn_3, case)


def _qkv(*, batch=2, sq=20, sk=30, heads=4, heads_k=2, dim=32, dim_v=None):
    torch.manual_seed(0)
    shapes = (batch, sq, heads, dim), (batch, sk, heads_k, dim), (batch, sk, heads_k, dim_v or dim)
    return [torch.randn(shape).to(torch.bfloat16).requires_grad_() for shape in shapes]


CALLS = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"mask": "causal"}),
    "window": ({"window_size": torch.tensor([5, 2])}, {"window": (5, 2)}),
    "causal_window": ({"causal": True, "window_size": (5, 9)}, {"mask": "causal", "window": (5, -1)}),
    "softcap": ({"softcap": 2.0, "softmax_scale": 0.3}, {"softcap": 2.0, "softmax_scale": 0.3}),
    "deterministic": ({"deterministic": True, "num_splits": 3, "pack_gqa": True, "sm_margin": 4}, {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_dense(name):
    given, ours = CALLS[name]
    tensors = _qkv(dim_v=48)
    out, lse = flash_attn_3.flash_attn_func(*tensors, **given, return_attn_probs=True)
    expected, expected_lse = tilewise.attention(*tensors, **ours, return_lse=True)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert torch.equal(flash_attn_3.flash_attn_func(*tensors, **given), expected)
    dout = torch.randn_like(out)
    gradients = (torch.autograd.grad(result, tensors, dout) for result in (out, expected))
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


@pytest.mark.parametrize("name", CALLS)
def test_packed(name):
    """Used lengths count, rows behind them are 0 and -inf."""
    given, _ = CALLS[name]
    starts_q, starts_k = [0, 9, 25], [0, 14, 44]
    torch.manual_seed(0)
    tensors = [torch.randn(rows, heads, 32).to(torch.bfloat16) for rows, heads in ((25, 4), (44, 2), (44, 2))]
    used = torch.tensor([9, 11], dtype=torch.int32), torch.tensor([10, 30], dtype=torch.int32)
    starts = [torch.tensor(values, dtype=torch.int32) for values in (starts_q, starts_k)]
    leaves = [tensor.requires_grad_() for tensor in tensors]
    out, lse = flash_attn_3.flash_attn_varlen_func(*leaves, *starts, 16, 30, *used, **given, return_attn_probs=True)
    window = tuple(int(side) for side in given.get("window_size", (-1, -1)))
    call = Call(
        mask="causal" if given.get("causal") else None,
        window=window,
        softmax_scale=given.get("softmax_scale"),
        softcap=given.get("softcap", 0.0),
        seqused_q=used[0],
        seqused_k=used[1],
    )
    exact_leaves = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact, exact_lse = packed(call, *exact_leaves, starts_q, starts_k)
    torch.testing.assert_close(out.double(), exact, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-3, atol=1e-3)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, leaves, dout)
    for actual, want in zip(gradients, torch.autograd.grad(exact, exact_leaves, dout.double())):
        torch.testing.assert_close(actual.double(), want, rtol=3e-2, atol=2e-2)


# --- caches ---


def _cached(batch=2, capacity=64, heads_k=2, dim=32):
    torch.manual_seed(1)
    return [torch.randn(batch, capacity, heads_k, dim).to(torch.bfloat16) for _ in range(2)]


def test_cache_with_everything():
    """Packed queries and keys, positions of their own, pages of 16: as kv_cache_attention has it."""
    torch.manual_seed(0)
    pages = [torch.randn(9, 16, 2, 32).to(torch.bfloat16) for _ in range(2)]
    table = torch.tensor([[4, 1, 7], [2, 0, 8]], dtype=torch.int32)
    q, k, v = (torch.randn(5, heads, 32).to(torch.bfloat16) for heads in (4, 2, 2))
    angles = torch.rand(80, 16)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    new = torch.tensor([0, 4, 5], dtype=torch.int32)
    lengths = torch.tensor([17, 30], dtype=torch.int32)
    positions = torch.tensor([3, 40], dtype=torch.int32)
    copies = [page.clone() for page in pages]
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(
        q, *pages, k, v, rotary_cos=angles.cos(), rotary_sin=angles.sin(), cache_seqlens=lengths, page_table=table,
        cu_seqlens_q=starts, cu_seqlens_k_new=new, max_seqlen_q=3, rotary_seqlens=positions, causal=True,
        window_size=(20, 5), softcap=3.0, scheduler_metadata=torch.zeros(3), sm_margin=2, return_softmax_lse=True,
    )  # fmt: skip
    expected, expected_lse = tilewise.kv_cache_attention(
        q, *copies, k, v, rotary_cos=angles.cos(), rotary_sin=angles.sin(), rotary_interleaved=True,
        cache_seqlens=lengths, block_table=table, cu_seqlens_q=starts, cu_seqlens_k_new=new, max_seqlen_q=3,
        rotary_seqlens=positions, mask="causal", window=(20, -1), softcap=3.0, return_lse=True,
    )  # fmt: skip
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert all(torch.equal(a, b) for a, b in zip(pages, copies))


@pytest.mark.parametrize("rotary", [False, True])
def test_usual_step(rotary):
    """What an engine asks for goes by the operator for it, and computes what that with all options does."""
    torch.manual_seed(0)
    pages = [torch.randn(6, 16, 2, 32).to(torch.bfloat16) for _ in range(2)]
    q, k, v = (torch.randn(2, 1, heads, 32).to(torch.bfloat16) for heads in (4, 2, 2))
    table, lengths = torch.tensor([[3, 0, 5], [1, 2, 4]], dtype=torch.int32), torch.tensor([17, 40], dtype=torch.int32)
    angles = torch.rand(64, 16)
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "rotary_interleaved": False} if rotary else {}
    step = functools.partial(
        flash_attn_3.flash_attn_with_kvcache, q, *pages, k, v, cache_seqlens=lengths, page_table=table, causal=True,
        **tables,
    )  # fmt: skip
    with Recorder() as recorder:
        out = step()
    assert torch.ops.tilewise.kv_cache_attention.plain in recorder.calls
    assert torch.equal(out, step(return_softmax_lse=True)[0])


def _dequantized(cache, scale):
    return cache.double() * scale.double()[:, None, :, None]


def test_fp8_with_descales():
    """[batch, heads] descales of queries, keys and values, on caches and without one; new keys are stored as given."""
    torch.manual_seed(0)
    k_cache, v_cache = (cache.to(torch.float8_e4m3fn) for cache in _cached())
    q = torch.randn(2, 3, 4, 32).to(torch.float8_e4m3fn)
    descales = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    names = ("q_descale", "k_descale", "v_descale")
    given = dict(zip(names, descales))
    queries = q.double() * descales[0].double().repeat_interleave(2, dim=1)[:, None, :, None]
    exact, exact_lse = dense(
        Call(mask="causal"), queries, _dequantized(k_cache, descales[1]), _dequantized(v_cache, descales[2])
    )
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(
        q, k_cache, v_cache, causal=True, **given, return_softmax_lse=True
    )
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-2, atol=1e-2)
    scales = dict(zip(("q_scale", "k_scale", "v_scale"), descales))
    expected = tilewise.attention(q, k_cache, v_cache, mask="causal", **scales, return_lse=True)
    without = flash_attn_3.flash_attn_func(q, k_cache, v_cache, causal=True, **given, return_attn_probs=True)
    assert all(torch.equal(a, b) for a, b in zip(without, expected))
    torch.testing.assert_close(without[0], out, rtol=2e-2, atol=1e-2)
    k, v = (torch.randn(2, 3, 2, 32).to(torch.float8_e4m3fn) for _ in range(2))
    lengths = torch.tensor([5, 40], dtype=torch.int32)
    appended = flash_attn_3.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, **given
    )
    for b, length in enumerate((5, 40)):
        assert torch.equal(k_cache[b, length : length + 3].view(torch.uint8), k[b].view(torch.uint8))
        assert torch.equal(v_cache[b, length : length + 3].view(torch.uint8), v[b].view(torch.uint8))
    again = flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths + 3, causal=True, **given)
    assert torch.equal(appended, again)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_fp8_where_attention_refuses_it(monkeypatch, name):
    """As on GPUs other than Hopper's: the keys are a cache then. Of the descales one alone is given."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, rows, 2, 32).to(torch.float8_e4m3fn) for rows in (3, 40, 40))
    descale = {name: torch.rand(2, 2) + 0.5}
    expected = flash_attn_3.flash_attn_func(q, k, v, window_size=(5, 0), **descale)

    def refuse(*_):
        raise NotImplementedError("no implementation accepts it")

    monkeypatch.setattr(_attention._attend, "run", refuse)
    out = flash_attn_3.flash_attn_func(q, k, v, window_size=(5, 0), **descale)
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=1e-2)


def test_packed_fp8():
    """[batch, heads] descales of packed sequences, each as the dense call on that sequence alone."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(rows, heads, 32).to(torch.float8_e4m3fn) for rows, heads in ((25, 4), (44, 2), (44, 2)))
    starts_q, starts_k = torch.tensor([0, 9, 25], dtype=torch.int32), torch.tensor([0, 14, 44], dtype=torch.int32)
    descales = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    out = flash_attn_3.flash_attn_varlen_func(
        q, k, v, starts_q, starts_k, 16, 30, None, None, None, True, None, *descales
    )
    assert out.dtype == torch.bfloat16
    for b in range(2):
        rows, keys = slice(starts_q[b], starts_q[b + 1]), slice(starts_k[b], starts_k[b + 1])
        one = [descale[b : b + 1] for descale in descales]
        expected = flash_attn_3.flash_attn_func(q[None, rows], k[None, keys], v[None, keys], None, True, None, *one)
        torch.testing.assert_close(out[rows], expected[0], rtol=3e-2, atol=2e-2)


@pytest.mark.parametrize("paged", [False, True])
def test_latent_caches(paged):
    """qv on k_cache and v_cache that are views of one [latent | rope] tensor: scores are sums over both parts."""
    torch.manual_seed(0)
    cache = torch.randn(4, 16, 1, 64 + 16).to(torch.bfloat16) if paged else torch.randn(2, 32, 1, 80).to(torch.bfloat16)
    table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32) if paged else None
    latent, rope = cache[..., :64], cache[..., 64:]
    q, qv = torch.randn(2, 2, 8, 16).to(torch.bfloat16), torch.randn(2, 2, 8, 64).to(torch.bfloat16)
    k, v = torch.randn(2, 2, 1, 16).to(torch.bfloat16), torch.randn(2, 2, 1, 64).to(torch.bfloat16)
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(
        q, rope, latent, k, v, qv, cache_seqlens=20, page_table=table, causal=True, return_softmax_lse=True
    )
    rows = cache[table.long()].flatten(1, 2) if table is not None else cache
    assert torch.equal(rows[:, 20:22], torch.cat([v, k], -1))
    keys, queries = rows[:, :22].double(), torch.cat([qv, q], -1).double()
    exact, exact_lse = dense(Call(mask="causal", softmax_scale=80**-0.5), queries, keys, keys[..., :64])
    torch.testing.assert_close(out.double(), exact, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-3, atol=1e-3)
    if not paged:
        whole = flash_attn_3.flash_attn_func(q, rope[:, :22], latent[:, :22], causal=True, qv=qv)
        assert torch.equal(whole, flash_attn_3.flash_attn_with_kvcache(q, rope, latent, qv=qv, cache_seqlens=22,
                                                                       causal=True))  # fmt: skip


# --- refusals ---


def test_refusals(monkeypatch):
    q, k, v = (tensor.detach() for tensor in _qkv())
    starts = torch.tensor([0, 20, 40], dtype=torch.int32), torch.tensor([0, 30, 60], dtype=torch.int32)
    rows = [tensor.flatten(0, 1) for tensor in (q, k, v)]
    calls = [
        lambda **options: flash_attn_3.flash_attn_func(q, k, v, **options),
        lambda **options: flash_attn_3.flash_attn_varlen_func(*rows, *starts, 20, 30, **options),
        lambda **options: flash_attn_3.flash_attn_with_kvcache(q, k, v, **options),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError, match=r"attention_chunk: must be 0, .* \(got 128\)"):
            call(attention_chunk=128)
        with pytest.raises(NotImplementedError, match="qv: must"):
            call(qv=q)
        with pytest.raises(TypeError):
            call(dropout_p=0.1)
    monkeypatch.setenv("TILEWISE_FLASH_ATTN_STRICT", "1")
    with pytest.raises(RuntimeError, match="only supports fp16, bf16, and fp8_e4m3"):
        flash_attn_3.flash_attn_func(q.float(), k.float(), v.float())
    with pytest.raises(RuntimeError, match="query and key must have the same dtype"):
        flash_attn_3.flash_attn_func(q, k.half(), v)
    with pytest.raises(RuntimeError, match="head dimension at most 256"):
        flash_attn_3.flash_attn_func(*(torch.ones(1, 2, 2, 264, dtype=torch.bfloat16) for _ in range(3)))
    with pytest.raises(AssertionError, match="v_cache must have contiguous last dimension"):
        flash_attn_3.flash_attn_with_kvcache(q, k, v.mT)
    leaf = q.clone().requires_grad_()
    out = flash_attn_3.flash_attn_func(leaf, *(tensor.to(torch.float8_e4m3fn) for tensor in (k, v)))
    with pytest.raises(NotImplementedError, match="there is no backward pass with fp8 or qv"):
        out.sum().backward()


def test_rows_that_see_nothing_are_minus_infinity():
    q, k, v = _qkv(sq=10, sk=4)
    _, lse = flash_attn_3.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(lse == -math.inf, torch.arange(10).expand(2, 4, 10) < 6)
