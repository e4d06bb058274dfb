"""bench/engine.py and engine_run.py: what an engine is told, a profile's parts, and the report. Nothing is timed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from bench_support import assert_refused


@pytest.fixture
def engine(bench_module):
    return bench_module("engine")


def options_of(engine, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["engine.py", "--python", sys.executable, *arguments])
    return engine.parse_arguments()


def test_refused_arguments(engine, monkeypatch, capsys):
    for argument, value in (("--models", "gpt-5"), ("--new", "1"), ("--batches", "0"), ("--threads", "100000")):
        monkeypatch.setattr("sys.argv", ["engine.py", "--python", sys.executable, argument, value])
        assert_refused(engine.parse_arguments, capsys, argument, value)
    monkeypatch.setattr("sys.argv", ["engine.py", "--python", sys.executable, "--attentions", "vllm,flash"])
    assert_refused(engine.parse_arguments, capsys, "--attentions", "'flash'")
    for argument in ("--filled", "--uncompiled"):
        monkeypatch.setattr("sys.argv", ["engine.py", "--python", sys.executable, argument])
        assert_refused(engine.parse_arguments, capsys, argument, "cpu")
    monkeypatch.setattr("sys.argv", ["engine.py", "--python", "nowhere/python"])
    assert_refused(engine.parse_arguments, capsys, "--python", "nowhere/python")


def test_what_an_engine_is_told(engine, monkeypatch):
    options = options_of(engine, monkeypatch, "--cache-gib", "1", "--batches", "1,8", "--prompts", "128,32768")
    theirs = engine.wanted_of(options, "llama-1b", "vllm", False)
    ours = engine.wanted_of(options, "llama-1b", "tilewise", False)
    assert ours["environment"].pop("TILEWISE_VLLM") == "attention,experts" and ours == theirs
    assert ours["cases"] == [(1, 128), (8, 128)], "32,768 tokens of keys and values take more than 1 GiB"
    assert ours["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "1" and ours["profiled_steps"] == 0
    profiled = engine.wanted_of(options, "llama-1b", "vllm", True)
    assert profiled["profiled_steps"] + 1 + 32768 <= profiled["max_model_len"]
    gpu = options_of(engine, monkeypatch, "--device", "cuda", "--layers", "3")
    told = engine.wanted_of(gpu, "qwen3-30b-a3b", "tilewise", False)
    assert told["engine"]["attention_backend"] == "CUSTOM" and not told["eager"]
    assert told["config"]["num_hidden_layers"] == 3 and told["config"]["num_experts"] == 128
    assert engine.wanted_of(gpu, "qwen3-30b-a3b", "tilewise", True)["eager"], "graphs hide operators"


def test_decoding_alone(engine, monkeypatch):
    """On a cache that is filled, in graphs of the batches that are asked for."""
    options = options_of(engine, monkeypatch, "--device", "cuda", "--filled", "--uncompiled", "--batches", "8,1,8")
    told = engine.wanted_of(options, "llama-8b", "flash_attn", False)["engine"]
    assert told["attention_backend"] == "FLASH_ATTN"
    assert told["kv_transfer_config"]["kv_connector"] == "DecodeBenchConnector"
    assert told["compilation_config"]["cudagraph_capture_sizes"] == [1, 8] and told["compilation_config"]["mode"] == 0
    plain = options_of(engine, monkeypatch, "--device", "cuda")
    assert plain.attentions == ["flash_attn", "flashinfer", "triton", "tilewise"]
    assert set(engine.wanted_of(plain, "llama-8b", "flash_attn", False)["engine"]) == {
        "attention_backend", "kv_cache_memory_bytes",
    }  # fmt: skip


def test_cache_of_keys_and_values(engine):
    assert engine.cache_gib(engine.SHAPES["llama-8b"].config, "bf16", 8, 1024) == 1.0


def test_parts_of_a_profile(bench_module):
    def event(key, cpu, device, own):
        return SimpleNamespace(key=key, cpu_time_total=cpu, device_time_total=device, self_device_time_total=own)

    events = [
        event("vllm::unified_attention_with_output", 1e6, 4e6, 0), event("vllm::unified_kv_cache_update", 1e6, 1e6, 0),
        event("vllm::moe_forward", 3e6, 2e6, 0), event("a kernel", 0, 10e6, 10e6),
    ]  # fmt: skip
    run = bench_module("engine_run")
    assert run.times_of(events, 8.0, "cpu") == {"attention": 2.0, "experts": 3.0, "all": 8.0}
    assert run.times_of(events, 8.0, "cuda") == {"attention": 5.0, "experts": 2.0, "all": 10.0}


def results():
    shared = {"model": "a model", "batch": 4, "prompt": 128, "new": 11}
    rows = [
        {**shared, "attention": "vllm", "first_s": 1.0, "all_s": 3.0, "shares": {"attention": 0.4, "experts": 0.0}},
        {**shared, "attention": "tilewise", "first_s": 1.0, "all_s": 2.0, "shares": {"attention": 0.2, "experts": 0.1}},
    ]
    names = ("machine", "hardware", "versions", "command", "date", "dtype")
    return {
        **{name: f"a {name}" for name in names},
        "threads": 2, "rows": rows, "notes": ["a note"], "start_s": {"a model, vllm": 9.4},
    }  # fmt: skip


def test_report(engine):
    report = engine.text(results())
    assert all(text in report for text in ("threads: 2", "a note", "a model, vllm 9 s", "`a command` (a date)"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines() if "4 x 128" in line]
    assert lines == [
        ["a model", "4 x 128 + 11", "vllm", "14.7", "1000", "200.00", "-", "40%", "-"],
        ["a model", "4 x 128 + 11", "tilewise", "22.0", "1000", "100.00", "2.00", "20%", "10%"],
    ]


def test_plot(engine, tmp_path):
    pytest.importorskip("matplotlib")
    engine.plot(results(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
