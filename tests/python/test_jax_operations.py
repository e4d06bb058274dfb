# Linear layers, experts, routing and quantised numbers of tilewise.jax against the reference implementation, and their
# gradients against torch's of the same call.
"""Operations by schema under JAX."""

import re

import numpy as np
import pytest
from jax_support import TOLERANCE, assert_close, draw

import tilewise

jax = pytest.importorskip("jax")
jnp = jax.numpy
torch = pytest.importorskip("torch")

import tilewise.jax as tilewise_jax  # noqa: E402

EXPERTS, HIDDEN, INTERMEDIATE, TOKENS, TOP_K = 5, 24, 16, 7, 2


def torch_gradients(function, arrays, dout, **options):
    """Gradients of torch's operators by name, of the arrays that are f32."""
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
    learned = {name: tensor.requires_grad_() for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    out = function(**tensors, **options)
    out = out[1] if isinstance(out, tuple) else out
    return dict(zip(learned, torch.autograd.grad(out, list(learned.values()), torch.from_numpy(np.asarray(dout)))))


def check_gradients(function, own, arrays, **options):
    """Both passes, compiled, of the f32 arrays; `own` is JAX's function, `function` everybody else's."""
    learned = {name: array for name, array in arrays.items() if array.dtype == np.float32}
    others = {name: array for name, array in arrays.items() if name not in learned}

    @jax.jit
    def run(learned, others, dout):
        result, pull_back = jax.vjp(lambda learned: own(**learned, **others, **options), learned)
        zero = lambda part: np.zeros(part.shape, jax.dtypes.float0)  # noqa: E731
        return result, pull_back((zero(result[0]), dout) if isinstance(result, tuple) else dout)[0]

    expected = function(**arrays, **options, implementation="reference")
    weights = expected[1] if isinstance(expected, tuple) else expected
    dout = draw(20, *weights.shape)
    found, gradients = run(learned, others, dout)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert_close(one, other)
    right = torch_gradients(function, arrays, dout, **options)
    assert gradients.keys() == right.keys()
    for name, gradient in right.items():
        assert_close(gradients[name], gradient.numpy(), 8e-5)


def experts(**more):
    ids = np.random.default_rng(5).integers(-1, EXPERTS + 1, (TOKENS, TOP_K)).astype(np.int32)
    arrays = {
        "x": draw(1, TOKENS, HIDDEN),
        "topk_ids": ids,
        "topk_weights": draw(2, TOKENS, TOP_K),
        "gate_up": draw(3, EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 5,
        "down": draw(4, EXPERTS, HIDDEN, INTERMEDIATE) / 4,
    }
    return arrays | more


@pytest.mark.parametrize("activation", ["identity", "silu", "gelu_tanh"])
def test_linear_and_its_gradients(activation):
    arrays = {"x": draw(1, 3, 4, 20), "w": draw(2, 12, 20), "bias": draw(3, 12)}
    check_gradients(tilewise.linear, tilewise_jax.linear, arrays, activation=activation)


@pytest.mark.parametrize("groups", ["offsets", "counts"])
def test_grouped_linear_and_its_gradients(groups):
    numbers = {"offsets": [0, 2, 2, 5], "counts": [2, 0, 3]}[groups]
    arrays = {"x": draw(1, 6, 20), "w": draw(2, 3, 8, 20), groups: np.array(numbers, np.int32), "bias": draw(3, 3, 8)}
    check_gradients(tilewise.grouped_linear, tilewise_jax.grouped_linear, arrays)


def test_moe_and_its_gradients():
    check_gradients(tilewise.moe, tilewise_jax.moe, experts(), gate="concatenated")


def test_moe_of_every_option():
    biases = {"gate_up_bias": draw(8, EXPERTS, 2 * INTERMEDIATE), "down_bias": draw(9, EXPERTS, HIDDEN)}
    options = {"gate": "interleaved", "activation": "swiglu_oai", "limit": 0.7, "alpha": 1.3, "first_expert": 1}
    check_gradients(tilewise.moe, tilewise_jax.moe, experts(**biases), **options)
    check_gradients(tilewise.moe, tilewise_jax.moe, experts(), weight_on_input=True, batch_invariant=True)
    check_gradients(tilewise.moe, tilewise_jax.moe, experts(), save_gate_up=True)


def test_route_and_its_gradients():
    arrays = {"logits": draw(1, TOKENS, 8)}
    check_gradients(tilewise.route, tilewise_jax.route, arrays, top_k=3, normalise="sum_plus_epsilon", epsilon=1e-20)


def test_route_has_no_gradient_of_its_bias():
    logits, bias = draw(1, TOKENS, 8), draw(2, 8)
    grad = jax.grad(lambda bias: tilewise_jax.route(logits, 2, bias=bias, score="sigmoid")[1].sum())(bias)
    assert (np.asarray(grad) == 0).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    arrays = {
        name: a if a.dtype == np.int32 else a.astype(draw(0, 1, dtype=dtype).dtype) for name, a in experts().items()
    }
    found = jax.jit(tilewise_jax.moe)(*arrays.values())
    assert_close(found, tilewise.moe(**arrays, implementation="reference"), TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["fp8_tensor", "fp8_row", "fp8_128x128", "mxfp8", "mxfp4", "nvfp4"])
def test_quantised_numbers_go_through_both_ways(name):
    x, w = draw(1, 4, 64), draw(2, 32, 64)
    parts = jax.jit(tilewise_jax.quantize, static_argnums=1)(w, name)
    for found, expected in zip(parts, tilewise.quantize(w, name, implementation="reference")):
        found, expected = np.atleast_1d(found), np.atleast_1d(expected)
        assert (found.view(np.uint8) == expected.view(np.uint8)).all()
    extra = {"w_scale": parts[1], "w_global_scale": parts[2] if len(parts) > 2 else None}
    numbers = tilewise_jax.dequantize(*parts[:2], name, *parts[2:])
    out = jax.jit(lambda x: tilewise_jax.linear(x, parts[0], w_format=name, **extra))(x)
    assert_close(out, x @ np.asarray(numbers).T, 1e-4)


def test_gradient_of_x_beside_quantised_weights():
    x, w = draw(1, 4, 64), draw(2, 32, 64)
    elements, scales = tilewise_jax.quantize(w, "mxfp4")
    wide = np.asarray(tilewise_jax.dequantize(elements, scales, "mxfp4"))
    grad = jax.grad(lambda x: tilewise_jax.linear(x, elements, w_format="mxfp4", w_scale=scales).sum())(x)
    assert_close(grad, np.broadcast_to(wide.sum(0), (4, 64)).astype(np.float32), 1e-4)


def test_vmap_computes_each_as_it_would_be_alone():
    x, w = draw(1, 3, 5, 20), draw(2, 12, 20)
    many = jax.vmap(tilewise_jax.linear, (0, None))(x, w)
    for i in range(3):
        assert_close(many[i], np.asarray(tilewise_jax.linear(x[i], w)), 0)
    pull = jax.vmap(jax.grad(lambda x: tilewise_jax.linear(x, w).sum()))(x)
    assert_close(pull[2], np.asarray(jax.grad(lambda x: tilewise_jax.linear(x, w).sum())(x[2])), 0)


def test_tilewise_functions_take_traced_arrays_too():
    x, w = draw(1, 5, 20), draw(2, 12, 20)
    assert_close(jax.jit(tilewise.linear)(x, w), np.asarray(tilewise_jax.linear(x, w)), 0)


def test_shard_map_splits_the_tokens():
    mesh = jax.make_mesh((2,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("t")
    x, w = draw(1, 6, 20), draw(2, 12, 20)
    split = jax.shard_map(lambda x: tilewise_jax.linear(x, w), mesh=mesh, in_specs=spec, out_specs=spec)
    assert_close(jax.jit(split)(x), np.asarray(tilewise_jax.linear(x, w)))


REFUSED = [
    (lambda x, w: tilewise_jax.linear(x, w[:, 1:]), ValueError, "w: shape must be [n, k] = [12, 20] (got [12, 19])"),
    (lambda x, w: tilewise_jax.linear(x, w, out=x), ValueError, "out: must not be given, since arrays of JAX"),
    (lambda x, w: tilewise_jax.linear([1.0], w), TypeError, "x: must be an array of JAX or NumPy (got list)"),
    (lambda x, w: tilewise_jax.linear(x, w.tolist()), TypeError, "w: must be an array of JAX or NumPy (got list)"),
    (lambda x, w: tilewise_jax.linear(x, w, implementation="nobody"), ValueError, "implementation"),
    (lambda x, w: tilewise_jax.linear(x, w, activation="sine"), ValueError, "activation"),
    (lambda x, w: tilewise_jax.route(x, 21), ValueError, "top_k"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_wrong_calls_are_refused_while_jax_traces(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        jax.jit(lambda x: call(x, draw(2, 12, 20))).lower(draw(1, 5, 20))


def test_what_has_no_gradient_says_so():
    x, (elements, scales) = draw(1, 4, 64), tilewise_jax.quantize(draw(2, 32, 64), "fp8_row")
    linear = lambda s: tilewise_jax.linear(x, elements, w_format="fp8_row", w_scale=s).sum()  # noqa: E731
    with pytest.raises(NotImplementedError, match=r"w_scale: has no gradient"):
        jax.grad(linear)(scales)
    norm = experts(norm_weight=np.ones((EXPERTS, HIDDEN), np.float32))
    with pytest.raises(NotImplementedError, match="norm_weight: has no backward pass"):
        jax.grad(lambda x: tilewise_jax.moe(**(norm | {"x": x})).sum())(norm["x"])
    with pytest.raises(NotImplementedError, match="linear has one reverse pass"):
        jax.hessian(lambda x: tilewise_jax.linear(x, draw(2, 3, 64)).sum())(x)
