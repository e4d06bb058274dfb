# A night's run beside what was published: bench/published.py.
"""Ratios are compared case by case, with the section of the same kind of processor."""

from __future__ import annotations

import re

import pytest
from bench_support import cells

REPORT = """
- processor: Some (family 6, model 1, stepping 2), 2 cores

forward, bf16, GFLOP/s (Tilewise: cpu.avx2)

| head_dim | seqlen | mask   | torch, 1 thr. | Tilewise, 1 thr. | ratio | torch, 2 thr. | Tilewise, 2 thr. | ratio |
|---------:|-------:|--------|--------------:|-----------------:|------:|--------------:|-----------------:|------:|
|       64 |    256 | full   |          10.0 |             20.0 |  2.00 |          10.0 |             30.0 |  3.00 |
|       64 |    256 | causal |          10.0 |             40.0 |  4.00 |          10.0 |             50.0 |  5.00 |
"""


def results(full, causal, model=1):
    rows = [
        {
            "library": library,
            "status": "ok",
            "operation": "forward",
            "dtype": "bf16",
            "head_dim": 64,
            "seqlen_q": 256,
            "seqlen_k": 256,
            "mask": mask,
            "threads": 1,
            "median_us": time,
        }
        for mask, ratio in (("none", full), ("causal", causal))
        for library, time in (("torch", 100.0 * ratio), ("tilewise", 100.0))
    ]
    return {"machine": {"processor": f"Mine (family 6, model {model}, stepping 9), 64 cores"}, "rows": rows}


@pytest.fixture
def published(bench_module):
    return bench_module("published")


@pytest.fixture
def sections(bench_module):
    make = bench_module("publication").section_of
    another = make("attention_cpu", "Another", "- processor: Other (family 6, model 12, stepping 2), 2 cores")
    return [another, make("attention_cpu", "Some CPU, 2 cores", REPORT)]


def test_same_speed_is_told(published, sections):
    text, slower = published.report(results(2.0, 4.0), sections, 0.8)
    assert not slower
    assert cells(text, "forward bf16")[1:] == ["2", "2.83", "2.83", "1.00"]
    assert "'Some CPU, 2 cores'" in text
    assert text.endswith("No pass is slower.")


def test_slower_pass_is_told_with_its_worst_case_first(published, sections):
    text, slower = published.report(results(2.0, 2.0), sections, 0.8)
    assert slower
    assert cells(text, "forward bf16")[1:] == ["2", "2.83", "2.00", "0.71"]
    assert re.search(r"by published \|\n\|[-|:]+\|\n\| forward bf16 d64 s256 causal t1 +\| +4.00 \| 2.00", text)
    assert text.endswith("Slower than 0.8 of what was published: forward bf16.")


def test_processor_that_nothing_is_published_of(published, sections):
    for model in (2, 12):  # 12 has a section without tables
        text, slower = published.report(results(0.1, 0.1, model=model), sections, 0.8)
        assert not slower
        assert "Nothing is published" in text


def test_published_tables_are_understood(published):
    sections = [section for section in published.read() if section.kind == "attention_cpu"]
    assert len(sections) >= 3
    for section in sections:
        assert len(published.published_ratios(section)) == 96
