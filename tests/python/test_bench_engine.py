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
    monkeypatch.setattr("sys.argv", ["engine.py", "--python", sys.executable, "--uncompiled"])
    assert_refused(engine.parse_arguments, capsys, "--uncompiled", "cpu")
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
    assert profiled["profiled_steps"] + 1 + 32768 <= profiled["max_model_len"] and profiled["rounds"] == 2
    gpu = options_of(engine, monkeypatch, "--device", "cuda", "--layers", "3")
    told = engine.wanted_of(gpu, "qwen3-30b-a3b", "tilewise", False)
    assert told["engine"]["attention_backend"] == "CUSTOM" and not told["eager"]
    assert told["config"]["num_hidden_layers"] == 3 and told["config"]["num_experts"] == 128
    profiled = engine.wanted_of(gpu, "qwen3-30b-a3b", "tilewise", True)
    assert profiled["eager"] and profiled["rounds"] == 0, "graphs hide operators"


def test_decoding_alone(engine, monkeypatch):
    """On a cache that is filled, in graphs of the batches that are asked for."""
    options = options_of(engine, monkeypatch, "--device", "cuda", "--filled", "--uncompiled", "--batches", "8,1,8")
    told = engine.wanted_of(options, "llama-8b", "flash_attn", False)["engine"]
    assert told["attention_backend"] == "FLASH_ATTN"
    assert told["kv_transfer_config"]["kv_connector"] == "DecodeBenchConnector"
    assert told["compilation_config"]["cudagraph_capture_sizes"] == [1, 8] and told["compilation_config"]["mode"] == 0
    on_cpu = engine.wanted_of(options_of(engine, monkeypatch, "--filled"), "llama-1b", "vllm", False)["engine"]
    assert set(on_cpu) == {"kv_transfer_config"}
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


def test_attention_of_the_quickest_step(bench_module):
    run = bench_module("engine_run")

    def event(name, start, seconds):
        return SimpleNamespace(name=name, cpu_time_total=seconds * 1e6, time_range=SimpleNamespace(start=start))

    names = ("vllm::unified_kv_cache_update", "vllm::unified_attention_with_output")
    events = [event(names[i % 2], i, seconds) for i, seconds in enumerate((9.0, 9.0, 1.0, 2.0, 0.5, 0.25))]
    calls = run.attention_calls([*reversed(events), event("aten::mm", 3, 7.0)])
    assert calls == [9.0, 9.0, 1.0, 2.0, 0.5, 0.25]
    assert run.quickest_step(calls, 2, 2) == 0.75
    with pytest.raises(RuntimeError, match=r"3 steps must have as many calls of attention each \(got 4\)"):
        run.quickest_step(calls, 2, 3)


def test_medians_of_turns(engine):
    turns = [{"batch": 8, "first_s": number, "shares": {"attention": number / 10}} for number in (3.0, 1.0, 2.0)]
    assert engine.medians(turns) == {"batch": 8, "first_s": 2.0, "shares": {"attention": 0.2}}


def test_engines_take_turns(engine, monkeypatch):
    told, row = [], {"batch": 1, "prompt": 128, "new": 2, "first_s": 1.0, "all_s": 2.0}

    def run_engine(options, wanted):
        told.append(wanted["environment"].get("TILEWISE_VLLM", "vllm"))
        if told[-1] == "vllm" and len(told) > 2:
            raise RuntimeError("no")
        return {
            "rows": [dict(row, all_s=float(len(told) + 1))],
            "start_s": 1.0,
            "device": "cpu",
            "versions": "a version",
        }

    monkeypatch.setattr(engine, "run_engine", run_engine)
    options = options_of(
        engine, monkeypatch, "--turns", "3", "--models", "smollm2", "--batches", "1", "--prompts", "128"
    )
    found = engine.measure(options)
    assert told[:4] == ["vllm", "attention,experts", "vllm", "attention,experts"] and len(told) == 6
    assert [row["all_s"] for row in found["rows"]] == [2.0, 5.0]
    assert found["notes"] == ["smollm2 on vllm did not run: no"] * 2


def results():
    shared = {"model": "a model", "batch": 4, "prompt": 128, "new": 11}
    rows = [
        {**shared, "attention": "vllm", "first_s": 1.0, "all_s": 3.0, "shares": {"attention": 0.4, "experts": 0.0},
         "attention_s": {"step": 0.02, "prompt": 0.5}},
        {**shared, "attention": "tilewise", "first_s": 1.0, "all_s": 2.0, "shares": {"attention": 0.2, "experts": 0.1},
         "attention_s": {"step": 0.01, "prompt": 0.4}},
    ]  # fmt: skip
    names = ("machine", "hardware", "versions", "command", "date", "dtype")
    return {
        **{name: f"a {name}" for name in names},
        "device": "cpu", "threads": 2, "rows": rows, "notes": ["a note"], "start_s": {"a model, vllm": 9.4},
    }  # fmt: skip


def test_report(engine):
    report = engine.text(results())
    assert all(text in report for text in ("threads: 2", "a note", "a model, vllm 9 s", "`a command` (a date)"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines() if "4 x 128" in line]
    assert lines == [
        ["a model", "4 x 128 + 11", "vllm", "14.7", "1000", "200.00", "-", "40%", "-", "20.00", "-", "500.00", "-"],
        [
            "a model", "4 x 128 + 11", "tilewise", "22.0", "1000", "100.00", "2.00", "20%", "10%", "10.00", "2.00",
            "400.00", "1.25",
        ],
    ]  # fmt: skip
    assert "attention of a step" not in engine.text({**results(), "device": "cuda"})


def test_plot(engine, tmp_path):
    pytest.importorskip("matplotlib")
    engine.plot(results(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
