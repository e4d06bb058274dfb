"""bench/estimates.py: its cases, its report and its CSV. No timing is judged."""

from __future__ import annotations

import pytest

import tilewise

torch = pytest.importorskip("torch")


@pytest.fixture
def estimates(bench_module):
    return bench_module("estimates")


def estimate(estimates, ratio, row="1x256x16", column="forward bf16 d64 t1", bench="grid", operation="forward"):
    return estimates.Estimate("Machine", "`command`", bench, operation, row, column, "cpu.any", 10.0, 10.0 * ratio)


def test_extremes_and_every_ratio(estimates):
    rows = [
        estimate(estimates, 0.4),
        estimate(estimates, 1.0, row="1x1024x16"),
        estimate(estimates, 1.6, column="forward f32 d64 t1"),
        estimate(estimates, 2.5, bench="other", operation="backward"),
    ]
    text = estimates.text(rows)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert ["grid", "forward", "2 of 3", "0.86", "0.40", rows[0].place, "1.60", rows[2].place] in lines
    assert ["other", "backward", "0 of 1", "2.50", "2.50", rows[3].place, "2.50", rows[3].place] in lines
    assert ["1x256x16", "0.40", "1.60"] in lines
    assert ["1x1024x16", "1.00", "-"] in lines


def test_csv_keeps_everything(estimates, tmp_path):
    rows = [estimate(estimates, 0.4), estimate(estimates, 1.0, row="other, with a comma")]
    estimates.write_csv(tmp_path / "out.csv", rows)
    assert estimates.read_csv(tmp_path / "out.csv") == rows


def test_cases_are_those_of_the_benchmarks(bench_module):
    cases = bench_module("estimate_cases")
    passes = ("forward", "backward")
    cpu = [job.label for job in cases.cpu_jobs(passes, [1, 2], 0.1, busy=False)]
    gpu = [job.label for job in cases.gpu_jobs(passes, 0.1)]
    for labels, headline in ((cpu, 2 * (48 + 2)), (gpu, 72 + 42 + 4)):
        assert len(set(labels)) == len(labels)
        assert len(labels) == headline + sum(label.startswith("tilewise.bench:") for label in labels)
    assert "tilewise.bench: 4x1/4096x32/8 causal, backward f32 d96 t2" in cpu
    assert "tilewise.bench: 4x1/4096x32/8 causal, backward f16 d96" in gpu


@pytest.fixture
def same_threads():
    """Puts the numbers of threads back."""
    own, of_torch = tilewise.get_num_threads(), torch.get_num_threads()
    yield
    tilewise.set_num_threads(own)
    torch.set_num_threads(of_torch)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("busy", [False, True])
def test_a_case_is_measured_and_explained(bench_module, busy):
    cases = bench_module("estimate_cases")
    jobs = [job for job in cases.cpu_jobs(("forward",), [1], 1e-3, busy) if "8x128x16, forward f32 d64" in job.label]
    (job,) = jobs
    times = job.run()
    assert times.implementation.startswith("cpu.")
    assert times.measured_us > 0
    assert times.estimated_us > 0
