"""`tilewise run --outs`: merge on .npy files against its definition in NumPy, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

SHAPE = (2, 7, 4, 6)


@pytest.fixture
def parts(tmp_path):
    """outs [3, ...], lses [3, ...] and sink, saved as stacked arrays and as parts; the third saw nothing in a row."""
    rng = np.random.default_rng(5)
    outs = rng.standard_normal((3, *SHAPE)).astype(np.float32)
    lses = rng.standard_normal((3, 2, 4, 7)).astype(np.float32)
    lses[2, :, :, 1] = -np.inf
    sink = rng.standard_normal(4).astype(np.float32)
    for name, array in (("outs", outs), ("lses", lses)):
        np.save(tmp_path / f"{name}.npy", array)
        for i in range(3):
            np.save(tmp_path / f"{name}{i}.npy", array[i])
    np.save(tmp_path / "sink.npy", sink)
    return outs.astype(np.float64), lses.astype(np.float64), sink.astype(np.float64)


def _weights(lses, sink):
    total = np.exp(lses).sum(0) + np.exp(sink)[None, :, None]
    return np.exp(lses) / total, np.log(total)


def _files(tmp_path, name):
    return ",".join(str(tmp_path / f"{name}{i}.npy") for i in range(3))


@pytest.mark.parametrize("stacked", [False, True])
def test_forward(tilewise, tmp_path, parts, stacked):
    outs, lses, sink = parts
    weights, lse = _weights(lses, sink)
    files = {name: tmp_path / f"{name}.npy" if stacked else _files(tmp_path, name) for name in ("outs", "lses")}
    out_file, lse_file = tmp_path / "out.npy", tmp_path / "lse.npy"
    done = tilewise("run", "--outs", files["outs"], "--lses", files["lses"], "--sink", tmp_path / "sink.npy",
                    "--out", out_file, "--lse", lse_file)  # fmt: skip
    assert done.stdout.startswith("merge parts=3 batch_size=2 seqlen_q=7 num_heads_q=4 head_dim_v=6 sink=f32")
    np.testing.assert_allclose(np.load(out_file), (weights.transpose(0, 1, 3, 2)[..., None] * outs).sum(0), atol=1e-6)
    np.testing.assert_allclose(np.load(lse_file), lse, atol=1e-6)


def test_backward(tilewise, tmp_path, parts):
    outs, lses, sink = parts
    weights, lse = _weights(lses, sink)
    rng = np.random.default_rng(6)
    dout, dlse = rng.standard_normal(SHAPE).astype(np.float32), rng.standard_normal((2, 4, 7)).astype(np.float32)
    np.save(tmp_path / "dout.npy", dout)
    np.save(tmp_path / "dlse.npy", dlse)
    results = [tmp_path / f"{name}{i}.npy" for name in ("douts", "dlses") for i in range(3)]
    tilewise("run", "--outs", _files(tmp_path, "outs"), "--lses", _files(tmp_path, "lses"),
             "--sink", tmp_path / "sink.npy", "--dout", tmp_path / "dout.npy", "--dlse", tmp_path / "dlse.npy",
             "--douts", ",".join(map(str, results[:3])), "--dlses", ",".join(map(str, results[3:])),
             "--dsink", tmp_path / "dsink.npy")  # fmt: skip
    dots = (dout[None] * outs).sum(-1).transpose(0, 1, 3, 2)
    delta = (weights * dots).sum(0)
    for i in range(3):
        np.testing.assert_allclose(
            np.load(results[i]), weights[i].transpose(0, 2, 1)[..., None] * dout.astype(np.float64), atol=1e-6
        )
        np.testing.assert_allclose(np.load(results[3 + i]), weights[i] * (dots[i] - delta + dlse), atol=1e-5)
    expected = (np.exp(sink[None, :, None] - lse) * (dlse - delta)).sum((0, 2))
    np.testing.assert_allclose(np.load(tmp_path / "dsink.npy"), expected, atol=1e-5)


def test_a_problem_states_layout_and_dtype(tilewise, tmp_path, parts):
    problem = "merge dtype=bf16 parts_dtype=f32 parts=3 batch_size=2 seqlen_q=7 num_heads_q=4 head_dim_v=6 stacked=1"
    files = ["--outs", tmp_path / "outs.npy", "--lses", tmp_path / "lses.npy", "--out", tmp_path / "out.npy"]
    tilewise("run", problem, *files)
    assert np.load(tmp_path / "out.npy").dtype == np.uint16
    wrong = tilewise("run", problem.replace("stacked=1", ""), *files, status=2).stderr
    assert "PROBLEM: must agree with the files" in wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lses", "{dir}/lses.npy", "--out", "{dir}/x.npy"], ["--lses: needs --outs"]),
        (["--outs", "{dir}/outs.npy", "--out", "{dir}/x.npy"], ["lses: must have as many entries as outs, 1 (got 0)"]),
        (["--outs", "{dir}/outs.npy", "--lses", "{dir}/lses.npy"], ["--out: must name a file to write"]),
        (["--outs", "{dir}/outs.npy", "--q", "{dir}/outs.npy"], ["--outs: excludes --q (got both)"]),
        (["--outs", "{dir}/outs.npy", "--mask", "causal"], ["--outs: excludes --mask (got both)"]),
        (["--outs", "-", "--lses", "{dir}/lses.npy", "--out", "{dir}/x.npy"], ["--outs: must name a file", "'-'"]),
        (
            ["--outs", "{dir}/outs.npy", "--lses", "{dir}/lses.npy", "--out", "{dir}/x.npy", "--lse", "{dir}/x.npy"],
            ["--lse: must name another file than --out"],
        ),
        (
            ["--outs", "{dir}/outs.npy", "--lses", "{dir}/lses.npy", "--douts", "{dir}/x.npy"],
            ["--douts: needs --dout (got none)"],
        ),
        (
            ["--outs", "{dir}/outs0.npy,{dir}/outs1.npy", "--lses", "{dir}/lses0.npy", "--out", "{dir}/x.npy"],
            ["lses: must have as many entries as outs, 2 (got 1)"],
        ),
    ],
)
def test_bad_input(tilewise, tmp_path, parts, arguments, words):
    done = tilewise("run", *(argument.format(dir=tmp_path) for argument in arguments), status=2)
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "x.npy").exists()
