"""moe(): layouts, activations, ids, formats, out=, gradients, torch.compile and opcheck, on every kind of array."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import assert_close
from checking import Exporter

import tilewise

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 9, 16, 12, 5, 3


def _draw(dtype=torch.float32, gate="concatenated", biased=False):
    """Arguments of moe(), some ids nobody's and one expert twice in a token."""
    torch.manual_seed(0)
    rows = INTERMEDIATE if gate == "none" else 2 * INTERMEDIATE
    ids = torch.randint(0, EXPERTS, (TOKENS, TOP_K))
    ids[0], ids[1, 0], ids[2] = torch.tensor([-1, EXPERTS, 2**40]), -7, ids[2, 0]
    given = {
        "x": torch.randn(TOKENS, HIDDEN),
        "topk_weights": torch.rand(TOKENS, TOP_K),
        "gate_up": torch.randn(EXPERTS, rows, HIDDEN) / HIDDEN**0.5,
        "down": torch.randn(EXPERTS, HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5,
    }
    if biased:
        given["gate_up_bias"], given["down_bias"] = torch.randn(EXPERTS, rows), torch.randn(EXPERTS, HIDDEN)
    given = {name: tensor.to(dtype) for name, tensor in given.items()}
    if dtype != torch.float64:
        given["topk_weights"] = given["topk_weights"].float()
    return {**given, "topk_ids": ids}


ACTIVATIONS = {
    "identity": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x) ** 2,
    "swiglu_oai": lambda x: x * torch.sigmoid(1.702 * x),
}


def _expected(
    x, topk_ids, topk_weights, gate_up, down, gate_up_bias=None, down_bias=None, gate="concatenated",
    activation="silu", limit=None, clamp="before", weight_on_input=False, first_expert=0,
):  # fmt: skip
    """The layer in torch's own operations, a token at a time."""
    rows = []
    for token in range(x.shape[0]):
        row = torch.zeros(down.shape[1], dtype=x.dtype)
        for j in range(topk_ids.shape[1]):
            expert = int(topk_ids[token, j]) - first_expert
            if not 0 <= expert < gate_up.shape[0]:
                continue
            weight = topk_weights[token, j].to(x.dtype)
            product = gate_up[expert] @ x[token] * (weight if weight_on_input else 1)
            product = product if gate_up_bias is None else product + gate_up_bias[expert]
            g, u = product, None
            if gate == "concatenated":
                g, u = product.chunk(2)
            elif gate == "interleaved":
                g, u = product[::2], product[1::2]
            g = g if limit is None or clamp == "after" else g.clamp(max=limit)
            g = ACTIVATIONS[activation](g)
            g = g if limit is None or clamp == "before" else g.clamp(max=limit)
            if u is not None:
                u = u if limit is None else u.clamp(-limit, limit)
                g = g * (u + 1 if activation == "swiglu_oai" else u)
            y = down[expert] @ g
            y = y if down_bias is None else y + down_bias[expert]
            row = row + (y if weight_on_input else weight * y)
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gate": "interleaved", "activation": "swiglu_oai", "limit": 0.5},
        {"gate": "none", "activation": "relu_squared"},
        {"activation": "gelu_tanh", "limit": 0.3, "clamp": "after"},
        {"activation": "gelu", "weight_on_input": True},
        {"gate": "none", "activation": "identity", "first_expert": 2},
        {"activation": "relu", "batch_invariant": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_is_the_layer(dtype, options):
    given = _draw(dtype, options.get("gate", "concatenated"), biased=True)
    out = tilewise.moe(**given, **options)
    assert out.dtype == dtype
    wide = {name: each.double() if each.is_floating_point() else each for name, each in given.items()}
    known = {name: value for name, value in options.items() if name != "batch_invariant"}
    tolerance = {torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    assert_close(out.double(), _expected(**wide, **known), tolerance)
    assert not out[0].any() or options.get("first_expert"), "nobody's token"


def test_weights_lie_either_way():
    given = _draw()
    expected = tilewise.moe(**given)
    for name in ("gate_up", "down"):
        given[name] = given[name].transpose(1, 2).contiguous().transpose(1, 2)
    assert_close(tilewise.moe(**given), expected, 1e-6)


@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_arrays_of_every_kind(ids):
    given = _draw(biased=True)
    given["topk_ids"] = given["topk_ids"].clamp(-1, EXPERTS).to(ids)
    expected = tilewise.moe(**given)
    arrays = {name: each.numpy() for name, each in given.items()}
    out = tilewise.moe(**arrays)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, expected.numpy())
    exported = tilewise.moe(**{name: Exporter(each) for name, each in arrays.items()})
    np.testing.assert_array_equal(np.asarray(exported), expected.numpy())
    narrow = {
        name: each.astype(ml_dtypes.bfloat16) if each.dtype == np.float32 else each for name, each in arrays.items()
    }
    assert tilewise.moe(**narrow).dtype == ml_dtypes.bfloat16


def test_out_is_written_and_decides_the_dtype():
    given = _draw(torch.bfloat16)
    out = torch.full((TOKENS, HIDDEN), torch.nan)
    assert tilewise.moe(**given, out=out) is out
    assert_close(out.bfloat16(), tilewise.moe(**given), 1e-6)
    with pytest.raises(ValueError, match="out: cannot be given with inputs that require gradients"):
        tilewise.moe(**{**given, "x": given["x"].requires_grad_()}, out=out)


GRADIENTS = ("x", "topk_weights", "gate_up", "down", "gate_up_bias", "down_bias")


@pytest.mark.parametrize(
    "options",
    [{}, {"gate": "interleaved", "activation": "swiglu_oai", "limit": 0.5}, {"gate": "none", "weight_on_input": True}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_are_torchs(dtype, options):
    given = _draw(dtype, options.get("gate", "concatenated"), biased=True)
    wide = {name: each.double() if each.is_floating_point() else each for name, each in given.items()}
    dout = torch.randn(TOKENS, HIDDEN)
    for arguments, compute in ((given, tilewise.moe), (wide, _expected)):
        for name in GRADIENTS:
            arguments[name].requires_grad_()
        compute(**arguments, **options).backward(dout.to(arguments["x"].dtype))
    tolerance = {torch.bfloat16: 6e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    for name in GRADIENTS:
        assert given[name].grad.dtype == given[name].dtype
        assert_close(given[name].grad.double(), wide[name].grad, tolerance, name)
    assert not given["x"].grad[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"gate": "interleaved", "limit": 0.5}, {"gate": "none"}], ids=str)
def test_gradients_of_saved_sums(dtype, options):
    """Rounded to the dtype of x: f32 rounds nothing."""
    gradients = []
    for save in (False, True):
        given = _draw(dtype, options.get("gate", "concatenated"), biased=True)
        for name in GRADIENTS:
            given[name].requires_grad_()
        out = tilewise.moe(**given, **options, save_gate_up=save)
        out.backward(torch.ones_like(out))
        gradients.append([given[name].grad.double() for name in GRADIENTS])
    for name, saved, again in zip(GRADIENTS, gradients[1], gradients[0]):
        assert_close(saved, again, 2e-2 if dtype == torch.bfloat16 else 1e-6, name)


def test_saved_sums_are_kept_until_the_backward_pass():
    given = _draw(torch.float64)
    given["x"].requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.shape) or each, lambda each: each):
        tilewise.moe(**given)
        assert (TOKENS * TOP_K, 2 * INTERMEDIATE) not in kept
        tilewise.moe(**given, save_gate_up=True)
    assert (TOKENS * TOP_K, 2 * INTERMEDIATE) in kept
    with pytest.raises(ValueError, match="save_gate_up: excludes norm_weight"):
        tilewise.moe(**_draw(), norm_weight=torch.ones(EXPERTS, HIDDEN), save_gate_up=True)


def test_gradients_of_some():
    given = _draw()
    given["down"].requires_grad_()
    tilewise.moe(**given).sum().backward()
    assert given["down"].grad.shape == given["down"].shape
    unused = {int(e) for e in range(EXPERTS)} - {int(e) for e in given["topk_ids"].flatten()}
    for expert in unused:
        assert not given["down"].grad[expert].any()


def test_gradcheck():
    given = _draw(torch.float64, biased=True)

    def run(*tensors):
        return tilewise.moe(**{**given, **dict(zip(GRADIENTS, tensors))})

    assert torch.autograd.gradcheck(run, [given[name].requires_grad_() for name in GRADIENTS])


@pytest.mark.parametrize("save", [False, True])
def test_compiles_whole(save):
    given = {**_draw(biased=True), "save_gate_up": save}
    for name in GRADIENTS:
        given[name].requires_grad_()
    expected = torch.autograd.grad(tilewise.moe(**given).sum(), [given[name] for name in GRADIENTS])
    compiled = torch.compile(lambda: tilewise.moe(**given, activation="silu"), fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled().sum(), [given[name] for name in GRADIENTS])
    for one, other in zip(found, expected):
        assert torch.equal(one, other)


@pytest.mark.parametrize("save", [False, True])
def test_opcheck(save):
    given = _draw(biased=True)
    for name in GRADIENTS:
        given[name].requires_grad_()
    operator = torch.ops.tilewise.moe.default
    torch.library.opcheck(
        operator,
        [given.get(a.name) for a in operator._schema.arguments if a.name in given or "Tensor" in str(a.type)],
        {"save_gate_up": save},
    )


def test_refuses_gradients_of_what_has_none():
    given = _draw()
    given["x"].requires_grad_()
    with pytest.raises(NotImplementedError, match="norm_weight"):
        tilewise.moe(**given, norm_weight=torch.ones(EXPERTS, HIDDEN))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_ids": torch.zeros(TOKENS, TOP_K)}, "topk_ids: dtype must be i32 or i64"),
        ({"x": torch.zeros(TOKENS, HIDDEN, dtype=torch.int32)}, "x: dtype must be"),
        ({"topk_weights": torch.zeros(TOKENS, TOP_K + 1)}, "topk_weights: shape must be"),
        ({"gate_up": torch.zeros(EXPERTS, INTERMEDIATE, HIDDEN)}, "gate_up: shape must be"),
        ({"gate": "split"}, "gate: must be one of 'none', 'concatenated', 'interleaved'"),
        ({"activation": "swish"}, "activation: must be one of"),
        ({"limit": 0.0}, "limit: must be > 0 and finite"),
        ({"alpha": 1.0}, "alpha: requires activation=swiglu_oai"),
        ({"first_expert": -1}, "first_expert: must be >= 0"),
        ({"w_format": "fp9"}, "w_format: must be one of"),
        ({"w_format": "fp8_row"}, "dtype must be fp8_e4m3|gate_up_scale: must be given"),
    ],
)
def test_names_the_bad_argument(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tilewise.moe(**{**_draw(), **changes})


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _mxfp4(experts, rows, columns):
    """Weights as gpt-oss stores them, bytes of pairs and of scales, and their numbers."""
    pairs = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8)
    exponents = torch.randint(122, 127, (experts, rows, columns // 32), dtype=torch.uint8)
    numbers = torch.stack((FP4[(pairs & 15).long()], FP4[(pairs >> 4).long()]), -1).flatten(-2)
    return pairs, exponents, numbers * torch.exp2(exponents.float() - 127).repeat_interleave(32, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_as_it_is_stored(dtype):
    torch.manual_seed(1)
    first, first_scale, gate_up = _mxfp4(3, 128, 96)
    second, second_scale, down = _mxfp4(3, 96, 64)
    x, ids, weights = torch.randn(5, 96, dtype=dtype) / 8, torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    form = {"gate": "interleaved", "activation": "swiglu_oai", "limit": 7.0}
    scales = {"w_format": "mxfp4", "gate_up_scale": first_scale, "down_scale": second_scale}
    out = tilewise.moe(x, ids, weights, first, second, **scales, **form)
    expected = _expected(x.double(), ids, weights, gate_up.double(), down.double(), **form)
    assert_close(out.double(), expected, {torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype])
    pairs = (each.view(torch.float4_e2m1fn_x2) for each in (first, second))
    typed = {name: each.view(torch.float8_e8m0fnu) if name.endswith("scale") else each for name, each in scales.items()}
    assert torch.equal(tilewise.moe(x, ids, weights, *pairs, **typed, **form), out)
    wide = x.double().requires_grad_()
    _expected(wide, ids, weights, gate_up.double(), down.double(), **form).sum().backward()
    tilewise.moe(x.requires_grad_(), ids, weights, first, second, **scales, **form).sum().backward()
    assert_close(x.grad.double(), wide.grad, {torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype])


def test_fp8_rows_by_fp8_weights():
    torch.manual_seed(1)
    given = {"x": torch.randn(5, 64), "gate_up": torch.randn(3, 48, 64) / 8, "down": torch.randn(3, 64, 24) / 5}
    scales = {name: each.abs().amax(-1) / 448 for name, each in given.items()}
    elements = {name: (each / scales[name].unsqueeze(-1)).to(torch.float8_e4m3fn) for name, each in given.items()}
    wide = {name: each.double() * scales[name].unsqueeze(-1).double() for name, each in elements.items()}
    ids, weights = torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    formats = {"w_format": "fp8_row", "x_format": "fp8_row", "x_scale": scales["x"].unsqueeze(-1)}
    formats |= {"gate_up_scale": scales["gate_up"], "down_scale": scales["down"]}
    out = tilewise.moe(topk_ids=ids, topk_weights=weights, **elements, **formats)
    assert out.dtype == torch.bfloat16
    assert (
        tilewise.moe(topk_ids=ids, topk_weights=weights, **elements, **formats, out_dtype="float32").dtype
        == torch.float32
    )
    expected = _expected(topk_ids=ids, topk_weights=weights, **wide)
    assert_close(out.double(), expected, 4e-2)
    quantised = tilewise.moe(topk_ids=ids, topk_weights=weights, **elements, **formats, h_format="fp8_row")
    assert_close(quantised.double(), expected, 2e-1)
