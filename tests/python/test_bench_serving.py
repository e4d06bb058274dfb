"""bench/serving.py: its cases, a run on a tiny model, and its report. No timing is judged."""

from __future__ import annotations

import itertools

import pytest
from bench_support import assert_refused, cells

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.23")

from serving_support import make_model, make_prompts, serve

import tilewise.transformers  # noqa: F401  registers "tilewise"


@pytest.fixture
def serving(bench_module):
    return bench_module("serving")


def test_cases(serving, monkeypatch, capsys):
    assert serving.case("8x256+32") == (8, 256, 32)
    for text in ("8x256", "8+256x32", "0x256+32", "8x256+1", "ax1+2"):
        monkeypatch.setattr("sys.argv", ["serving.py", "--cases", text])
        assert_refused(serving.parse_arguments, capsys, "--cases", repr(text))
    monkeypatch.setattr("sys.argv", ["serving.py", "--device", "cuda", "--busy", "--from-json", "any.json"])
    assert_refused(serving.parse_arguments, capsys, "--busy", "cuda")


def test_prompts_begin_differently(serving):
    prompts = serving.prompts_of(list(range(100)), 4, 50)
    assert [len(prompt) for prompt in prompts] == [50] * 4 and len({prompt[0] for prompt in prompts}) == 4


def test_a_run_answers_all_requests(serving):
    model, prompts = make_model("llama", "tilewise"), make_prompts((9, 9, 9))
    ticks = itertools.count()
    seconds, tokens = serving.answer(model, prompts, 4, lambda: float(next(ticks)))
    assert seconds == 1.0 and tokens == serve(model, prompts, new_tokens=4)


def test_report(serving):
    times = {"tilewise": {"first_s": 1.0, "all_s": 2.0}, "sdpa": {"first_s": 2.0, "all_s": 8.0}}
    row = {"dtype": "f32", "requests": 8, "prompt": 256, "new": 33, "same": 7, **times}
    names = ("machine", "hardware", "versions", "command", "date", "model")
    results = {**{name: f"a {name}" for name in names}, "threads": 2, "busy": True, "rows": [row]}
    report = serving.text(results)
    assert all(f"a {name}" in report for name in names[1:]) and "processor time" in report
    figures = ["132.0", "33.0", "4.00", "256.0", "42.7", "6.00", "7 of 8"]
    assert cells(report, "8 x 256 + 33", "f32")[2:] == figures
