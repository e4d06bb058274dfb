# tilewise.compat.grouped_mm against torch's grouped_mm in every form of operands, and scaled_grouped_mm, which torch
# has on GPUs alone, against products of the numbers that elements and scales stand for.
"""The drop-ins for torch's grouped products."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

if not hasattr(F, "scaled_grouped_mm"):
    pytest.skip(f"torch {torch.__version__} has no grouped products", allow_module_level=True)

import tilewise  # noqa: E402
from tilewise.compat import grouped_mm as module  # noqa: E402
from tilewise.compat.grouped_mm import LeftToTorch, grouped_mm, routed, scaled_grouped_mm  # noqa: E402

TORCH, TORCH_SCALED = F.grouped_mm, F.scaled_grouped_mm
Recipe = F.ScalingType
ENDS = [3, 3, 8]
# mat_a and mat_b of each form.
FORMS = {
    "rows": ((8, 16), (3, 16, 24)),
    "batches": ((3, 5, 16), (3, 16, 24)),
    "parts of k": ((8, 8), (8, 24)),
    "columns": ((3, 4, 16), (16, 8)),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def ends(dtype=torch.int32):
    return torch.tensor(ENDS, dtype=dtype)


def options_of(form):
    return {} if form == "batches" else {"offs": ends()}


def draw(form, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in FORMS[form]]


def gradients(function, matrices, **options):
    """The result, and the gradients of the matrices."""
    matrices = [matrix.detach().clone().requires_grad_() for matrix in matrices]
    out = function(*matrices, **options)
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), matrices)]


def by_formula(mat_a, mat_b, offs=None):
    """In torch's own operations, whatever the dtype."""
    if offs is None:
        return mat_a @ mat_b
    starts, stops = [0, *offs.tolist()[:-1]], offs.tolist()
    groups = list(enumerate(zip(starts, stops)))
    if mat_a.dim() == mat_b.dim() == 2:
        return torch.stack([mat_a[:, i:j] @ mat_b[i:j] for _, (i, j) in groups])
    if mat_a.dim() == 2:
        return torch.cat([mat_a[i:j] @ mat_b[g] for g, (i, j) in groups])
    return torch.cat([mat_a[g] @ mat_b[:, i:j] for g, (i, j) in groups], 1)


def assert_close(got, expected):
    for one, other in zip(got, expected):
        assert one.dtype == other.dtype and one.shape == other.shape
        tolerance = TOLERANCES[one.dtype]
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_results_and_gradients(form, dtype):
    matrices, options = draw(form, dtype), options_of(form)
    assert_close(gradients(grouped_mm, matrices, **options), gradients(TORCH, matrices, **options))


@pytest.mark.parametrize("form", FORMS)
def test_doubles_and_second_derivatives(form):
    """Of which torch has none on a CPU."""
    matrices, options = draw(form, torch.float64), options_of(form)
    assert_close(gradients(grouped_mm, matrices, **options), gradients(by_formula, matrices, **options))
    a, b = (
        matrix[..., :4].contiguous().requires_grad_() if form == "none" else matrix.requires_grad_()
        for matrix in matrices
    )

    def second(function):
        (da,) = torch.autograd.grad(function(a, b, **options).square().sum(), a, create_graph=True)
        return torch.autograd.grad(da.square().sum(), (a, b))

    assert_close(second(grouped_mm), second(by_formula))


def test_signatures_are_torchs():
    for ours, torchs in ((grouped_mm, TORCH), (scaled_grouped_mm, TORCH_SCALED)):
        own, other = (inspect.signature(function).parameters for function in (ours, torchs))
        assert list(own) == list(other)
        for name, parameter in other.items():
            assert own[name].kind == parameter.kind
            assert own[name].default == parameter.default


@pytest.mark.parametrize("form", FORMS)
def test_any_strides_and_sizes(form):
    """torch wants strides of 16 bytes and one contiguous dimension."""
    a, b = draw(form)
    options = options_of(form)
    expected = grouped_mm(a, b, **options)
    for turned in (
        lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda x: x.repeat_interleave(2, -1)[..., ::2],
    ):
        torch.testing.assert_close(grouped_mm(turned(a), b, **options), expected)
        torch.testing.assert_close(grouped_mm(a, turned(b), **options), expected)
    odd = a[..., :7] if form != "parts of k" else a[:7]
    other = b[..., :7, :5] if form != "columns" else b[:7]
    if form == "parts of k":
        other = b[..., :5]
    torch.testing.assert_close(grouped_mm(odd, other, **options), by_formula(odd, other, **options))


def test_what_belongs_to_no_group_is_zero():
    """torch leaves it as the memory was, in the result and in the gradient of mat_a."""
    a, b = torch.randn(11, 16), torch.randn(3, 16, 24)
    out, da, db = gradients(grouped_mm, [a, b], offs=ends())
    assert not out[8:].any() and not da[8:].any() and not db[1].any()
    assert out[:8].any(1).all()
    columns = grouped_mm(torch.randn(3, 4, 16), torch.randn(16, 11), offs=ends())
    assert not columns[:, 8:].any() and columns[:, :8].any()


@pytest.mark.parametrize("stops", [[3, 5, 20], [5, 3, 8], [-1, 3, 8], [2**31 - 1] * 3, [-(2**31)] * 3])
def test_ends_that_are_none_stay_within(stops):
    a, b = draw("rows")
    stops = torch.tensor(stops, dtype=torch.int32)
    clamped = stops.clamp(0, 8).cummax(0).values
    torch.testing.assert_close(grouped_mm(a, b, offs=stops)[: clamped[-1]], by_formula(a, b, clamped))
    torch.testing.assert_close(grouped_mm(a, b, offs=stops.long()), grouped_mm(a, b, offs=stops))


NOTHING = [
    ((0, 16), (3, 16, 24), [0, 0, 0]),
    ((8, 0), (3, 0, 24), ENDS),
    ((8, 16), (3, 16, 0), ENDS),
    ((8, 16), (0, 16, 24), []),
    ((3, 0, 16), (3, 16, 24), None),
    ((3, 5, 0), (3, 0, 24), None),
    ((8, 0), (0, 24), [0, 0, 0]),
    ((0, 8), (8, 24), ENDS),
    ((3, 4, 16), (16, 0), [0, 0, 0]),
    ((3, 0, 16), (16, 8), ENDS),
]


@pytest.mark.parametrize(("a", "b", "stops"), NOTHING)
def test_nothing_at_all(a, b, stops):
    options = {} if stops is None else {"offs": torch.tensor(stops, dtype=torch.int32)}
    matrices = [torch.randn(a), torch.randn(b)]
    out, *found = gradients(grouped_mm, matrices, **options)
    assert not out.any()
    if stops != []:
        assert out.shape == by_formula(*matrices, **options).shape
    assert [each.shape for each in found] == [each.shape for each in matrices]
    assert not any(each.any() for each in found)


def test_dtype_of_the_result():
    for form in ("rows", "batches", "columns"):
        a, b = draw(form, torch.bfloat16)
        out, da, db = gradients(grouped_mm, [a, b], out_dtype=torch.float32, **options_of(form))
        assert (out.dtype, da.dtype, db.dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)
        torch.testing.assert_close(out, by_formula(a.float(), b.float(), **options_of(form)), rtol=1e-4, atol=1e-4)


# --- torch around it ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["function", "routed"])
def test_compiled(form, way):
    torch._dynamo.reset()
    matrices, options = draw(form), options_of(form)
    function = grouped_mm if way == "function" else lambda *args, **others: F.grouped_mm(*args, **others)
    compiled = torch.compile(lambda a, b: function(a, b, **options), fullgraph=True, backend="aot_eager")
    with routed(strict=True):
        got = gradients(compiled, matrices)
    assert_close(got, gradients(grouped_mm, matrices, **options))


def test_transforms():
    a, b = torch.randn(2, 8, 16), torch.randn(3, 16, 24)

    def loss(function):
        return lambda a, b: function(a, b, offs=ends()).square().sum()

    together = torch.func.grad(loss(grouped_mm), (0, 1))(a[0], b)
    torch.testing.assert_close(together, torch.func.grad(loss(by_formula), (0, 1))(a[0], b), rtol=1e-4, atol=1e-4)
    out = torch.vmap(lambda a: grouped_mm(a, b, offs=ends()))(a)
    torch.testing.assert_close(out, torch.stack([grouped_mm(each, b, offs=ends()) for each in a]))
    each = torch.vmap(torch.func.grad(loss(grouped_mm)), in_dims=(0, None))(a, b)
    torch.testing.assert_close(each[1], torch.func.grad(loss(grouped_mm))(a[1], b))


def test_autocast_changes_nothing_as_torchs():
    a, b = draw("rows")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(grouped_mm(a, b, offs=ends()), grouped_mm(a, b, offs=ends()))
        assert grouped_mm(a, b, offs=ends()).dtype == TORCH(a, b, offs=ends()).dtype == torch.float32


# --- refusals ---

A, B = torch.zeros(8, 16), torch.zeros(3, 16, 24)
REFUSED = {
    "one dimension": ((A[0], B), {"offs": ends()}, RuntimeError, r"mat_a has to be 2 or 3d \(got 1\)"),
    "no ends": ((A, B), {}, RuntimeError, "Have to provide offsets if there is a 2d matrix"),
    "ends of batches": ((B, B), {"offs": ends()}, RuntimeError, "no offset if both matrices are 3d"),
    "batches": ((torch.zeros(4, 5, 16), B), {}, RuntimeError, r"batched dimension has to match \(got 4 and 3\)"),
    "k": ((A[:, :12], B), {"offs": ends()}, RuntimeError, r"contraction dimension .* match \(got 12 and 16\)"),
    "dtypes": ((A, B.half()), {"offs": ends()}, RuntimeError, r"mat_b: dtype must be torch.float32, .*torch.float16"),
    "integers": ((A.int(), B.int()), {"offs": ends()}, TypeError, r"mat_a: dtype must be f32, .* \(got i32\)"),
    "array": ((A, B.numpy()), {"offs": ends()}, TypeError, r"argument 'mat_b' \(position 2\) must be Tensor, not nd"),
    "ends of numbers": ((A, B), {"offs": ENDS}, TypeError, r"offs: must be a tensor \(got list\)"),
    "ends of floats": ((A, B), {"offs": ends().float()}, RuntimeError, r"offs: dtype must be torch.int32 or torch.int"),
    "too few ends": ((A, B), {"offs": ends()[:2]}, RuntimeError, r"offs: must be the ends of 3 groups \(got 2\)"),
    "ends in rows": ((A, B), {"offs": ends()[None]}, RuntimeError, r"offs has to be 1D \(got 2\)"),
    "bias": ((A, B), {"offs": ends(), "bias": B[:, 0]}, RuntimeError, "bias: must be None, as torch has none yet"),
    "dtype of parts": ((A.T, A), {"offs": ends(), "out_dtype": torch.bfloat16}, RuntimeError, "out_dtype: must be"),
    "dtype": ((A, B), {"offs": ends(), "out_dtype": torch.int8}, ValueError, "out_dtype: must be"),
    "unknown": ((A, B), {"offsets": ends()}, TypeError, "unexpected keyword argument 'offsets'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    matrices, options, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        grouped_mm(*matrices, **options)


# --- routed() ---


def test_routed_counts_and_ends():
    a, b = draw("rows")
    with routed() as calls:
        got = F.grouped_mm(a, b, offs=ends())
        with pytest.raises(RuntimeError, match="Bias not supported yet"):
            F.grouped_mm(a, b, offs=ends(), bias=b[:, 0])
    assert torch.equal(got, grouped_mm(a, b, offs=ends()))
    assert (calls.routed, calls.left) == (1, 1)
    assert calls.reasons == {"bias: must be None, as torch has none yet": 1}
    assert F.grouped_mm is TORCH and F.scaled_grouped_mm is TORCH_SCALED
    with routed(strict=True), pytest.raises(LeftToTorch, match="would be left to torch: bias: must be None"):
        F.grouped_mm(a, b, offs=ends(), bias=b[:, 0])
    assert F.grouped_mm is TORCH


def test_routed_serves_transformers_own_layer(monkeypatch):
    transformers = pytest.importorskip("transformers")
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    config = transformers.MixtralConfig(hidden_size=32, intermediate_size=16, num_local_experts=4)
    config._experts_implementation = "grouped_mm"
    experts = MixtralExperts(config)
    with torch.no_grad():
        for parameter in experts.parameters():
            torch.nn.init.normal_(parameter)
    x, ids, weights = torch.randn(5, 32), torch.tensor([[0, 2]] * 5), torch.rand(5, 2)
    expected = experts(x, ids, weights)
    with routed() as calls:
        got = experts(x, ids, weights)
    assert calls.routed == 2
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


# --- scaled_grouped_mm ---

SCALED = {
    "tensor": ("fp8_tensor", "fp8_tensor", Recipe.TensorWise, Recipe.TensorWise),
    "row": ("fp8_row", "fp8_row", Recipe.RowWise, Recipe.RowWise),
    "blocks": ("fp8_1x128", "fp8_128x128", Recipe.BlockWise1x128, Recipe.BlockWise128x128),
    "mxfp8": ("mxfp8", "mxfp8", Recipe.BlockWise1x32, Recipe.BlockWise1x32),
}


def quantised(x, format):
    """Elements, scales as torch has them, and what both stand for."""
    elements, scales = tilewise.quantize(x, format)
    whole = tilewise.dequantize(elements, scales, format)
    return elements, scales.squeeze() if format in ("fp8_tensor", "fp8_row") else scales, whole


@pytest.mark.parametrize("as_lists", [False, True])
@pytest.mark.parametrize("name", SCALED)
def test_scaled(name, as_lists):
    a_format, b_format, a_recipe, b_recipe = SCALED[name]
    torch.manual_seed(0)
    a, a_scale, a_whole = quantised(torch.randn(8, 256), a_format)
    b, b_scale, b_whole = quantised(torch.randn(3, 128, 256), b_format)
    given = [a_scale, a_recipe, b_scale, b_recipe]
    given = [[each] for each in given] if as_lists else given
    out = scaled_grouped_mm(a, b.transpose(1, 2), *given, offs=ends())
    assert out.dtype == torch.bfloat16
    expected = by_formula(a_whole, b_whole.transpose(1, 2), ends())
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=0.2)
    exact = scaled_grouped_mm(a, b.transpose(1, 2), *given, offs=ends(), output_dtype=torch.float32)
    torch.testing.assert_close(exact, expected, rtol=1e-4, atol=1e-2)
    with routed() as calls:
        assert torch.equal(F.scaled_grouped_mm(a, b.transpose(1, 2), *given, offs=ends()), out)
    assert calls.routed == 1


def test_scaled_batches():
    a, a_scale, a_whole = quantised(torch.randn(3, 5, 64), "fp8_row")
    b, b_scale, b_whole = quantised(torch.randn(3, 16, 64), "fp8_row")
    out = scaled_grouped_mm(
        a, b.transpose(1, 2), a_scale, Recipe.RowWise, b_scale, Recipe.RowWise, output_dtype=torch.float32
    )
    torch.testing.assert_close(out, a_whole @ b_whole.transpose(1, 2), rtol=1e-4, atol=1e-3)


def test_scaled_refusals():
    a, b = torch.zeros(8, 64).to(torch.float8_e4m3fn), torch.zeros(3, 64, 16).to(torch.float8_e4m3fn)
    rows, columns = torch.ones(8), torch.ones(3, 16)
    given = (rows, Recipe.RowWise, columns, Recipe.RowWise)
    swizzle = F.SwizzleType.SWIZZLE_32_4_4
    cases = [
        ((a, b, rows, Recipe.RowWise, columns, Recipe.TensorWise), {}, "no format has .*RowWise.* and .*TensorWise"),
        ((a, b, *given), {"swizzle_a": swizzle}, "swizzle_a: must be NO_SWIZZLE"),
        ((a, b, [rows, rows], [Recipe.RowWise], columns, Recipe.RowWise), {}, "scale_a: must be one, .* has 2 of them"),
        ((a, b[0], *given), {}, r"mat_b: must have 3 dimensions, .* \(got 2\)"),
        ((a, b, *given), {"contraction_dim": (0, 1)}, r"contraction_dim: must be \(\) or \(-1, -2\)"),
    ]
    for args, options, message in cases:
        with pytest.raises(NotImplementedError, match=message):
            scaled_grouped_mm(*args, offs=ends(), **options)
    with pytest.raises((ValueError, TypeError), match="scale_b"):
        scaled_grouped_mm(a, b, rows, Recipe.RowWise, columns[:, :8], Recipe.RowWise, offs=ends())
    with pytest.raises((NotImplementedError, TypeError), match="scale_b"):
        scaled_grouped_mm(a, b, rows, Recipe.RowWise, columns.requires_grad_(), Recipe.RowWise, offs=ends())
    with pytest.raises(RuntimeError, match="bias: must be None"):
        scaled_grouped_mm(a, b, *given, offs=ends(), bias=rows)


def test_every_reason_names_an_argument_of_torchs():
    assert set(module._NAMES.values()) <= set(inspect.signature(scaled_grouped_mm).parameters)
