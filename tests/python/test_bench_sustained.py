"""bench/sustained_gpu.py: its cases, its tables and a tiny run on the CPU. No timing is judged."""

from __future__ import annotations

import sys

import pytest
from bench_support import assert_refused, cells

from tilewise.bench.shapes import Case, Shape

pytest.importorskip("torch")
SHAPE = Shape(2, 64, 64, 2, 2, 16)


@pytest.fixture
def script(bench_module):
    return bench_module("sustained_gpu")


@pytest.fixture
def gpu_case(bench_module):
    return bench_module("gpu_cases").GpuCase


@pytest.mark.parametrize(
    ("arguments", "argument", "value"),
    [
        (["--kinds", "decode"], "--kinds", "'decode'"),
        (["--passes", "sideways"], "--passes", "'sideways'"),
        (["--seconds", "0"], "--seconds", "'0'"),
        (["--turns", "0"], "--turns", "'0'"),
        (["--filter", "("], "--filter", "'('"),
    ],
)
def test_bad_arguments_are_named(script, arguments, argument, value, capsys):
    assert_refused(lambda: script.parse_arguments(arguments), capsys, argument, value)


def test_cases(script):
    every = list(script.wanted_passes(script.parse_arguments([])))
    grid = [case for case, _ in every if case.kind == "grid"]
    assert len(grid) == 3 * 6 * 2 * 2
    assert all(case.plain for case, _ in every if case.kind != "grid")
    assert [operation for case, operation in every if case.kind == "fp8"] == ["forward"] * 6
    (window,) = script.wanted_passes(script.parse_arguments(["--filter", "backward window"]))
    assert (window[0].kind, window[1]) == ("window", "backward")


def test_tables(script, gpu_case):
    full, causal = Case(SHAPE, "bf16", "none"), Case(SHAPE, "bf16", "causal")
    window = gpu_case("window", causal, ("forward",), plain=causal)
    text = script.report(
        [
            (gpu_case("grid", full, ("forward",)), "forward", {"tilewise": 300.0, "torch_cudnn": 150.0}),
            (gpu_case("grid", causal, ("forward",)), "forward", {"tilewise": 100.0, "torch_cudnn": 200.0}),
            (window, "forward", {"tilewise": 90.0, "plain": 100.0}),
            (gpu_case("softcap", full, ("forward",), plain=full), "forward", {"plain": 100.0}),
        ]
    )
    assert cells(text, "forward", "16", "full")[3:] == ["64", "300", "150", "2.00"]
    assert "forward: 1.000 times cuDNN's speed in the geometric mean, at least 0.500 (forward grid d16 s64" in text
    assert "backward:" not in text
    assert cells(text, "window")[1:] == ["16", "causal", "forward", "90", "100", "0.90"]
    assert cells(text, "softcap")[3:] == ["forward", "-", "100", "-"]  # it failed


def test_tiny_run(script, monkeypatch, capsys):
    tiny = ["--device", "cpu", "--tokens", "512", "--hidden", "16", "--seconds", "0.0001", "--turns", "1"]
    monkeypatch.setattr(sys, "argv", ["sustained_gpu.py", *tiny, "--filter", "grid|softcap", "--passes", "forward"])
    assert script.main() == 0
    printed = capsys.readouterr()
    assert cells(printed.out, "forward", "16", "causal", "512")[-2:] == ["-", "-"]
    assert "torch_cudnn: forward grid d16 s512 causal b1 h1: unsupported: cuDNN runs on CUDA devices" in printed.err
    assert float(cells(printed.out, "softcap", "16", "causal")[-1]) > 0
