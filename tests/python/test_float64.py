# float64 on the CPU: finite differences by torch's own gradcheck, results beside the formulas, and the
# dtypes that go with it.
"""tilewise.attention in float64."""

import numpy as np
import pytest
import torch
from cases import CASES, draw, in_float64
from checking import check

import tilewise

IMPLEMENTATIONS = [
    row.implementation
    for row in tilewise.explain("attention_forward dtype=f64 seqlen_q=4 head_dim=8").rows
    if row.accepted
]


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


GRADCHECK_OPTIONS = {
    "plain": {},
    "causal": {"mask": "causal"},
    "window": {"window": (2, 1), "softmax_scale": -0.7},
    "softcap": {"softcap": 1.5},
    "dropout": {"dropout_p": 0.4, "seed": 5},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, -0.1, 1.0], dtype=torch.float64)},
    "lengths": {"seqused_k": torch.tensor([5, 3]).int(), "leftpad_k": torch.tensor([1, 2]).int()},
}


@pytest.mark.parametrize("name", GRADCHECK_OPTIONS)
def test_gradcheck(name):
    torch.manual_seed(1)
    q, k, v = _leaf(2, 3, 4, 5), _leaf(2, 6, 2, 5), _leaf(2, 6, 2, 3)
    bias, sink = _leaf(4, 3, 6), _leaf(4)

    def run(q, k, v, bias, sink):
        return tilewise.attention(q, k, v, bias=bias, sink=sink, return_lse=True, **GRADCHECK_OPTIONS[name])

    assert torch.autograd.gradcheck(run, (q, k, v, bias, sink), check_batched_grad=True)


def test_gradcheck_without_options():
    torch.manual_seed(1)
    q, k, v = _leaf(1, 4, 2, 6), _leaf(1, 5, 1, 6), _leaf(1, 5, 1, 6)
    assert torch.autograd.gradcheck(tilewise.attention, (q, k, v), check_batched_grad=True)
    assert torch.autograd.gradcheck(lambda k: tilewise.attention(q.detach(), k, v.detach()), (k,))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", CASES)
def test_against_formulas(name, implementation):
    tensors, options = draw(name, torch.float64)
    run = lambda *qkv, **o: tilewise.attention(*qkv, return_lse=True, implementation=implementation, **o)  # noqa: E731
    check(tensors, in_float64(options), run, 1e-13)


def test_dtypes_of_results():
    (q, k, v), _ = draw("plain", torch.float64)
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    assert out.dtype == lse.dtype == torch.float64
    meta = tilewise.attention(*(tensor.to("meta") for tensor in (q, k, v)), return_lse=True)
    assert [tensor.dtype for tensor in meta] == [torch.float64] * 2
    with pytest.raises(TypeError, match=r"alibi_slopes: dtype must be f64 \(got f32\)"):
        tilewise.attention(q, k, v, alibi_slopes=torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_other_biases_and_sinks(dtype):
    """An f32 bias or sink is widened, and its gradient rounded once."""
    (q, k, v), _ = draw("plain", torch.float64)
    bias = torch.randn(7, 11).to(dtype)
    wide = torch.where(bias, 0.0, -torch.inf).double() if dtype == torch.bool else bias.double()
    sink = torch.randn(4)
    assert torch.equal(
        tilewise.attention(q, k, v, bias=bias, sink=sink), tilewise.attention(q, k, v, bias=wide, sink=sink.double())
    )
    narrow, exact = sink.requires_grad_(), sink.detach().double().requires_grad_()
    tilewise.attention(q, k, v, sink=narrow).sum().backward()
    tilewise.attention(q, k, v, sink=exact).sum().backward()
    assert narrow.grad.dtype == torch.float32
    assert torch.equal(narrow.grad, exact.grad.float())


@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_merge(layout):
    (q, k, v), _ = draw("longer", torch.float64)
    options = {}
    if layout == "thd":
        q, k, v = (tensor[0] for tensor in (q, k, v))
        cu_q = torch.tensor([0, q.shape[0]], dtype=torch.int32)
        options = {"layout": "thd", "cu_seqlens_q": cu_q}
    axis = 0 if layout == "thd" else 1

    def part(begin, end):
        keys = {"cu_seqlens_k": torch.tensor([0, end - begin], dtype=torch.int32)} if options else {}
        halves = (tensor.narrow(axis, begin, end - begin) for tensor in (k, v))
        return tilewise.attention(q, *halves, return_lse=True, **options, **keys)

    sink = torch.randn(2, dtype=torch.float64)
    parts = [part(0, 70), part(70, 150)]
    out, lse = tilewise.merge([p[0] for p in parts], [p[1] for p in parts], sink=sink, layout=layout)
    keys = {"cu_seqlens_k": torch.tensor([0, 150], dtype=torch.int32)} if options else {}
    whole, whole_lse = tilewise.attention(q, k, v, sink=sink, return_lse=True, **options, **keys)
    assert out.dtype == lse.dtype == torch.float64
    assert (out - whole).abs().max() <= 1e-14
    assert (lse - whole_lse).abs().max() <= 1e-14


def test_numpy():
    (q, k, v), options = draw("everything", torch.float64)
    options = in_float64(options)
    expected, expected_lse = tilewise.attention(q, k, v, return_lse=True, **options)
    arrays = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    out, lse = tilewise.attention(q.numpy(), k.numpy(), v.numpy(), return_lse=True, **arrays)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_array_equal(out, expected.numpy())
    np.testing.assert_array_equal(lse, expected_lse.numpy())
    merged, merged_lse = tilewise.merge([out, out], [lse, lse])
    assert merged.dtype == merged_lse.dtype == np.float64
    np.testing.assert_allclose(merged_lse, lse + np.log(2.0), rtol=1e-15)


def test_packed_rows_beyond_the_sequences():
    q = torch.randn(9, 2, 4, dtype=torch.float64)
    cu_seqlens = torch.tensor([0, 3, 5], dtype=torch.int32)
    out, lse = tilewise.attention(
        q, q, q, layout="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, return_lse=True
    )
    assert (out[5:] == 0).all()
    assert (lse[:, 5:] == -torch.inf).all()
    assert torch.isfinite(lse[:, :5]).all()


def test_compiled():
    torch._dynamo.reset()
    (q, k, v), _ = draw("plain", torch.float64)
    compiled = torch.compile(
        lambda *qkv: tilewise.attention(*qkv, return_lse=True), fullgraph=True, backend="aot_eager"
    )
    for actual, expected in zip(compiled(q, k, v), tilewise.attention(q, k, v, return_lse=True)):
        assert torch.equal(actual, expected)


# --- a sink in q's dtype, of any dtype of q ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sink", "sink_alone", "everything"])
def test_sink_of_qs_dtype(name, dtype):
    tensors, options = draw(name, dtype)
    options["sink"] = options["sink"].to(dtype)
    run = lambda *qkv, **o: tilewise.attention(*qkv, return_lse=True, **o)  # noqa: E731
    check(tensors, options, run, {torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["reference", None])
def test_dsink_has_the_dtype_of_the_sink(dtype, implementation):
    (q, k, v), options = draw("sink", dtype)
    sink = options["sink"].to(dtype)
    gradients = []
    for leaf in (sink.clone().requires_grad_(), sink.float().requires_grad_()):
        out = tilewise.attention(q, k, v, sink=leaf, mask="causal", implementation=implementation)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), leaf)
        assert gradient.dtype == leaf.dtype
        gradients.append(gradient)
    assert torch.equal(gradients[0], gradients[1].to(dtype))


def test_numpy_sink_of_qs_dtype():
    (q, k, v), options = draw("sink", torch.float16)
    sink = options["sink"].half()
    out = tilewise.attention(q.numpy(), k.numpy(), v.numpy(), sink=sink.numpy())
    np.testing.assert_array_equal(out, tilewise.attention(q, k, v, sink=sink).numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_sinks_of_a_model_keep_their_precision(dtype):
    transformers = pytest.importorskip("tilewise.transformers")
    (q, k, v), options = draw("sink", dtype)
    sink = (options["sink"].double() + 1e-9).to(dtype)  # no f32
    inputs = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out, _ = transformers.attention_forward(torch.nn.Module(), *inputs, None, is_causal=True, s_aux=sink)
    # transformers aligns causal masks top-left.
    assert torch.equal(out, tilewise.attention(q, k, v, mask="causal_top_left", sink=sink))
