"""bench/instruction_costs.py: its mixes, the bounds it tells, and that its source compiles. No timing is judged."""

from __future__ import annotations

import pytest
from bench_support import cells


@pytest.fixture
def costs(bench_module):
    return bench_module("instruction_costs")


def test_a_mix_of_eight_scores(costs):
    statements = costs.mix_text(("ffma", "pack/2", "mul_wide*3")).split("; ")
    assert [text.rstrip(";") for text in statements] == [
        *("ffma(x, 0)", "pack(x, 0)", "ffma(x, 1)", "ffma(x, 2)", "pack(x, 2)", "mul_wide(x, 2)", "ffma(x, 3)"),
        *("ffma(x, 4)", "pack(x, 4)", "ffma(x, 5)", "mul_wide(x, 5)", "ffma(x, 6)", "pack(x, 6)", "ffma(x, 7)"),
        "mul_wide(x, 7)",
    ]
    draws = costs.mix_text(costs.MIXES["dropout's draws"])
    assert draws.count("mul_wide") == draws.count("lop3") == 15
    for name in {part.split("/")[0].split("*")[0] for mix in costs.MIXES.values() for part in mix}:
        assert name in costs.INSTRUCTIONS


def test_constants_are_the_kernels(costs):
    assert costs.constant("kGroup") == 128
    with pytest.raises(ValueError, match=r"instruction_costs\.cu has no number kNothing"):
        costs.constant("kNothing")


def test_least_cycles(costs):
    free = costs.Cost(alone=8.0, beside=8.0, product=64.0)
    assert costs.least_cycles([free], 16.0) == 16.0  # all of it beside half of the products
    assert costs.least_cycles([free], 4.0) == 8.0
    slow = costs.Cost(alone=8.0, beside=12.0, product=96.0)  # 8 cycles' worth of products in 4 more
    assert costs.least_cycles([slow], 4.0) == 10.0
    assert costs.least_cycles([slow], 16.0) == 20.0
    useless = costs.Cost(alone=4.0, beside=12.0, product=96.0)  # as long as one after the other
    assert costs.least_cycles([useless], 16.0) == 20.0
    assert costs.least_cycles([useless, slow, free], 16.0) == 4.0 + 8.0 + 8.0 + 4.0


def test_cycles_of_products(costs):
    assert [costs.matrix_cycles(dim) for dim in (64, 72, 80, 128, 256)] == [8.0, 9.5, 10.0, 16.0, 32.0]


def test_report(costs):
    some = costs.Cost(8.0, 8.0, 64.0)
    text = costs.report({"fadd": costs.Cost(1.0, 2.0, 128.0)}, dict.fromkeys(costs.MIXES, some))
    assert cells(text, "FADD")[1:] == ["1.00", "2.00", "0.50"]
    assert cells(text, "dropout's draws")[1:] == ["8.00", "8.00", "1.00"]
    assert cells(text, "dropout", "128")[2:] == ["16.0", "24.0", "0.67"]
    assert cells(text, "softcap", "128")[2:] == ["16.0", "16.0", "1.00"]


def test_the_source_compiles(costs, bench_module):
    program = bench_module("cuda_program")
    try:
        program.find_nvrtc()
    except RuntimeError as error:
        pytest.skip(str(error))
    code = program.compile_cuda(costs.source_text(), costs.ARCHITECTURE, costs.REPOSITORY / "src")
    for mix in (*costs.INSTRUCTIONS, *costs.MIXES):
        assert f"measure_{costs.kernel_name(mix)}_".encode() in code
    with pytest.raises(RuntimeError, match=r"nothing. is undefined"):
        program.compile_cuda(
            costs.SOURCE.read_text() + "TILEWISE_MEASURE(bad, nothing(x);)",
            costs.ARCHITECTURE,
            costs.REPOSITORY / "src",
        )


def test_a_machine_without_such_a_gpu_is_told(costs, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr("sys.argv", ["instruction_costs.py"])
    assert costs.main() == 1
    assert "needs an NVIDIA GPU of sm_90" in capsys.readouterr().err
