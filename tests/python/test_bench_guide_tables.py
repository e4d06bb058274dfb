"""bench/guide_tables.py: small cases of each table on the CPU, and its report. No timing is judged."""

from __future__ import annotations

import pytest
from bench_support import assert_refused, cells

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def guide(bench_module):
    return bench_module("guide_tables")


@pytest.fixture
def options(guide, monkeypatch):
    words = "--device cpu --batch 1 --heads 2 --seqlens 16 --bert tiny --bert-seqlens 8 --bert-batch 2 --seconds 0.001"
    monkeypatch.setattr("sys.argv", ["guide_tables.py", *words.split()])
    return guide.parse_arguments()


def test_refused_arguments(guide, monkeypatch, capsys):
    for argument, value in (("--tables", "speed"), ("--head-dims", "4"), ("--bert", "huge")):
        monkeypatch.setattr("sys.argv", ["guide_tables.py", "--device", "cpu", argument, value])
        assert_refused(guide.parse_arguments, capsys, argument, value)


def test_the_three_compute_the_same(guide):
    import torch

    results = [call() for call in guide.attention_calls(*guide.make_inputs("cpu", 2, 3, 9, 32)).values()]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=2e-2)


def test_rows(guide, options):
    pytest.importorskip("transformers")
    clock = guide.clock_of("cpu")
    forward = guide.forward_row(options, clock, 16, 32)
    assert forward["bad"] == {} and set(forward["ms"]) == set(guide.LIBRARIES)
    assert guide.memory_row(options, 1) == {"batch": 1, "mib": {}, "bad": {}}
    assert set(guide.bert_row(options, clock, 8)["samples"]) == set(guide.LIBRARIES)


def test_what_does_not_run_says_why(guide):
    def fails(message):
        raise RuntimeError(message)

    calls = {"standard": lambda: fails("CUDA out of memory"), "flash": lambda: fails("no kernel"), "tilewise": int}
    good, bad = guide.without_failing(calls)
    assert set(good) == {"tilewise"} and bad == {"standard": "no memory", "flash": "refused"}
    with pytest.raises(RuntimeError, match=r"tilewise: must run in every case \(got 'refused'\)"):
        guide.without_failing({"tilewise": lambda: fails("of ours")})


def test_report(guide):
    names = ("machine", "hardware", "versions", "command", "date", "bert")
    rows = {
        "seqlen": [{"seqlen": 512, "ms": {"flash": 2.0, "tilewise": 1.0}, "bad": {"standard": "no memory"}}],
        "bert": [{"seqlen": 128, "samples": {"standard": 10.0, "flash": 20.0, "tilewise": 30.0}, "bad": {}}],
    }
    report = guide.text({
        **{name: f"a {name}" for name in names}, "batch": 16, "heads": 8, "bert_batch": 4, "rows": rows,
    })  # fmt: skip
    assert cells(report, "512")[1:] == ["no memory", "2.000", "1.000", "-", "2.00"]
    assert cells(report, "128")[1:] == ["10.0", "20.0", "30.0", "3.00", "1.50"]
    assert "batch 16, 8 heads" in report and "BERT-a bert, bf16, 4 samples" in report
