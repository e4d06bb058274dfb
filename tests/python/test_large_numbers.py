"""Large finite numbers and vanishing weights: out, softmax_lse and gradients are those of the softmax of the scores."""

import math

import pytest
import torch
from cases import assert_close

import tilewise
from tilewise.compat.sdpa import scaled_dot_product_attention

CPU = ("cpu.generic", "cpu.avx2", "cpu.avx512", "cpu.avx512_bf16", "cpu.amx_bf16")
EMULATED = ("emulation.sm80", "emulation.sm90", "emulation.cdna", "emulation.rdna")
IMPLEMENTATIONS = ("reference", *CPU, *EMULATED)
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
DTYPES = tuple(TOLERANCE)
LOWEST = torch.finfo(torch.float32).min

pytestmark = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def attend(implementation, dout, q, k, v, **options):
    """out, lse and the gradients of q, k and v; skips what an implementation refuses or this machine lacks."""
    try:
        out, lse = tilewise.attention(q, k, v, return_lse=True, implementation=implementation, **options)
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, implementation=implementation, **options)
    return out, lse, gradients


def draw(seqlen_q, seqlen_k, dtype, dim=32):
    """dout, q, k and v of one head."""
    q, dout = (torch.randn(1, seqlen_q, 1, dim, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(1, seqlen_k, 1, dim, dtype=dtype) for _ in range(2))
    return dout, q, k, v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "hidden"), [(24, 170, 130), (60, 300, 200), (1, 300, 200)])
def test_a_mask_that_is_added_to_whole_tiles(implementation, dtype, seqlen_q, seqlen_k, hidden):
    dout, q, k, v = draw(seqlen_q, seqlen_k, dtype)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    scores = torch.einsum("bihd,bjhd->bhij", leaves[0], leaves[1][:, hidden:]) / math.sqrt(32)
    want = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), leaves[2][:, hidden:])
    wanted = torch.autograd.grad(want, leaves, dout.double())
    for number in (-1e4, -1e10, -1e20, -1e30, LOWEST):
        bias = torch.zeros(1, 1, 1, seqlen_k)
        bias[..., :hidden] = number
        out, _, gradients = attend(implementation, dout, q, k, v, bias=bias)
        assert_close(out.double(), want.detach(), TOLERANCE[dtype], f"out, {number:g}")
        for got, expected, name in zip(gradients[:3], wanted, "qkv", strict=True):
            assert_close(got.double(), expected, 4 * TOLERANCE[dtype], f"d{name}, {number:g}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [LOWEST, -1e30, 1e20])
def test_rows_of_one_large_bias_have_the_mean(implementation, dtype, number):
    dout, q, k, v = draw(40, 150, dtype)
    bias = torch.zeros(1, 1, 40, 150)
    bias[:, :, ::2] = number
    dout[:, ::2] = 0
    out, lse, gradients = attend(implementation, dout, q, k, v, bias=bias)
    assert_close(out[:, ::2].double(), v.double().mean(1, keepdim=True).expand(1, 20, 1, 32), TOLERANCE[dtype])
    assert_close(lse[:, :, ::2], torch.full((1, 1, 20), number, dtype=lse.dtype), 3e-7, "lse")
    assert (gradients.dq[:, ::2] == 0).all()
    assert all(torch.isfinite(x).all() for x in gradients[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [-1e9, 1e9])
def test_rows_whose_greatest_score_comes_late_beside_others(implementation, dtype, number):
    """Beside 1e9 fp32 tells scores apart by 64: some rows move their reference while their neighbours stay."""
    q, k = (torch.randint(-2, 3, (1, rows, 1, 64)).to(dtype) * 8 for rows in (70, 150))
    v = torch.randn(1, 150, 1, 64).to(dtype)
    bias = torch.full((1, 1, 70, 150), number)
    scores = (torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) / 8).float() + bias
    want = torch.einsum("bhij,bjhd->bihd", scores.double().softmax(-1), v.double())
    try:
        out = tilewise.attention(q, k, v, bias=bias, implementation=implementation)
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    assert_close(out.double(), want, TOLERANCE[dtype], f"out, {number:g}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seqlen_q", [1, 50])
def test_equal_scores_have_equal_weights(implementation, dtype, seqlen_q):
    q = torch.full((1, seqlen_q, 1, 64), 30000.0, dtype=dtype)
    k = v = torch.full((1, 200, 1, 64), 30000.0, dtype=dtype)
    for options in ({}, {"softmax_scale": 1e9}, {"bias": torch.full((1, 1, 1, 200), 1e20)}):
        out, _, gradients = attend(implementation, torch.ones_like(q), q, k, v, **options)
        assert_close(out.double(), q.double(), TOLERANCE[dtype], str(options))
        assert torch.isfinite(gradients.dv).all(), options


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equal_scores_over_a_cache(implementation, dtype):
    for seqlen_q in (1, 40):
        q = torch.full((1, seqlen_q, 2, 64), 30000.0, dtype=dtype)
        cache = torch.full((1, 300, 1, 64), 30000.0, dtype=dtype)
        try:
            out = tilewise.kv_cache_attention(q, cache, cache, cache_seqlens=300, implementation=implementation)
        except NotImplementedError as refusal:
            pytest.skip(str(refusal))
        assert (out == q).all()


@pytest.mark.parametrize("scale", [1.0, 2.0**18])  # the latter times a weight is beyond f16
def test_an_fp8_cache_with_scales_of_tokens_has_the_accuracy_of_f16(implementation, scale):
    keys = torch.randn(1, 200, 1, 64).to(torch.float8_e4m3fn)
    values = (torch.randn(1, 200, 1, 64) / scale ** (1 / 3)).to(torch.float8_e4m3fn)
    k_scale, v_scale = (torch.rand(1, 200, 1) + 0.5 for _ in range(2))
    v_scale = v_scale * scale
    q = torch.randn(1, 1, 8, 64).half()
    try:
        out = tilewise.kv_cache_attention(
            q, keys, values, k_scale=k_scale, v_scale=v_scale, cache_seqlens=torch.tensor([200], dtype=torch.int32),
            implementation=implementation,
        )  # fmt: skip
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    k, v = keys[0, :, 0].double() * k_scale[0].double(), values[0, :, 0].double() * v_scale[0].double()
    weights = (q[0, 0].double() @ k.T / 8).softmax(-1)
    # No more than f16's rounding of the weights and of out: bf16's is eight times that.
    bound = 2.0**-11 * (weights @ v.abs() * 0.3 + (weights @ v).abs())
    assert ((out[0, 0].double() - weights @ v).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seqlen_q", [16, 60])
def test_a_winner_weighs_one_in_the_backward_pass(implementation, dtype, seqlen_q):
    if implementation == "reference":
        pytest.skip("sums in double: its scores are other implementations' but for their rounding")
    base = torch.rand(64) + 0.5
    for size in (30.0, 300.0, 1e3, 1e4):
        dout, q, k, v = draw(seqlen_q, 140, dtype, 64)
        q = (base * size).expand(q.shape).to(dtype).clone()
        k = (torch.rand(k.shape) * 0.3 * size).to(dtype)
        k[:, 17] = (base * size).to(dtype)
        _, _, gradients = attend(implementation, dout, q, k, v)
        want = torch.zeros_like(v, dtype=torch.float64)
        want[:, 17] = dout.double().sum(1)
        tolerance = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 1e-2, torch.float16: 5e-3}[dtype]
        assert_close(gradients.dv.double(), want, tolerance, f"dv, numbers of {size:g}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [32, 128, 256])
@pytest.mark.parametrize("seqlen_q", [34, 68])
def test_a_row_of_large_scores_among_those_that_see_nothing(implementation, dtype, dim, seqlen_q):
    """The last query alone sees the one key, whose weight is 1."""
    dout, q, k, v = draw(seqlen_q, 1, dtype, dim)
    k = (torch.rand_like(k) + 0.5) * 100
    q[:, -1] = 400 * k[:, 0]
    out, _, gradients = attend(implementation, dout, q, k, v, mask="causal")
    assert_close(out[:, -1], v[:, 0], TOLERANCE[dtype], "out")
    assert_close(gradients.dv[:, 0], dout[:, -1], TOLERANCE[dtype], "dv")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_of_any_size(implementation, dtype):
    dout, q, k, v = draw(40, 90, dtype)
    plain, lse, _ = attend(implementation, dout, q, k, v)
    for size in (1e4, 1e20, -LOWEST):
        out, got, gradients = attend(implementation, dout, q, k, v, sink=torch.tensor([size]))
        assert out.abs().max() < 1e-30  # where a NaN must survive weights are the least normal number
        assert_close(got, torch.full_like(got, size), 3e-7, "lse")
        assert all((x == 0).all() for x in gradients[:3])
        out, got, _ = attend(implementation, dout, q, k, v, sink=torch.tensor([-size]))
        assert (out == plain).all()
        assert (got == lse).all()


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_sink_that_is_no_number_never_vanishes(implementation, number):
    _, q, k, v = draw(40, 70, torch.bfloat16)
    try:
        out, lse = tilewise.attention(
            q, k, v, sink=torch.tensor([number]), return_lse=True, implementation=implementation
        )
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))
    assert out.isnan().all()
    assert lse.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cap_far_above_the_scores_changes_nothing(implementation, dtype):
    dout, q, k, v = draw(40, 90, dtype)
    plain, _, wanted = attend(implementation, dout, q, k, v)
    for softcap in (1e6, 1e8, 1e20, 1e38):
        out, _, gradients = attend(implementation, dout, q, k, v, softcap=softcap)
        assert_close(out.double(), plain.double(), TOLERANCE[dtype], f"out, {softcap:g}")
        for got, expected in zip(gradients[:3], wanted[:3], strict=True):
            assert_close(got.double(), expected.double(), 4 * TOLERANCE[dtype], f"gradient, {softcap:g}")


@pytest.mark.parametrize("seqlen_q", [1, 40])
def test_weights_below_the_normal_range_are_zero(implementation, seqlen_q):
    if implementation == "reference":
        pytest.skip("computes in double")
    dout, q, k, v = draw(seqlen_q, 64, torch.float32)
    q, dout = torch.zeros_like(q), torch.ones_like(dout)
    v[:, ::2] = 3e38
    bias = torch.zeros(1, 1, 1, 64)
    bias[..., ::2] = -95.0  # 5e-42, which would add 0.002 to out
    out, _, _ = attend(implementation, dout, q, k, v, bias=bias)
    assert_close(out, v[:, 1::2].mean(1, keepdim=True).expand(out.shape), 1e-6)
    gradients = attend(implementation, dout, q, k, torch.ones_like(v), bias=bias)[2]
    assert (gradients.dv[:, ::2] == 0).all()


def test_the_drop_in_of_torch(implementation):
    if implementation != IMPLEMENTATIONS[0]:
        pytest.skip("the drop-in chooses for itself")
    x = torch.full((1, 1, 40, 64), 30000.0)
    assert (scaled_dot_product_attention(x, x, x) == 30000).all()
    mask = torch.full((1, 1, 40, 40), LOWEST)
    assert_close(scaled_dot_product_attention(x, x, x, attn_mask=mask), x, 1e-2)
