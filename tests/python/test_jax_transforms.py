# JAX's transformations of attention: vmap against a loop, grad in all orders with vmap and jit, scan, checkpoint,
# shard_map and pmap over two devices, calls from many threads; and what is said of those that there are not.
"""tilewise.jax under JAX's transformations."""

import concurrent.futures
import inspect
import itertools

import numpy as np
import pytest
from jax_support import CASES, PACKED, assert_close, draw, lengths, qkv, reference

import tilewise
from tilewise._options import AttentionOptions

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.sharding import AxisType, PartitionSpec  # noqa: E402

import tilewise.jax as tilewise_jax  # noqa: E402

DRAWN = {
    "bias": lambda *front: draw(6, *front, 2, 1, 7, 11),
    "bias_keys": lambda *front: draw(6, *front, 1, 11),
    "alibi_slopes": lambda *front: draw(7, *front, 4) ** 2,
    "sink": lambda *front: draw(8, *front, 4),
    "seqused_k": lambda *front: np.random.default_rng(4).integers(0, 12, (*front, 2)).astype(np.int32),
    "key_indices": lambda *front: np.random.default_rng(5).integers(-1, 12, (*front, 2, 7, 1, 5)).astype(np.int32),
}


def stacked(arrays, mapped, size=3):
    """Each array, or `size` different ones of it."""
    return [
        np.stack([a * (1 + i / 4) for i in range(size)]).astype(a.dtype) if m else a for a, m in zip(arrays, mapped)
    ]


def check_vmap(function, arrays, mapped, size=3):
    """vmap and a loop give the same, and so does one compiled."""
    axes = [0 if m else None for m in mapped]
    found = jax.jit(jax.vmap(function, axes))(*arrays)
    assert jax.tree.structure(found) == jax.tree.structure(
        function(*(a[0] if m else a for a, m in zip(arrays, mapped)))
    )
    for i in range(size):
        alone = function(*(a[i] if m else a for a, m in zip(arrays, mapped)))
        jax.tree.map(lambda many, one, i=i: assert_close(many[i], one), found, alone)


@pytest.mark.parametrize("mapped", [m for m in itertools.product((True, False), repeat=3) if any(m)])
@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
def test_vmap_of_q_k_and_v(mapped, layout):
    order = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}[layout]
    arrays = stacked([array.transpose(order) for array in qkv()], mapped)

    def attend(q, k, v):
        return tilewise_jax.attention(q, k, v, mask="causal", layout=layout, return_lse=True)

    check_vmap(attend, arrays, mapped)
    if layout != "sbhd":
        check_vmap(jax.grad(lambda *a: jnp.sum(jnp.sin(attend(*a)[0])), (0, 1, 2)), arrays, mapped)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("rows", [True, False])
def test_vmap_of_options(name, own, rows):
    if not (own or rows):
        return
    arrays = [*stacked(qkv(), (rows, rows, False)), DRAWN[name](3) if own else DRAWN[name]()]
    argument = "bias" if name.startswith("bias") else name
    differentiable = (0, 3) if argument in ("bias", "sink") else (0,)

    def cost(q, k, v, option):
        return jnp.sum(jnp.sin(tilewise_jax.attention(q, k, v, **{argument: option})))

    check_vmap(jax.value_and_grad(cost, differentiable), arrays, (rows, rows, False, own))


def test_vmap_of_dropout_draws_as_each_alone():
    mapped = (True, True, True)
    check_vmap(lambda q, k, v: tilewise_jax.attention(q, k, v, dropout_p=0.4, seed=3), stacked(qkv(), mapped), mapped)


def test_vmap_of_packed():
    mapped = (True, False, True)
    arrays = stacked([draw(1, 10, 4, 16), draw(2, 17, 2, 16), draw(3, 17, 2, 16)], mapped)
    check_vmap(lambda *a: tilewise_jax.attention(*a, **PACKED), arrays, mapped)


def test_vmap_of_vmap_and_other_axes():
    q, k, v = qkv()
    many = np.stack([np.stack([q, 2 * q]), np.stack([3 * q, 4 * q]), np.stack([5 * q, 6 * q])], axis=2)
    found = jax.vmap(jax.vmap(tilewise_jax.attention, (1, None, None)), (0, None, None), out_axes=1)(many, k, v)
    for i, j in itertools.product(range(2), range(3)):
        assert_close(found[j, i], tilewise_jax.attention(many[i, :, j], k, v))


def cost(q, k, v):
    return jnp.sum(jnp.sin(tilewise_jax.attention(q, k, v, mask="causal")))


def test_grad_of_vmap_is_the_sum_of_gradients():
    q, k, v = stacked(qkv(), (True, False, False))
    total = jax.jit(jax.grad(lambda *a: jnp.sum(jax.vmap(cost, (0, None, None))(*a)), (0, 1, 2)))(q, k, v)
    each = [jax.grad(jax.jit(cost), (0, 1, 2))(one, k, v) for one in q]
    assert_close(total[0], np.stack([e[0] for e in each]))
    assert_close(total[1], sum(e[1] for e in each))
    assert_close(total[2], sum(e[2] for e in each))


def test_only_gradients_that_are_asked_for_are_computed():
    q, k, v = qkv()
    bias = draw(6, 2, 4, 7, 11)
    attend = lambda q, bias: jnp.sum(tilewise_jax.attention(q, k, v, bias=bias))  # noqa: E731
    assert "'results', 'dq')" in str(jax.make_jaxpr(jax.grad(attend))(q, bias))
    assert "'results', 'dq dbias')" in str(jax.make_jaxpr(jax.grad(attend, (0, 1)))(q, bias))


def test_gradient_of_the_lse_alone():
    q, k, v = qkv()
    found = jax.grad(lambda q: jnp.sum(tilewise_jax.attention(q, k, v, return_lse=True)[1]))(q)
    right = jax.grad(lambda q: jnp.sum(tilewise_jax.attention(q, k, v, return_lse=True, implementation="jax")[1]))(q)
    assert_close(found, right)


def test_scan_and_checkpoint():
    q, k, v = qkv(seqlen_k=7, heads=(4, 4), head_dim_v=16)

    def layers(attend, q):
        def layer(x, _):
            return x + attend(x, k, v, mask="causal"), None

        return jnp.sum(jax.lax.scan(layer, q, None, length=3)[0] ** 2)

    def plain(x, k, v, **options):
        return tilewise_jax.attention(x, k, v, implementation="jax", **options)

    checkpointed = jax.checkpoint(lambda x, k, v, mask: tilewise_jax.attention(x, k, v, mask=mask), static_argnums=3)
    right = jax.jit(jax.value_and_grad(lambda q: layers(plain, q)))(q)
    for attend in (tilewise_jax.attention, lambda x, k, v, mask: checkpointed(x, k, v, mask)):
        found = jax.jit(jax.value_and_grad(lambda q, attend=attend: layers(attend, q)))(q)
        jax.tree.map(lambda a, b: assert_close(a, b, 2e-4), found, right)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(axis_type, check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(axis_type,))
    batched, whole = PartitionSpec("data"), PartitionSpec()
    q, k, v = qkv()
    sink = draw(8, 4)
    specs = (batched, batched, batched, whole)

    def attend(q, k, v, sink):
        return tilewise_jax.attention(q, k, v, sink=sink, mask="causal")

    def total(attend, *arrays):
        return jnp.sum(jnp.sin(attend(*arrays)))

    arrays = [
        jax.device_put(array, jax.sharding.NamedSharding(mesh, spec)) for array, spec in zip((q, k, v, sink), specs)
    ]
    sharded = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=batched, check_vma=check_vma)
    found = jax.jit(jax.value_and_grad(lambda *a: total(sharded, *a), (0, 1, 2, 3)))(*arrays)
    right = jax.value_and_grad(lambda *a: total(attend, *a), (0, 1, 2, 3))(q, k, v, sink)
    jax.tree.map(assert_close, found, right)


def test_pmap_and_sharded_arguments():
    q, k, v = qkv(batch_size=4)
    halves = [array.reshape(2, 2, *array.shape[1:]) for array in (q, k, v)]
    assert jax.device_count() == 2
    right = reference(q, k, v)[0]
    assert_close(np.asarray(jax.pmap(tilewise_jax.attention)(*halves)).reshape(right.shape), right)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec("data"))
    assert_close(jax.jit(tilewise_jax.attention)(*(jax.device_put(a, sharding) for a in (q, k, v))), right)


def test_many_threads_and_calls_that_run_side_by_side():
    q, k, v = qkv(batch_size=2, seqlen_q=200, seqlen_k=200)
    right = reference(q, k, v, mask="causal")[0]
    grads = jax.jit(jax.grad(cost))(q, k, v)

    @jax.jit
    def several(q, k, v):  # calls that XLA is free to run at the same time
        return [tilewise_jax.attention(q, k, v, mask="causal") for _ in range(4)], jax.grad(cost)(q, k, v)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for outs, gradient in pool.map(lambda _: several(q, k, v), range(24)):
            for out in outs:
                assert_close(out, right)
            np.testing.assert_array_equal(gradient, grads)


def test_derivatives_that_there_are_not_say_what_to_do():
    q, k, v = qkv()
    ones = (np.ones_like(q), np.ones_like(k), np.ones_like(v))
    wrong = {
        "jvp": lambda: jax.jvp(cost, (q, k, v), ones),
        "hessian": lambda: jax.hessian(cost)(q, k, v),
        "twice": lambda: jax.grad(lambda q: jnp.sum(jax.grad(cost)(q, k, v)))(q),
        "compiled": lambda: jax.jit(jax.grad(lambda q: jnp.sum(jax.grad(cost)(q, k, v))))(q),
    }
    for call in wrong.values():
        with pytest.raises(NotImplementedError, match=r"JAX traces for a derivative .* implementation=\"jax\""):
            call()
    with pytest.raises(TypeError, match=r"forward-mode"):  # JAX speaks before anything of ours does
        jax.jit(lambda: jax.jvp(cost, (q, k, v), ones))()


def test_formula_has_every_derivative():
    q, k, v = qkv(seqlen_q=2, seqlen_k=3, heads=(1, 1), head_dim=2, head_dim_v=2)
    bias = np.array([[True, False, False], [False, False, False]])  # one row sees a key, the other nothing

    def by_formula(q, bias=None):
        return jnp.sum(tilewise_jax.attention(q, k, v, bias=bias, implementation="jax") ** 2)

    forward, reverse = (jax.jit(f)(q) for f in (jax.hessian(by_formula), jax.jacrev(jax.jacrev(by_formula))))
    assert_close(forward, reverse)
    step = 1e-2 * draw(11, *q.shape)
    slope = jax.jvp(by_formula, (q,), (step,))[1]
    difference = (by_formula(q + step) - by_formula(q - step)) / 2
    assert abs(slope - difference) < 1e-3 * abs(slope) + 1e-6
    assert np.isfinite(jax.jit(jax.hessian(by_formula))(q, bias)).all()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"softcap": "traced"}, TypeError, r"softcap: must be known while JAX traces.*static_argnames.*float32\[\]"),
        ({"window": ("traced", 0)}, TypeError, "window: must be known while JAX traces"),
        ({"is_causal": True}, TypeError, "use mask="),
        ({"dropout_p": 0.1}, ValueError, r"seed: must be given with dropout.*got None"),
        ({"dropout_p": 0.1, "seed": np.ones(3)}, TypeError, r"seed: must be an integer, a key.*got float32\[3\]"),
        ({"bias": [1.0]}, TypeError, r"bias: must be an array of JAX or NumPy \(got list\)"),
        ({"sink": np.ones(3, np.float32)}, ValueError, r"sink: shape must be \[num_heads_q\] = \[4\] \(got \[3\]\)"),
        ({"seqused_k": np.ones(2, np.float32)}, TypeError, r"seqused_k: dtype must be i32 \(got f32\)"),
        ({"bias": np.ones(5, np.int8)}, TypeError, r"bias: dtype must be one of .* \(got int8\)"),
        ({"implementation": "fast"}, ValueError, r"implementation: must name an implementation.*got 'fast'"),
        ({"implementation": "jax", "dropout_p": 0.5, "seed": 1}, NotImplementedError, "has no dropout"),
        ({"layout": "thd"}, ValueError, r"q: rank must be 3"),
        ({**PACKED, "bias": np.ones(1, np.float32)}, ValueError, "max_seqlen_q: must be given beside a bias"),
    ],
)
def test_messages_come_while_jax_traces(options, kind, words):
    q, k, v = qkv()

    def attend(q, k, v):
        swap = lambda value: q[0, 0, 0, 0] if value == "traced" else value  # noqa: E731
        given = {
            name: tuple(map(swap, value))
            if isinstance(value, tuple)
            else value
            if hasattr(value, "dtype")
            else swap(value)
            for name, value in options.items()
        }
        return tilewise_jax.attention(q, k, v, **given)

    with pytest.raises(kind, match=words):
        jax.eval_shape(attend, q, k, v)


def test_wrong_contents_are_an_error_when_the_call_runs():
    q, k, v = qkv()
    attend = jax.jit(lambda lengths: tilewise_jax.attention(q, k, v, seqused_k=lengths))
    attend(lengths(1, 11))
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"seqused_k\[1\]: must be 0 to 11.*got 12"):
        jax.block_until_ready(attend(lengths(1, 12)))


def test_other_functions_send_tracers_to_tilewise_jax():
    q = np.ones((1, 2, 2, 8), np.float32)
    for function in (lambda q: tilewise.attention(q, q, q), lambda q: tilewise.merge([q], [q])):
        for transform in (jax.jit, jax.grad, jax.vmap):
            with pytest.raises(TypeError, match=r"while JAX traces: use tilewise\.jax\.attention"):
                transform(function)(q)
    with pytest.raises(NotImplementedError, match="dynamic_update_slice"):
        tilewise_jax.kv_cache_attention(q, q, q)


def test_every_option_has_a_case():
    used = {name for options in CASES.values() for name in options} | set(PACKED)
    elsewhere = {"q", "k", "v", "return_lse", "implementation", "max_seqlen_q", "max_seqlen_k"}
    scales = {"q_scale", "k_scale", "v_scale"}
    ours = set(inspect.signature(tilewise_jax.attention).parameters)
    functions = {"score_mod", "mask_mod", "block_mask"}  # test_jax_functions.py
    assert ours == used | elsewhere | scales | functions
    assert ours == {"q", "k", "v", "return_lse", *AttentionOptions.__annotations__} - {"out"}
