"""`tilewise run --k-cache`: the KV cache step on .npy files against its definition in NumPy, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

HEADS, HEADS_K, DIM = 4, 2, 8
LENGTHS, NEW, PAGE = [9, 3], 2, 4


def attend(q, k, v, causal=True):
    """One sequence in float64: out and lse of q [rows, heads, dim] on k, v [keys, heads_k, dim]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.astype(np.float64).repeat(group, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) / np.sqrt(q.shape[2])
    if causal:
        at = np.arange(k.shape[0])[None] - (np.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0])
        scores[:, at > 0] = -np.inf
    top = scores.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(scores - top).sum(axis=-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", np.exp(scores - lse), v), lse[..., 0]


@pytest.fixture
def step(tmp_path):
    """Files of two sequences: q, k, v, contiguous caches, the same in pages, their table and lengths."""
    rng = np.random.default_rng(7)
    draw = {
        "q": rng.standard_normal((2, NEW, HEADS, DIM)),
        "k": rng.standard_normal((2, NEW, HEADS_K, DIM)),
        "v": rng.standard_normal((2, NEW, HEADS_K, DIM)),
        "keys": rng.standard_normal((2, 12, HEADS_K, DIM)),
        "values": rng.standard_normal((2, 12, HEADS_K, DIM)),
    }
    arrays = {name: array.astype(np.float32) for name, array in draw.items()}
    table = np.array([[4, 0, 5], [2, 1, 3]], np.int32)
    for name in ("keys", "values"):
        pages = np.empty((6, PAGE, HEADS_K, DIM), np.float32)
        pages[table] = arrays[name].reshape(2, 3, PAGE, HEADS_K, DIM)
        arrays[f"{name}_paged"] = pages
    arrays["table"], arrays["lengths"] = table, np.array(LENGTHS, np.int32)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return arrays


def appended(arrays):
    keys, values = arrays["keys"].copy(), arrays["values"].copy()
    for b, length in enumerate(LENGTHS):
        keys[b, length : length + NEW], values[b, length : length + NEW] = arrays["k"][b], arrays["v"][b]
    return keys, values


def files(folder, **options):
    return [word for name, file in options.items() for word in (f"--{name.replace('_', '-')}", folder / f"{file}.npy")]


@pytest.mark.parametrize("paged", [False, True])
def test_step(tilewise, tmp_path, step, paged):
    suffix = "_paged" if paged else ""
    options = files(tmp_path, q="q", k="k", v="v", k_cache=f"keys{suffix}", v_cache=f"values{suffix}")
    options += files(tmp_path, cache_seqlens="lengths", out="out", lse="lse", k_cache_out="new_k", v_cache_out="new_v")
    options += files(tmp_path, block_table="table") if paged else []
    done = tilewise("run", *options, "--mask", "causal")
    assert done.stdout.startswith("kv_cache_attention batch_size=2 seqlen_q=2 append=1")
    keys, values = appended(step)
    out, lse = np.load(tmp_path / "out.npy"), np.load(tmp_path / "lse.npy")
    for b, length in enumerate(LENGTHS):
        expected, expected_lse = attend(step["q"][b], keys[b, : length + NEW], values[b, : length + NEW])
        np.testing.assert_allclose(out[b], expected, atol=1e-5)
        np.testing.assert_allclose(lse[b], expected_lse, atol=1e-5)
    for name, expected in (("new_k", keys), ("new_v", values)):
        written = np.load(tmp_path / f"{name}.npy")
        written = written[step["table"]].reshape(expected.shape) if paged else written
        np.testing.assert_array_equal(written, expected)
    np.testing.assert_array_equal(np.load(tmp_path / f"keys{suffix}.npy"), step[f"keys{suffix}"])


def test_append_alone(tilewise, tmp_path, step):
    new = files(tmp_path, k="k", v="v", k_cache="keys", v_cache="values", k_cache_out="new_k", v_cache_out="new_v")
    done = tilewise("run", *new, *files(tmp_path, cache_seqlens="lengths"))
    assert done.stdout.startswith("append_kv ")
    for name, expected in zip(("new_k", "new_v"), appended(step)):
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected)


def test_append_by_slots(tilewise, tmp_path, step):
    np.save(tmp_path / "slots.npy", np.array([[23, -1], [0, 7]], np.int64))
    paged = files(tmp_path, k_cache="keys_paged", v_cache="values_paged", k_cache_out="new_k")
    tilewise("run", *files(tmp_path, k="k", v="v", slots="slots"), *paged)
    expected = step["keys_paged"].copy()
    expected[5, 3], expected[0, 0], expected[1, 3] = step["k"][0, 0], step["k"][1, 0], step["k"][1, 1]
    np.testing.assert_array_equal(np.load(tmp_path / "new_k.npy"), expected)


def test_fp8_is_kept_as_uint8(tilewise, tmp_path, step):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("keys", "values"):
        np.save(tmp_path / f"{name}8.npy", step[name].astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    caches = files(tmp_path, k_cache="keys8", v_cache="values8", k_cache_out="new_k", v_cache_out="new_v")
    scales = ["--k-scale-value", "1", "--v-scale-value", "0.5"]
    tilewise("run", *files(tmp_path, k="k", v="v", cache_seqlens="lengths"), *caches, *scales)
    for name, old, new, scale in (("new_k", "keys", "k", 1.0), ("new_v", "values", "v", 0.5)):
        expected = step[old].astype(ml_dtypes.float8_e4m3fn)
        for b, length in enumerate(LENGTHS):
            expected[b, length : length + NEW] = (step[new][b] / scale).astype(ml_dtypes.float8_e4m3fn)
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected.view(np.uint8))


def test_scales_for_each_token_are_written(tilewise, tmp_path, step):
    for name in ("keys", "values"):
        np.save(tmp_path / f"{name}8.npy", np.zeros(step[name].shape, np.uint8))
        np.save(tmp_path / f"{name}_scale.npy", np.ones(step[name].shape[:3], np.float32))
    caches = files(tmp_path, k_cache="keys8", v_cache="values8", k_scale="keys_scale", v_scale="values_scale")
    tilewise("run", *files(tmp_path, k="k", v="v", cache_seqlens="lengths", k_scale_out="new_scale"), *caches)
    expected = np.ones(step["keys"].shape[:3], np.float32)
    for b, length in enumerate(LENGTHS):
        expected[b, length : length + NEW] = np.abs(step["k"][b]).max(axis=-1) / 448
    np.testing.assert_allclose(np.load(tmp_path / "new_scale.npy"), expected, rtol=1e-6)


def test_values_within_the_keys(tilewise, tmp_path, step):
    call = files(tmp_path, q="q", k_cache="keys", out="out")
    tilewise("run", *call, "--head-dim-v", "5", "--cache-seqlen", "10")
    out = np.load(tmp_path / "out.npy")
    assert out.shape == (2, NEW, HEADS, 5)
    for b in range(2):
        expected, _ = attend(step["q"][b], step["keys"][b, :10], step["keys"][b, :10, :, :5], causal=False)
        np.testing.assert_allclose(out[b], expected, atol=1e-5)


def test_rotary_and_packed_rows(tilewise, tmp_path, step):
    """One packed sequence of two rows; keys at positions 9 and 10 are rotated by their tables."""
    angles = np.random.default_rng(1).standard_normal((16, DIM // 2)).astype(np.float32)
    np.save(tmp_path / "cos.npy", np.cos(angles))
    np.save(tmp_path / "sin.npy", np.sin(angles))
    np.save(tmp_path / "starts.npy", np.array([0, NEW], np.int32))
    for name in ("q", "k", "v"):
        np.save(tmp_path / f"packed_{name}.npy", step[name][0])
    for name in ("keys", "values"):
        np.save(tmp_path / f"one_{name}.npy", step[name][:1])
    packed = files(tmp_path, q="packed_q", k="packed_k", v="packed_v", cu_seqlens_q="starts", out="out")
    caches = files(tmp_path, k_cache="one_keys", v_cache="one_values", k_cache_out="new_k")
    tables = files(tmp_path, rotary_cos="cos", rotary_sin="sin")
    tilewise("run", *packed, *caches, *tables, "--cache-seqlen", "9", "--rotary-interleaved", "--mask", "causal")
    even, odd = step["k"][0, ..., ::2], step["k"][0, ..., 1::2]
    cos, sin = np.cos(angles)[9:11, None], np.sin(angles)[9:11, None]
    rotated = np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(NEW, HEADS_K, DIM)
    np.testing.assert_allclose(np.load(tmp_path / "new_k.npy")[0, 9:11], rotated, atol=1e-6)
    assert np.load(tmp_path / "out.npy").shape == (NEW, HEADS, DIM)


def test_a_problem_states_the_options(tilewise, tmp_path, step):
    problem = (
        "kv_cache_attention batch_size=2 seqlen_q=2 append=1 num_heads_q=4 num_heads_k=2 head_dim=8 capacity=12"
        " cache_seqlens=1 mask=causal softcap=3"
    )
    call = files(tmp_path, q="q", k="k", v="v", k_cache="keys", v_cache="values", cache_seqlens="lengths", out="out")
    done = tilewise("run", problem, *call)
    assert done.stdout.startswith(problem.replace(" softcap=3", ""))
    by_problem = np.load(tmp_path / "out.npy")
    tilewise("run", *call, "--mask", "causal", "--softcap", "3")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), by_problem)
    wrong = tilewise("run", problem.replace("capacity=12", "capacity=13"), *call, status=2).stderr
    assert "PROBLEM: must agree with the files" in wrong


def test_a_block_mask(tilewise, tmp_path, step):
    """All keys of the first sequence are hidden; the second one's are asked of."""
    np.save(tmp_path / "counts.npy", np.array([0, 1], np.int32).reshape(2, 1, 1))
    np.save(tmp_path / "indices.npy", np.zeros((2, 1, 1, 1), np.int32))
    call = files(tmp_path, q="q", k_cache="keys", v_cache="values", cache_seqlens="lengths", out="out")
    mask = files(tmp_path, block_counts="counts", block_indices="indices")
    words = ["--mask-mod", "kv_idx % 2 == 0", "--block-rows", "16", "--block-keys", "32"]
    done = tilewise("run", *call, *mask, *words)
    assert "block_mask=16x32[b,1]" in done.stdout
    out = np.load(tmp_path / "out.npy")
    assert not out[0].any() and out[1].any()
    problem = done.stdout.splitlines()[0]
    tilewise("run", problem, *call, *mask)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), out)
    alone = files(tmp_path, k="k", v="v", k_cache="keys", v_cache="values", k_cache_out="new", cache_seqlens="lengths")
    message = tilewise("run", *alone, *mask, status=2).stderr
    assert "--block-counts: needs --q (got none)" in message


CALL = {"q": "q", "k": "k", "v": "v", "k_cache": "keys", "v_cache": "values", "cache_seqlens": "lengths", "out": "x"}


@pytest.mark.parametrize(
    ("changed", "words", "message"),
    [
        ({"k_cache": None}, [], "--v-cache: needs --k-cache (got none)"),
        ({"out": None}, [], "--out: must name a file to write, or another output (got none)"),
        ({"q": None}, [], "--out: needs --q (got none)"),
        ({"k": None, "v": None, "k_cache_out": "y"}, [], "--k-cache-out: needs new keys, --k (got none)"),
        ({"v_scale_out": "y"}, [], "--v-scale-out: needs new keys, --k, and scales for each token (got none)"),
        ({"k_cache_out": "x"}, [], "--k-cache-out: must name another file than --out"),
        ({"bias": "keys"}, [], "--k-cache: excludes --bias (got both)"),
        ({"dq": "y"}, [], "--k-cache: excludes --dq (got both)"),
        ({}, ["--dropout-p", "0.5"], "--k-cache: excludes --dropout-p (got both)"),
        ({}, ["--mask", "causal_top_left"], "--mask: must be one of none, causal (got 'causal_top_left')"),
        ({"outs": "keys"}, [], "--outs: excludes --k-cache (got both)"),
        ({"v_cache": None, "v": None}, [], "head_dim_v: must be given without a v_cache"),
        ({}, ["--cache-seqlen", "3"], "cache_seqlens: must be a tensor or a number (got both)"),
        (
            {"cache_seqlens": None},
            ["--cache-seqlen", "11"],
            "cache_seqlens + seqlen_k_new must be <= 12, the capacity of the cache (got 11 + 2)",
        ),
        ({"cache_seqlens": "keys"}, [], "cache_seqlens: dtype must be i32 (got f32)"),
        ({}, ["kv_cache_attention seqlen_q=2 head_dim=8 capacity=12", "--num-splits", "2"], "--num-splits: excludes"),
        ({}, ["--num-splits", "-1"], "--num-splits: must be an integer >= 0 (got '-1')"),
    ],
)
def test_bad_input(tilewise, tmp_path, step, changed, words, message):
    call = {name: file for name, file in {**CALL, **changed}.items() if file is not None}
    done = tilewise("run", *words, *files(tmp_path, **call), status=2)
    assert message in done.stderr, done.stderr
    assert not (tmp_path / "x.npy").exists()
    np.testing.assert_array_equal(np.load(tmp_path / "keys.npy"), step["keys"])


WRONG = {
    "page": np.array([[4, 0, 6], [2, 1, 3]], np.int32),
    "narrow": np.array([[4], [2]], np.int32),
    "far": np.array([9, 11], np.int32),
    "twice": np.array([1, 1], np.int32),
    "pads": np.array([0, 6], np.int32),
    "flat": np.zeros((3, DIM // 2), np.float32),
    "wide": np.zeros((16, DIM), np.float32),
    "slots": np.array([[23, -1], [0, 24]], np.int64),
    "half": np.zeros((2, NEW, HEADS_K, DIM), np.float16),
    "bytes": np.zeros((2, 12, HEADS_K, DIM), np.uint8),
}
PAGED = {"k_cache": "keys_paged", "v_cache": "values_paged", "block_table": "table"}


@pytest.mark.parametrize("attends", [True, False])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({**PAGED, "block_table": "page"}, "block_table[0][2]: must be 0 to 5, a page (got 6)"),
        (
            {**PAGED, "block_table": "narrow"},
            "cache_seqlens[0]: must be <= 4, the places that a row of block_table has",
        ),
        ({**PAGED, "cache_batch_idx": "twice"}, "cache_batch_idx: excludes block_table (got both)"),
        ({**PAGED, "cache_leftpad": "pads"}, "cache_leftpad: excludes block_table (got both)"),
        ({"cache_seqlens": "far"}, "cache_seqlens[1]: cache_seqlens + seqlen_k_new must be <= 12, the capacity"),
        ({"cache_batch_idx": "twice"}, "cache_batch_idx[1]: must differ from the others' while keys are appended"),
        (
            {"cache_leftpad": "pads"},
            "cache_leftpad[1]: must be 0 to 5, the sequence's length with its new keys (got 6)",
        ),
        ({"rotary_cos": "flat", "rotary_sin": "flat"}, "rotary_cos: must have >= 11 rows, one for each position"),
        ({"rotary_cos": "wide", "rotary_sin": "wide"}, "rotary_offset: rotary_offset + rotary_dim must be <= head_dim"),
        ({"v": "half"}, "v: dtype must be f32 (got f16)"),
        ({"v": None}, "v: must be given with k (got k alone)"),
        ({"k_cache": "bytes", "v_cache": "bytes"}, "k_scale: must be given with caches in fp8_e4m3 (got none)"),
        ({**PAGED, "block_table": None, "cache_seqlens": None, "slots": "slots"}, "slots: "),
    ],
)
def test_values_that_lead_astray(tilewise, tmp_path, step, attends, changed, message):
    for name, array in WRONG.items():
        np.save(tmp_path / f"{name}.npy", array)
    outputs = {"out": "x"} if attends else {"q": None, "out": None, "k_cache_out": "x"}
    call = {name: file for name, file in {**CALL, **outputs, **changed}.items() if file is not None}
    error = tilewise("run", *files(tmp_path, **call), status=2).stderr
    assert error.startswith("tilewise: ") and message in error, error
    assert not (tmp_path / "x.npy").exists()


def test_a_standard_stream_is_refused(tilewise, tmp_path, step):
    call = files(tmp_path, **{name: file for name, file in CALL.items() if name != "q"})
    assert "--q: must name a file with --k-cache (got '-')" in tilewise("run", "--q", "-", *call, status=2).stderr
