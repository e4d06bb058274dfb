"""python -m tilewise.bench: arithmetic, arguments, judgement of results, tiny runs. No timing is judged."""

import csv
import math
import subprocess
import sys

import numpy as np
import pytest
from bench_support import CSV_COLUMNS, assert_refused

import tilewise
from tilewise.bench import arguments, cli, contenders, reference
from tilewise.bench.rows import ratio
from tilewise.bench.runner import Settings, run_case
from tilewise.bench.shapes import Case, Shape, default_grid, problem_text, visible_pairs
from tilewise.bench.timing import Timing, geometric_mean, measure

# --- arithmetic against values computed by hand ---


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "mask", "pairs"),
    [
        (3, 5, "none", 15),
        (4, 4, "causal", 10),  # 1 + 2 + 3 + 4
        (2, 5, "causal", 9),  # 4 + 5: the last query sees every key
        (1, 7, "causal", 7),
        (4, 2, "causal", 3),  # 0 + 0 + 1 + 2
    ],
)
def test_visible_pairs(seqlen_q, seqlen_k, mask, pairs):
    assert visible_pairs(seqlen_q, seqlen_k, mask) == pairs


def test_flops_and_bytes():
    shape = Shape(batch_size=2, seqlen_q=3, seqlen_k=5, num_heads_q=4, num_heads_k=2, head_dim=8)
    forward = Case(shape, "bf16")
    assert forward.flops() == 4 * 2 * 4 * 15 * 8
    # q and out: 2*3*4*8 bf16 each; k and v: 2*5*2*8 bf16 each; lse: 2*3*4 fp32.
    assert forward.traffic_bytes() == 2 * (192 * 2) + 2 * (160 * 2) + 24 * 4
    backward = Case(shape, "f32", "causal", "backward")
    assert backward.flops() == 2.5 * 4 * 2 * 4 * (3 + 4 + 5) * 8
    assert backward.traffic_bytes() == 4 * (192 * 4) + 4 * (160 * 4) + 24 * 4
    assert Case(shape, "fp8_e4m3").traffic_bytes() == 192 + 192 * 2 + 2 * 160 + 24 * 4  # out is bf16


def test_geometric_mean():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([1.0, 3.0, 9.0]) == pytest.approx(3.0)
    for bad in ([], [1.0, 0.0], [1.0, math.nan]):
        with pytest.raises(ValueError, match="geometric_mean"):
            geometric_mean(bad)


def test_timing_takes_every_sample_of_every_call():
    counts = {"a": 0, "b": 0}

    def call(name):
        counts[name] += 1

    timings = measure({"a": lambda: call("a"), "b": lambda: call("b")}, min_time=0.002, num_samples=3)
    assert {name: len(timing.samples) for name, timing in timings.items()} == {"a": 3, "b": 3}
    assert min(counts.values()) >= 3
    assert Timing((3.0, 1.0, 2.0)).median == 2.0
    assert Timing((3.0, 1.0, 2.0)).best == 1.0


def test_shapes_print_and_parse_back():
    for shape in default_grid():
        assert Shape.parse(str(shape)) == shape
    assert Shape.parse("1x1/8192x32/8x128") == Shape(1, 1, 8192, 32, 8, 128)
    unfolded = Shape(4, 4096, 4096, 16, 16, 192, 128)
    assert Shape.parse("4x4096x16x192/128") == unfolded and str(unfolded) == "4x4096x16x192/128"
    with pytest.raises(ValueError, match=r"head_dim_v must be >= 1 \(got '1x16x2x8/0'\)"):
        Shape.parse("1x16x2x8/0")
    assert len(set(default_grid())) == 27


def test_problem_text_is_a_problem():
    text = problem_text(Case(Shape(1, 4, 8, 4, 2, 16), "bf16", "causal", "backward", "bhsd"))
    problem = tilewise.explain(text).problem
    assert problem.startswith("attention_backward")
    for word in ("dtype=bf16", "seqlen_q=4", "seqlen_k=8", "num_heads_q=4", "num_heads_k=2", "head_dim=16"):
        assert word in problem.split()
    assert "head_dim_v" not in text
    wider = problem_text(Case(Shape(1, 4, 8, 4, 2, 16, 24), "bf16"))
    assert "head_dim_v=24" in tilewise.explain(wider).problem.split()


# --- the reference and its judgement ---


def test_reference_closed_form():
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((2, 1, 2, 6, 3))
    out = reference.attention_forward(np.zeros((1, 4, 4, 3)), k, v, causal=True)  # equal scores: a mean of v
    for head in range(4):
        for row in range(4):
            np.testing.assert_allclose(out[0, head, row], v[0, head // 2, : row + 3].mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_reference_gradients_against_finite_differences(causal):
    rng = np.random.default_rng(2)
    q, dout = rng.standard_normal((2, 1, 2, 3, 4))
    k, v, dout = rng.standard_normal((1, 1, 5, 4)), rng.standard_normal((1, 1, 5, 3)), dout[..., :3].copy()
    gradients = reference.attention_backward(q, k, v, dout, causal=causal)
    step = 1e-6
    for tensor, gradient in zip((q, k, v), gradients):
        numeric = np.zeros_like(tensor)
        for index in np.ndindex(tensor.shape):
            kept = tensor[index]
            values = []
            for sign in (1.0, -1.0):
                tensor[index] = kept + sign * step
                values.append((reference.attention_forward(q, k, v, causal=causal) * dout).sum())
            tensor[index] = kept
            numeric[index] = (values[0] - values[1]) / (2 * step)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


def test_reference_blocks_do_not_matter(monkeypatch):
    rng = np.random.default_rng(3)
    q, k, v, dout = rng.standard_normal((4, 1, 1, 7, 4))

    def compute():
        out = reference.attention_forward(q, k, v, causal=True)
        return out, *reference.attention_backward(q, k, v, dout, causal=True)

    whole = compute()
    monkeypatch.setattr(reference, "_BLOCK_ROWS", 3)
    for a, b in zip(whole, compute()):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_compare():
    good = np.array([[3.0, 4.0]])
    accuracy = reference.compare([good + np.array([[0.0, 1e-5]])], [good], "f32")
    assert accuracy.problem == ""
    assert accuracy.max_abs_err == pytest.approx(1e-5)
    assert accuracy.rel_l2_err == pytest.approx(1e-5 / 5.0)
    assert "NaN" in reference.compare([np.array([[3.0, np.nan]])], [good], "bf16").problem
    assert "NaN" in reference.compare([np.array([[3.0, np.inf]])], [good], "bf16").problem
    assert "exceeds" in reference.compare([good * 1.1], [good], "bf16").problem
    assert "shape" in reference.compare([good[0]], [good], "bf16").problem
    assert "results instead of" in reference.compare([], [good], "bf16").problem


class Broken(contenders.Tilewise):
    """Forgets the last row, as a kernel with an off-by-one would."""

    name = "broken"

    def prepare(self, case, inputs):
        prepared = super().prepare(case, inputs)

        def results():
            (out,) = prepared.results()
            out[:, -1] = math.nan
            return [out]

        return contenders.Prepared(prepared.call, results)


class Refusing(contenders.Tilewise):
    name = "refusing"

    def prepare(self, case, inputs):
        raise contenders.Unsupported("not today")


@pytest.fixture
def default_threads():
    """run_case() leaves its number of threads behind."""
    yield
    tilewise.set_num_threads(0)


@pytest.mark.usefixtures("default_threads")
def test_wrong_results_fail_and_refusals_do_not():
    case = Case(Shape(1, 8, 8, 2, 2, 16), "f32")
    good, broken, refusing = run_case(case, [contenders.Tilewise(), Broken(), Refusing()], Settings(min_time=0.001))
    assert good.ok
    assert good.implementation
    assert good.median_us > 0
    assert broken.failed
    assert "never written" in broken.status
    assert math.isnan(broken.median_us)
    assert not refusing.ok
    assert not refusing.failed
    assert refusing.status == "unsupported: not today"
    assert math.isnan(ratio([good, broken], "broken"))


@pytest.mark.usefixtures("default_threads")
def test_fp8_is_measured_beside_libraries_that_have_none():
    pytest.importorskip("torch")
    case = Case(Shape(1, 24, 40, 4, 2, 64), "fp8_e4m3", "causal")
    ours, torch = run_case(case, [contenders.Tilewise(), contenders.Torch()], Settings(min_time=0.001))
    assert ours.ok, ours.status
    assert 1e-4 < ours.rel_l2_err < reference.REL_L2_LIMITS["bf16"]  # CPUs compute in out's dtype
    assert torch.status == "unsupported: torch has no attention in fp8"


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "argument", "value"),
    [
        (["--compare", "torch,cudnn"], "--compare", "'cudnn'"),
        (["--shapes", "1x2x3"], "--shapes", "'1x2x3'"),
        (["--shapes", "1x2x3/2x4"], "--shapes", "3/2"),
        (["--shapes", "1x0x1x4"], "--shapes", "'1x0x1x4'"),
        (["--shapes", "1x4/2x1x4"], "--shapes", "4/2"),
        (["--shapes", ","], "--shapes", "','"),
        (["--shapes", "1x16x2x9999"], "--shapes", "'1x16x2x9999': q: head_dim"),
        (["--shapes", "1x8x2x16,1x99999999999x1x8"], "--shapes", "'1x99999999999x1x8'"),
        (
            ["--shapes", "1x999999999x1x512", "--dtypes", "f16"],
            "--shapes",
            "'1x999999999x1x512': 4100 GB of tensors",  # q, k, v and out of 1024 GB each, and the LSE
        ),
        (["--dtypes", "f8"], "--dtypes", "'f8'"),
        (["--dtypes", "bf16,fp8_e4m3", "--backward"], "--dtypes", "'fp8_e4m3'"),
        (["--masks", "diagonal"], "--masks", "'diagonal'"),
        (["--layout", "thd"], "--layout", "'thd'"),
        (["--threads", "0"], "--threads", "'0'"),
        (["--threads", "two"], "--threads", "'two'"),
        (["--min-time", "-1"], "--min-time", "'-1'"),
        (["--min-time", "nan"], "--min-time", "'nan'"),
        (["--seed", "x"], "--seed", "'x'"),
        (["--device", "rocm"], "--device", "'rocm'"),
        (["--csv", "/nonexistent/file.csv"], "--csv", "'/nonexistent/file.csv'"),
    ],
)
def test_bad_arguments_are_named(arguments, argument, value, capsys):
    assert_refused(lambda: cli.main(arguments), capsys, argument, value)


def test_what_is_named_twice_counts_once():
    words = [
        "--compare",
        "torch,torch",
        "--dtypes",
        "f32, f32",
        "--masks",
        "causal,causal",
        "--shapes",
        "1x8x2x16,1x8x2x16",
    ]
    options = arguments.parse([*words, "--threads", "2,1,2"], "")
    assert options.compare == ["torch"]
    assert [(case.dtype, case.mask, case.threads) for case in arguments.cases_of(options)] == [
        ("f32", "causal", 2),
        ("f32", "causal", 1),
    ]


def test_a_bad_argument_leaves_the_csv_file_alone(tmp_path):
    file = tmp_path / "kept.csv"
    file.write_text("kept")
    with pytest.raises(SystemExit):
        cli.main(["--csv", str(file), "--device", "rocm"])
    assert file.read_text() == "kept"


@pytest.mark.parametrize("backward", [False, True])
def test_tiny_grid_end_to_end(backward, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("rich")
    file = tmp_path / "out.csv"
    shapes = "2x16x4x8,1x4/12x4/2x24/16,1x1/16x2x8"
    command = [sys.executable, "-m", "tilewise.bench", "--shapes", shapes, "--min-time", "0.001", "--csv", str(file)]
    result = subprocess.run(command + ["--backward"] * backward, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    for name in ("flash_attn", "flashinfer"):
        assert f"{name} " in result.stderr
        assert "not measured" in result.stderr
    assert "2x16x4x8" in result.stdout
    assert "geometric mean of 3" in result.stdout
    with file.open(newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
    assert tuple(reader.fieldnames) == CSV_COLUMNS
    assert len(rows) == 3 * 2 * 2 * 2  # shapes, dtypes, masks, libraries
    for row in rows:
        assert row["status"] == "ok"
        assert row["operation"] == ("backward" if backward else "forward")
        assert float(row["median_us"]) >= float(row["best_us"]) > 0
        assert 0 <= float(row["rel_l2_err"]) < reference.REL_L2_LIMITS[row["dtype"]]
        assert bool(row["implementation"]) == (row["library"] == "tilewise")


def test_without_torch():
    pytest.importorskip("rich")
    program = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
from tilewise.bench.cli import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(status)
"""
    run = [sys.executable, "-c", program, "--shapes", "1x8x2x16", "--min-time", "0.001"]
    result = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "torch is not installed: not measured" in result.stderr
    assert "f16" in result.stdout
    result = subprocess.run([*run, "--backward"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "--backward" in result.stderr
    result = subprocess.run([*run, "--dtypes", "bf16"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "--dtypes: bf16 needs torch" in result.stderr
