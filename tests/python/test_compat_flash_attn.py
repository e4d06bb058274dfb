# tilewise.compat.flash_attn's attention functions: all pairs of their arguments against float64 formulas, and
# flash_attn's conventions one by one.
"""flash_attn_func, its packed forms and its forms for packed sequences."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from flash_attn_cases import CASES, check

import tilewise
import tilewise.compat.flash_attn as flash_attn
from tilewise.compat.flash_attn.flash_attn_interface import _get_block_size_n


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_of_arguments(case):
    check(flash_attn, case)


def _qkv(*shape, heads_k=None, dtype=torch.bfloat16, seed=0):
    torch.manual_seed(seed)
    batch, sq, sk, heads, dim = shape
    heads_k = heads_k or heads
    shapes = (batch, sq, heads, dim), (batch, sk, heads_k, dim), (batch, sk, heads_k, dim)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


# --- windows and the log-sum-exp ---


@pytest.mark.parametrize("window", [(200, 200), (100, -1), (-1, 150)])
def test_sides_of_the_whole_length_are_cleared(window):
    """seqlen_q > seqlen_k: as a window these would hide keys from the first rows; flash_attn has none then."""
    q, k, v = _qkv(2, 250, 100, 2, 16)
    assert torch.equal(flash_attn.flash_attn_func(q, k, v, window_size=window), flash_attn.flash_attn_func(q, k, v))


def test_causal_clears_the_right_side():
    q, k, v = _qkv(2, 30, 30, 2, 16)
    window = flash_attn.flash_attn_func(q, k, v, causal=True, window_size=(5, 9))
    assert torch.equal(window, tilewise.attention(q, k, v, mask="causal", window=(5, -1)))


def test_rows_that_see_nothing():
    q, k, v = _qkv(2, 10, 4, 2, 16)
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(lse == math.inf, torch.arange(10).expand(2, 2, 10) < 6)
    assert not out[:, :6].any()
    gradients = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][:, :6].any()


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
def test_no_keys(dropout_p):
    q, k, v = _qkv(2, 3, 0, 2, 16)
    out, lse, weights = flash_attn.flash_attn_func(q, k, v, dropout_p, return_attn_probs=True)
    assert not out.any()
    assert (lse == math.inf).all()
    assert weights.shape == ((2, 2, 128, 0) if dropout_p > 0 else (0,))


def test_gradient_of_the_log_sum_exp():
    """flash_attn drops it without a word; here it counts, so that a loss on it trains."""
    q, k, v = _qkv(1, 9, 9, 2, 16)
    _, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, softcap=0.0, return_attn_probs=True)
    _, expected = tilewise.attention(q, k, v, mask="causal", return_lse=True)
    for actual, want in zip(torch.autograd.grad(lse.sum(), (q, k)), torch.autograd.grad(expected.sum(), (q, k))):
        assert torch.equal(actual, want)


# --- dropout ---


def _with_seed(seed, *arguments, **options):
    torch.manual_seed(seed)
    out, lse, weights = flash_attn.flash_attn_func(*arguments, return_attn_probs=True, **options)
    return out, lse, weights, torch.autograd.grad(out, arguments[:3], torch.ones_like(out))


def test_seed_of_dropout():
    q, k, v = _qkv(2, 33, 40, 4, 32, heads_k=2)
    first, again, other = (_with_seed(seed, q, k, v, 0.3) for seed in (3, 3, 4))
    for actual, expected in zip((*first[:3], *first[3]), (*again[:3], *again[3])):
        assert torch.equal(actual, expected)
    assert not torch.equal(first[0], other[0])


def test_dropout_advances_the_generator():
    q, k, v = _qkv(2, 33, 40, 4, 32)
    torch.manual_seed(3)
    first, second = (flash_attn.flash_attn_func(q, k, v, 0.3) for _ in range(2))
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    flash_attn.flash_attn_func(q, k, v)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_s_dmask(causal, packed):
    """|S_dmask| is the softmax but for a factor of each row, its sign what was dropped: out follows from it."""
    q, k, v = _qkv(2, 70, 300, 4, 32, heads_k=2, dtype=torch.float16)
    if packed:
        starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (70, 300)]
        rows = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        out, lse, weights = flash_attn.flash_attn_varlen_func(
            *rows, *starts, 70, 300, 0.25, causal=causal, return_attn_probs=True
        )
        out, lse = out.unflatten(0, (2, 70)), lse.unflatten(1, (2, 70)).transpose(0, 1)
    else:
        out, lse, weights = flash_attn.flash_attn_func(q, k, v, 0.25, causal=causal, return_attn_probs=True)
    assert weights.shape == (2, 4, 128, 384)
    assert not weights[:, :, 70:].any()
    assert not weights[..., 300:].any()
    weights = weights[:, :, :70, :300].float()
    keys, values = (tensor.float().repeat_interleave(2, dim=2) for tensor in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q.float(), keys) / math.sqrt(32)
    if causal:
        scores = scores.masked_fill(~torch.ones(70, 300, dtype=torch.bool).tril(230), -math.inf)
    softmax = scores.softmax(-1)
    torch.testing.assert_close(weights.abs() * softmax.amax(-1, keepdim=True), softmax, rtol=1e-2, atol=1e-3)
    kept = softmax.masked_fill(weights.signbit(), 0.0) / 0.75
    assert 0.2 < (weights.signbit() & (softmax > 0)).float().sum() / (softmax > 0).sum() < 0.3
    torch.testing.assert_close(torch.einsum("bhij,bjhd->bihd", kept, values), out.float(), rtol=1e-2, atol=5e-3)
    assert _get_block_size_n(q.device, 32, True, causal) >= 300  # one maximum for a row


def test_s_dmask_in_bytes(monkeypatch):
    q, k, v = _qkv(2, 20, 37, 4, 32)
    torch.manual_seed(1)
    *_, signs = flash_attn.flash_attn_func(q, k, v, 0.17, return_attn_probs=True)
    monkeypatch.setenv("TILEWISE_FLASH_ATTN_DMASK", "rocm")
    torch.manual_seed(1)
    *_, drawn = flash_attn.flash_attn_func(q, k, v, 0.17, return_attn_probs=True)
    assert (drawn.dtype, drawn.shape) == (torch.uint8, (2, 4, 20, 37))
    dropped = drawn > math.floor(255 * (1 - 0.17))
    assert torch.equal(dropped, signs[:, :, :20, :37].signbit())
    starts = torch.tensor([0, 12, 20], dtype=torch.int32), torch.tensor([0, 30, 37], dtype=torch.int32)
    torch.manual_seed(1)
    *_, packed = flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], *starts, 12, 30, 0.17, return_attn_probs=True)
    assert packed.shape == (4, 20, 30)
    assert torch.equal(packed[:, :12], drawn[0, :, :12, :30])  # the same draws: sequence 0 begins alike
    monkeypatch.setenv("TILEWISE_FLASH_ATTN_DMASK", "cuda")
    with pytest.raises(ValueError, match="TILEWISE_FLASH_ATTN_DMASK: must be empty or rocm"):
        flash_attn.flash_attn_func(q, k, v, 0.17, return_attn_probs=True)


# --- forms of tensors, modes of torch ---


def test_views_of_packed_tensors():
    """qkv[:, :, 0] and gradients written into one tensor: the packed form and its views agree bit for bit."""
    torch.manual_seed(0)
    qkv = torch.randn(2, 50, 3, 4, 32).to(torch.bfloat16).requires_grad_()
    out = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True)
    views = flash_attn.flash_attn_func(*qkv.unbind(2), causal=True)
    assert torch.equal(out, views)
    dout = torch.randn(50, 2, 4, 32).to(torch.bfloat16).transpose(0, 1)
    (packed,), (single,) = (torch.autograd.grad(result, qkv, dout) for result in (out, views))
    assert torch.equal(packed, single)


def test_rows_that_are_not_contiguous():
    q, k, v = (tensor.detach().mT.contiguous().mT.requires_grad_() for tensor in _qkv(2, 30, 40, 2, 16))
    copies = [tensor.detach().contiguous().requires_grad_() for tensor in (q, k, v)]
    out, expected = (flash_attn.flash_attn_func(*tensors, softcap=2.0) for tensors in ((q, k, v), copies))
    assert torch.equal(out, expected)
    dout = torch.ones(()).to(out.dtype).expand_as(out)
    for actual, want in zip(torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(expected, copies, dout)):
        assert torch.equal(actual, want)


@pytest.mark.parametrize("form", ["kv_only", "q_only"])
def test_gradients_of_some_inputs(form):
    torch.manual_seed(0)
    q, kv = torch.randn(2, 20, 4, 32).to(torch.bfloat16), torch.randn(2, 30, 2, 2, 32).to(torch.bfloat16)
    wanted = (kv if form == "kv_only" else q).requires_grad_()
    out = flash_attn.flash_attn_kvpacked_func(q, kv)
    expected = flash_attn.flash_attn_func(q, *kv.unbind(2))
    (actual,), (want,) = (torch.autograd.grad(result.sum(), wanted) for result in (out, expected))
    assert torch.equal(actual, want)


def test_empty_sequences_leave_no_nan():
    """The batch of one-key sequences, and rows of no sequence behind the last: their gradients are exactly 0."""
    torch.manual_seed(0)
    qkv = torch.randn(260, 3, 2, 16).to(torch.float16).requires_grad_()
    starts_q = torch.tensor([0, 76, 76, 250], dtype=torch.int32)
    starts_k = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    q, kv = qkv[:, 0], qkv[:, 1:]
    out = flash_attn.flash_attn_varlen_kvpacked_func(q, kv, starts_q, starts_k, 260, 3, causal=True)
    (gradient,) = torch.autograd.grad(out, qkv, torch.randn_like(out))
    assert torch.isfinite(gradient).all()
    assert not gradient[250:].any()
    assert not gradient[3:, 1:].any()
    assert not gradient[1, 1:].any()  # the key of the sequence without queries
    assert gradient[[0, 2], 1:].any()
    stacked = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts_q, 174)
    (gradient,) = torch.autograd.grad(stacked, qkv, torch.randn_like(out))
    assert not gradient[250:].any()


@pytest.mark.parametrize("dropout_p", [0.0, 0.17])
def test_forward_under_load(dropout_p):
    """250 runs agree bit for bit while other threads compute too."""
    q, k, v = (tensor.detach() for tensor in _qkv(4, 33, 70, 4, 32, heads_k=2))
    first = _with_seed_only(42, q, k, v, dropout_p)
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(lambda: [tilewise.attention(q, k, v, mask="causal") for _ in range(250)]) for _ in range(2)]
        for _ in range(250):
            again = _with_seed_only(42, q, k, v, dropout_p)
            assert all(torch.equal(a, b) for a, b in zip(first, again))
        for future in busy:
            future.result()


def _with_seed_only(seed, *arguments):
    torch.manual_seed(seed)
    return flash_attn.flash_attn_func(*arguments, causal=True, return_attn_probs=True)[:2]


def test_deterministic_gradients():
    q, k, v = _qkv(2, 65, 130, 4, 32, heads_k=2)
    out = flash_attn.flash_attn_func(q, k, v, causal=True, deterministic=True)
    dout = torch.randn_like(out)
    first, *others = (torch.autograd.grad(out, (q, k, v), dout, retain_graph=True) for _ in range(50))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other))


def test_autocast_changes_nothing():
    """flash_attn's operators are none of autocast's list: fp32 stays fp32, and bf16 stays bf16."""
    q, k, v = _qkv(2, 30, 40, 2, 16)
    expected = flash_attn.flash_attn_func(q, k, v, softcap=2.0)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(flash_attn.flash_attn_func(q, k, v, softcap=2.0), expected)
        wide = flash_attn.flash_attn_func(q.float(), k.float(), v.float(), softcap=2.0)
    assert torch.equal(wide, flash_attn.flash_attn_func(q.float(), k.float(), v.float(), softcap=2.0))


@pytest.mark.parametrize("options", [{}, {"window_size": (5, 5), "return_attn_probs": True}], ids=["plain", "window"])
def test_torch_compile(options):
    tensors = _qkv(2, 30, 40, 2, 16)
    compiled = torch.compile(flash_attn.flash_attn_func, backend="aot_eager", fullgraph=True)
    results = [function(*tensors, causal=True, **options) for function in (flash_attn.flash_attn_func, compiled)]
    outs = [result[0] if options else result for result in results]
    assert torch.equal(*outs)
    gradients = [torch.autograd.grad(out.float().sum(), tensors) for out in outs]
    assert all(torch.equal(a, b) for a, b in zip(*gradients))
    torch._dynamo.reset()


def test_functorch():
    q, k, v = (tensor.detach() for tensor in _qkv(2, 9, 9, 2, 16))
    gradient = torch.func.grad(lambda x: flash_attn.flash_attn_func(x, k, v, causal=True).float().sum())(q)
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(flash_attn.flash_attn_func(leaf, k, v, causal=True).float().sum(), leaf)
    assert torch.equal(gradient, expected)
