# tilewise.jax.attention against the reference implementation and jax.nn, both passes, every option and dtype.
"""Values of attention under JAX."""

import subprocess
import sys

import numpy as np
import pytest
from jax_support import CASES, PACKED, TOLERANCE, assert_close, draw, lengths, qkv, reference, reference_gradients

import tilewise

jax = pytest.importorskip("jax")
jnp = jax.numpy

import tilewise.jax as tilewise_jax  # noqa: E402

ARRAYS = ("bias", "alibi_slopes", "sink", "seqused_q", "seqused_k", "leftpad_k", "cu_seqlens_q", "cu_seqlens_k")


def passes(q, k, v, dout, dlse, options, **more):
    """out, softmax_lse and the gradients by name, all of it compiled, arrays among the options traced."""
    arrays = {name: options[name] for name in ARRAYS if name in options}
    fixed = {name: value for name, value in options.items() if name not in arrays} | more
    learned = {name: arrays.pop(name) for name in ("bias", "sink") if arrays.get(name, np.zeros(0, bool)).dtype != bool}

    def attend(q, k, v, learned):
        return tilewise_jax.attention(q, k, v, return_lse=True, **learned, **arrays, **fixed)

    @jax.jit
    def run(q, k, v, learned, cotangents):
        results, pull_back = jax.vjp(attend, q, k, v, learned)
        return results, pull_back(cotangents)

    results, (dq, dk, dv, others) = run(q, k, v, learned, (dout, dlse))
    return results, {"dq": dq, "dk": dk, "dv": dv, **{f"d{name}": value for name, value in others.items()}}


def check(q, k, v, options, tolerance=2e-5, **more):
    expected = reference(q, k, v, **options)
    dout, dlse = draw(9, *expected[0].shape).astype(q.dtype), draw(10, *expected[1].shape).astype(expected[1].dtype)
    results, gradients = passes(q, k, v, dout, dlse, options, **more)
    for found, right in zip(results, expected):
        assert_close(found, right, tolerance)
    expected_gradients = reference_gradients(dout, dlse, q, k, v, **options)
    assert gradients.keys() == expected_gradients.keys()
    for name, right in expected_gradients.items():
        assert_close(gradients[name], right, 4 * tolerance)


@pytest.mark.parametrize("name", CASES)
def test_both_passes_are_those_of_the_reference(name):
    check(*qkv(), CASES[name])


@pytest.mark.parametrize("name", [name for name, options in CASES.items() if "dropout_p" not in options])
def test_formula_is_that_of_the_reference(name):
    check(*qkv(), CASES[name], implementation="jax")


@pytest.mark.parametrize("layout", ["sbhd", "bhsd"])
@pytest.mark.parametrize("implementation", [None, "jax"])
def test_layouts(layout, implementation):
    order = {"sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}[layout]
    q, k, v = (np.ascontiguousarray(array.transpose(order)) for array in qkv())
    check(q, k, v, {"layout": layout, "mask": "causal"}, implementation=implementation)


@pytest.mark.parametrize("options", [{}, {"mask": "causal", "sink": draw(8, 4)}, {"dropout_p": 0.2, "seed": 3}])
def test_packed(options):
    q, k, v = draw(1, 10, 4, 16), draw(2, 17, 2, 16), draw(3, 17, 2, 16)  # a row behind the last sequence of each
    check(q, k, v, {**PACKED, **options})


def test_packed_with_bias():
    q, k, v = draw(1, 10, 4, 16), draw(2, 17, 2, 16), draw(3, 17, 2, 16)
    bounds = {"max_seqlen_q": 6, "max_seqlen_k": 7}
    check(q, k, v, {**PACKED, **bounds, "bias": draw(6, 4, 6, 7)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("implementation", [None, "jax"])
def test_half_precision(dtype, implementation):
    options = {"mask": "causal", "bias": draw(6, 7, 11, dtype=dtype), "sink": draw(8, 4)}
    check(*qkv(dtype), options, TOLERANCE[dtype], implementation=implementation)


def test_double_precision():
    with jax.enable_x64(True):
        for implementation in (None, "jax"):
            options = {"mask": "causal", "sink": draw(8, 4, dtype="float64")}
            check(*qkv("float64"), options, TOLERANCE["float64"], implementation=implementation)


def test_fp8():
    q, k, v = (jnp.asarray(array).astype(jnp.float8_e4m3fn) for array in qkv())
    found = jax.jit(lambda *arrays: tilewise_jax.attention(*arrays, q_scale=0.5, k_scale=jnp.float32(2)))(q, k, v)
    wide = reference(*(np.asarray(array).astype(np.float32) for array in (q, k, v)))[0]
    assert found.dtype == jnp.bfloat16
    assert_close(found.astype(jnp.float32), wide, 2e-2)


def test_seed_in_every_form():
    q, k, v = qkv()
    key = jax.random.key(7)
    words = [int(word) for word in jax.random.key_data(key)]
    forms = {
        "integer": (words[0] + (words[1] << 32),) * 2,
        "traced integer": (jnp.uint32(3), 3),
        "negative": (jnp.int32(-1), -1),
        "key": (key, words[0] + (words[1] << 32)),
        "raw key": (jax.random.key_data(key), words[0] + (words[1] << 32)),
        "words": (jnp.array([1, 2, 3, 4], jnp.uint32), np.array([1 + (2 << 32), 3 + (4 << 32)], np.int64)),
    }
    attend = jax.jit(lambda q, k, v, seed: tilewise_jax.attention(q, k, v, dropout_p=0.4, seed=seed))
    for name, (given, meant) in forms.items():
        found = (
            attend(q, k, v, given) if name != "integer" else tilewise_jax.attention(q, k, v, dropout_p=0.4, seed=given)
        )
        assert_close(found, reference(q, k, v, dropout_p=0.4, seed=meant)[0])
    with jax.enable_x64(True):
        pair = np.array([11, 2**40 + 1], np.int64)
        assert_close(attend(q, k, v, jnp.asarray(pair)), reference(q, k, v, dropout_p=0.4, seed=pair)[0])


SAME_IN_JAX = {
    "plain": ({}, {}),
    "causal": ({"mask": "causal_top_left"}, {"is_causal": True}),
    "scale": ({"softmax_scale": 0.3}, {"scale": 0.3}),
    "bias": ({"bias": draw(6, 2, 4, 7, 11)}, {"bias": draw(6, 2, 4, 7, 11)}),
    "mask": ({"bias": draw(6, 2, 4, 7, 11) > -1}, {"mask": draw(6, 2, 4, 7, 11) > -1}),
    "window": ({"window": (2, 4), "alignment": "top_left"}, {"local_window_size": (2, 4)}),
    "lengths": (
        {"seqused_k": lengths(5, 11), "alignment": "top_left"},
        {"key_value_seq_lengths": lengths(5, 11)},
    ),
}


@pytest.mark.parametrize("name", SAME_IN_JAX)
def test_same_as_jax_where_it_means_the_same(name):
    ours, theirs = SAME_IN_JAX[name]
    q, k, v = qkv(head_dim_v=16)
    weights = draw(9, *q.shape)
    cost = {
        "ours": lambda *arrays: (tilewise_jax.attention(*arrays, **ours) * weights).sum(),
        "theirs": lambda *arrays: (jax.nn.dot_product_attention(*arrays, **theirs) * weights).sum(),
    }
    found, expected = (jax.jit(jax.value_and_grad(cost[who], (0, 1, 2)))(q, k, v) for who in ("ours", "theirs"))
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-4), found, expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_merge(layout):
    q, k, v = qkv()
    sink = draw(8, 4)
    options = {"layout": layout}
    if layout == "thd":
        q, k, v = q[0], k[0], v[0]
        options |= {"cu_seqlens_q": lengths(0, 7), "cu_seqlens_k": lengths(0, 5)}
    elif layout == "bhsd":
        q, k, v = (array.transpose(0, 2, 1, 3) for array in (q, k, v))
    keys = {"bshd": 1, "bhsd": 2, "thd": 0}[layout]
    parts = (
        [np.take(k, range(5), keys), np.take(v, range(5), keys)],
        [np.take(k, range(6, 11), keys), np.take(v, range(6, 11), keys)],
    )
    made = [tilewise_jax.attention(q, *part, return_lse=True, **options) for part in parts]
    outs, lses = zip(*made)
    expected = tilewise.merge([*map(np.asarray, outs)], [*map(np.asarray, lses)], sink, layout=layout)
    for found, right in zip(jax.jit(lambda *a: tilewise_jax.merge(*a, layout=layout))(outs, lses, sink), expected):
        assert_close(found, right)


def test_messages_of_a_missing_or_old_jax(tmp_path):
    (tmp_path / "jax.py").write_text("raise ImportError('no such thing')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tilewise.jax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "tilewise.jax needs JAX 0.10 or newer: pip install jax (no such thing)" in done.stderr
    (tmp_path / "jax.py").write_text("__version__ = '0.4.1'\n__version_info__ = (0, 4, 1)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "tilewise.jax needs JAX 0.10 or newer (found 0.4.1)" in done.stderr
