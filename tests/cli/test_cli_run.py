"""`tilewise run`: results against the formulas of docs/semantics.md in NumPy, and what it refuses."""

from __future__ import annotations

import io
import os
import pty
import subprocess
from pathlib import Path

import numpy as np
import pytest

BATCH, SEQLEN_Q, SEQLEN_K, HEADS_Q, HEADS_K, DIM, DIM_V = 2, 7, 11, 4, 2, 8, 6


def to_bf16(array: np.ndarray) -> np.ndarray:
    """Rounds to bf16, kept as uint16 (for finite values)."""
    bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(array: np.ndarray) -> np.ndarray:
    return (array.astype(np.uint32) << 16).view(np.float32)


def draw(seed: int = 0, dim_v: int = DIM_V) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        "q": (BATCH, SEQLEN_Q, HEADS_Q, DIM),
        "k": (BATCH, SEQLEN_K, HEADS_K, DIM),
        "v": (BATCH, SEQLEN_K, HEADS_K, dim_v),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def attention(q, k, v, *, scale=None, softcap=0.0, bias=None, slopes=None, sink=None, window=(-1, -1), top_left=False):
    """(out, lse, p) in float64 of [batch, seq, head, dim] arrays whose rows all count."""
    q, k, v = (array.astype(np.float64).transpose(0, 2, 1, 3) for array in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = (q @ k.swapaxes(2, 3)) * (DIM**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(q.shape[2])[:, None] + (0 if top_left else k.shape[2] - q.shape[2]) - np.arange(k.shape[2])
    if bias is not None:
        scores = np.where(bias, scores, -np.inf) if bias.dtype == bool else scores + bias
    if slopes is not None:
        scores = scores - slopes[..., None, None] * np.abs(distance)
    hidden = (window[0] >= 0) & (distance > window[0]) | (window[1] >= 0) & (-distance > window[1])
    scores = np.where(hidden, -np.inf, scores)
    with np.errstate(divide="ignore"):
        total = np.exp(scores).sum(-1) + (0 if sink is None else np.exp(sink)[None, :, None])
        lse = np.log(total)
    p = np.exp(scores) / np.where(total == 0, 1, total)[..., None]
    return (p @ v).transpose(0, 2, 1, 3), lse, p


@pytest.fixture
def run(tilewise, tmp_path):
    """run(arrays, *arguments): saves the arrays, runs, and returns (out, lse)."""

    def call(arrays: dict[str, np.ndarray], *arguments: str, outputs: tuple[str, ...] = ("out", "lse")):
        words: list[str | Path] = []
        for name, array in arrays.items():
            path = tmp_path / f"{name}.npy"
            np.save(path, array)
            words += [f"--{name.replace('_', '-')}", path]
        for name in outputs:
            words += [f"--{name}", tmp_path / f"{name}.npy"]
        tilewise("run", *words, *arguments)
        return tuple(np.load(tmp_path / f"{name}.npy") for name in outputs)

    return call


RNG = np.random.default_rng(7)
SLOPES = RNG.uniform(0.1, 1, HEADS_Q).astype(np.float32)
BATCH_SLOPES = RNG.uniform(0.1, 1, (BATCH, HEADS_Q)).astype(np.float32)
SINK = RNG.standard_normal(HEADS_Q).astype(np.float32)
BIAS = RNG.standard_normal((1, HEADS_Q, SEQLEN_Q, SEQLEN_K)).astype(np.float32)
VISIBLE = RNG.uniform(size=(BATCH, 1, SEQLEN_Q, SEQLEN_K)) < 0.7

ONE = np.ones((1, 1, 1), np.int32)
FIRST = np.zeros((1, 1, 1, 1), np.int32)

CASES = {
    "plain": ({}, [], {}),
    "causal": ({}, ["--mask", "causal"], {"window": (-1, 0)}),
    "causal_top_left": ({}, ["--mask", "causal_top_left"], {"window": (-1, 0), "top_left": True}),
    "window": (
        {},
        ["--window-left", "2", "--window-right", "1", "--alignment", "top_left"],
        {"window": (2, 1), "top_left": True},
    ),
    "unbounded_window": ({}, ["--window-left", "-1"], {}),
    "negative_scale": ({}, ["--softmax-scale", "-0.3"], {"scale": -0.3}),
    "softcap": ({}, ["--softcap", "1.5"], {"softcap": 1.5}),
    "bias": ({"bias": BIAS}, [], {"bias": BIAS}),
    "bool_bias": ({"bias": VISIBLE}, [], {"bias": VISIBLE}),
    "alibi": ({"alibi_slopes": SLOPES}, ["--mask", "causal"], {"slopes": SLOPES, "window": (-1, 0)}),
    "alibi_of_each_batch": ({"alibi_slopes": BATCH_SLOPES}, [], {"slopes": BATCH_SLOPES}),
    "sink": ({"sink": SINK}, [], {"sink": SINK}),
    "score_mod": (
        {"table": SLOPES},
        ["--score-mod", "score - table0[h] * abs(q_idx + 4 - kv_idx)"],
        {"slopes": SLOPES},
    ),
    "mask_mod": ({}, ["--mask-mod", "kv_idx <= q_idx + 4"], {"window": (-1, 0)}),
    # Of the one block, which is full, nothing is asked.
    "block_mask": (
        {"block_counts": 0 * ONE, "block_indices": FIRST, "full_block_counts": ONE, "full_block_indices": FIRST},
        ["--mask-mod", "kv_idx <= q_idx + 4", "--block-rows", "64"],
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_forward(run, case):
    files, arguments, meaning = CASES[case]
    arrays = draw()
    out, lse = run(arrays | files, *arguments)
    want_out, want_lse, _ = attention(**arrays, **meaning)
    assert out.dtype == lse.dtype == np.float32
    np.testing.assert_allclose(out, want_out, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=2e-5, atol=2e-5)


def test_half_precisions(run):
    arrays = draw()
    halves = {name: array.astype(np.float16) for name, array in arrays.items()}
    (out,) = run(halves, outputs=("out",))
    assert out.dtype == np.float16
    np.testing.assert_allclose(out.astype(np.float64), attention(**halves)[0], atol=2e-3)

    brains = {name: to_bf16(array) for name, array in arrays.items()}
    (out,) = run(brains, outputs=("out",))
    assert out.dtype == np.uint16
    want = attention(**{name: from_bf16(array) for name, array in brains.items()})[0]
    np.testing.assert_allclose(from_bf16(out), want, atol=2e-2)


def test_double_precision(run):
    arrays = {name: array.astype(np.float64) for name, array in draw().items()}
    out, lse = run(arrays)
    want_out, want_lse, _ = attention(**arrays)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, want_out, rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_sink_in_the_dtype_of_q(run, dtype):
    arrays = {name: array.astype(dtype) for name, array in draw().items()}
    sink = np.linspace(-1, 1, 4).astype(dtype)
    (out,) = run(arrays | {"sink": sink}, outputs=("out",))
    want = attention(**arrays, sink=sink.astype(np.float64))[0]
    np.testing.assert_allclose(out, want, atol=1e-14 if dtype is np.float64 else 2e-3)


@pytest.mark.parametrize(("layout", "axes"), [("sbhd", (1, 0, 2, 3)), ("bhsd", (0, 2, 1, 3))])
def test_layouts(run, layout, axes):
    arrays = draw()
    moved = {name: np.ascontiguousarray(array.transpose(axes)) for name, array in arrays.items()}
    out, lse = run(moved, "--layout", layout)
    want_out, want_lse, _ = attention(**arrays)
    np.testing.assert_allclose(out.transpose(axes), want_out, rtol=2e-5, atol=2e-5)  # both swaps are their own inverse
    np.testing.assert_allclose(lse, want_lse, rtol=2e-5, atol=2e-5)


def test_packed(run):
    arrays = draw()
    packed = {name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}
    packed["cu_seqlens_q"] = np.array([0, SEQLEN_Q, 2 * SEQLEN_Q], np.int32)
    packed["cu_seqlens_k"] = np.array([0, SEQLEN_K, 2 * SEQLEN_K], np.int32)
    out, lse = run(packed, "--layout", "thd")
    want_out, want_lse, _ = attention(**arrays)
    np.testing.assert_allclose(out, want_out.reshape(out.shape), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, want_lse.transpose(1, 0, 2).reshape(lse.shape), rtol=2e-5, atol=2e-5)


def test_used_lengths(run):
    arrays = draw()
    files = {
        "seqused_q": np.array([5, 7], np.int32),
        "seqused_k": np.array([4, 9], np.int32),
        "leftpad_k": np.array([3, 0], np.int32),
    }
    out, lse = run(arrays | files)
    for b, (used_q, used_k, pad) in enumerate([(5, 4, 3), (7, 9, 0)]):
        want_out, want_lse, _ = attention(
            arrays["q"][b : b + 1, :used_q], *(arrays[name][b : b + 1, pad : pad + used_k] for name in "kv")
        )
        np.testing.assert_allclose(out[b, :used_q], want_out[0], rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(lse[b, :, :used_q], want_lse[0], rtol=2e-5, atol=2e-5)
        assert not out[b, used_q:].any()
        assert np.isneginf(lse[b, :, used_q:]).all()


def test_backward(run):
    arrays = draw(dim_v=DIM)
    rng = np.random.default_rng(1)
    dout = rng.standard_normal((BATCH, SEQLEN_Q, HEADS_Q, DIM)).astype(np.float32)
    dlse = rng.standard_normal((BATCH, HEADS_Q, SEQLEN_Q)).astype(np.float32)
    files = {"bias": BIAS, "sink": SINK, "dout": dout, "dlse": dlse}
    names = ("out", "dq", "dk", "dv", "dbias", "dsink")
    out, dq, dk, dv, dbias, dsink = run(arrays | files, "--mask", "causal", "--deterministic", outputs=names)
    want_out, lse, p = attention(**arrays, bias=BIAS, sink=SINK, window=(-1, 0))
    q, k, v, do = (array.astype(np.float64).transpose(0, 2, 1, 3) for array in (*arrays.values(), dout))
    groups = HEADS_Q // HEADS_K
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    delta = (want_out.transpose(0, 2, 1, 3) * do).sum(-1)
    ds = p * (do @ v.swapaxes(2, 3) - delta[..., None] + dlse[..., None])

    def to_key_heads(gradient):
        return gradient.reshape(BATCH, HEADS_K, groups, SEQLEN_K, DIM).sum(2).transpose(0, 2, 1, 3)

    wants = {
        "out": (out, want_out),
        "dq": (dq, (ds @ k * DIM**-0.5).transpose(0, 2, 1, 3)),
        "dk": (dk, to_key_heads(ds.swapaxes(2, 3) @ q * DIM**-0.5)),
        "dv": (dv, to_key_heads(p.swapaxes(2, 3) @ do)),
        "dbias": (dbias, ds.sum(0, keepdims=True)),
        "dsink": (dsink, (np.exp(SINK[None, :, None] - lse) * (dlse - delta)).sum((0, 2))),
    }
    for name, (got, want) in wants.items():
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=name)


def test_dropout_seeds(run):
    arrays = draw()
    options = ["--dropout-p", "0.5"]
    (first,) = run(arrays, *options, "--seed", "3", "--offset", "9", outputs=("out",))
    (again,) = run(arrays, *options, "--seed", "3", "--offset", "9", outputs=("out",))
    (other,) = run(arrays, *options, "--seed", "4", "--offset", "9", outputs=("out",))
    (tensor,) = run(arrays | {"seed_and_offset": np.array([3, 9])}, *options, outputs=("out",))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, tensor)
    assert (first != other).any()


def test_problem_states_the_options(run):
    arrays = draw()
    text = (
        f"attention_forward batch_size={BATCH} seqlen_q={SEQLEN_Q} seqlen_k={SEQLEN_K} num_heads_q={HEADS_Q}"
        f" num_heads_k={HEADS_K} head_dim={DIM} head_dim_v={DIM_V} mask=causal"
    )
    out, lse = run(arrays, text)
    want_out, want_lse, _ = attention(**arrays, window=(-1, 0))
    np.testing.assert_allclose(out, want_out, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=2e-5, atol=2e-5)


def test_implementations_and_threads_agree(run):
    arrays = draw()
    (want,) = run(arrays, "--implementation", "reference", outputs=("out",))
    (one,) = run(arrays, "--implementation", "cpu.generic", "--threads", "1", outputs=("out",))
    (two,) = run(arrays, "--implementation", "cpu.generic", "--threads", "2", outputs=("out",))
    np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(one, two)


def test_empty_sequences(run):
    arrays = draw()
    arrays["k"], arrays["v"] = arrays["k"][:, :0], arrays["v"][:, :0]
    out, lse = run(arrays)
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        ({"q": np.zeros((2, 7, 4), np.float32)}, [], ["q: rank", "3"]),
        ({"q": np.zeros(4, np.float32)}, [], ["q: rank", "1"]),
        ({"q": np.float32(4)}, [], ["q: rank", "0"]),
        ({"q": np.zeros((2, 7, 4, 8))}, [], ["k: dtype", "f64", "f32"]),
        ({"q": np.zeros((2, 7, 4, 8), np.int32)}, [], ["q: dtype", "f64", "i32"]),
        ({"sink": np.zeros(4)}, [], ["sink: dtype", "f32", "f64"]),
        ({"k": np.zeros((2, 11, 2, 8), np.float16)}, [], ["k: dtype", "f32", "f16"]),
        ({"k": np.zeros((2, 11, 3, 8), np.float32)}, [], ["k", "3"]),
        ({"k": np.zeros((1, 11, 2, 8), np.float32)}, [], ["k", "batch_size", "1"]),
        ({"q": np.zeros((2, 7, 5, 8), np.float32)}, [], ["num_heads_q", "multiple", "5"]),
        (
            {"q": np.zeros((2, 7, 4, 600), np.float32), "k": np.zeros((2, 11, 2, 600), np.float32)},
            [],
            ["head_dim", "600"],
        ),
        ({"sink": np.zeros(3, np.float32)}, [], ["sink", "3"]),
        ({"bias": np.zeros((3, 1, 7, 11), np.float32)}, [], ["bias", "3"]),
        ({"alibi_slopes": np.zeros(4)}, [], ["alibi_slopes: dtype", "f64"]),
        ({"seqused_k": np.array([4, 12], np.int32)}, [], ["seqused_k", "12"]),
        ({"seqused_k": np.array([4, 4])}, [], ["seqused_k: dtype", "i64"]),
        ({"cu_seqlens_q": np.array([0, 7], np.int32)}, [], ["cu_seqlens_q", "thd"]),
        ({}, ["--mask", "diagonal"], ["--mask", "causal", "diagonal"]),
        ({}, ["--layout", "dhsb"], ["--layout", "bshd", "dhsb"]),
        ({}, ["--mask", "causal_top_left", "--alignment", "bottom_right"], ["--alignment", "top_left", "bottom_right"]),
        ({}, ["--mask", "causal", "--window-right", "2"], ["window_right", "causal", "2"]),
        ({}, ["--window-left", "-2"], ["--window-left", ">= -1", "-2"]),
        ({}, ["--softmax-scale", "nan"], ["softmax_scale", "nan"]),
        ({}, ["--softmax-scale", "wide"], ["--softmax-scale", "number", "wide"]),
        ({}, ["--softcap", "-1"], ["softcap", "-1"]),
        ({}, ["--dropout-p", "1"], ["dropout_p", "< 1", "1"]),
        ({}, ["--dropout-p", "-0.1"], ["dropout_p", "-0.1"]),
        ({}, ["--seed", "1.5"], ["--seed", "integer", "1.5"]),
        (
            {"seed_and_offset": np.array([1, 2])},
            ["--dropout-p", "0.5", "--seed", "3"],
            ["seed_and_offset", "seed", "3"],
        ),
        ({}, ["--max-seqlen-q", "9"], ["max_seqlen_q", "thd"]),
        ({}, ["--dq", "dq.npy"], ["--dq", "--dout"]),
        ({"dlse": np.zeros((2, 4, 7), np.float32)}, [], ["--dlse", "--dout"]),
        ({"dout": np.zeros((2, 7, 4, 5), np.float32)}, ["--dq", "dq.npy"], ["dout", "5"]),
        ({"dout": np.zeros((2, 7, 4, 6), np.float32)}, ["--dbias", "dbias.npy"], ["--dbias: needs --bias"]),
        ({"dout": np.zeros((2, 7, 4, 6), np.float32)}, ["--dsink", "dsink.npy"], ["--dsink: needs --sink"]),
        ({"block_counts": ONE}, [], ["--block-indices: must be given with --block-counts (got none)"]),
        ({"full_block_counts": ONE, "full_block_indices": FIRST}, [], ["--full-block-counts: needs --block-counts"]),
        ({"block_counts": ONE, "block_indices": FIRST}, ["--block-rows", "20"], ["block_rows", "multiple of 16", "20"]),
        ({}, ["--lse", "out.npy"], ["--lse: must name another file than --out", "out.npy"]),
        (
            {"dout": np.zeros((2, 7, 4, 6), np.float32)},
            ["--dk", "dk.npy", "--dv", "../{folder}/dk.npy"],
            ["--dv: must name another file than --dk", "dk.npy"],
        ),
        ({}, ["--implementation", "cpu.abacus"], ["cpu.abacus"]),
        ({}, ["--mask", "causal", "attention_forward seqlen_q=7 head_dim=8"], ["--mask", "PROBLEM"]),
        ({}, ["attention_forward seqlen_q=7 head_dim=8"], ["PROBLEM", "batch_size=2"]),
        ({}, ["attention_forward seqlenq=7 head_dim=8"], ["unknown key; did you mean seqlen_q? (got 'seqlenq')"]),
        ({"k": np.zeros((2, 4, 3, 8), np.float32), "v": np.zeros((2, 4, 3, 8), np.float32)}, [], ["4 and 3)\n"]),
        (
            {name: np.zeros((2, 2, seqlen, 8), np.float32) for name, seqlen in (("q", 7), ("k", 4), ("v", 4))},
            [],
            ["got 7 and 4); q, k and v fit layout=bhsd"],
        ),
    ],
)
def test_bad_input(tilewise, tmp_path, changes, arguments, words):
    files: list[str | Path] = []
    for name, array in (draw() | changes).items():
        np.save(tmp_path / f"{name}.npy", array)
        files += [f"--{name.replace('_', '-')}", tmp_path / f"{name}.npy"]
    arguments = [
        str(tmp_path / word.format(folder=tmp_path.name)) if word.endswith(".npy") else word for word in arguments
    ]
    done = tilewise("run", *files, "--out", tmp_path / "out.npy", *arguments, status=2)
    assert done.stderr.startswith("tilewise: ")
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "out.npy").exists()


def test_no_output_is_an_error(tilewise, tmp_path):
    words: list[str | Path] = []
    for name, array in draw().items():
        np.save(tmp_path / f"{name}.npy", array)
        words += [f"--{name}", tmp_path / f"{name}.npy"]
    assert "--out" in tilewise("run", *words, status=2).stderr
    done = tilewise("run", *words, "--out", tmp_path / "missing" / "out.npy", status=1)
    assert "could not be written" in done.stderr


@pytest.fixture
def words(tmp_path) -> list[str]:
    """`run` and its inputs, saved."""
    result = ["run"]
    for name, array in draw().items():
        np.save(tmp_path / f"{name}.npy", array)
        result += [f"--{name}", str(tmp_path / f"{name}.npy")]
    return result


def test_a_dash_writes_to_standard_output(command, environment, words, tmp_path):
    done = subprocess.run(
        [command, *words, "--out", "-", "--lse", tmp_path / "lse.npy"],
        capture_output=True,
        timeout=60,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    want_out, want_lse, _ = attention(**draw())
    stream = io.BytesIO(done.stdout)
    np.testing.assert_allclose(np.load(stream), want_out, rtol=2e-5, atol=2e-5)
    assert stream.read() == b"", "nothing but the array"
    np.testing.assert_allclose(np.load(tmp_path / "lse.npy"), want_lse, rtol=2e-5, atol=2e-5)
    assert b"attention_forward" in done.stderr
    assert b"-: f32[2, 7, 4, 6]" in done.stderr
    assert not (tmp_path / "-").exists()


def test_a_dash_reads_from_standard_input(command, environment, words, tmp_path):
    piped = (tmp_path / "q.npy").read_bytes()
    words[words.index("--q") + 1] = "-"
    done = subprocess.run(
        [command, *words, "--out", "-"], input=piped, capture_output=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(io.BytesIO(done.stdout)), attention(**draw())[0], rtol=2e-5, atol=2e-5)


def test_a_broken_array_on_standard_input(command, environment, words):
    words[words.index("--q") + 1] = "-"
    done = subprocess.run(
        [command, *words, "--out", "-"], input=b"no array", capture_output=True, timeout=60, env=environment
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"tilewise: standard input: must begin with")


def test_a_terminal_gets_no_array(command, environment, words):
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [command, *words, "--out", "-"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            timeout=60,
            env=environment,
        )
        assert done.returncode == 2
        assert done.stderr == b"tilewise: --out: must be a file or a pipe (got '-', a terminal)\n"
        words[words.index("--k") + 1] = "-"
        done = subprocess.run(
            [command, *words, "--out", "-"], stdin=theirs, capture_output=True, timeout=60, env=environment
        )
        assert done.returncode == 2
        assert done.stderr == b"tilewise: --k: must be a file or a pipe (got '-', a terminal)\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_full_standard_output_is_a_failure(command, environment, words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [command, *words, "--out", "-"], stdout=full, stderr=subprocess.PIPE, timeout=60, env=environment
        )
    assert done.returncode == 1
    assert b"standard output: could not be written" in done.stderr


def test_one_dash_for_input_and_one_for_output(tilewise, words):
    twice = tilewise(*words, "--out", "-", "--lse", "-", status=2)
    assert twice.stdout == ""
    assert "--lse: must name another file than --out (got '-')" in twice.stderr
    words[words.index("--k") + 1] = words[words.index("--v") + 1] = "-"
    twice = tilewise(*words, "--out", "-", status=2)
    assert "--v: must name a file where --k is standard input (got '-')" in twice.stderr


def test_a_file_can_have_the_name_of_a_dash(command, environment, words, tmp_path):
    subprocess.run([command, *words, "--out", "./-"], check=True, timeout=60, env=environment, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "-"), attention(**draw())[0], rtol=2e-5, atol=2e-5)
