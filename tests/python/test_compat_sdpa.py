# tilewise.compat.sdpa against torch's scaled_dot_product_attention: results and gradients by the rule of
# closeness.py, dropout, what is refused, and what routed() routes and leaves alone.
"""The drop-in for torch's scaled_dot_product_attention."""

import inspect
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from closeness import assert_all_as_close, results_of  # noqa: E402
from sdpa_cases import CASES, PAIRS, by_formula, call_of, draw, in_float64  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import tilewise  # noqa: E402
from tilewise.compat import sdpa  # noqa: E402
from tilewise.compat.sdpa import LeftToTorch, routed, scaled_dot_product_attention  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
TORCH = F.scaled_dot_product_attention


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, dtype):
    tensors = draw(CASES[name], dtype)
    exact = results_of(call_of(by_formula, CASES[name]), in_float64(tensors))
    other = results_of(call_of(by_formula, CASES[name]), tensors)
    got = results_of(call_of(scaled_dot_product_attention, CASES[name]), tensors)
    assert got[0].dtype == dtype
    assert_all_as_close(got, other, exact)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_options(name):
    case, rows_first, dtype = PAIRS[name]
    tensors = draw(case, dtype, rows_first)
    exact = results_of(call_of(by_formula, case), in_float64(tensors))
    other = results_of(call_of(by_formula, case), tensors)
    assert_all_as_close(results_of(call_of(scaled_dot_product_attention, case), tensors), other, exact)


def test_signature_is_torchs():
    schema = torch.ops.aten.scaled_dot_product_attention.default._schema
    parameters = inspect.signature(scaled_dot_product_attention).parameters
    assert list(parameters) == [argument.name for argument in schema.arguments]
    for argument in schema.arguments:
        parameter = parameters[argument.name]
        assert (parameter.kind == parameter.KEYWORD_ONLY) == argument.kwarg_only
        assert (parameter.default is parameter.empty) == (not argument.has_default_value())
        assert parameter.default in (parameter.empty, argument.default_value)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["heads_first", "rows_first"])
def test_result_is_stored_as_torchs(order):
    def stored():
        return torch.randn([(2, 4, 7, 16)[axis] for axis in order]).permute(order)

    q, k, v = stored(), stored(), stored()
    assert scaled_dot_product_attention(q, k, v).stride() == TORCH(q, k, v).stride()


def test_any_strides():
    q, k, v = (torch.randn(2, 4, 16, 7).transpose(2, 3) for _ in range(3))
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v), TORCH(q, k, v))
    mask = torch.rand(7, 2, 1, 7).permute(1, 2, 3, 0) < 0.8
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask), TORCH(q, k, v, mask))


def test_mask_beside_causal_is_torchs_on_the_cpu():
    q, k, v, mask = draw(CASES["mask_causal"], torch.float32)
    both = TORCH(q, k, v, mask, is_causal=True)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask, is_causal=True), both)
    assert not torch.allclose(both, TORCH(q, k, v, mask))
    assert not torch.allclose(both, TORCH(q, k, v, is_causal=True))


def test_double_backward():
    q, k, v = (tensor.requires_grad_() for tensor in draw(CASES["plain"], torch.float64))

    def second(function):
        (dq,) = torch.autograd.grad(function(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(dq.square().sum(), (q, k, v))

    for got, expected in zip(second(scaled_dot_product_attention), second(by_formula)):
        torch.testing.assert_close(got, expected)


# --- dropout ---


@pytest.mark.parametrize("mask", [None, torch.ones(7, 11, dtype=torch.bool)], ids=["plain", "mask"])
def test_dropout_draws_from_torchs_generator(mask):
    q, k, v = draw(CASES["plain"], torch.float32)
    torch.manual_seed(5)
    seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64)
    expected = tilewise.attention(q, k, v, layout="bhsd", dropout_p=0.4, seed=seed, bias=mask)
    torch.manual_seed(5)
    first, second = (scaled_dot_product_attention(q, k, v, mask, 0.4) for _ in range(2))
    assert torch.equal(first, expected)
    assert not torch.equal(first, second)


def test_dropout_of_everything():
    out, gradients = results_of(
        lambda *t: scaled_dot_product_attention(*t, dropout_p=1.0), draw(CASES["plain"], torch.float32)
    )
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients)


# --- torch around it ---


@pytest.mark.parametrize(
    "name", ["plain", "causal_more_keys", "mask", "numbers", "three_dimensions", "broadcast_heads"]
)
@pytest.mark.parametrize("way", ["function", "routed"])
def test_compiled(name, way):
    torch._dynamo.reset()  # which counts how often it compiled one line for other shapes
    tensors = draw(CASES[name], torch.float32)
    call = call_of(scaled_dot_product_attention, CASES[name])
    compiled = torch.compile(
        call
        if way == "function"
        else call_of(lambda *args, **options: F.scaled_dot_product_attention(*args, **options), CASES[name]),
        fullgraph=True,
        backend="aot_eager",
    )
    expected = results_of(call, tensors)
    with routed():
        got = results_of(compiled, tensors)
    assert torch.equal(got[0], expected[0])
    assert all(map(torch.equal, got[1], expected[1]))


def test_autocast():
    q, k, v = draw(CASES["plain"], torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = scaled_dot_product_attention(q, k.bfloat16(), v)
    assert torch.equal(out, scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))


def test_vmap():
    q, k, v = (torch.randn(3, 2, 4, 7, 16) for _ in range(3))
    got = torch.vmap(lambda *t: scaled_dot_product_attention(*t, is_causal=True))(q, k, v)
    torch.testing.assert_close(got, TORCH(q, k, v, is_causal=True))


def test_nested():
    rows = [torch.randn(n, 4, 16) for n in (5, 1, 9)]
    q = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    out = scaled_dot_product_attention(q, q, q, is_causal=True)
    for got, row in zip(out.unbind(), rows):
        row = row.transpose(0, 1)
        torch.testing.assert_close(got, TORCH(row, row, row, is_causal=True))
    with pytest.raises(RuntimeError, match="attn_mask: must be None beside nested tensors"):
        scaled_dot_product_attention(q, q, q, torch.ones(5, 5))
    with pytest.raises(RuntimeError, match="must all be nested tensors or none"):
        scaled_dot_product_attention(q, rows[0], rows[0])


# --- refusals ---

Q, K = torch.zeros(2, 4, 7, 16), torch.zeros(2, 4, 11, 16)
BOOLS = torch.ones(7, 11, dtype=torch.bool)
REFUSED = {
    "one dimension": ((Q[0, 0, 0], K, K), {}, RuntimeError, r"query: must have at least 2 dimensions \(got 1\)"),
    "dtypes": ((Q, K.double(), K), {}, RuntimeError, "to have the same dtype, but got query.dtype: torch.float32 key"),
    "integers": ((Q.int(), K.int(), K.int()), {}, TypeError, r"query: dtype must be f32, .* \(got i32\)"),
    "array": ((Q, K.numpy(), K), {}, TypeError, r"argument 'key' \(position 2\) must be Tensor, not ndarray"),
    "mask of integers": ((Q, K, K, BOOLS.int()), {}, RuntimeError, "Expected attn_mask dtype to be bool or float"),
    "mask of another dtype": ((Q, K, K, BOOLS.half()), {}, RuntimeError, "got attn_mask.dtype: torch.float16"),
    "mask of one dimension": ((Q, K, K, BOOLS[0]), {}, RuntimeError, "attn_mask: must have at least 2 dimensions"),
    "mask of another shape": ((Q, K, K, BOOLS[:5]), {}, ValueError, r"attn_mask: dimension 0 must be 1 or seqlen_q"),
    "mask of a list": ((Q, K, K, [[True]]), {}, TypeError, r"attn_mask: must be a tensor or None \(got list\)"),
    "heads": ((Q, K[:, :2], K[:, :2]), {}, RuntimeError, r"heads must broadcast \(got \[4\], \[2\], \[2\]\)"),
    "gqa": ((Q, K[:, :3], K[:, :3]), {"enable_gqa": True}, RuntimeError, r"divides query's 4 \(got 3 and 3\)"),
    "gqa of value": ((Q, K, K[:, :3]), {"enable_gqa": True}, RuntimeError, r"divides query's 4 \(got 4 and 3\)"),
    "own heads alone": ((Q, K, K[:, :2]), {}, RuntimeError, r"heads must broadcast \(got \[4\], \[4\], \[2\]\)"),
    "batches": ((Q, K[:1].expand(3, 4, 11, 16), K), {}, RuntimeError, "dimensions before the heads must broadcast"),
    "positions": ((Q, K, K[:, :, :9]), {}, RuntimeError, r"value: must have as many positions as key, 11 \(got 9\)"),
    "widths": ((Q, K[..., :8], K), {}, ValueError, r"key: shape must be .* \[2, 4, 11, 16\] \(got \[2, 4, 11, 8\]\)"),
    "dropout": ((Q, K, K), {"dropout_p": 1.5}, RuntimeError, r"dropout_p: must be between 0 and 1 \(got 1.5\)"),
    "negative dropout": ((Q, K, K), {"dropout_p": -0.5}, RuntimeError, r"dropout_p: must be between 0 and 1"),
    "dropout of a word": ((Q, K, K), {"dropout_p": "a"}, TypeError, r"dropout_p: must be a number \(got str\)"),
    "causal by number": ((Q, K, K), {"is_causal": 1}, TypeError, r"is_causal: must be True or False \(got int\)"),
    "gqa by number": ((Q, K, K), {"enable_gqa": 1}, TypeError, r"enable_gqa: must be True or False \(got int\)"),
    "scale": ((Q, K, K), {"scale": float("inf")}, ValueError, r"scale: must be finite"),
    "unknown": ((Q, K, K), {"window": 3}, TypeError, "unexpected keyword argument 'window'"),
    "wide heads": ((torch.zeros(1, 1, 2, 640),) * 3, {}, ValueError, r"query: head_dim must be <= 576 \(got 640\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    tensors, options, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        scaled_dot_product_attention(*tensors, **options)


# --- routed() ---


@pytest.fixture
def calls(monkeypatch):
    """The calls that reach Tilewise."""
    made = []
    original = sdpa._attend

    def attend(*args, **options):
        result = original(*args, **options)
        made.append(options)
        return result

    monkeypatch.setattr(sdpa, "_attend", attend)
    return made


@pytest.mark.parametrize("name", CASES)
def test_routed_is_the_function(name, calls):
    tensors = draw(CASES[name], torch.float32)
    with routed():
        got = call_of(lambda *args, **options: F.scaled_dot_product_attention(*args, **options), CASES[name])(*tensors)
    assert len(calls) == 1
    assert torch.equal(got, call_of(scaled_dot_product_attention, CASES[name])(*tensors))


def test_routed_ends_and_nests(calls):
    tensors = draw(CASES["plain"], torch.float32)
    with routed():
        with routed():
            F.scaled_dot_product_attention(*tensors)
        route = F.scaled_dot_product_attention
        F.scaled_dot_product_attention(*tensors)
    assert F.scaled_dot_product_attention is TORCH
    F.scaled_dot_product_attention(*tensors)
    assert len(calls) == 2
    assert torch.equal(route(*tensors), TORCH(*tensors))  # whoever kept it has torch's afterwards
    assert len(calls) == 2
    with pytest.raises(KeyError), routed():
        raise KeyError
    assert F.scaled_dot_product_attention is TORCH


def test_routed_serves_modules(calls):
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).train()
    x = torch.randn(2, 7, 16)
    torch.manual_seed(0)
    layer.dropout1.p = layer.dropout2.p = layer.dropout.p = layer.self_attn.dropout = 0.0
    expected = layer(x)
    with routed():
        torch.testing.assert_close(layer(x), expected)
    assert calls


class Named(torch.Tensor):
    pass


LEFT_ALONE = {
    "wide heads": ((torch.randn(1, 1, 2, 640),) * 3, {}),
    "subclass": ((torch.randn(2, 4, 7, 16).as_subclass(Named),) * 3, {}),
    "no width of values": ((torch.randn(2, 4, 7, 16), torch.randn(2, 4, 7, 16), torch.randn(2, 4, 7, 0)), {}),
    "dropout": ((torch.randn(1, 1, 2, 640),) * 3, {"dropout_p": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_routed_leaves_the_rest_alone(name, calls):
    tensors, options = LEFT_ALONE[name]
    torch.manual_seed(3)
    expected = TORCH(*tensors, **options)
    torch.manual_seed(3)
    with routed():
        got = F.scaled_dot_product_attention(*tensors, **options)
    assert not calls
    assert type(got) is type(expected)
    assert torch.equal(got, expected)


def test_routed_leaves_the_formula_alone(calls):
    q, k, v = (tensor.requires_grad_() for tensor in draw(CASES["plain"], torch.float64))
    with routed(), sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v)
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert torch.autograd.grad(dq.sum(), k)[0].isfinite().all()
    assert not calls


def test_routed_refuses_as_torch_does():
    with routed():
        with pytest.raises(RuntimeError, match="must match the size of tensor b"):
            F.scaled_dot_product_attention(Q, K[:, :2], K[:, :2])
        with pytest.raises(TypeError, match="unexpected keyword argument 'window'"):
            F.scaled_dot_product_attention(Q, K, K, window=3)


def _runs(code):
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# --- the account of routed() ---


def test_routed_counts():
    q, k, v = draw(CASES["plain"], torch.float32)
    wide = torch.randn(1, 1, 2, 640)
    with routed() as outer:
        F.scaled_dot_product_attention(q, k, v)
        with routed() as inner:
            for _ in range(2):
                F.scaled_dot_product_attention(wide, wide, wide)
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with sdpa_kernel(SDPBackend.MATH):
            F.scaled_dot_product_attention(q, k, v)
    F.scaled_dot_product_attention(q, k, v)
    reason = "query: head_dim must be <= 576 (got 640)"
    assert (inner.routed, inner.left, inner.reasons) == (1, 2, {reason: 2})
    assert (outer.routed, outer.left) == (2, 3)
    assert outer.reasons == {reason: 2, "sdpa_kernel() allows the plain formula alone": 1}
    assert repr(inner) == f"RoutedCalls: 1 routed, 2 left to torch\n  2 x {reason}"


def test_routed_as_a_decorator_counts_for_those_around_it():
    q, k, v = draw(CASES["plain"], torch.float32)

    @routed()
    def call():
        return F.scaled_dot_product_attention(q, k, v)

    with routed() as calls:
        call()
    assert calls.routed == 1
    assert F.scaled_dot_product_attention is TORCH


def test_an_account_has_an_end():
    q = torch.randn(1, 1, 2, 4)
    with routed() as calls:
        for i in range(400):
            with pytest.raises(TypeError):
                F.scaled_dot_product_attention(q, q, q, scale=f"{i}")
    assert calls.left == 400
    assert len(calls.reasons) <= 257
    assert sum(calls.reasons.values()) == 400


def test_the_log_says_what_was_left_to_torch(monkeypatch, capfd):
    monkeypatch.setenv("TILEWISE_LOG", "dispatch")
    wide = torch.randn(1, 1, 2, 700)
    with routed():
        for _ in range(3):
            F.scaled_dot_product_attention(wide, wide, wide, is_causal=True)
    tensors = ", ".join(["float32 [1, 1, 2, 700]"] * 3)
    reason = "query: head_dim must be <= 576 (got 700)"
    line = f"tilewise: scaled_dot_product_attention({tensors}, is_causal=True) -> torch ({reason})\n"
    assert capfd.readouterr().err.count(line) == 1


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_strict(name):
    tensors, options = LEFT_ALONE[name]
    q, k, v = draw(CASES["plain"], torch.float32)
    with routed(strict=True) as calls:
        F.scaled_dot_product_attention(q, k, v)
        with routed(), pytest.raises(LeftToTorch, match=r"routed\(strict=True\): the call would be left to torch: .+"):
            F.scaled_dot_product_attention(*tensors, **options)
    assert (calls.routed, calls.left) == (1, 0)
    with routed():
        F.scaled_dot_product_attention(*tensors, **options)  # another context's wish is over


def test_strict_under_the_formula_alone_and_of_no_flag():
    q, k, v = draw(CASES["plain"], torch.float32)
    with routed(strict=True), sdpa_kernel(SDPBackend.MATH), pytest.raises(LeftToTorch, match="the plain formula alone"):
        F.scaled_dot_product_attention(q, k, v)
    with pytest.raises(TypeError, match=r"strict: must be True or False \(got str\)"), routed(strict="yes"):
        pass
    assert F.scaled_dot_product_attention is TORCH


def test_importing_the_package_imports_no_torch():
    _runs("import sys, tilewise.compat; sys.exit('torch' in sys.modules)")


def test_parts_that_need_torch_are_imported_where_they_are_used():
    _runs("import tilewise; tilewise.nn.FlashAttention, tilewise.compat.sdpa.routed")
    with pytest.raises(AttributeError, match="module 'tilewise' has no attribute 'nm'"):
        tilewise.nm  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'tilewise.compat' has no attribute '_sdpa'"):
        tilewise.compat._sdpa  # noqa: B018
