# What the tests of tilewise.jax share: cases in NumPy, and the reference implementation as the oracle.
"""Support of the JAX tests."""

import importlib.util
import os

import ml_dtypes
import numpy as np
import pytest

import tilewise

# Before JAX starts: two devices to shard over, and no search for others.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3, "float64": 1e-12}


def draw(seed, *shape, dtype="float32"):
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def qkv(dtype="float32", batch_size=2, seqlen_q=7, seqlen_k=11, heads=(4, 2), head_dim=16, head_dim_v=8):
    q = draw(1, batch_size, seqlen_q, heads[0], head_dim, dtype=dtype)
    k = draw(2, batch_size, seqlen_k, heads[1], head_dim, dtype=dtype)
    return q, k, draw(3, batch_size, seqlen_k, heads[1], head_dim_v, dtype=dtype)


def reference(q, k, v, **options):
    """out and softmax_lse by the reference implementation."""
    return tilewise.attention(q, k, v, return_lse=True, implementation="reference", **options)


def reference_gradients(dout, dlse, q, k, v, **options):
    """Gradients by name, without those that there are none of."""
    out, lse = reference(q, k, v, **options)
    made = tilewise.attention_backward(
        dout, q, k, v, out, lse, dlse=dlse, implementation="reference", **options
    )._asdict()
    return {name: gradient for name, gradient in made.items() if gradient is not None}


def assert_close(found, expected, tolerance=2e-5):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    wide = np.float64
    np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)


def lengths(*values):
    return np.array(values, np.int32)


def _bool_bias():
    bias = np.random.default_rng(5).random((2, 1, 7, 11)) > 0.4
    bias[0, 0, 1] = False  # a row that sees nothing
    return bias


def _indices(heads):
    """Some twice, some none, some outside."""
    return np.random.default_rng(9).integers(-1, 12, (2, 7, heads, 8)).astype(np.int32)


PACKED = {
    "layout": "thd",
    "cu_seqlens_q": lengths(0, 3, 3, 9),
    "cu_seqlens_k": lengths(0, 5, 9, 16),
}

# name: options. One for every option that there is.
CASES = {
    "plain": {},
    "causal": {"mask": "causal"},
    "top_left": {"mask": "causal_top_left"},
    "alignment": {"mask": "causal", "alignment": "top_left"},
    "window": {"window": (3, 2)},
    "scale": {"softmax_scale": -0.7},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": draw(6, 2, 4, 7, 11)},
    "bias_head": {"bias": draw(6, 4, 1, 11)},
    "bias_keys": {"bias": draw(6, 11), "softcap": 2.0},
    "bias_bool": {"bias": _bool_bias()},
    "alibi": {"alibi_slopes": draw(7, 4) ** 2, "mask": "causal"},
    "alibi_batch": {"alibi_slopes": draw(7, 2, 4) ** 2},
    "sink": {"sink": draw(8, 4), "mask": "causal"},
    "dropout": {"dropout_p": 0.3, "seed": 2**63 + 11},
    "seqused": {"seqused_q": lengths(7, 2), "seqused_k": lengths(4, 11), "mask": "causal"},
    "leftpad": {"leftpad_k": lengths(3, 0), "seqused_k": lengths(6, 11), "bias": draw(6, 7, 11)},
    "unused": {"seqused_k": lengths(0, 5), "sink": draw(8, 4)},
    "invariant": {"deterministic": True, "batch_invariant": True, "mask": "causal"},
    "selected": {"key_indices": _indices(1), "sink": draw(8, 4), "mask": "causal"},
    "selected_by_heads": {"key_indices": _indices(2), "leftpad_k": lengths(3, 0), "seqused_k": lengths(6, 11)},
    "everything": {
        "mask": "causal",
        "window": (6, -1),
        "softcap": 3.0,
        "softmax_scale": 0.4,
        "bias": draw(6, 2, 1, 7, 11),
        "alibi_slopes": draw(7, 4) ** 2,
        "sink": draw(8, 4),
        "dropout_p": 0.25,
        "seed": 5,
        "leftpad_k": lengths(1, 0),
        "seqused_k": lengths(9, 11),
        "deterministic": True,
    },
}
