"""`tilewise run --logits`: routing on .npy files against its definition in NumPy, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

OPTIONS = ("--score", "sigmoid", "--normalise", "sum_plus_epsilon", "--routed-scaling-factor", "2.5")


@pytest.fixture
def arrays(tmp_path):
    """logits [9, 12], bias [12] and dtopk_weights [9, 3], saved too."""
    rng = np.random.default_rng(3)
    made = {"logits": (9, 12), "bias": (12,), "dw": (9, 3)}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in made.items()}
    for name, array in made.items():
        np.save(tmp_path / f"{name}.npy", array)
    return {name: array.astype(np.float64) for name, array in made.items()}


def _expected(arrays):
    """ids, weights and the logits' gradient."""
    scores = 1 / (1 + np.exp(-arrays["logits"]))
    ids = np.argsort(-(scores + arrays["bias"]), axis=-1, kind="stable")[:, :3]
    chosen = np.take_along_axis(scores, ids, -1)
    total = chosen.sum(-1, keepdims=True)
    d = 2.5 * arrays["dw"]
    d = (d - (d * chosen / total).sum(-1, keepdims=True)) / total * chosen * (1 - chosen)
    gradient = np.zeros_like(scores)
    np.put_along_axis(gradient, ids, d, -1)
    return ids, 2.5 * chosen / total, gradient


def test_both_passes(tilewise, tmp_path, arrays):
    ids, weights, gradient = _expected(arrays)
    results = {name: tmp_path / f"{name}.npy" for name in ("topk-ids", "topk-weights", "dlogits")}
    done = tilewise("run", "--logits", tmp_path / "logits.npy", "--bias", tmp_path / "bias.npy", "--top-k", "3",
                    *OPTIONS, "--dtopk-weights", tmp_path / "dw.npy",
                    *(word for name, file in results.items() for word in (f"--{name}", file)))  # fmt: skip
    assert "route tokens=9 num_experts=12 top_k=3 score=sigmoid" in done.stdout
    np.testing.assert_array_equal(np.load(results["topk-ids"]), ids.astype(np.int32))
    np.testing.assert_allclose(np.load(results["topk-weights"]), weights, rtol=1e-6)
    np.testing.assert_allclose(np.load(results["dlogits"]), gradient, atol=1e-6)


def test_the_backward_pass_reads_ids(tilewise, tmp_path, arrays):
    ids, _, gradient = _expected(arrays)
    np.save(tmp_path / "ids.npy", ids)  # int64
    tilewise("run", "--logits", tmp_path / "logits.npy", "--topk-ids", tmp_path / "ids.npy", *OPTIONS,
             "--dtopk-weights", tmp_path / "dw.npy", "--dlogits", tmp_path / "dlogits.npy")  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "dlogits.npy"), gradient, atol=1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "ids.npy"), ids)


def test_a_problem_states_top_k_and_dtypes(tilewise, tmp_path, arrays):
    problem = "route ids_dtype=i64 weights_dtype=f16 tokens=9 num_experts=12 top_k=5"
    files = ["--logits", tmp_path / "logits.npy", "--topk-ids", tmp_path / "ids.npy",
             "--topk-weights", tmp_path / "w.npy"]  # fmt: skip
    tilewise("run", problem, *files)
    assert np.load(tmp_path / "ids.npy").dtype == np.int64
    assert np.load(tmp_path / "w.npy").dtype == np.float16
    assert np.load(tmp_path / "w.npy").shape == (9, 5)
    wrong = tilewise("run", problem.replace("tokens=9", "tokens=8"), *files, status=2).stderr
    assert "PROBLEM: must agree with the files" in wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--top-k", "2"], ["--top-k: needs --logits (got none)"]),
        (
            ["--logits", "{dir}/logits.npy", "--topk-weights", "{dir}/x.npy"],
            ["--logits: needs --top-k, or a problem that says it (got neither)"],
        ),
        (
            ["--logits", "{dir}/logits.npy", "--top-k", "0", "--topk-weights", "{dir}/x.npy"],
            ["--top-k: must be >= 1 (got 0)"],
        ),
        (
            ["--logits", "{dir}/logits.npy", "--top-k", "13", "--topk-weights", "{dir}/x.npy"],
            ["top_k: must be <= num_experts, 12 (got 13)"],
        ),
        (
            ["--logits", "{dir}/logits.npy", "--top-k", "3", "--score", "relu", "--topk-weights", "{dir}/x.npy"],
            ["--score: must be one of softmax, sigmoid, sqrt_softplus, identity (got 'relu')"],
        ),
        (["--logits", "{dir}/logits.npy", "--top-k", "3"], ["must name a file to write"]),
        (["--logits", "{dir}/logits.npy", "--dlogits", "{dir}/x.npy"], ["topk_ids: must be given"]),
        (["--logits", "{dir}/logits.npy", "--mask", "causal"], ["--logits: excludes --mask (got both)"]),
    ],
)
def test_bad_input(tilewise, tmp_path, arrays, arguments, words):
    done = tilewise("run", *(argument.format(dir=tmp_path) for argument in arguments), status=2)
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "x.npy").exists()
