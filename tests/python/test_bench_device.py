"""python -m tilewise.bench --device cuda, as far as it goes without a GPU: on CPU tensors, with clocks that count and
with stand-ins for the libraries. tests/gpu/test_gpu_bench.py runs the whole of it."""

import csv
import dataclasses
import itertools
import math
import threading

import pytest
from bench_stand_ins import CHUNK, DECODE, counting_timer, on_cuda, torch
from bench_support import assert_refused

import tilewise
from tilewise.bench import arguments, ceilings, cli, gpu, reference, runner
from tilewise.bench.compile_ahead import compile_all
from tilewise.bench.contenders import RIVALS, Tilewise, Unsupported
from tilewise.bench.device_reference import Scoring, exact_attention
from tilewise.bench.device_timing import (
    MAX_SAMPLES,
    MIN_SAMPLES,
    RUN_CALLS,
    RUN_SAMPLES,
    RUN_UNTIMED,
    Sustained,
    measure,
    measure_runs,
)
from tilewise.bench.inputs import make_inputs, to_reference
from tilewise.bench.runner import Settings
from tilewise.bench.shapes import Case, problem_text
from tilewise.bench.timing import Timing

# --- arguments ---


@pytest.fixture
def one_gpu(monkeypatch):
    """A GPU that takes bf16 and f16, as far as the arguments are concerned."""
    refuse = {"bf16": "", "f16": "", "f32": "cuda.x: does not support f32"}
    monkeypatch.setattr(arguments, "gpu_kind", lambda: "cuda")
    monkeypatch.setattr(arguments, "refusal", lambda kind, dtype="bf16": refuse[dtype])


def test_without_a_gpu_tilewise_says_why(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    reason = gpu.refusal("cuda")
    rows = {row.implementation: row.reason for row in tilewise.explain(problem_text(on_cuda(CHUNK))).rows}
    assert f"cuda.sm80: {rows['cuda.sm80']}" in reason or "sees no GPU" in reason
    assert "the tensors are on" not in reason
    assert_refused(lambda: cli.main(["--device", "cuda"]), capsys, "--device", f"(got 'cuda': {reason})")


@pytest.mark.usefixtures("one_gpu")
def test_defaults_on_a_gpu():
    options = arguments.parse(["--device", "cuda"], "")
    cases = arguments.cases_of(options)
    assert len(cases) == 27 * 2 * 2
    assert {case.dtype for case in cases} == {"bf16", "f16"}
    assert {(case.device, case.torch_device, case.threads) for case in cases} == {("cuda", "cuda", 1)}
    assert options.compare == list(RIVALS)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("given", "argument", "value"),
    [
        (["--dtypes", "bf16,f32"], "--dtypes", "(got 'f32': cuda.x: does not support f32)"),
        (["--threads", "2"], "--threads", "(got [2])"),
    ],
)
def test_what_a_gpu_does_not_take_is_refused(given, argument, value, capsys):
    assert_refused(lambda: arguments.parse(["--device", "cuda", *given], ""), capsys, argument, value)


def test_f32_is_refused_in_tilewises_words():
    assert "cuda.sm80: does not support f32" in gpu.refusal("cuda", "f32")
    assert "hip.cdna: does not support f32" in gpu.refusal("hip", "f32")


def test_problem_text_names_the_device():
    assert tilewise.explain(problem_text(on_cuda(CHUNK))).problem.split()[1] == "device=cuda"
    assert Case(CHUNK, "bf16", device="hip").torch_device == "cuda"


# --- timing, with a clock that counts calls instead of seconds ---


class CountingClock:
    def __init__(self):
        self.now = 0.0

    def mark(self):
        return self.now

    def wait(self):
        pass

    def seconds(self, first, second):
        return second - first


def test_sustained_calls_are_timed_when_half_of_their_time_has_passed():
    clock, order = CountingClock(), []

    def call(name, cold, hot):
        clock.now += hot if order[-16:] == [name] * 16 else cold
        order.append(name)

    calls = {"a": lambda: call("a", 1.0, 0.5), "b": lambda: call("b", 2.0, 4.0)}
    sustained = Sustained(clock, seconds=64.0)
    for first, second in ("ab", "ba"):
        timings = sustained(calls)
        assert timings == {"a": Timing((0.5,)), "b": Timing((4.0,))}
        assert list(timings) == ["a", "b"]
        assert [name for name, _ in itertools.groupby(order)] == [first, second]
        assert order.count("a") == 1 + MIN_SAMPLES + 2 * 32
        order.clear()
    assert Sustained(clock, seconds=0.1)(calls)["a"] == Timing((1.0,))  # too few to get hot
    assert Sustained(clock, seconds=1.0)({}) == {}


def test_runs_are_of_calls_by_themselves_in_both_orders():
    clock, order = CountingClock(), []

    def call(name, cold, warm):
        clock.now += warm if order[-RUN_UNTIMED:] == [name] * RUN_UNTIMED else cold
        order.append(name)

    timings = measure_runs({"a": lambda: call("a", 9.0, 0.5), "b": lambda: call("b", 9.0, 4.0)}, clock)
    assert timings == {"a": Timing((0.5,) * 2 * RUN_SAMPLES), "b": Timing((4.0,) * 2 * RUN_SAMPLES)}
    of_a_run = RUN_UNTIMED + RUN_SAMPLES * RUN_CALLS
    assert [(name, len(list(run))) for name, run in itertools.groupby(order)] == [
        *(("a", of_a_run), ("b", 2 * of_a_run), ("a", of_a_run)),
    ]


def test_samples_alternate_and_fill_the_time():
    clock, order = CountingClock(), []

    def call(name, seconds):
        order.append(name)
        clock.now += seconds

    calls = {"a": lambda: call("a", 0.001), "b": lambda: call("b", 0.002)}
    timings = measure(calls, clock, seconds=0.02)
    assert {name: len(each.samples) for name, each in timings.items()} == {"a": 10, "b": 10}
    assert timings["a"].median == pytest.approx(0.001)
    assert timings["b"].best == pytest.approx(0.002)
    timed = order[-20:]
    assert timed[:4] == ["a", "b", "b", "a"]
    assert timed.count("a") == timed.count("b") == 10
    assert len(measure(calls, clock, seconds=0.0)["a"].samples) == MIN_SAMPLES
    assert len(measure(calls, clock, seconds=1e9)["a"].samples) == MAX_SAMPLES
    assert measure({}, clock, 1.0) == {}


def test_flushes_precede_every_sample_and_are_not_timed():
    clock, order = CountingClock(), []

    def flush():
        order.append("flush")
        clock.now += 100.0

    def compiles_first():
        clock.now += 0.001 if "call" in order else 1000.0
        order.append("call")

    timings = measure({"a": compiles_first}, clock, 0.005, flush)
    assert timings["a"].samples == pytest.approx([0.001] * MIN_SAMPLES)
    assert order[-2 * MIN_SAMPLES :] == ["flush", "call"] * MIN_SAMPLES


def test_settings_for_a_gpu_flush_its_cache(monkeypatch):
    flushed = []

    class Flush(gpu.CacheFlush):
        def __call__(self):
            super().__call__()
            flushed.append(self._buffer.nbytes)

    monkeypatch.setattr(gpu, "_LEAST_FLUSHED_BYTES", 4096)
    monkeypatch.setattr(runner, "CacheFlush", Flush)
    settings = runner.gpu_settings(Settings(min_time=1e-6), "cpu")
    timings = settings.timer({"a": lambda: None})
    assert len(timings["a"].samples) >= MIN_SAMPLES
    assert len(flushed) == len(timings["a"].samples) + 1
    assert set(flushed) == {4096}


def test_ceilings():
    rates = ceilings.GpuCeilings(matmul_tflops=100.0, copy_gb_per_s=2000.0)
    assert rates.least_seconds(flops=1e12, num_bytes=1e9) == pytest.approx(0.01)
    assert rates.least_seconds(flops=1e9, num_bytes=1e9) == pytest.approx(5e-4)
    measured = ceilings.measure_gpu_ceilings("cpu")
    assert measured.matmul_tflops > 0
    assert measured.copy_gb_per_s > 0


# --- compiling ahead ---


def test_compile_all_keeps_failures_and_tells_every_label():
    told, threads = [], set()

    def work():
        threads.add(threading.get_ident())

    def fail():
        raise RuntimeError("no compiler")

    compiled = compile_all([("a", work), ("b", fail), ("c", work)], told.append)
    assert sorted(told) == ["a", "b", "c"]
    assert compiled.failures == (("b", "RuntimeError: no compiler"),)
    assert threading.get_ident() not in threads
    assert compiled.cpus >= 1


@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_tilewise_warms_up_without_reading_tensors(operation):
    Tilewise().warm_up(Case(CHUNK, "bf16", "causal", operation))
    with pytest.raises(ValueError, match="head_dim must be"):
        Tilewise().warm_up(Case(dataclasses.replace(CHUNK, head_dim=4096), "bf16", "causal", operation))


# --- the reference on a device, against the one in NumPy ---


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_device_reference(causal, gradients, monkeypatch):
    monkeypatch.setattr("tilewise.bench.device_reference._BLOCK_ROWS", 3)
    inputs = make_inputs(Case(CHUNK, "f32"))
    tensors = (inputs.q, inputs.k, inputs.v, inputs.dout)
    exact = [to_reference(t, "bshd") for t in exact_attention(*tensors, Scoring(causal), gradients)]
    q, k, v, dout = (to_reference(tensor, "bshd") for tensor in tensors)
    if gradients:
        expected = list(reference.attention_backward(q, k, v, dout, causal=causal))
    else:
        expected = [reference.attention_forward(q, k, v, causal=causal)]
    accuracy = reference.compare(exact, expected, "f32")
    assert accuracy.problem == ""
    assert accuracy.rel_l2_err < 1e-12


# --- the command's own functions ---


class Refusing(Tilewise):
    name = "refusing"

    def prepare(self, case, inputs):
        raise Unsupported("not today")


@pytest.mark.usefixtures("fake_libraries", "cpu_as_cuda", "one_gpu")
def test_compiling_and_measuring_as_on_a_gpu(monkeypatch, capsys, tmp_path):
    """main() on tensors of the CPU: arguments, ceilings, compilation, judgement, table, CSV."""
    pytest.importorskip("rich")
    file = tmp_path / "rows.csv"
    monkeypatch.setattr(cli, "gpu_name", lambda: "a GPU [80 GB]")
    monkeypatch.setattr(cli, "measure_gpu_ceilings", lambda device: ceilings.GpuCeilings(1.0, 1000.0))
    monkeypatch.setattr(cli, "gpu_settings", lambda settings: dataclasses.replace(settings, timer=counting_timer))
    status = cli.main(["--device", "cuda", "--shapes", f"{CHUNK},{DECODE}", "--dtypes", "bf16", "--csv", str(file)])
    printed = capsys.readouterr()
    assert status == 0, printed
    assert "kernels of 4 cases compiled or loaded in" in printed.err
    assert "0 failed" in printed.err
    assert "a GPU [80 GB]: torch reaches 1 TFLOP/s in a bf16 matrix product and 1000 GB/s in a copy" in printed.out
    for word in ("of ceiling", "paged decode", "ragged prefill", "flash_attn_func", "geometric mean of 2"):
        assert word in printed.out
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2 * 4
    assert {row["status"] for row in rows} == {"ok"}


def test_table_of_a_gpu(capsys):
    console = pytest.importorskip("rich.console").Console(width=60)  # too narrow: nothing may be cut short
    case = on_cuda(CHUNK)
    accuracy = reference.Accuracy(1e-3, 2e-3)
    settings = Settings(ceilings=ceilings.GpuCeilings(1.0, 1000.0))
    ours, theirs = Tilewise(), Refusing()
    rows = [
        runner._row(case, ours, Timing((1e-6,)), accuracy, "ok", settings),
        runner._row(case, theirs, None, reference.Accuracy(math.nan, math.nan), "unsupported: not today", settings),
    ]
    cli.print_table(console, [rows])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    header = next(line for line in lines if "shape" in line)
    assert "TFLOP/s" in header
    assert "threads" not in header
    row = next(line for line in lines if "tilewise" in line)
    # 4 * 2 * 4 heads * 60 pairs * 8 flops and twice 640 + 768 bytes + an LSE of 160, in 1 us at 1 TFLOP/s.
    assert row[:4] == ["2x5/12x4/2x8", "bf16", "none", "tilewise"]
    assert row[-6:] == ["1", "0.0154", "2.98", "2%", "1.0e-03", "2.0e-03"]
    assert next(line for line in lines if "refusing" in line)[1:] == ["-", "-", "-", "-", "nan", "nan", "-"]
