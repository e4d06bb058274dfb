# What surrounds linear(), grouped_linear(), route() and moe() in a program of torch: autocast, transforms, modules,
# whichever tensors require gradients, and what is missing.
"""Linear layers and experts as torch's programs call them."""

import copy
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewise  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 6, 32, 24, 4, 2


def draw():
    """x, topk_ids, topk_weights, gate_up, down."""
    torch.manual_seed(0)
    ids = torch.rand(TOKENS, EXPERTS).topk(TOP_K).indices
    weights = torch.rand(TOKENS, TOP_K)
    gate_up = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 6
    return torch.randn(TOKENS, HIDDEN), ids, weights, gate_up, torch.randn(EXPERTS, HIDDEN, INTERMEDIATE) / 5


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(HIDDEN, EXPERTS)
        *_, gate_up, down = draw()
        self.gate_up, self.down = torch.nn.Parameter(gate_up), torch.nn.Parameter(down)

    def forward(self, x):
        ids, weights = tilewise.route(self.router(x), TOP_K)
        return tilewise.moe(x, ids, weights, self.gate_up, self.down)


@pytest.mark.parametrize("wanted", itertools.product([False, True], repeat=4))
def test_gradients_of_any_of_them(wanted):
    x, ids, weights, gate_up, down = draw()

    def found(wanted):
        given = [tensor.clone().requires_grad_(each) for tensor, each in zip((x, weights, gate_up, down), wanted)]
        out = tilewise.moe(given[0], ids, *given[1:])
        assert out.requires_grad == any(wanted)
        if any(wanted):
            out.square().sum().backward()
        return [tensor.grad for tensor in given]

    for gradient, other, each in zip(found(wanted), found([True] * 4), wanted):
        assert gradient is None if not each else torch.equal(gradient, other)


def test_without_gradients():
    x, ids, weights, gate_up, down = draw()
    given = x.clone().requires_grad_()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert not tilewise.moe(given, ids, weights, gate_up, down).requires_grad


# --- autocast ---


def test_autocast_has_products_in_its_dtype():
    x, ids, weights, gate_up, down = draw()
    x = x.requires_grad_()
    narrow = [tensor.bfloat16() for tensor in (x, gate_up, down)]
    with torch.autocast("cpu", torch.bfloat16):
        out = tilewise.moe(x, ids, weights, gate_up, down)
        mixed = tilewise.moe(narrow[0], ids, weights, gate_up, down)
        layer = tilewise.linear(narrow[0], gate_up[0], torch.zeros(2 * INTERMEDIATE))
        assert layer.dtype == torch.nn.functional.linear(x, gate_up[0]).dtype == torch.bfloat16
        rows = tilewise.grouped_linear(x, gate_up, counts=torch.tensor([1, 2, 0, 3]))
    expected = tilewise.moe(narrow[0], ids, weights, *narrow[1:])
    assert torch.equal(out, expected) and torch.equal(mixed, expected)
    assert torch.equal(layer, tilewise.linear(narrow[0], narrow[1][0]))
    assert torch.equal(rows, tilewise.grouped_linear(narrow[0], narrow[1], counts=torch.tensor([1, 2, 0, 3])))
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32 and x.grad.any()


def test_autocast_leaves_what_is_stored_alone():
    x, ids, weights, gate_up, down = draw()
    (first, first_scale), (second, second_scale) = (tilewise.quantize(w, "fp8_row") for w in (gate_up, down))
    options = {"w_format": "fp8_row", "gate_up_scale": first_scale, "down_scale": second_scale}
    with torch.autocast("cpu", torch.bfloat16):
        out = tilewise.moe(x, ids, weights, first, second, **options)
        doubles = tilewise.linear(x.double(), gate_up[0].double())
    assert torch.equal(out, tilewise.moe(x.bfloat16(), ids, weights, first, second, **options))
    assert doubles.dtype == torch.float64


# --- torch.func ---


def loss(x, ids, weights, gate_up, down):
    return tilewise.moe(x, ids, weights, gate_up, down).square().sum()


def test_gradients_by_torch_func():
    x, ids, weights, gate_up, down = draw()
    got = torch.func.grad(loss, (0, 2, 3, 4))(x, ids, weights, gate_up, down)
    given = [tensor.clone().requires_grad_() for tensor in (x, weights, gate_up, down)]
    expected = torch.autograd.grad(loss(given[0], ids, *given[1:]), given)
    assert all(map(torch.equal, got, expected))
    rows = torch.func.jacrev(lambda weights: tilewise.moe(x, ids, weights, gate_up, down))(weights)
    assert rows.shape == (TOKENS, HIDDEN, TOKENS, TOP_K) and not rows[0, :, 1].any()


def test_gradients_of_each_example():
    _, ids, weights, gate_up, down = draw()
    x = torch.randn(3, TOKENS, HIDDEN)
    each = torch.vmap(torch.func.grad(loss, 3), in_dims=(0, None, None, None, None))(x, ids, weights, gate_up, down)
    alone = torch.func.grad(loss, 3)(x[1], ids, weights, gate_up, down)
    torch.testing.assert_close(each[1], alone)
    models = torch.vmap(lambda w: tilewise.linear(x[0], w))(gate_up)
    torch.testing.assert_close(models, torch.stack([tilewise.linear(x[0], w) for w in gate_up]))


def test_gradients_of_the_router_by_torch_func():
    logits = torch.randn(TOKENS, EXPERTS)

    def weight(logits):
        return tilewise.route(logits, TOP_K, normalise="sum_plus_epsilon")[1].square().sum()

    given = logits.clone().requires_grad_()
    assert torch.equal(torch.func.grad(weight)(logits), torch.autograd.grad(weight(given), given)[0])


def test_second_derivatives_say_what_is_missing():
    x, ids, weights, gate_up, down = draw()
    given = x.clone().requires_grad_()
    words = "moe: its gradients have no derivatives of their own"
    with pytest.raises(NotImplementedError, match=words):
        torch.autograd.grad(loss(given, ids, weights, gate_up, down), given, create_graph=True)
    with pytest.raises(NotImplementedError, match=words):
        torch.func.grad(lambda x: torch.func.grad(loss)(x, ids, weights, gate_up, down).square().sum())(x)


# --- modules ---


def test_a_module_is_copied_saved_and_called_by_others():
    layer, x = Layer(), draw()[0]
    expected = layer(x)
    copied = copy.deepcopy(layer)
    other = Layer()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(layer.state_dict())
    by_call = torch.func.functional_call(other, dict(layer.named_parameters()), (x,))
    assert all(torch.equal(each, expected) for each in (copied(x), other(x), by_call))
    copied(x).sum().backward()
    assert layer.down.grad is None and copied.down.grad.any() and copied.router.weight.grad is not None


def test_a_module_is_compiled_for_any_number_of_tokens():
    torch._dynamo.reset()
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (5, 9, 2):
        x = torch.randn(tokens, HIDDEN)
        torch.testing.assert_close(compiled(x), layer(x))
    compiled(torch.randn(7, HIDDEN)).sum().backward()
    assert layer.gate_up.grad.any()


def test_operators_pass_opcheck():
    def check(name, tensors, **options):
        operator = getattr(torch.ops.tilewise, name).default
        given = {argument.name: argument.default_value for argument in operator._schema.arguments}
        torch.library.opcheck(operator, tuple({**given, **tensors}.values()), **options)

    x, ids, weights, gate_up, down = (t.requires_grad_(t.is_floating_point()) for t in draw())
    check("moe", {"x": x, "topk_ids": ids, "topk_weights": weights, "gate_up": gate_up, "down": down})
    # The fourth test adds floats to integers in place, where integers are returned first.
    three = ("test_schema", "test_autograd_registration", "test_faketensor")
    check("route", {"logits": torch.randn(TOKENS, EXPERTS, requires_grad=True), "top_k": TOP_K}, test_utils=three)


def test_nothing_to_do_has_gradients_of_zero():
    x, ids, weights, gate_up, down = draw()
    x, gate_up = x[:0].requires_grad_(), gate_up.requires_grad_()
    out = tilewise.moe(x, ids[:0], weights[:0], gate_up, down)
    out.sum().backward()
    assert out.shape == x.grad.shape == (0, HIDDEN) and not gate_up.grad.any()
    tilewise.grouped_linear(x, gate_up, counts=torch.zeros(EXPERTS, dtype=torch.int32)).sum().backward()
    logits = torch.randn(0, EXPERTS, requires_grad=True)
    tilewise.route(logits, TOP_K)[1].sum().backward()
    assert logits.grad.shape == (0, EXPERTS)


# --- what is missing ---


@pytest.mark.parametrize("missing", ["topk_ids", "topk_weights", "gate_up", "down"])
def test_none_is_refused_by_name(missing):
    given = dict(zip(("x", "topk_ids", "topk_weights", "gate_up", "down"), draw()))
    given[missing] = None
    with pytest.raises(TypeError, match=rf"^{missing}: must be a torch tensor like x \(got NoneType\)"):
        tilewise.moe(**given)
    arrays = {name: None if tensor is None else np.asarray(tensor) for name, tensor in given.items()}
    with pytest.raises(TypeError, match=rf"^{missing}: must be an array \(got None\)"):
        tilewise.moe(**arrays)


def test_no_first_array_at_all():
    with pytest.raises(TypeError, match=r"^x: must be an array \(got None\)"):
        tilewise.linear(None, torch.zeros(3, 4))
