"""One binary on older processors: the right instruction sets are found, results are right, and no
instruction runs that the processor lacks (the emulator kills the program where one does)."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess

import pytest

# Processor models, from the oldest x86-64 on, and the best instruction set of Tilewise on each.
MODELS = {
    "Opteron_G1": "generic",
    "Nehalem": "generic",
    "SandyBridge": "generic",  # AVX, but neither AVX2 nor FMA
    "Haswell,-fma": "generic",
    "Haswell": "avx2",
}
ORDER = ["generic", "avx2", "avx512", "avx512_bf16", "amx_bf16"]


def test_the_emulator_enforces_its_model(emulate, tmp_path):
    """The premise of the tests below: an AVX instruction ends a program on a model without AVX."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to build a program with an AVX instruction")
    source, program = tmp_path / "avx.cpp", tmp_path / "avx"
    source.write_text('int main() { __asm__ volatile("vaddps %ymm0, %ymm0, %ymm0"); }\n')
    subprocess.run([compiler, "-o", program, source], check=True)
    assert emulate("Haswell", program).returncode == 0
    assert emulate("Nehalem", program).returncode == -signal.SIGILL


@pytest.mark.parametrize("model", MODELS)
def test_doctor_finds_the_instruction_sets(emulate, command, model):
    done = emulate(model, command, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    available = [isa["name"] for isa in report["instruction_sets"] if isa["available"]]
    assert available == ORDER[: ORDER.index(MODELS[model]) + 1]
    assert set(report["choices"].values()) == {f"cpu.{MODELS[model]}"}
    for isa in report["instruction_sets"]:
        assert isa["available"] or isa["name"] not in ORDER or "this processor lacks " in isa["reason"]


@pytest.mark.parametrize("model", MODELS)
def test_results_verify(emulate, command, model):
    count = 12
    done = emulate(
        model,
        command,
        "verify",
        "--operation",
        "attention",
        "--count",
        str(count),
        "--seed",
        "17",
        "--max-flops",
        "3e5",
        # The kernels flush denormals, which by Intel's and AMD's manuals leaves conversions to f16 as they are; qemu's
        # flush there too.
        "--without",
        "f16",
    )  # every instruction set has a row that attends
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        row[0]: [int(word) for word in row[1:]]
        for row in re.findall(r"^cpu\.(\S+) +(\d+) +(\d+) +(\d+)", done.stdout, re.M)
    }
    assert set(rows) == set(ORDER)
    for name, (passed, failed, refused) in rows.items():
        assert failed == 0
        runs_here = ORDER.index(name) <= ORDER.index(MODELS[model])
        assert (passed, refused) == ((count, 0) if runs_here else (0, count)), name


def test_short_way_runs_everything_else(emulate, command):
    """Ceilings, benchmarks and the choice itself keep to the processor's instructions, too."""
    for model in ["Nehalem", "Haswell"]:
        words = ["bench", "attention_forward dtype=bf16 seqlen_q=32 head_dim=32", "--min-time", "0.001", "--json"]
        done = emulate(model, command, *words)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["results"][0]["implementation"] == f"cpu.{MODELS[model]}"
        assert report["ceilings"]["fma_gflops"] > 0
