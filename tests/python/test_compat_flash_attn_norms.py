# tilewise.compat.flash_attn.ops: norms after dropout and residual sums, activations, linear layers and MLPs, each
# against its formula in float64, with gradients.
"""Operations beside attention."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from tilewise.compat.flash_attn.ops import activations, fused_dense, layer_norm, rms_norm
from tilewise.compat.flash_attn.ops.triton import layer_norm as triton_layer_norm
from tilewise.compat.flash_attn.ops.triton import mlp as triton_mlp

DIM = 12


def _norm(x, weight, bias, eps, rms):
    if rms:
        x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    else:
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + eps).sqrt()
    return x * weight + (0.0 if bias is None else bias)


def _leaves(*shapes, dtype=torch.float32):
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def _same(results, expected, leaves, tolerance):
    """Values and gradients of tuples of results are the formula's."""
    douts = [torch.randn_like(result) for result in expected]
    for result, want in zip(results, expected):
        torch.testing.assert_close(result.double(), want.double(), rtol=tolerance, atol=tolerance)
    actual, want = (
        torch.autograd.grad(
            [result for result in side if result.requires_grad],
            leaves,
            [dout.to(result.dtype) for result, dout in zip(side, douts) if result.requires_grad],
        )
        for side in (results, expected)
    )
    for a, b in zip(actual, want):
        torch.testing.assert_close(a.double(), b.double(), rtol=4 * tolerance, atol=8 * tolerance)


OPTIONS = list(itertools.product([False, True], ["", "residual", "x1"], [False, True], [False, True]))


@pytest.mark.parametrize(("rms", "second", "two_weights", "centered"), OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_fn(rms, second, two_weights, centered, dtype):
    torch.manual_seed(0)
    x, other, weight, bias, weight1 = _leaves((2, 3, DIM), (2, 3, DIM), DIM, DIM, DIM, dtype=dtype)
    rowscale = torch.rand(2, 3)
    options = {"residual": other} if second == "residual" else {"x1": other} if second == "x1" else {}
    if second != "x1":
        options["rowscale"] = rowscale
    results = triton_layer_norm.layer_norm_fn(
        x, weight, bias, weight1=weight1 if two_weights else None, eps=0.1, prenorm=True, residual_in_fp32=True,
        zero_centered_weight=centered, is_rms_norm=rms, out_dtype=torch.float32, **options,
    )  # fmt: skip
    total = x.double() * (rowscale[..., None].double() if second != "x1" else 1.0)
    total = total + other.double() if second else total
    more = 1.0 if centered else 0.0
    expected = [_norm(total, weight.double() + more, bias.double(), 0.1, rms)]
    if two_weights:
        expected.append(_norm(total, weight1.double() + more, None, 0.1, rms))
    expected.append(total)
    assert [result.dtype for result in results] == [torch.float32] * (len(expected) - 1) + [
        dtype if second == "residual" else torch.float32
    ]
    leaves = [x, weight, bias, *([other] if second else []), *([weight1] if two_weights else [])]
    _same(results, expected, leaves, 2e-6 if dtype == torch.float32 else 2**-7)


def test_layer_norm_fn_returns_what_is_asked_for():
    torch.manual_seed(0)
    x, weight, bias = _leaves((4, DIM), DIM, DIM, dtype=torch.bfloat16)
    alone = triton_layer_norm.layer_norm_fn(x, weight, bias)
    assert (alone.shape, alone.dtype) == (x.shape, torch.bfloat16)
    out, residual_out = torch.empty(4, DIM), torch.empty(4, DIM)
    y, total = triton_layer_norm.rms_norm_fn(x, weight, None, prenorm=True, out=out, residual_out=residual_out)
    assert y.data_ptr() == out.data_ptr()
    assert total.data_ptr() == residual_out.data_ptr()
    torch.testing.assert_close(residual_out, x.detach().float())
    torch.testing.assert_close(
        out, _norm(x.detach().float(), weight.detach().float(), None, 1e-6, True).bfloat16().float()
    )
    _, kept, kept1 = triton_layer_norm.layer_norm_fn(
        x, weight, bias, x1=x, dropout_p=0.5, return_dropout_mask=True
    )  # fmt: skip
    assert kept.dtype == kept1.dtype == torch.bool
    with pytest.raises(AssertionError, match="residual: must have the shape of x"):
        triton_layer_norm.layer_norm_fn(x, weight, bias, residual=x[:2])
    with pytest.raises(AssertionError, match="rowscale is not supported"):
        triton_layer_norm.layer_norm_fn(x, weight, bias, x1=x, rowscale=torch.ones(4))


def test_dropout_of_a_norm():
    """Kept elements are scaled, dropped ones are 0 and have no gradient, about as many as asked for."""
    torch.manual_seed(0)
    x = torch.ones(50, 400, requires_grad=True)
    _, total, kept, _ = triton_layer_norm.layer_norm_fn(
        x, torch.ones(400), None, dropout_p=0.2, prenorm=True, return_dropout_mask=True
    )
    assert abs(kept.float().mean().item() - 0.8) < 0.02
    torch.testing.assert_close(total, kept * 1.25)
    torch.testing.assert_close(torch.autograd.grad(total.sum(), x)[0], kept * 1.25)
    everything = triton_layer_norm.layer_norm_fn(x, torch.ones(400), None, dropout_p=1.0, prenorm=True)[1]
    assert not everything.any()
    assert torch.autograd.grad(everything.sum(), x)[0].isfinite().all()


def test_norm_and_linear():
    torch.manual_seed(0)
    x, residual, weight, bias, linear = _leaves((3, DIM), (3, DIM), DIM, DIM, (5, DIM))
    results = triton_layer_norm.layer_norm_linear_fn(x, weight, bias, linear, None, residual, 0.1, True)
    total = x.double() + residual.double()
    expected = _norm(total, weight.double(), bias.double(), 0.1, False) @ linear.double().T, total
    _same(results, expected, [x, residual, weight, bias, linear], 2e-6)
    assert triton_layer_norm.layer_norm_linear_fn(x, weight, bias, linear, None).shape == (3, 5)


@pytest.mark.parametrize(("module", "rms"), [(layer_norm, False), (rms_norm, True)])
def test_older_norms(module, rms):
    torch.manual_seed(0)
    name = "rms" if rms else "layer"
    x0, x1, residual, weight, weight1, layerscale = _leaves((2, 3, DIM), (2, 3, DIM), (2, 3, DIM), DIM, DIM, DIM)
    rowscale = torch.rand(2, 3)
    results = getattr(module, f"dropout_add_{name}_norm")(
        x0, residual, weight, None, 0.0, 0.1, rowscale, layerscale, prenorm=True
    )
    total = x0.double() * rowscale[..., None] * layerscale.double() + residual.double()
    _same(results, (_norm(total, weight.double(), None, 0.1, rms), total), [x0, residual, weight, layerscale], 2e-6)
    parallel = getattr(module, f"dropout_add_{name}_norm_parallel_residual")(
        x0, x1, residual, weight, None, weight1, None, 0.0, 0.1, prenorm=True
    )
    total = x0.double() + x1.double() + residual.double()
    expected = *(_norm(total, w.double(), None, 0.1, rms) for w in (weight, weight1)), total
    _same(parallel, expected, [x0, x1, residual, weight, weight1], 2e-6)
    first, none = getattr(module, f"dropout_add_{name}_norm_parallel_residual")(
        x0, None, None, weight, None, None, None, 0.0, 0.1
    )
    assert none is None
    plain = getattr(module, f"{name}_norm")
    alone = plain(x0, weight, 0.1) if rms else plain(x0, weight, None, 0.1)
    assert torch.equal(first, alone)


def test_older_norms_of_subsets():
    """Rows that x0 lacks are the residual alone; rows that are not wanted are in no result."""
    torch.manual_seed(0)
    x0, residual, weight = _leaves((3, DIM), (5, DIM), DIM)
    here = torch.tensor([True, False, True, True, False])
    subset = here.cumsum(0).masked_fill(~here, 0).int()
    wanted = torch.tensor([0, 1, 2, 0, 3]).int()
    results = layer_norm.dropout_add_layer_norm_subset(
        x0, residual, weight, None, 0.0, 0.1, None, subset, wanted, 2.0, 3, prenorm=True
    )
    total = residual.double().clone()
    total[here] = total[here] + 2.0 * x0.double()
    expected = _norm(total[wanted > 0], weight.double(), None, 0.1, False), total
    _same(results, expected, [x0, residual, weight], 2e-6)


def test_dtypes_and_masks_of_older_norms():
    x0, weight = torch.randn(4, DIM).bfloat16(), torch.ones(DIM)
    out, total, kept = rms_norm.dropout_add_rms_norm(
        x0, None, weight, None, 0.0, 1e-5, None, None, True, True, True
    )  # fmt: skip
    assert (out.dtype, total.dtype, kept.dtype) == (torch.bfloat16, torch.float32, torch.uint8)
    assert kept.all()
    masks = rms_norm.dropout_add_rms_norm_parallel_residual(
        x0, x0, None, weight, None, None, None, 0.5, 1e-5, return_dropout_mask=True
    )[2:]
    assert all(0 < mask.float().mean() < 1 for mask in masks)


def test_modules_of_norms():
    for made, names in (
        (triton_layer_norm.RMSNorm(DIM, dropout_p=0.1), ["weight"]),
        (rms_norm.RMSNorm(DIM), ["weight"]),
        (rms_norm.DropoutAddRMSNorm(DIM), ["weight"]),
        (layer_norm.DropoutAddLayerNorm(DIM), ["weight", "bias"]),
    ):
        assert list(made.state_dict()) == names
        assert made.weight.eq(1).all()
    x, residual = torch.randn(3, DIM), torch.randn(3, DIM)
    centered = triton_layer_norm.RMSNorm(DIM, eps=0.1, zero_centered_weight=True)
    assert not centered.weight.any()
    out, total = centered(x, residual, prenorm=True, residual_in_fp32=True)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(out, _norm(x + residual, 1.0, None, 0.1, True))
    torch.testing.assert_close(rms_norm.RMSNorm(DIM, 0.1)(x), _norm(x, 1.0, None, 0.1, True))
    dropping = layer_norm.DropoutAddLayerNorm(DIM, prenorm=True, p=0.5, eps=0.1)
    assert (dropping(torch.ones(9, DIM))[1] == 0).any()
    out, total = dropping.eval()(x, residual)
    torch.testing.assert_close(out, _norm(x + residual, 1.0, None, 0.1, False))


def test_norms_compile():
    torch.manual_seed(0)
    x, residual, weight = _leaves((3, DIM), (3, DIM), DIM)

    def run(x, residual, weight):
        out, total = triton_layer_norm.rms_norm_fn(x, weight, None, residual, prenorm=True)
        return (out * total).sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    gradients = [torch.autograd.grad(f(x, residual, weight), (x, residual, weight)) for f in (run, compiled)]
    torch.testing.assert_close(*gradients)
    torch._dynamo.reset()


# --- activations, linear layers ---


def _sqrelu(x):
    return F.relu(x).square()


@pytest.mark.parametrize(
    ("function", "formula"),
    [
        (activations.fast_gelu_impl, lambda x: F.gelu(x, approximate="tanh")),
        (activations.swiglu, lambda x, y: F.silu(x) * y),
        (activations.bias_gelu_impl, lambda x, bias: F.gelu(x + bias, approximate="tanh")),
    ],
    ids=["gelu", "swiglu", "bias_gelu"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_activations(function, formula, dtype):
    torch.manual_seed(0)
    second = {activations.swiglu: (4, 7), activations.bias_gelu_impl: (7,)}.get(function)
    leaves = _leaves((4, 7), *([second] if second else []), dtype=dtype)
    _same(
        [function(*leaves)],
        [formula(*(leaf.double() for leaf in leaves))],
        leaves,
        1e-12 if dtype.itemsize == 8 else 2**-7,
    )


def test_derivatives_by_hand():
    torch.manual_seed(0)
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    g = torch.randn(50, dtype=torch.float64)
    for forward, backward in (
        (activations.gelu_fwd, activations.gelu_bwd),
        (activations.sqrelu_fwd, activations.sqrelu_bwd),
        (F.relu, activations.relu_bwd),
    ):
        (want,) = torch.autograd.grad(forward(x), x, g)
        torch.testing.assert_close(backward(g, x.detach()), want)
    assert activations.relu_bwd(torch.ones(1), torch.zeros(1)) == 1


ACTIVATIONS = {"gelu_approx": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "sqrelu": _sqrelu}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_fused_mlp(activation, level):
    torch.manual_seed(0)
    module = fused_dense.FusedMLP(6, 10, 4, activation=activation, checkpoint_lvl=level, return_residual=True)
    assert list(module.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert module.fc1.weight.shape == (10, 6)
    x = torch.randn(2, 3, 6, requires_grad=True)
    out, same = module(x)
    assert same is x
    want = F.linear(ACTIVATIONS[activation](F.linear(x, module.fc1.weight, module.fc1.bias)), module.fc2.weight)
    leaves = [x, module.fc1.weight, module.fc1.bias, module.fc2.weight]
    _same([out], [want + module.fc2.bias], leaves, 1e-6)


def test_fused_dense_and_defaults():
    torch.manual_seed(0)
    x = torch.randn(2, 6)
    dense = fused_dense.FusedDense(6, 5, bias=False, return_residual=True)
    out, same = dense(x)
    torch.testing.assert_close(out, x @ dense.weight.T)
    assert same is x
    assert fused_dense.FusedMLP(6).fc1.weight.shape == (24, 6)
    squared = triton_mlp.FusedDenseSqreluDense(6, bias2=False)
    want = F.linear(_sqrelu(squared.fc1(x)), squared.fc2.weight)
    torch.testing.assert_close(squared(x), want)
    with pytest.raises(AssertionError, match=r"activation: must be one of gelu_approx, relu, sqrelu \(got 'tanh'\)"):
        fused_dense.FusedMLP(6, activation="tanh")
    with pytest.raises(AssertionError, match="process_group: must be given"):
        fused_dense.ParallelFusedMLP(6)
    with torch.autocast("cpu", torch.bfloat16):
        assert dense(x)[0].dtype == torch.bfloat16
