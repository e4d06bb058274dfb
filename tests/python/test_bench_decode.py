"""bench/decode_gpu.py: its steps, a run on the CPU and its report. No timing is judged."""

from __future__ import annotations

import json

import pytest
from bench_support import assert_refused, cells, data_folder

import tilewise

pytest.importorskip("torch")


@pytest.fixture
def decode(bench_module):
    return bench_module("decode_gpu")


@pytest.fixture
def cases(bench_module):
    return bench_module("decode_cases")


def run(decode, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["decode_gpu.py", "--device", "cpu", *map(str, arguments)])
    return decode.main()


def test_lengths(decode, cases, monkeypatch, capsys):
    assert cases.lengths("1x300+2x40") == ("1x300+2x40", (300, 40, 40))
    for text in ("300", "0x300", "1x0", "1x300+", "ax40"):
        monkeypatch.setattr("sys.argv", ["decode_gpu.py", "--device", "cpu", "--steps", text])
        assert_refused(decode.parse_arguments, capsys, "--steps", repr(text))


def test_work_of_a_step(cases):
    step = cases.Step("2x100", (100, 100), "fp8_token", 16, "bf16")
    assert step.traffic_bytes() == 200 * 8 * 2 * (128 + 4) + 2 * 32 * 128 * 4
    assert step.flops() == 4 * 200 * 32 * 128
    assert step.copies(step.traffic_bytes()) == 4 and step.copies(0) == 2
    latent = cases.Step("2x100", (100, 100), "bf16", 0, "bf16", form_name="mla")
    assert latent.traffic_bytes() == 200 * 576 * 2 + 2 * 128 * (576 + 512) * 2
    assert latent.flops() == 2 * 200 * 128 * (576 + 512)


def test_default_steps(cases):
    grouped, latent = (list(cases.steps_of(form)) for form in ("gqa", "mla"))
    # Three sizes of pages of each but the mixed one, which has no contiguous cache; bf16 and fp8.
    assert len(grouped) == 2 * (4 * 3 - 1)
    assert len(latent) == 5 * 3 - 1
    assert {step.name for step in latent} >= {"64x8192", "1x32768+63x1024"}


@pytest.mark.parametrize("form", ["gqa", "mla"])
def test_problem_text_is_that_of_the_call(cases, decode, form):
    """What is compiled ahead is what is called: the same sizes, and a table and lengths."""
    step = cases.Step("2x40", (40, 33), "bf16", 16, "bf16", 3, 100, form)
    problem = tilewise.explain(step.problem_text("cpu")).problem
    for field in ("page_size=16", "num_pages=6", "max_pages_per_seq=7", "num_splits=3", "cache_seqlens=1"):
        assert field in problem.split()
    tensors, block_table = decode.make_cache(step, "cpu", 0)
    assert tensors["k_cache"].shape == (6, 16, step.form.num_heads_k, step.form.head_dim)
    assert (tensors["v_cache"] is None) == (form == "mla") == ("mla=1" in problem.split())
    assert block_table.shape == (2, 7)


def test_capacity(cases, decode, monkeypatch, capsys, tmp_path):
    step = cases.Step("2x40", (40, 33), "bf16", 16, "bf16", capacity=100)
    assert step.places() == 100 and cases.Step("2x40", (40, 33), "bf16", 16, "bf16", capacity=7).places() == 40
    cache, block_table = decode.make_cache(step, "cpu", 0)
    assert block_table.shape == (2, 7) and len(cache["k_cache"]) == 6  # pages of keys that are there alone
    assert sorted(block_table[block_table > 0].tolist()) == [1, 2, 3, 4, 5]
    which = ["--forms", "gqa", "--steps", "2x40", "--caches", "bf16", "--page-sizes", "0,16", "--capacities", "0,100"]
    assert run(decode, monkeypatch, *which, "--json", tmp_path / "rows.json") == 0
    report = capsys.readouterr().out
    for pages in ("contiguous", "16"):
        assert 0.0 < float(cells(report, "2x40", "bf16", pages, "100")[-1]) < 1e-2
        assert cells(report, "2x40", "bf16", pages, "longest")


def test_a_run_and_its_report(decode, monkeypatch, capsys, tmp_path):
    file = tmp_path / "rows.json"
    which = ["--steps", "2x40,1x70+1x33", "--caches", "bf16,fp8_head,fp8_token", "--dtypes", "bf16,f16"]
    assert run(decode, monkeypatch, *which, "--page-sizes", "0,16", "--json", file) == 0
    report = capsys.readouterr().out
    grouped, latent = report.split("MLA: one query")
    for part in (grouped, latent):
        assert 0.0 < float(cells(part, "2x40", "fp8_token", "contiguous", "f16")[-1]) < 1e-3
        assert 0.0 < float(cells(part, "1x70+1x33", "bf16", "16", "bf16")[-1]) < 1e-2
    assert "capacity" not in report  # the longest in every row
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2 * 3 * 5  # unequal lengths are paged alone, f16 has no bf16 cache
    assert all(row["status"] == "ok" and row["median_us"] > 0 for row in rows)
    assert run(decode, monkeypatch, "--from-json", file) == 0
    assert capsys.readouterr().out.strip() == report.partition("\nwritten:")[0].strip()


def test_wrong_results_fail_the_run_and_not_the_other_steps(decode, monkeypatch, capsys, tmp_path):
    exact, calls = decode.exact, []

    def wrong_at_first(*arguments):
        calls.append(arguments)
        return exact(*arguments) * (2.0 if len(calls) == 1 else 1.0)

    monkeypatch.setattr(decode, "exact", wrong_at_first)
    which = ["--forms", "mla", "--steps", "1x20,1x30", "--page-sizes", "0", "--json", tmp_path / "rows.json"]
    assert run(decode, monkeypatch, *which) == 1
    printed = capsys.readouterr()
    assert "mla 1x20 bf16 contiguous bf16: failed: RuntimeError: relative L2 error" in printed.err
    assert cells(printed.out, "1x20")[3:5] == ["-", "-"]
    assert float(cells(printed.out, "1x30")[-1]) < 1e-2


def test_section_of_the_documentation(bench_module, tmp_path):
    report = bench_module("decode_report")
    row = {"label": "x", "form": "mla", "keys": "64x8192", "capacity": 0, "cache": "bf16", "page_size": 64}
    row |= {"queries": "bf16", "num_splits": 0, "implementation": "cuda.x", "median_us": 200.0, "best_us": 190.0}
    row |= {"gb_per_s": 3000.0, "tflops": 700.0, "products_bound": True, "of_ceiling": 0.95, "rel_l2_err": 2e-3}
    results = {
        "machine": {"name": "Sample", "gpu": "gpu", "driver": "driver", "host": "host", "versions": "versions"},
        "date": "2000-01-01",
        "command": "python bench/decode_gpu.py",
        "ceilings": {"matmul_tflops": 700.0, "copy_gb_per_s": 4000.0},
        "compiled_ahead": {"seconds": 12.0, "cpus": 16},
        "rows": [{**row, "status": "ok"}, {**row, "page_size": 0, "products_bound": False, "status": "ok"}],
    }
    folder = data_folder(tmp_path)
    for _ in range(2):
        report.write_section(folder, results)
    (section,) = bench_module("publication").read(folder)
    assert (section.kind, section.heading) == ("decode_gpu", "Sample")
    ((paged, contiguous),) = [table.rows for table in section.tables]
    assert paged == ["64x8192", "bf16", "64", "200.0", "3000", "700", "95%", "2.0e-03"]
    assert contiguous[2] == "contiguous" and contiguous[5] == "-"
