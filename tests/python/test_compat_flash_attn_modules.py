# What stands around the functions of tilewise.compat.flash_attn: signatures, refusals in flash_attn's words, the
# operators of torch.library, the raw passes and helper modules.
"""flash_attn's other names."""

import inspect
import math

import pytest
import torch

import tilewise.compat.flash_attn as flash_attn
from tilewise.compat.flash_attn import bert_padding, flash_attn_interface
from tilewise.compat.flash_attn.flash_attn_interface import flash_attn_gpu
from tilewise.compat.flash_attn.layers.rotary import apply_rotary_emb

_OPTIONS = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)
_PACKED = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {_OPTIONS}",
    "flash_attn_qkvpacked_func": f"qkv, {_OPTIONS}",
    "flash_attn_kvpacked_func": f"q, kv, {_OPTIONS}",
    "flash_attn_varlen_func": f"q, k, v, {_PACKED}, {_OPTIONS}, block_table=None",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {_OPTIONS}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {_PACKED}, {_OPTIONS}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    assert ", ".join(map(str, plain)) == SIGNATURES[name]
    assert getattr(flash_attn_interface, name) is getattr(flash_attn, name)


def test_version():
    assert flash_attn.__version__ == "2.8.4"
    assert flash_attn_interface.USE_TRITON_ROCM is False


# --- refusals ---


def _tensors(*heads, dim=32, dtype=torch.bfloat16, batch=2):
    return [torch.ones(batch, 5, count, dim, dtype=dtype) for count in heads or (4, 4, 4)]


REFUSED = {
    "mixed_k": ([*_tensors(4), *_tensors(4, 4, dtype=torch.float16)], {}, "query and key must have the same dtype"),
    "mixed_v": ([*_tensors(4, 4), *_tensors(4, dtype=torch.float16)], {}, "query and value must have the same dtype"),
    "heads": (_tensors(4, 3, 3), {}, "Number of heads in key/value must divide number of heads in query"),
    "shape": ([*_tensors(4, 4), *_tensors(2)], {}, "v must have shape"),
    "shape_q": ([*_tensors(4, batch=3), *_tensors(4, 4)], {}, "k must have shape"),
    "dropout": (_tensors(), {"dropout_p": 1.0}, "p_dropout < 1.f"),
    "slopes": (_tensors(), {"alibi_slopes": torch.ones(3)}, "alibi_slopes must have shape"),
    "slopes_f16": (_tensors(), {"alibi_slopes": torch.ones(4).half()}, "ALiBi slopes must have dtype fp32"),
}


# What only flash_attn's kernels ask for.
LIMITS = {
    "fp32": (_tensors(dtype=torch.float32), {}, "FlashAttention only support fp16 and bf16 data type"),
    "head_dim": (_tensors(dim=264), {}, "only supports head dimension at most 256"),
    "no_batch": (_tensors(batch=0), {}, "batch size must be positive"),
    "head_dim_v": ([*_tensors(4, 4), *_tensors(4, dim=16)], {}, "v must have shape"),
    "softcap": (_tensors(), {"softcap": 1.0, "dropout_p": 0.1}, "Softcapping does not support dropout for now"),
}


@pytest.mark.parametrize("name", [*REFUSED, *LIMITS])
def test_refusals_in_their_words(name, monkeypatch):
    if name in LIMITS:
        monkeypatch.setenv("TILEWISE_FLASH_ATTN_STRICT", "1")
    tensors, options, words = {**REFUSED, **LIMITS}[name]
    with pytest.raises(RuntimeError, match=words):
        flash_attn.flash_attn_func(*tensors, **options)
    if name not in ("no_batch", "shape_q"):
        starts = torch.tensor([0, 5, 10], dtype=torch.int32)
        rows = [tensor.flatten(0, 1) for tensor in tensors]
        with pytest.raises(RuntimeError, match=words):
            flash_attn.flash_attn_varlen_func(*rows, starts, starts, 5, 5, **options)


def test_refusals_of_packed_sequences(monkeypatch):
    rows = [tensor.flatten(0, 1) for tensor in _tensors()]
    starts = torch.tensor([0, 5, 10], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="cu_seqlens_q must have dtype int32"):
        flash_attn.flash_attn_varlen_func(*rows, starts.long(), starts, 5, 5)
    with pytest.raises(RuntimeError, match="cu_seqlens_k must be contiguous"):
        flash_attn.flash_attn_varlen_func(*rows, starts, starts.repeat_interleave(2)[::2], 5, 5, softcap=1.0)
    with pytest.raises(RuntimeError, match="cu_seqlens_k must have shape"):
        flash_attn.flash_attn_varlen_func(*rows, starts, starts[:2], 5, 5)
    monkeypatch.setenv("TILEWISE_FLASH_ATTN_STRICT", "1")
    pages = [torch.ones(3, 256, 4, 32, dtype=torch.bfloat16)] * 2
    table = torch.zeros(2, 1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="num_splits > 1 is not supported"):
        flash_attn_interface._flash_attn_varlen_forward(
            rows[0], *pages, starts, starts, 5, 5, 0.0, 0.1, False, block_table=table, num_splits=2
        )
    with pytest.raises(RuntimeError, match="block size must be divisible by 256"):
        flash_attn.flash_attn_varlen_func(rows[0], *(page[:, :16] for page in pages), starts, starts, 5, 5,
                                          block_table=table)  # fmt: skip


def test_other_refusals():
    q, k, v = _tensors()
    with pytest.raises(TypeError, match="window"):
        flash_attn.flash_attn_func(q, k, v, window=(3, 3))
    for wrong in ((q.tolist(), k, v), (q, [1.0], v), (q, k, None)):
        with pytest.raises(TypeError, match="q, k and v: must be torch tensors"):
            flash_attn.flash_attn_func(*wrong)
    with pytest.raises(RuntimeError, match="q must have 4 dimensions"):
        flash_attn.flash_attn_func(q[0], k[0], v[0])
    with pytest.raises(RuntimeError, match=r"qkv must have shape \(\.\.\., 3, num_heads, head_dim\)"):
        flash_attn.flash_attn_qkvpacked_func(torch.stack([q, k], 2))
    with pytest.raises(RuntimeError, match=r"^kv must have shape"):
        flash_attn.flash_attn_varlen_kvpacked_func(q[0], k[0], *[torch.tensor([0, 5], dtype=torch.int32)] * 2, 5, 5)
    with pytest.raises(NotImplementedError, match="alibi_slopes: has no gradient"):
        flash_attn.flash_attn_func(q, k, v, alibi_slopes=torch.ones(4, requires_grad=True))
    meta = torch.empty(2, 5, 4, 32, dtype=torch.bfloat16, device="meta")
    with pytest.raises((RuntimeError, TypeError), match=r"k.* must be on"):
        flash_attn.flash_attn_func(q, meta, v)


# --- operators and raw passes ---

SCORES = (0.0, 0.2, True, 6, -1, 0.0)


def _leaves():
    torch.manual_seed(0)
    return [torch.randn(2, 12, 4, 16).to(torch.bfloat16).requires_grad_() for _ in range(3)]


def test_operators_under_torchs_checks():
    q, k, v = _leaves()
    forward = torch.ops.flash_attn._flash_attn_forward.default
    torch.library.opcheck(forward, (q, k, v, *SCORES, None, False))
    out, lse, _, state = forward(q.detach(), k.detach(), v.detach(), *SCORES, None, False)
    tensors = [tensor.detach() for tensor in (q, k, v, out, lse)]
    gradients = [torch.empty_like(q.detach()) for _ in range(3)]
    operands = (torch.randn_like(out), *tensors, *gradients, *SCORES, None, False, state)
    torch.library.opcheck(torch.ops.flash_attn._flash_attn_backward.default, operands)


def test_packed_operators_under_torchs_checks():
    starts = torch.tensor([0, 12, 20], dtype=torch.int32)
    q, k, v = (tensor.detach().flatten(0, 1).requires_grad_() for tensor in _leaves())
    forward = torch.ops.flash_attn._flash_attn_varlen_forward.default
    torch.library.opcheck(forward, (q, k, v, starts, starts, 12, 12, *SCORES))
    out, lse, _, state = forward(q.detach(), k.detach(), v.detach(), starts, starts, 12, 12, *SCORES)
    tensors = [tensor.detach() for tensor in (q, k, v, out, lse)]
    gradients = [torch.zeros_like(q.detach()) for _ in range(3)]
    operands = (torch.randn_like(out), *tensors, *gradients, starts, starts, 12, 12, *SCORES, None, False, state)
    torch.library.opcheck(torch.ops.flash_attn._flash_attn_varlen_backward.default, operands)


@pytest.mark.parametrize(
    "options", [{}, {"dropout_p": 0.3}, {"alibi": True}, {"alibi": True, "window": (5, 0)}], ids=str
)
@pytest.mark.parametrize("packed", [False, True])
def test_raw_passes_are_the_functions(packed, options):
    """out, softmax_lse and gradients of the four operators are those of the functions, bit for bit; but gradients with
    ALiBi and no window within an ulp, as the log-sum-exp then lacks a row's constant on its way out and gets it back,
    rounded, on its way in."""
    q, k, v = _leaves()
    p, window = options.get("dropout_p", 0.0), options.get("window", (-1, -1))
    slopes = torch.rand(2, 4) if "alibi" in options else None
    function, extra, name = flash_attn.flash_attn_func, (), ""
    if packed:
        starts = torch.tensor([0, 12, 24], dtype=torch.int32)
        q, k, v = (tensor.detach().flatten(0, 1).requires_grad_() for tensor in (q, k, v))
        function, extra, name = flash_attn.flash_attn_varlen_func, (starts, starts, 12, 12), "varlen_"
    torch.manual_seed(2)
    out, lse, weights = function(
        q, k, v, *extra, p, 0.2, True, window, alibi_slopes=slopes, deterministic=True, return_attn_probs=True
    )
    dout = torch.randn(out.shape).to(out.dtype)
    expected = torch.autograd.grad(out, (q, k, v), dout)
    scores = (p, 0.2, True, *window, 0.0)
    torch.manual_seed(2)
    forward = getattr(flash_attn_interface, f"_flash_attn_{name}forward")
    raw_out, raw_lse, raw_weights, state = forward(q, k, v, *extra, *scores, slopes, p > 0)
    assert torch.equal(raw_out, out)
    assert torch.equal(raw_lse, lse)
    assert torch.equal(raw_weights, weights)
    tolerance = torch.finfo(q.dtype).eps if "alibi" in options and "window" not in options else 0.0
    for actual, want in zip(torch.autograd.grad(raw_out, (q, k, v), dout), expected):
        torch.testing.assert_close(actual, want, rtol=tolerance, atol=tolerance / 8)
    operands = dout, *(tensor.detach() for tensor in (q, k, v, out, lse))
    together = torch.zeros(*q.shape[:-2], 3, *q.shape[-2:], dtype=q.dtype)
    backward = getattr(flash_attn_interface, f"_flash_attn_{name}backward")
    sums = backward(*operands, *together.unbind(-3), *extra, *scores, slopes, True, state)
    for actual, want in zip(together.unbind(-3), expected):
        torch.testing.assert_close(actual, want, rtol=tolerance, atol=tolerance / 8)
    wanted = (dout.float() * out.float()).sum(-1)
    if packed:
        assert sums.shape == (4, 24 + 256)
        assert torch.equal(sums[:, :12], wanted[:12].T)
        assert torch.equal(sums[:, 128:140], wanted[12:].T)
    else:
        assert torch.equal(sums[..., :12], wanted.transpose(1, 2))


def test_raw_outputs_that_are_given():
    q, k, v = (tensor.detach() for tensor in _leaves())
    out = torch.empty_like(q)
    result, _, weights, state = flash_attn_gpu.fwd(q, k, v, out, None, 0.0, 0.25, False, -1, -1, 0.0, False, None)
    assert result is out
    assert torch.equal(out, flash_attn.flash_attn_func(q, k, v))
    assert (weights.numel(), state.shape) == (0, (2,))
    with pytest.raises(RuntimeError, match=r"return_softmax is only supported when p_dropout > 0\.0"):
        flash_attn_gpu.fwd(q, k, v, None, None, 0.0, 0.25, False, -1, -1, 0.0, True, None)
    cache = flash_attn_gpu.fwd_kvcache(q[:, :1], k, v, *[None] * 10, 0.25, False, -1, -1, 0.0, True, 0)
    assert torch.equal(cache[0], flash_attn.flash_attn_with_kvcache(q[:, :1], k, v))


def test_zero_tensors_and_used_lengths():
    """seqused_k counts from the sequence's start, left padding included; rows of no sequence are 0 and -inf."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(26, 2, 16).to(torch.bfloat16) for _ in range(3))
    starts = torch.tensor([0, 12, 24], dtype=torch.int32)
    used, leftpad = torch.tensor([9, 12], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
    out, lse, *_ = flash_attn_gpu.varlen_fwd(
        q, k, v, torch.full_like(q, 7.0), starts, starts, used, leftpad, None, None, 12, 12, 0.0, 0.25, True, False,
        -1, -1, 0.0, False, None,
    )  # fmt: skip
    assert not out[24:].any()
    assert (lse[:, 24:] == -math.inf).all()
    expected = flash_attn.flash_attn_func(q[None, :12], k[None, 2:9], v[None, 2:9])[0]
    torch.testing.assert_close(out[:12], expected)


# --- helper modules ---


def test_padding_there_and_back():
    torch.manual_seed(0)
    states = torch.randn(3, 7, 2, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(7) < torch.tensor([[7], [2], [4]])
    rows, indices, starts, longest, used = bert_padding.unpad_input(states, mask)
    assert torch.equal(rows, states[mask])
    assert (starts.tolist(), starts.dtype, longest, used.tolist()) == ([0, 7, 9, 13], torch.int32, 7, [7, 2, 4])
    assert torch.equal(bert_padding.pad_input(rows, indices, 3, 7), states * mask[..., None, None])
    assert torch.autograd.gradcheck(lambda x: bert_padding.pad_input(x[indices], indices, 3, 7), states.flatten(0, 1))
    unused = torch.zeros(3, 7, dtype=torch.bool)
    unused[1, 2] = True
    rows, _, starts, _, used = bert_padding.unpad_input(states, mask, unused)
    assert (starts.tolist(), used.tolist(), len(rows)) == ([0, 7, 10, 14], [7, 2, 4], 14)
    first, both = bert_padding.index_first_axis_residual(states.flatten(0, 1), indices)
    assert torch.equal(first, both[indices])


def test_sequences_within_rows():
    states = torch.arange(18.0).view(3, 6, 1)
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    rows, indices, starts, longest = bert_padding.unpad_input_for_concatenated_sequences(states, lengths)
    assert indices.tolist() == [*range(5), *range(6, 11), *range(12, 18)]
    assert torch.equal(rows, states.flatten(0, 1)[indices])
    assert (starts.tolist(), longest) == ([0, 2, 5, 8, 10, 16], 6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, torch.tensor([1, 4])], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_rotary(interleaved, offsets, packed):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 3, 16, requires_grad=True)
    angles = torch.rand(12, 5)
    starts = torch.tensor([0, 6, 12], dtype=torch.int32) if packed else None
    given = x.flatten(0, 1) if packed else x
    out = apply_rotary_emb(given, angles.cos(), angles.sin(), interleaved, False, offsets, starts, 6)
    at = torch.arange(6) + (offsets[:, None] if isinstance(offsets, torch.Tensor) else torch.full((2, 1), offsets))
    first, second = (x[..., 0:10:2], x[..., 1:10:2]) if interleaved else (x[..., :5], x[..., 5:10])
    turned = torch.complex(first, second) * torch.exp(1j * angles[at])[:, :, None]
    parts = torch.stack([turned.real, turned.imag], -1).flatten(-2) if interleaved else None
    expected = torch.cat([turned.real, turned.imag] if parts is None else [parts], -1)
    expected = torch.cat([expected, x[..., 10:]], -1).reshape(out.shape)
    torch.testing.assert_close(out, expected)
    dout = torch.randn_like(out)
    actual, want = (torch.autograd.grad(result, x, dout, retain_graph=True)[0] for result in (out, expected))
    torch.testing.assert_close(actual, want)
    inplace = given.detach().clone()
    assert apply_rotary_emb(inplace, angles.cos(), angles.sin(), interleaved, True, offsets, starts, 6) is inplace
    assert torch.equal(inplace, out)
    leaf = given.detach().clone().requires_grad_()
    written = apply_rotary_emb(leaf, angles.cos(), angles.sin(), interleaved, True, offsets, starts, 6)
    assert torch.equal(leaf, out)
    (of_leaf,) = torch.autograd.grad(written, leaf, dout)
    assert torch.equal(of_leaf.reshape(x.shape), actual)


def test_rotary_refusals():
    x, table = torch.ones(1, 4, 1, 8), torch.ones(4, 4)
    with pytest.raises(AssertionError, match="rotary_dim must be <= headdim"):
        apply_rotary_emb(x, torch.ones(4, 5), torch.ones(4, 5))
    with pytest.raises(AssertionError, match="seqlen_ro must be >= seqlen"):
        apply_rotary_emb(x, table[:3], table[:3])
    with pytest.raises(AssertionError, match="sin: must have the shape of cos"):
        apply_rotary_emb(x, table, table[:3])
    with pytest.raises(AssertionError, match="max_seqlen must be passed"):
        apply_rotary_emb(x[0], table, table, cu_seqlens=torch.tensor([0, 4]))
