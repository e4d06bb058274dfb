"""`tilewise run --gate-up`: experts on .npy files against their definition in NumPy, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 7, 6, 5, 4, 2


@pytest.fixture
def layer(tmp_path):
    rng = np.random.default_rng(5)
    arrays = {
        "x": rng.standard_normal((TOKENS, HIDDEN)),
        "topk_weights": rng.random((TOKENS, TOP_K)),
        "gate_up": rng.standard_normal((EXPERTS, 2 * INTERMEDIATE, HIDDEN)),
        "down": rng.standard_normal((EXPERTS, HIDDEN, INTERMEDIATE)),
        "dout": rng.standard_normal((TOKENS, HIDDEN)),
    }
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays["topk_ids"] = rng.integers(-1, EXPERTS + 1, (TOKENS, TOP_K))
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _flags(tmp_path, *names):
    names = names or ("x", "topk_ids", "topk_weights", "gate_up", "down")
    return [word for name in names for word in (f"--{name.replace('_', '-')}", tmp_path / f"{name}.npy")]


def _parts(layer):
    """(token, j, expert, gate and up, h, y) of each part that is here."""
    for token in range(TOKENS):
        for j, expert in enumerate(layer["topk_ids"][token].astype(int)):
            if 0 <= expert < EXPERTS:
                gate, up = np.split(layer["gate_up"][expert] @ layer["x"][token], 2)
                h = gate / (1 + np.exp(-gate)) * up
                yield token, j, expert, h, layer["down"][expert] @ h


def test_forward(tilewise, tmp_path, layer):
    done = tilewise("run", *_flags(tmp_path), "--out", tmp_path / "out.npy")
    assert done.stdout.startswith("moe ids_dtype=i64 tokens=7 hidden=6 intermediate=5 num_experts=4 top_k=2")
    expected = np.zeros((TOKENS, HIDDEN))
    for token, j, _, _, y in _parts(layer):
        expected[token] += layer["topk_weights"][token, j] * y
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


def test_options_and_a_problem(tilewise, tmp_path, layer):
    out = ["--out", tmp_path / "out.npy"]
    tilewise("run", *_flags(tmp_path), "--activation", "gelu", "--clamp", "after", "--limit", "0.5", *out)
    by_flags = np.load(tmp_path / "out.npy")
    problem = "moe ids_dtype=i64 tokens=7 hidden=6 intermediate=5 num_experts=4 top_k=2 activation=gelu clamp=after "
    tilewise("run", problem + "limit=0.5", *_flags(tmp_path), *out)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), by_flags)
    wrong = tilewise("run", problem.replace("tokens=7", "tokens=8"), *_flags(tmp_path), *out, status=2).stderr
    assert "PROBLEM: must agree with the files" in wrong


def test_backward(tilewise, tmp_path, layer):
    written = [word for name in ("dx", "dtopk_weights", "ddown") for word in _flags(tmp_path, name)]
    tilewise("run", *_flags(tmp_path), *_flags(tmp_path, "dout"), *written)
    dweights, ddown = np.zeros((TOKENS, TOP_K)), np.zeros((EXPERTS, HIDDEN, INTERMEDIATE))
    for token, j, expert, h, y in _parts(layer):
        dweights[token, j] = y @ layer["dout"][token]
        ddown[expert] += layer["topk_weights"][token, j] * np.outer(layer["dout"][token], h)
    np.testing.assert_allclose(np.load(tmp_path / "dtopk_weights.npy"), dweights, atol=1e-4)
    np.testing.assert_allclose(np.load(tmp_path / "ddown.npy"), ddown, atol=1e-4)
    assert np.load(tmp_path / "dx.npy").shape == (TOKENS, HIDDEN)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--gate-up", "{dir}/gate_up.npy", "--out", "{dir}/y.npy"], "--out: needs --x (got none)"),
        (["--topk-ids", "{dir}/topk_ids.npy", "--out", "{dir}/y.npy"], "--topk-ids: needs --"),
        (["--gate-up", "{dir}/gate_up.npy", "--q", "{dir}/x.npy"], "--gate-up: excludes --q (got both)"),
        (["--gate-up", "{dir}/gate_up.npy", "--w", "{dir}/x.npy"], "--gate-up: excludes --w (got both)"),
    ],
)
def test_bad_input(tilewise, tmp_path, layer, arguments, word):
    done = tilewise("run", *(argument.format(dir=tmp_path) for argument in arguments), status=2)
    assert word in done.stderr, done.stderr
    assert not (tmp_path / "y.npy").exists()
