"""attention() on q, k and v in fp8 e4m3 against the formula in float64: every kind of scale, outputs, torch's paths."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from formulas import Call, sequence

import tilewise

BATCH, QUERIES, KEYS, HEADS_Q, HEADS_K, DIM = 2, 40, 70, 4, 2, 32
FP8 = torch.float8_e4m3fn


def draw(heads: int, rows: int) -> torch.Tensor:
    return torch.randn(BATCH, rows, heads, DIM).to(FP8)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(5)


def tensors() -> tuple[torch.Tensor, ...]:
    return draw(HEADS_Q, QUERIES), draw(HEADS_K, KEYS), draw(HEADS_K, KEYS)


def factor(scale, heads: int) -> torch.Tensor:
    """[batch, 1, heads, 1] of a scale of any kind."""
    scale = torch.ones(()) if scale is None else torch.as_tensor(scale)
    if scale.dim() == 2:
        scale = scale.repeat_interleave(heads // HEADS_K, 1)
    return scale.double().expand(BATCH, heads)[:, None, :, None]


def expected(q, k, v, q_scale=None, k_scale=None, v_scale=None, **options):
    call = Call(**options)
    q, k, v = (x.double() * factor(scale, x.shape[2]) for x, scale in ((q, q_scale), (k, k_scale), (v, v_scale)))
    results = [sequence(call, b, q[b], k[b], v[b], None) for b in range(BATCH)]
    return torch.stack([out for out, _ in results]), torch.stack([lse for _, lse in results])


def scales(kind: str) -> dict:
    def rand(*shape):
        return torch.rand(*shape) + 0.5

    return {
        "none": {},
        "number": {"q_scale": 0.5, "k_scale": 2, "v_scale": np.float32(3.0)},
        "tensor": {"q_scale": torch.tensor(0.5), "k_scale": torch.tensor([2.0]), "v_scale": torch.tensor(3.0)},
        "head": {"q_scale": rand(HEADS_Q), "k_scale": rand(HEADS_K), "v_scale": rand(HEADS_K)},
        "batch_head": {name: rand(BATCH, HEADS_K) for name in ("q_scale", "k_scale", "v_scale")},
        "mixed": {"q_scale": rand(HEADS_Q), "k_scale": 0.25, "v_scale": rand(BATCH, HEADS_K)},
    }[kind]


@pytest.mark.parametrize("kind", ["none", "number", "tensor", "head", "batch_head", "mixed"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_every_kind_of_scale(kind, mask):
    q, k, v = tensors()
    given = scales(kind)
    out, lse = tilewise.attention(q, k, v, mask=mask, return_lse=True, **given)
    want, want_lse = expected(q, k, v, mask=mask, **given)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), want, atol=0.02 * float(want.abs().max()), rtol=0)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_out_of_either_dtype(dtype):
    q, k, v = tensors()
    out = torch.empty(BATCH, QUERIES, HEADS_Q, DIM, dtype=dtype)
    assert tilewise.attention(q, k, v, out=out, v_scale=0.5) is out
    torch.testing.assert_close(out.double(), expected(q, k, v, v_scale=0.5)[0], atol=0.01, rtol=0)
    wrong = torch.empty(BATCH, QUERIES, HEADS_Q, DIM)
    with pytest.raises(TypeError, match=r"out: dtype must be bf16 or f16 \(got f32\)"):
        tilewise.attention(q, k, v, out=wrong)


def test_numpy():
    q, k, v = tensors()
    arrays = [x.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn) for x in (q, k, v)]
    head = np.array([0.5, 1.5], np.float32)
    out, lse = tilewise.attention(*arrays, k_scale=head, return_lse=True)
    assert out.dtype == ml_dtypes.bfloat16 and lse.dtype == np.float32
    want, _ = expected(q, k, v, k_scale=torch.from_numpy(head))
    np.testing.assert_allclose(out.astype(np.float64), want.numpy(), atol=0.02)


def test_explain_and_problem_text():
    q, k, v = tensors()
    text = tilewise.explain(q, k, v, q_scale=2.0, v_scale=torch.ones(BATCH, HEADS_K)).problem
    assert "dtype=fp8_e4m3" in text and "q_scale=tensor" in text and "v_scale=batch_head" in text
    tilewise.warmup(text)


def test_vmap_and_compile():
    q, k, v = tensors()
    scale = torch.tensor([0.5, 2.0])
    want, _ = expected(q, k, v, k_scale=scale)
    each = torch.func.vmap(lambda a, b, c: tilewise.attention(a[None], b[None], c[None], k_scale=scale)[0])(q, k, v)
    torch.testing.assert_close(each.double(), want, atol=0.02, rtol=0)
    compiled = torch.compile(lambda a, b, c: tilewise.attention(a, b, c, k_scale=scale, q_scale=1.0), backend="eager")
    torch.testing.assert_close(compiled(q, k, v).double(), want, atol=0.02, rtol=0)
    fake = tilewise.attention(*(x.to("meta") for x in (q, k, v)))
    assert fake.dtype == torch.bfloat16 and fake.shape == want.shape


def test_the_backward_pass_is_refused():
    q, k, v = tensors()
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    with pytest.raises(TypeError, match=r"q: dtype must be .* in attention_backward \(got fp8_e4m3"):
        tilewise.attention_backward(torch.ones_like(out), q, k, v, out, lse)


BAD = {
    "number": ({"q_scale": -1.0}, ValueError, r"q_scale: must be positive and finite in f32 \(got -1\)"),
    "text": ({"k_scale": "2"}, TypeError, r"k_scale: must be a number \(got str\)"),
    "dtype": ({"v_scale": torch.ones(2).half()}, TypeError, r"v_scale: dtype must be f32 \(got f16\)"),
    "heads": ({"k_scale": torch.ones(4)}, ValueError, r"k_scale: shape must be \[num_heads_k\] = \[2\] \(got \[4\]"),
    "rank": (
        {"v_scale": torch.ones(1, 2, 2)},
        ValueError,
        r"v_scale: shape must be \[batch_size, num_heads_k\] = \[2, 2\] \(got \[1, 2, 2\]\)",
    ),
    "gradient": ({"v_scale": torch.ones(2, requires_grad=True)}, NotImplementedError, "v_scale: has no gradient"),
    "bias": ({"bias": torch.zeros(QUERIES, KEYS).to(FP8)}, TypeError, r"bias: dtype must be f32 or bool with q in fp8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_call(name):
    options, exception, pattern = BAD[name]
    with pytest.raises(exception, match=pattern):
        tilewise.attention(*tensors(), **options)


def test_scales_belong_to_fp8():
    q, k, v = (x.float() for x in tensors())
    with pytest.raises(ValueError, match=r"q_scale: requires q, k and v in fp8_e4m3 \(got f32\)"):
        tilewise.attention(q, k, v, q_scale=1.0)
