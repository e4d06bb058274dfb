"""`tilewise run --elements`: quantising .npy files and back, narrow elements as bytes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def x(tmp_path):
    """Two rows whose elements in mxfp4 are exact."""
    made = np.tile(np.array([[1, 2, -6, 0.5], [0, -1, 3, 4]], np.float32), (1, 16))
    made[1] *= 8
    np.save(tmp_path / "x.npy", made)
    return made


def _files(tmp_path, *names):
    return [word for name in names for word in (f"--{name}", tmp_path / f"{name}.npy")]


def test_there_and_back(tilewise, tmp_path, x):
    done = tilewise("run", *_files(tmp_path, "x", "elements", "scales"), "--format", "mxfp4")
    assert done.stdout.startswith("quantize format=mxfp4 rows=2 columns=64")
    elements, scales = np.load(tmp_path / "elements.npy"), np.load(tmp_path / "scales.npy")
    assert elements.dtype == scales.dtype == np.uint8
    assert elements.shape == (2, 32) and scales.tolist() == [[127, 127], [130, 130]]
    assert elements[0, :2].tolist() == [0x42, 0x1F]
    done = tilewise("run", *_files(tmp_path, "elements", "scales", "out"), "--format", "mxfp4")
    assert done.stdout.startswith("dequantize format=mxfp4 rows=2 columns=64")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), x)


def test_one_command_does_both(tilewise, tmp_path, x):
    done = tilewise("run", *_files(tmp_path, "x", "elements", "scales", "global-scale", "out"), "--format", "nvfp4")
    assert "quantize format=nvfp4" in done.stdout and "dequantize format=nvfp4" in done.stdout
    assert np.load(tmp_path / "global-scale.npy").dtype == np.float32
    # Half of the step from 4 to 6 of a block whose scale is a sixth of its greatest number, and that scale's rounding.
    assert np.abs(np.load(tmp_path / "out.npy") - x).max() <= 1.1 * np.abs(x).max() / 6


def test_a_problem_states_the_dtype(tilewise, tmp_path, x):
    tilewise("run", *_files(tmp_path, "x", "elements", "scales"), "--format", "fp8_row", "--power-of-two", "1")
    problem = "dequantize format=fp8_row dtype=f16 rows=2 columns=64"
    tilewise("run", *_files(tmp_path, "elements", "scales", "out"), problem)
    assert np.load(tmp_path / "out.npy").dtype == np.float16
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), x)


@pytest.mark.parametrize(
    ("names", "more", "sentence"),
    [
        (("x", "elements", "scales"), [], "format: must be fp8_tensor, fp8_row,"),
        (("x", "elements", "scales"), ["--format", "mxfp6"], "--format: must be one of none, fp8_tensor,"),
        (("elements", "scales"), ["--format", "mxfp4"], "--out: must name a file to write"),
        (("x", "elements", "scales", "w"), ["--format", "mxfp4"], "--elements: excludes --w (got both)"),
    ],
)
def test_refusals(tilewise, tmp_path, x, names, more, sentence):
    assert sentence in tilewise("run", *_files(tmp_path, *names), *more, status=2).stderr
