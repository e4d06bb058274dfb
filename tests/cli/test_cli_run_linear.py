"""`tilewise run --x`: linear layers on .npy files against NumPy, bytes for narrow elements, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

OFFSETS = [0, 2, 2, 5]  # of 6 rows


@pytest.fixture
def arrays(tmp_path):
    """x, w, bias and dout of three experts, saved; w0 is the first one's."""
    rng = np.random.default_rng(3)
    shapes = {"x": (6, 8), "w": (3, 4, 8), "bias": (3, 4), "dout": (6, 4)}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    made |= {"offsets": np.array(OFFSETS, np.int32), "w0": made["w"][0]}
    for name, array in made.items():
        np.save(tmp_path / f"{name}.npy", array)
    return made


def _run(tilewise, tmp_path, *names, status=0, **more):
    """Of these files, and flags with their values; results are files of the flag's name."""
    flags = [word for name in names for word in (f"--{name}", tmp_path / f"{name}.npy")]
    flags += [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", value)]
    return tilewise("run", *flags, status=status)


def test_forward(tilewise, tmp_path, arrays):
    done = _run(tilewise, tmp_path, "x", "out", w=tmp_path / "w0.npy", activation="relu")
    assert done.stdout.startswith("linear tokens=6 n=4 k=8 activation=relu")
    expected = np.maximum(arrays["x"] @ arrays["w0"].T, 0)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


def test_both_passes_by_expert(tilewise, tmp_path, arrays):
    done = _run(tilewise, tmp_path, "x", "w", "bias", "offsets", "out", "dout", "dx", "dw", "dbias")
    assert "linear tokens=6 n=4 k=8 groups=offsets_i32 num_experts=3 bias=f32" in done.stdout
    out, dx, dw, dbias = (np.load(tmp_path / f"{name}.npy") for name in ("out", "dx", "dw", "dbias"))
    x, w, bias, dout = (arrays[name] for name in ("x", "w", "bias", "dout"))
    for e, (begin, end) in enumerate(zip(OFFSETS, OFFSETS[1:])):
        rows = slice(begin, end)
        np.testing.assert_allclose(out[rows], x[rows] @ w[e].T + bias[e], atol=1e-5)
        np.testing.assert_allclose(dx[rows], dout[rows] @ w[e], atol=1e-5)
        np.testing.assert_allclose(dw[e], dout[rows].T @ x[rows], atol=1e-5)
        np.testing.assert_allclose(dbias[e], dout[rows].sum(0), atol=1e-5)
    assert not out[5].any() and not dx[5].any()


def test_a_problem_and_a_flag_state_the_dtype_of_out(tilewise, tmp_path, arrays):
    for stated in (["linear out_dtype=f16 tokens=6 n=4 k=8"], ["--out-dtype", "f16"]):
        files = ["--x", tmp_path / "x.npy", "--w", tmp_path / "w0.npy", "--out", tmp_path / "out.npy"]
        tilewise("run", *files, *stated)
        assert np.load(tmp_path / "out.npy").dtype == np.float16


def test_bytes_are_narrow_elements(tilewise, tmp_path, arrays):
    np.save(tmp_path / "w.npy", np.full((4, 4), 0x42, np.uint8))  # pairs of 1 and 2 in e2m1
    np.save(tmp_path / "w-scale.npy", np.full((4, 1), 128, np.uint8))  # 2 in e8m0
    _run(tilewise, tmp_path, "x", "w", "w-scale", "out", w_format="mxfp4")
    expected = arrays["x"] @ np.tile([2.0, 4.0], 4)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected[:, None].repeat(4, 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("names", "more", "sentence"),
    [
        (("x", "out"), {}, "w: must be given"),
        (("x", "w"), {}, "--out: must name a file to write, or another output (got none)"),
        (("w", "out"), {}, "--w: needs --x (got none)"),
        (("x", "w", "offsets", "out"), {"w_format": "mxfp9"}, "did you mean mxfp8? (got 'mxfp9')"),
        (("x", "w", "offsets", "out"), {"softcap": "1"}, "--x: excludes --softcap (got both)"),
        (("x", "w", "offsets", "dx"), {}, "dout: must be given"),
        (("x", "w", "out"), {}, "w: rank must be 2, [n, k] (got 3, shape [3, 4, 8])"),
    ],
)
def test_refusals(tilewise, tmp_path, arrays, names, more, sentence):
    assert sentence in _run(tilewise, tmp_path, *names, status=2, **more).stderr
