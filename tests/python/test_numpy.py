# NumPy and other DLPack arrays, with and without torch in the process.
"""attention() on arrays that are not torch tensors."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from cases import CASES, TOLERANCE, assert_close, draw
from checking import Exporter, Namespaced

import tilewise


def _numpy(value):
    return value.numpy() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", [name for name in CASES if name != "dropout"])
def test_same_as_torch(name):
    tensors, options = draw(name)
    expected, expected_lse = tilewise.attention(*tensors, return_lse=True, **options)
    arrays = {key: _numpy(value) for key, value in options.items()}
    out, lse = tilewise.attention(*map(_numpy, tensors), return_lse=True, **arrays)
    assert type(out) is type(lse) is np.ndarray
    assert (out.dtype, lse.dtype) == (np.float32, np.float32)
    assert np.array_equal(out, expected.numpy())
    assert np.array_equal(lse, expected_lse.numpy())


def test_half_precision():
    tensors, options = draw("causal", torch.float16)
    out = tilewise.attention(*map(_numpy, tensors), **options)
    assert out.dtype == np.float16
    assert np.array_equal(out, tilewise.attention(*tensors, **options).numpy())


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors, _ = draw("causal", torch.bfloat16)
    arrays = [tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) for tensor in tensors]
    out, lse = tilewise.attention(*arrays, mask="causal", return_lse=True)
    assert out.dtype == ml_dtypes.bfloat16
    assert lse.dtype == np.float32
    expected = tilewise.attention(*tensors, mask="causal")
    assert np.array_equal(out.view(np.uint16), expected.view(torch.uint16).numpy())


def test_read_only_inputs_and_given_out():
    (q, k, v), _ = draw("plain")
    arrays = [tensor.numpy().copy() for tensor in (q, k, v)]
    for array in arrays:
        array.flags.writeable = False
    out = np.full((2, 7, 4, 16), np.nan, np.float32)
    assert tilewise.attention(*arrays, out=out) is out
    assert np.array_equal(out, tilewise.attention(q, k, v).numpy())
    out.flags.writeable = False
    with pytest.raises(TypeError, match="out: must be a writable array"):
        tilewise.attention(*arrays, out=out)


def test_strided_views_are_read_in_place():
    qkv = np.random.default_rng(0).standard_normal((2, 9, 3, 4, 16)).astype(np.float32)
    views = [qkv[:, :, i] for i in range(3)]
    assert np.array_equal(tilewise.attention(*views), tilewise.attention(*(view.copy() for view in views)))


def test_a_seed_must_be_given():
    (q, k, v), _ = draw("plain")
    arrays = [tensor.numpy() for tensor in (q, k, v)]
    with pytest.raises(ValueError, match=r"seed: must be given .* \(got None\)"):
        tilewise.attention(*arrays, dropout_p=0.5)
    given = tilewise.attention(*arrays, dropout_p=0.5, seed=np.array([9, 2]))
    assert np.array_equal(given, tilewise.attention(q, k, v, dropout_p=0.5, seed=torch.tensor([9, 2])).numpy())
    assert np.array_equal(
        tilewise.attention(*arrays, dropout_p=0.5, seed=2**64 - 3),
        tilewise.attention(q, k, v, dropout_p=0.5, seed=-3).numpy(),
    )


def test_merge():
    (q, k, v), _ = draw("plain")
    q, k, v = (tensor.numpy() for tensor in (q, k, v))
    parts = [tilewise.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 3), (3, 11))]
    out, lse = tilewise.merge([part[0] for part in parts], [part[1] for part in parts])
    expected, expected_lse = tilewise.attention(q, k, v, return_lse=True)
    assert type(out) is np.ndarray
    assert_close(torch.from_numpy(out), torch.from_numpy(expected), 1e-5)
    assert_close(torch.from_numpy(lse), torch.from_numpy(expected_lse), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dlpack_arrays_return_their_own_kind(dtype):
    tensors, _ = draw("plain", dtype)
    out, lse = tilewise.attention(*map(Namespaced, tensors), return_lse=True)
    assert type(out) is type(lse) is Namespaced
    expected, expected_lse = tilewise.attention(*tensors, return_lse=True)
    assert torch.equal(out._tensor, expected)
    assert torch.equal(lse._tensor, expected_lse)
    plain = tilewise.attention(*map(Exporter, tensors))
    assert torch.equal(torch.from_dlpack(plain), expected)
    if dtype != torch.bfloat16:
        assert type(plain) is np.ndarray


def test_results_agree_with_a_formula():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 6, 1, 8)).astype(np.float32) for _ in range(3))
    s = (q[0, :, 0].astype(float) @ k[0, :, 0].T) / np.sqrt(8)
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    error = np.abs(tilewise.attention(q, k, v)[0, :, 0] - p @ v[0, :, 0]).max()
    assert error < TOLERANCE[torch.float32]


def test_without_torch():
    code = """
import sys
sys.modules["torch"] = None  # importing it now fails
import numpy as np, tilewise
q = np.ones((1, 3, 2, 8), np.float32)
out, lse = tilewise.attention(q, q, q, mask="causal", return_lse=True, dropout_p=0.25, seed=1)
assert out.shape == q.shape and lse.shape == (1, 2, 3)
assert "reference" in str(tilewise.explain(q, q, q))
assert "attention_forward" in tilewise.explain("attention_forward seqlen_q=8 head_dim=16").problem
tilewise.merge([out], [lse])
print(tilewise.__version__)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == tilewise.__version__


def test_importing_imports_no_torch():
    code = "import sys, tilewise; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_num_threads():
    before = tilewise.get_num_threads()
    try:
        tilewise.set_num_threads(1)
        assert tilewise.get_num_threads() == 1
        with pytest.raises(ValueError, match="num_threads: "):
            tilewise.set_num_threads(-1)
    finally:
        tilewise.set_num_threads(0)
    assert tilewise.get_num_threads() == before
