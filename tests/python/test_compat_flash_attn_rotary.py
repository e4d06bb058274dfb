# tilewise.compat.flash_attn.layers.rotary and ops.triton.rotary against rotations of complex numbers: values,
# gradients, in place and not, and what tables must have.
"""Rotary embedding."""

import math

import pytest
import torch

from tilewise.compat.flash_attn.layers import rotary
from tilewise.compat.flash_attn.ops.triton.rotary import apply_rotary


def _turned(x, angles, interleaved, factor=1.0):
    """x [..., heads, dim] turned by angles [..., dim of tables], in float64."""
    dim = angles.shape[-1]
    part = x.double()
    first, second = (
        (part[..., 0 : 2 * dim : 2], part[..., 1 : 2 * dim : 2])
        if interleaved
        else (part[..., :dim], part[..., dim : 2 * dim])
    )
    turned = torch.complex(first, second) * torch.exp(1j * angles.double())[..., None, :] * factor
    pairs = (
        torch.stack([turned.real, turned.imag], -1).flatten(-2)
        if interleaved
        else torch.cat([turned.real, turned.imag], -1)
    )
    return torch.cat([pairs, part[..., 2 * dim :]], -1)


def _tables(rows=20, dim=4):
    angles = torch.rand(rows, dim, dtype=torch.float64) * 2 * math.pi
    return angles, angles.cos().float(), angles.sin().float()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0, 7, torch.tensor([3, 11])], ids=str)
@pytest.mark.parametrize("form", ["five", "four"])
def test_qkv_in_place(interleaved, offset, form):
    torch.manual_seed(0)
    angles, cos, sin = _tables()
    k_angles, cos_k, sin_k = _tables()
    qkv = torch.randn(2, 5, 3, 2, 10) if form == "five" else torch.randn(2, 5, 6, 10)
    heads = None if form == "five" else 4
    at = torch.arange(5) + (offset[:, None] if isinstance(offset, torch.Tensor) else torch.full((2, 1), offset))
    q, k, v = qkv.unbind(2) if form == "five" else qkv.split([4, 1, 1], 2)
    want_q, want_k = _turned(q, angles[at], interleaved), _turned(k, k_angles[at], interleaved)
    want = torch.stack([want_q, want_k, v.double()], 2) if form == "five" else torch.cat([want_q, want_k, v], 2)
    leaf = qkv.clone().requires_grad_()
    given = leaf * 1
    out = rotary.apply_rotary_emb_qkv_(given, cos, sin, cos_k, sin_k, interleaved, offset, heads)
    assert out is given
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)
    dout = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, leaf, dout)
    # The transposed rotation is the one by the opposite angle.
    back = dout.clone()
    rotary.apply_rotary_emb_qkv_(back, cos, -sin, cos_k, -sin_k, interleaved, offset, heads)
    torch.testing.assert_close(gradient, back)


@pytest.mark.parametrize("interleaved", [False, True])
def test_kv_in_place(interleaved):
    torch.manual_seed(0)
    angles, cos, sin = _tables()
    kv = torch.randn(2, 5, 2, 3, 8)
    want = torch.stack([_turned(kv[:, :, 0], angles[2:7], interleaved), kv[:, :, 1].double()], 2)
    out = rotary.apply_rotary_emb_kv_(kv, cos, sin, interleaved, 2)
    assert out is kv
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def test_in_place_where_autograd_forbids_it():
    """Leaves and views of several outputs are written all the same, and what is returned has the right gradient."""
    torch.manual_seed(0)
    _, cos, sin = _tables(5)
    leaf = torch.randn(2, 5, 3, 2, 8, requires_grad=True)
    views = (leaf * 1).unbind(2)
    expected = rotary.apply_rotary_emb(views[0], cos, sin)
    dout = torch.randn_like(expected)
    (want,) = torch.autograd.grad(expected, leaf, dout, retain_graph=True)
    written = rotary.apply_rotary_emb(views[0], cos, sin, inplace=True)
    assert torch.equal(views[0], expected)
    assert torch.equal(written, expected)
    assert torch.equal(torch.autograd.grad(written, leaf, dout)[0], want)
    parameter = torch.randn(1, 5, 2, 8, requires_grad=True)
    before = parameter.detach().clone()
    out = rotary.apply_rotary_emb(parameter, cos, sin, inplace=True)
    assert torch.equal(parameter, rotary.apply_rotary_emb(before, cos, sin))
    assert out.requires_grad


def test_double_precision_and_second_derivatives():
    torch.manual_seed(0)
    _, cos, sin = _tables(6)
    x = torch.randn(1, 4, 2, 9, dtype=torch.float64, requires_grad=True)
    for interleaved in (False, True):
        assert torch.autograd.gradcheck(lambda x, i=interleaved: rotary.apply_rotary_emb(x, cos, sin, i, False, 2), x)
        assert torch.autograd.gradgradcheck(lambda x, i=interleaved: rotary.apply_rotary_emb(x, cos, sin, i), x)


def test_in_the_dtypes_that_come():
    torch.manual_seed(0)
    angles, cos, sin = _tables()
    x = torch.randn(2, 5, 3, 12)
    for interleaved in (False, True):
        out = rotary.apply_rotary_emb_torch(x, cos[:5], sin[:5], interleaved)
        torch.testing.assert_close(out.double(), _turned(x, angles[:5], interleaved), rtol=1e-5, atol=1e-6)
        half = rotary.rotate_half(torch.arange(4.0), interleaved)
        assert half.tolist() == ([-1, 0, -3, 2] if interleaved else [-2, -3, 0, 1])


def test_without_a_graph_and_back():
    torch.manual_seed(0)
    _, cos, sin = _tables()
    x = torch.randn(2, 5, 3, 8, requires_grad=True)
    out = apply_rotary(x, cos, sin, 3, interleaved=True)
    assert not out.requires_grad
    torch.testing.assert_close(apply_rotary(out, cos, sin, 3, interleaved=True, conjugate=True), x.detach())


# --- what tables must have ---


@pytest.mark.parametrize("inplace", [False, True])
def test_positions_past_the_tables(inplace):
    angles, cos, sin = _tables(16)
    x = torch.randn(2, 6, 1, 8)

    def call(given, *arguments, **options):
        before = given.clone()
        with pytest.raises(AssertionError, match=r"seqlen|positions"):
            rotary.apply_rotary_emb(given, cos, sin, False, inplace, *arguments, **options)
        assert torch.equal(given, before)  # a refused call writes nothing

    for offset in (11, 16, 1000, -1):
        call(x, offset)
    for offsets in ([0, 11], [-1, 0]):
        call(x, torch.tensor(offsets))
    rows, starts = x.flatten(0, 1), torch.tensor([0, 2, 9], dtype=torch.int32)
    call(rows, 10, starts, 7)
    call(rows, torch.tensor([0, 10]), starts, 7)
    call(rows, 0, starts, 17)
    # The last that fit, each sequence by its own length; rows of no sequence stay.
    offsets = torch.tensor([14, 9])
    out = rotary.apply_rotary_emb(rows.clone(), cos, sin, False, inplace, offsets, starts, 7)
    want = torch.cat([_turned(rows[:2], angles[14:], False), _turned(rows[2:9], angles[9:], False), rows[9:].double()])
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


def test_positions_that_no_host_looks_at_are_no_rotation():
    """Under a compiler offsets are not read: rows past the tables become NaN rather than stay as they are."""
    _, cos, sin = _tables(8)
    compiled = torch.compile(rotary.apply_rotary_emb, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 4, 1, 8)
    out = compiled(x, cos, sin, seqlen_offsets=torch.tensor([2, 6]))
    torch._dynamo.reset()
    assert torch.equal(out[0], rotary.apply_rotary_emb(x[:1], cos, sin, seqlen_offsets=2)[0])
    assert out[1].isnan().flatten(1).any(1).tolist() == [False, False, True, True]


def test_other_refusals(monkeypatch):
    _, cos, sin = _tables(8, 2)
    with pytest.raises(AssertionError, match="qkv must have shape"):
        rotary.apply_rotary_emb_qkv_(torch.ones(1, 2, 4, 2, 4), cos, sin)
    with pytest.raises(AssertionError, match="num_heads_q must be given"):
        rotary.apply_rotary_emb_qkv_(torch.ones(1, 2, 4, 4), cos, sin)
    with pytest.raises(AssertionError, match="num_heads_q \\+ 2 \\* num_heads_k heads"):
        rotary.apply_rotary_emb_qkv_(torch.ones(1, 2, 4, 4), cos, sin, num_heads_q=3)
    with pytest.raises(AssertionError, match="kv must have shape"):
        rotary.apply_rotary_emb_kv_(torch.ones(1, 2, 3, 2, 4), cos, sin)
    with pytest.raises(AssertionError, match="seqlen_offsets: must be integers of shape"):
        rotary.apply_rotary_emb(torch.ones(2, 2, 1, 4), cos, sin, seqlen_offsets=torch.tensor([1]))
    wide = torch.ones(1, 2, 1, 264)
    assert rotary.apply_rotary_emb(wide, cos, sin).shape == wide.shape
    monkeypatch.setenv("TILEWISE_FLASH_ATTN_STRICT", "1")
    with pytest.raises(AssertionError, match="Only support headdim <= 256"):
        rotary.apply_rotary_emb(wide, cos, sin)


# --- the module ---


def _angles(dim, seqlen, base=10000.0):
    return torch.arange(seqlen, dtype=torch.float64)[:, None] * base ** (-torch.arange(0, dim, 2).double() / dim)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scale_base", [None, 64])
def test_module(interleaved, scale_base):
    torch.manual_seed(0)
    module = rotary.RotaryEmbedding(8, base=100.0, interleaved=interleaved, scale_base=scale_base)
    assert module.state_dict() == {}
    assert [name for name, _ in module.named_buffers()] == (
        ["inv_freq"] if scale_base is None else ["inv_freq", "scale"]
    )
    qkv = torch.randn(2, 6, 3, 2, 12)
    q, kv = qkv[:, :, 0].clone(), qkv[:, :, 1:].clone()
    angles = _angles(8, 9, 100.0)[3:]
    grow = 1.0
    if scale_base is not None:
        scale = (torch.arange(0, 8, 2).double() + 3.2) / 11.2
        grow = (scale ** ((torch.arange(9).double() - 4) / scale_base)[:, None])[3:, None]
    want_q = _turned(q, angles, interleaved, grow)
    want_k = _turned(kv[:, :, 0], angles, interleaved, 1.0 / grow)
    out = module(qkv, seqlen_offset=3)
    assert out is qkv
    torch.testing.assert_close(out[:, :, 0].double(), want_q, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[:, :, 1].double(), want_k, rtol=1e-5, atol=1e-5)
    both = module(q, kv, seqlen_offset=3)
    torch.testing.assert_close(both[0], out[:, :, 0])
    torch.testing.assert_close(both[1], out[:, :, 1:])


def test_module_in_16_bits_and_with_offsets_of_sequences():
    torch.manual_seed(0)
    module = rotary.RotaryEmbedding(8).to(torch.bfloat16)  # which rounds its buffers, but not its tables
    q = torch.randn(2, 3, 4, 8).to(torch.bfloat16)
    offsets = torch.tensor([1000, 5])
    with pytest.raises(ValueError, match="max_seqlen: must be given"):
        module(q.clone(), torch.zeros(2, 3, 2, 4, 8), seqlen_offset=offsets)
    out, _ = module(q.clone(), torch.zeros(2, 3, 2, 4, 8, dtype=torch.bfloat16), offsets, max_seqlen=1024)
    angles = _angles(8, 1024)[offsets[:, None] + torch.arange(3)]
    torch.testing.assert_close(out.double(), _turned(q, angles, False), rtol=2**-6, atol=2**-6)
    with pytest.raises(NotImplementedError, match="pos_idx_in_fp32: must be True in Tilewise's flash_attn"):
        rotary.RotaryEmbedding(8, pos_idx_in_fp32=False)


def test_module_compiles():
    torch.manual_seed(0)
    module = rotary.RotaryEmbedding(8)
    linear = torch.nn.Linear(16, 48)

    def run(x):
        qkv = module(linear(x).view(2, -1, 3, 2, 8))
        return qkv.square().sum()

    x = torch.randn(2, 7, 16)
    expected = torch.autograd.grad(run(x), linear.weight)[0]
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), linear.weight)[0], expected)
    torch._dynamo.reset()
