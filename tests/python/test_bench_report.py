"""The scripts of bench/: the report they write and the programs they ask. No timing is judged."""

import json
import subprocess

import pytest
from bench_support import cells, data_folder

from tilewise.bench.ceilings import find_program, measure_cpu_ceilings


def sample_results():
    """Two cases at one thread: Tilewise 4 and 1 times as fast as torch; decode at half the bandwidth."""

    def row(library, seqlen_q, seqlen_k, median_us, **other):
        values = {"operation": "forward", "dtype": "bf16", "mask": "none", "head_dim": 128, "threads": 1}
        values.update(library=library, seqlen_q=seqlen_q, seqlen_k=seqlen_k, median_us=median_us, status="ok")
        values.update(gflops=60.0, gb_per_s=10.0, num_heads_q=32, num_heads_k=8)
        values.update(implementation="cpu.x" if library == "tilewise" else "")
        return {**values, **other}

    ceiling = {"num_threads": 1, "fma_gflops": 50.0, "bf16_gflops": 100.0, "amx_gflops": 0.0, "read_gb_per_s": 20.0}
    ceiling["peak_gflops"] = {"bf16": 100.0, "f32": 50.0, "f16": 50.0}
    names = ("processor", "instruction_sets", "last_level_cache", "memory", "system", "versions")
    return {
        "machine": {"name": "Sample", **{name: name for name in names}},
        "date": "2000-01-01",
        "command": "python bench/attention_cpu.py",
        "ceilings": [ceiling],
        "overhead": {},
        "decode": [row("tilewise", 1, 8192, 5.0), row("torch", 1, 8192, 50.0)],
        "rows": [
            row("tilewise", 4096, 4096, 10.0),
            row("torch", 4096, 4096, 40.0),
            row("tilewise", 256, 256, 10.0, mask="causal"),
            row("torch", 256, 256, 10.0, mask="causal"),
        ],
    }


def test_report(bench_module):
    text = bench_module("cpu_report").text(sample_results())
    assert cells(text, "forward", "bf16", "1")[3:] == ["2.00", "1.00", "d128 s256 causal t1", "60 GFLOP/s", "60%"]
    assert cells(text, "bf16", "1")[2:] == ["5", "10.0", "50%", "50", "10.0"]
    assert cells(text, "128", "4096", "full")[-1] == "4.00"


def test_report_leaves_failed_cases_out_of_the_means(bench_module):
    results = sample_results()
    results["rows"][2]["status"] = "failed: wrong"
    text = bench_module("cpu_report").text(results)
    assert cells(text, "forward", "bf16", "1")[3] == "4.00"


def test_section_is_replaced_and_others_stay(bench_module, tmp_path):
    report, folder = bench_module("cpu_report"), data_folder(tmp_path)
    first, second = sample_results(), sample_results()
    second["machine"]["name"] = "Other"
    for results in (first, second, first):
        report.write_section(folder, results, tmp_path / "plot.png")
    other, sample = bench_module("publication").read(folder)
    assert (other.heading, sample.heading, sample.picture) == ("Other", "Sample", "plot.png")
    assert other.tables == sample.tables


def test_plot(bench_module, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "plot.png"
    bench_module("cpu_report").plot(sample_results(), file)
    assert file.read_bytes()[:4] == b"\x89PNG"


def test_published_command_holds_no_paths(bench_module):
    command = bench_module("command_line").published_command
    arguments = ["--threads", "1", "--ceilings", "/a/b", "--json=/c", "--machine", "M", "--write-docs", "--quick"]
    assert command("attention_cpu.py", arguments) == "python bench/attention_cpu.py --threads 1 --quick"


def test_ceilings_program(bench_module):
    program = find_program("tilewise-ceilings", bench_module("command_line").BUILDS)
    if program is None:
        pytest.skip("tilewise-ceilings is not built")
    ceilings = measure_cpu_ceilings(program, 1)
    assert ceilings.num_threads == 1
    assert ceilings.fma_gflops > 0
    assert ceilings.read_gb_per_s > 0
    assert ceilings.read_bytes >= 2**28
    assert ceilings.peak_gflops["f32"] == ceilings.peak_gflops["f16"] == ceilings.fma_gflops
    assert ceilings.peak_gflops["bf16"] == max(ceilings.fma_gflops, ceilings.bf16_gflops, ceilings.amx_gflops)
    assert ceilings.best_of(ceilings) == ceilings
    for bad in ("0", "1025", "x", ""):
        result = subprocess.run([program, bad], capture_output=True, text=True)
        assert result.returncode == 2
        assert f"THREADS: must be an integer in [1, 1024] (got '{bad}')" in result.stderr


def test_overhead_program(bench_module):
    program = find_program("tilewise-overhead", bench_module("command_line").BUILDS)
    if program is None:
        pytest.skip("tilewise-overhead is not built")
    measured = json.loads(subprocess.run([program, "--json"], capture_output=True, text=True, check=True).stdout)
    problems = [entry["problem"].split()[0] for entry in measured]
    assert problems == ["attention_forward"] * 2 + ["kv_cache_attention"] * 2 + ["append_kv"]
    for entry in measured:
        assert entry["implementation"]
        assert all(ns > 0 for ns in entry["ns"].values())
    assert subprocess.run([program, "--yaml"], capture_output=True).returncode == 2
