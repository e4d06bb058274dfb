"""attention_gpu.py and overhead_gpu.py: arguments, tables, a tiny run on the CPU. No timing is judged."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from bench_support import BENCH, assert_refused, cells, data_folder

from tilewise.bench.ceilings import find_program
from tilewise.bench.contenders import Tilewise
from tilewise.bench.shapes import Case, Shape
from tilewise.bench.timing import Timing

# Kinds that torch's FlashAttention-2 does not take, on the CPU at least.
TILEWISE_ALONE = ("window", "ALiBi", "softcap", "bias", "boolean", "packed", "dropout", "deterministic", "fp8", "mla")
TINY = ["--device", "cpu", "--tokens", "64", "--hidden", "32", "--head-dims", "16", "--seqlens", "16,64"]
pytest.importorskip("torch")


def run_script(script, *arguments, timeout=120):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TILEWISE_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCH / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


# --- the scripts ---


@pytest.mark.parametrize(
    ("arguments", "argument", "value"),
    [
        (["--seqlens", "100"], "--seqlens", "100"),
        (["--seqlens", "x"], "--seqlens", "'x'"),
        (["--head-dims", "96"], "--head-dims", "96"),
        (["--passes", "sideways"], "--passes", "'sideways'"),
        (["--kinds", "prefix"], "--kinds", "'prefix'"),
        (["--filter", "("], "--filter", "'('"),
        (["--seconds", "0"], "--seconds", "'0'"),
        (["--limit", "nan"], "--limit", "'nan'"),
        (["--from-json", "/nonexistent.json"], "--from-json", "'/nonexistent.json'"),
        (["--quick", "--write-docs"], "--write-docs", "--quick"),
        (["--beside", "flashinfer"], "--beside", "'flashinfer'"),
        (["--timing", "rested"], "--timing", "'rested'"),
        (["--timing", "sustained", "--limit", "9"], "--limit", "--timing turns"),
        (["--timing", "runs", "--seconds", "1"], "--seconds", "--timing runs"),
    ],
)
def test_bad_arguments_are_named(bench_module, arguments, argument, value, capsys):
    parse = bench_module("attention_gpu").parse_arguments
    assert_refused(lambda: parse(["--device", "cpu", *arguments]), capsys, argument, value)


def test_tiny_run_and_its_report(tmp_path):
    file = tmp_path / "results" / "tiny.json"
    result = run_script("attention_gpu.py", *TINY, "--seconds", "0.001", "--json", file, "--no-overhead")
    assert result.returncode == 0, result.stderr
    results = json.loads(file.read_text())
    rows = {(row["library"], row["label"]): row for row in results["rows"]}
    # Grid: two seqlens, two masks; 14 cases of options; two passes of each; deterministic ones, extreme scores and fp8
    # with both masks; MLA's two seqlens in two passes; two decode steps, one chunk; three libraries.
    assert len(rows) == len(results["rows"]) == 3 * (2 * (4 + 14) + 2 + 2 + 2 + 2 * 2 + 2 + 1)
    for (library, label), row in rows.items():
        if library == "tilewise":
            assert row["status"] == "ok", label
            assert row["implementation"].startswith("cpu.")
            assert row["median_us"] >= row["best_us"] > 0
            assert (row["rel_l2_err"] is None) == (row["kind"] == "dropout")
            assert (row["plain_tflops"] is None) == (row["kind"] in ("grid", "mla", "decode", "chunk", "plain"))
        elif library == "torch_cudnn":
            assert row["status"].startswith("unsupported: "), label
            assert ("no attention in fp8" if row["kind"] == "fp8" else "CUDA devices alone") in row["status"], label
        elif row["kind"] in TILEWISE_ALONE:
            assert row["status"].startswith("unsupported"), label
            assert row["median_us"] is None
        else:
            assert row["status"] == "ok", label
            assert 0 < row["rel_l2_err"] < 2e-2
    again = run_script("attention_gpu.py", "--from-json", file)
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == result.stdout.partition("\nwritten:")[0].strip()
    assert str(tmp_path) not in again.stdout
    assert "beside the same call without the option, timed with it, for packed sequences a batch" in again.stdout
    assert "- timing: calls of all libraries alternate" in again.stdout
    assert "whose standard deviation is 81 nats, one of 9:" in again.stdout
    fp8 = rows["tilewise", "forward fp8 d16 s64 causal b1 h2"]
    table = again.stdout.partition("| fp8 by bf16")[2].partition("Decode")[0]
    assert cells(table, "16", "causal", "64")[5] == f"{fp8['tflops'] / fp8['plain_tflops']:.2f}"
    assert len(cells(again.stdout, "4", "64")) == 9  # the chunk's
    (window,) = (
        row for (library, label), row in rows.items() if label.startswith("forward window") and library == "tilewise"
    )
    assert cells(again.stdout, "window", "causal", "forward")[-2] == f"{window['tflops'] / window['plain_tflops']:.2f}"


@pytest.mark.parametrize(("timing", "told"), [("runs", "12 untimed and 20 times 3"), ("sustained", "the second half")])
def test_other_ways_of_timing(bench_module, timing, told, monkeypatch, tmp_path, capsys):
    script, file = bench_module("attention_gpu"), tmp_path / "tiny.json"
    arguments = [*TINY, "--timing", timing, "--beside", "torch_cudnn", "--json", str(file), "--no-overhead"]
    arguments += ["--seconds", "0.0001"] if timing == "sustained" else []
    monkeypatch.setattr(sys, "argv", ["attention_gpu.py", *arguments, "--filter", "forward (grid|softcap|decode)"])
    assert script.main() == 0
    results, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert results["timing"] == timing
    assert {row["library"] for row in results["rows"]} == {"tilewise", "torch_cudnn"}
    assert told in printed
    for mask in ("full", "causal"):
        assert float(cells(printed, "softcap", mask, "forward")[-2]) > 0
    default = script.parse_arguments([*TINY, "--timing", timing]).json
    assert default.stem.startswith(f"attention_gpu_{timing}_")


def test_a_plain_call_beside_is_timed_and_not_told_of(bench_module):
    def two_microseconds(calls):
        for call in calls.values():
            call()
        return {name: Timing((2e-6,)) for name in calls}

    case = Case(Shape(2, 5, 5, 1, 1, 8), "bf16", "causal")
    plain = bench_module("plain_beside").PlainBeside(case, ("forward", "backward"), "cpu", Tilewise())
    assert plain.tflops == {}
    for operation in ("forward", "backward"):
        assert list(plain.beside(two_microseconds, operation)({"tilewise": lambda: None})) == ["tilewise"]
    forward = 4 * 2 * 25 / 2 * 8 / 2e-6 / 1e12  # a causal mask counts as half
    assert plain.tflops == pytest.approx({"forward": forward, "backward": 2.5 * forward})


def test_filter_and_list(bench_module, capsys):
    def listed(*arguments):
        with pytest.raises(SystemExit) as exit_info:
            bench_module("attention_gpu").parse_arguments(["--list", *arguments])
        assert exit_info.value.code == 0
        return capsys.readouterr().out.splitlines()

    backward = listed("--filter", "backward grid d128 .* causal")
    assert len(backward) == 6
    assert backward[0] == "backward grid d128 s512 causal b32 h16"
    assert len(listed("--quick", "--kinds", "grid")) == 24


def test_overhead_on_the_cpu(bench_module, monkeypatch):
    overhead = bench_module("overhead_gpu")
    monkeypatch.setattr(overhead, "BURST", 2)
    measured = overhead.measure_overhead("cpu", quick=True, head_dims=[16])
    (first,) = measured["first_calls"]
    assert first["head_dim"] == 16
    assert first["cpus"] in (1, 2)
    assert set(first["cold_s"]) == set(first["cached_s"]) == {"forward", "backward"}
    assert len(measured["calls_us"]) == 13
    assert all(microseconds > 0 for microseconds in measured["calls_us"].values())
    tables = bench_module("gpu_report").overhead_parts(json.loads(json.dumps(measured)))
    assert cells(tables[-1], "Tilewise, torch operator, no gradient")
    assert cells(tables[1], "16")


def test_section_of_the_cost_of_a_call(bench_module, tmp_path, monkeypatch, capsys):
    overhead, folder = bench_module("overhead_gpu"), data_folder(tmp_path)
    sample = sample_results()
    results = {name: sample[name] for name in ("machine", "date", "command", "overhead")}
    file = tmp_path / "cost.json"
    file.write_text(json.dumps(results))
    monkeypatch.setattr(overhead, "DOCS", folder)
    monkeypatch.setattr("sys.argv", ["overhead_gpu.py", "--from-json", str(file), "--write-docs"])
    assert overhead.main() == 0
    (section,) = bench_module("publication").read(folder)
    assert (section.kind, section.heading) == ("overhead_gpu", "Sample")
    rows = [row for table in section.tables for row in table.rows]
    assert cells(capsys.readouterr().out, "attention_forward", "cuda.x") in rows


def test_overhead_program(bench_module):
    program = find_program("tilewise-overhead-gpu", bench_module("command_line").BUILDS)
    if program is None:
        pytest.skip("tilewise-overhead-gpu is not built")
    assert subprocess.run([program, "--yaml"], capture_output=True).returncode == 2
    done = subprocess.run([program, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        assert "this machine has no GPU" in done.stderr
        return
    measured = json.loads(done.stdout)
    operations = dict.fromkeys(entry["problem"].split()[0] for entry in measured)
    assert list(operations) == ["attention_forward", "attention_backward", "kv_cache_attention"]
    assert all(ns > 0 for entry in measured for ns in entry["ns"].values())


def run_with(script, monkeypatch, name, file):
    """main() of attention_gpu.py on a tiny grid, its function `name` raising after it has been called twice."""
    function, calls = getattr(script, name), []

    def fail_late(*arguments, **options):
        calls.append(name)
        if len(calls) > 2 or name == "measure_overhead":
            raise RuntimeError("the device is lost")
        return function(*arguments, **options)

    monkeypatch.setattr(script, name, fail_late)
    arguments = [*TINY, "--kinds", "grid", "--passes", "forward", "--seconds", "0.001", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["attention_gpu.py", *arguments])
    return script.main()


def test_what_was_measured_before_a_failure_is_kept(bench_module, monkeypatch, tmp_path):
    file = tmp_path / "kept.json"
    with pytest.raises(RuntimeError, match="the device is lost"):
        run_with(bench_module("attention_gpu"), monkeypatch, "measure_case", file)
    kept = json.loads(file.read_text())
    assert len(kept["rows"]) == 2 * 3
    assert "TFLOP/s, forward" in bench_module("gpu_report").text(kept)


def test_failing_overhead_leaves_the_tables(bench_module, monkeypatch, tmp_path, capsys):
    assert run_with(bench_module("attention_gpu"), monkeypatch, "measure_overhead", tmp_path / "kept.json") == 1
    printed = capsys.readouterr()
    assert "TFLOP/s, forward" in printed.out
    assert "could not be measured: RuntimeError: the device is lost" in printed.out
    assert "cost of a call: RuntimeError: the device is lost" in printed.err


def test_a_failed_first_call_is_told(bench_module, tmp_path):
    with pytest.raises(RuntimeError, match="exit status"):
        bench_module("overhead_gpu").run_child("no such device", 16, str(tmp_path))


# --- the report from results made by hand ---


def sample_results():
    """Tilewise twice as fast as torch forward, and once half as fast; wrong in one case; decode at half the copy."""

    def row(library, median_us, kind="grid", operation="forward", seqlen=512, **other):
        shape = {"batch_size": 1, "seqlen_q": seqlen, "seqlen_k": seqlen, "num_heads_q": 16, "num_heads_k": 16}
        name = f"{operation} {kind} d128 s{seqlen} causal b1 h16"
        values = {"library": library, "implementation": "cuda.x" if library == "tilewise" else "", "label": name}
        values.update(kind=kind, operation=operation, mask="causal", head_dim=128, **shape)
        values.update(median_us=median_us, best_us=median_us, tflops=300.0, gb_per_s=2000.0, rel_l2_err=1e-3)
        return {**values, "max_abs_err": 1e-2, "status": "ok", **other}

    wrong = {"status": "failed: wrong", "tflops": None}
    unfolded = {"head_dim": 192, "head_dim_v": 128}
    return {
        "machine": {"name": "Sample", "gpu": "gpu", "driver": "driver", "host": "host", "versions": "versions"},
        "date": "2000-01-01",
        "timing": "turns",
        "command": "python bench/attention_gpu.py",
        "ceilings": {"matmul_tflops": 700.0, "copy_gb_per_s": 4000.0},
        "compiled_ahead": {"seconds": 12.0, "cpus": 16},
        "overhead": {
            "first_calls": [
                {
                    "head_dim": 128,
                    "cpus": 2,
                    "cold_s": {"forward": 3.25, "backward": 7.5},
                    "cached_s": {"forward": 0.025, "backward": 0.0125},
                }
            ],
            "cpp": [
                {"problem": "attention_forward x=1", "implementation": "cuda.x", "ns": {"run": 2500.0, "plan": 200.0}},
                {"problem": "kv_cache_attention append=1", "implementation": "cuda.x", "ns": {"run": 4000.0}},
            ],
            "calls_us": {"Tilewise": 7.25},
        },
        "rows": [
            *(row("tilewise", 10.0), row("torch", 20.0), row("torch_cudnn", 12.5)),
            *(row("tilewise", 20.0, seqlen=1024), row("torch", 10.0, seqlen=1024)),
            *(row("tilewise", None, seqlen=2048, **wrong), row("torch", 10.0, seqlen=2048)),
            *(row("tilewise", 10.0, "decode", num_heads_k=4), row("torch", 15.0, "decode", num_heads_k=4)),
            *(row("tilewise", 10.0, "mla", **unfolded), row("torch_cudnn", 15.0, "mla", **unfolded)),
            *(row("tilewise", 10.0, "plain", tflops=400.0), row("torch", 30.0, "plain")),
            *(
                row("tilewise", 10.0, "softcap"),
                row("torch", None, "softcap", **{**wrong, "status": "unsupported: no"}),
            ),
        ],
    }


def test_report(bench_module):
    text = bench_module("gpu_report").text(sample_results())
    speeds = ["300", "300", "300", "2.00", "1.25"]
    assert cells(text, "128", "causal", "512")[3:] == [*speeds, "1.0e-03", "1.0e-03"]
    assert cells(text, "128", "causal", "1024")[3:8] == ["300", "300", "-", "0.50", "-"]
    assert cells(text, "128", "causal", "2048")[3:8] == ["-", "300", "-", "-", "-"]
    assert cells(text, "FlashAttention-2", "forward", "128")[3:] == ["1.00", "0.50", "d128 s1024 causal"]
    assert cells(text, "cuDNN", "forward", "128")[3:] == ["1.25", "1.25", "d128 s512 causal"]
    assert cells(text, "1", "512")[2:] == ["15.0", "10.0", "1.50", "2000", "50%"]
    assert "16 heads, head_dim 192 and head_dim_v 128, TFLOP/s:" in text
    assert cells(text, "forward", "1", "512")[3:] == ["300", "300", "1.50", "1.0e-03"]
    assert cells(text, "plain")[6:12] == ["400", "300", "-", "3.00", "-", "1.00"]
    assert cells(text, "softcap")[6:12] == ["300", "-", "-", "-", "-", "0.75"]
    assert cells(text, "128", "3.25")[2:] == ["7.50", "25.0", "12.5"]
    assert cells(text, "operation", "implementation")[2:] == ["run", "plan"]
    assert cells(text, "attention_forward", "cuda.x")[2:] == ["2.50", "0.20"]
    assert cells(text, "kv_cache_attention that appends", "cuda.x")[2:] == ["4.00", "-"]
    assert "failed: wrong" in text
    assert "unsupported" not in text


def test_section_of_the_documentation(bench_module, tmp_path):
    report, folder = bench_module("gpu_report"), data_folder(tmp_path)
    bench_module("benchmarks_page").publish("attention_cpu", "Sample", "of a processor", folder=folder)
    for plot_file in (None, tmp_path / "plot.png"):
        report.write_section(folder, sample_results(), plot_file)
    processor, gpu = bench_module("publication").read(folder)
    assert (processor.heading, processor.notes) == ("Sample", ["of a processor"])
    assert (gpu.name, gpu.heading, gpu.picture) == ("attention_gpu_sample", "Sample", "plot.png")
    assert gpu.tables[0].title.startswith("TFLOP/s, forward")
    assert (tmp_path / "benchmarks.md").read_text().endswith("before\n")


def test_plot(bench_module, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "plot.png"
    assert bench_module("gpu_report").plot(sample_results(), file)
    assert file.read_bytes()[:4] == b"\x89PNG"
    assert not bench_module("gpu_report").plot({**sample_results(), "rows": []}, file)


def test_a_machine_without_a_gpu_is_told(bench_module, capsys):
    if importlib.import_module("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as exit_info:
        bench_module("attention_gpu").parse_arguments([])
    assert exit_info.value.code == 2
    assert "--device: must be one torch can use (got 'cuda'" in capsys.readouterr().err
