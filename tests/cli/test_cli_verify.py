"""`tilewise verify`: it passes, it counts, and a failure's line reproduces it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import subprocess

PROBLEM = "attention_forward seqlen_q=33 seqlen_k=47 num_heads_q=2 head_dim=24 mask=causal"


def summary(text: str) -> dict[str, list[int]]:
    """implementation -> [passed, failed, refused] of the final table."""
    lines = text[text.index("implementation ") :].splitlines()[1:]
    rows = [line.split() for line in lines if re.match(r"\S+\s+\d+\s+\d+\s+\d+", line)]
    return {row[0]: [int(word) for word in row[1:4]] for row in rows}


def test_random_problems_pass(tilewise):
    done = tilewise("verify", "--count", "12", "--seed", "5", "--max-flops", "1e6")
    rows = summary(done.stdout)
    assert "reference" not in rows
    assert "cpu.generic" in rows
    for passed, failed, refused in rows.values():
        assert failed == 0
        assert passed + refused == 12
    assert rows["cpu.generic"][0] > 0
    assert done.stderr == ""  # no progress bar where there is no terminal


def test_runs_are_reproducible(tilewise):
    arguments = ["verify", "--count", "6", "--seed", "9", "--max-flops", "1e6", "--implementation", "cpu.generic"]
    assert tilewise(*arguments).stdout == tilewise(*arguments, "--threads", "2").stdout


def test_one_problem(tilewise):
    done = tilewise("verify", "--problem", PROBLEM, "--implementation", "cpu.generic,reference")
    assert summary(done.stdout) == {"cpu.generic": [1, 0, 0], "reference": [1, 0, 0]}


def test_seeds_count_up(tilewise):
    done = tilewise("verify", "--problem", PROBLEM, "--count", "3", "--implementation", "cpu.generic")
    assert summary(done.stdout) == {"cpu.generic": [3, 0, 0]}


def test_sizes_of_the_same_options(tilewise):
    arguments = ["--max-flops", "1e6", "--implementation", "cpu.generic", "--operation", "attention"]
    done = tilewise("verify", "--count", "8", "--seed", "40", "--sizes", "4", *arguments)
    (counts,) = summary(done.stdout).values()
    assert counts[1] == 0
    assert counts[0] + counts[2] == 8
    assert "--sizes" in tilewise("verify", "--problem", PROBLEM, "--sizes", "2", status=2).stderr
    assert "--sizes" in tilewise("verify", "--sizes", "0", status=2).stderr


def test_a_failure_reproduces(tilewise):
    """Bounds scaled to nothing fail wherever rounding shows; the printed line fails alike."""
    arguments = ["--count", "4", "--seed", "3", "--max-flops", "1e6", "--implementation", "cpu.generic"]
    text = tilewise("verify", *arguments, "--tolerance-scale", "0", status=1).stdout
    lines = re.findall(r"^.*(tilewise verify .*)$", text, re.MULTILINE)
    assert lines
    words = shlex.split(lines[0])[1:]
    assert {"--implementation", "--seed", "--problem", "--tolerance-scale"} <= set(words)
    again = tilewise(*words, status=1).stdout
    assert lines[0] in again
    without = words[: words.index("--tolerance-scale")]
    tilewise(*without)


def test_nothing_checked_is_a_failure(tilewise):
    done = tilewise(
        "verify",
        "--count",
        "2",
        "--implementation",
        "cpu.avx2",
        "--max-flops",
        "1e5",
        status=1,
        TILEWISE_CPU_ISA="generic",
    )
    assert "Nothing was checked" in done.stdout
    assert "TILEWISE_CPU_ISA" in done.stdout


def test_head_dims_are_rounded_up(tilewise):
    arguments = [
        "--count",
        "6",
        "--seed",
        "3",
        "--max-flops",
        "1e5",
        "--operation",
        "attention",
        "--tolerance-scale",
        "0",
    ]
    done = tilewise("verify", *arguments, "--implementation", "cpu.generic", "--head-dim-multiple", "24", status=1)
    dims = re.findall(r"head_dim=(\d+)", done.stdout)
    assert dims
    assert all(int(dim) % 24 == 0 for dim in dims)
    assert "--head-dim-multiple" in tilewise("verify", "--head-dim-multiple", "0", status=2).stderr


def test_features_can_be_left_out(tilewise):
    done = tilewise(
        "verify",
        "--count",
        "8",
        "--seed",
        "3",
        "--max-flops",
        "1e5",
        "--tolerance-scale",
        "0",
        status=1,
        *["--operation", "attention", "--implementation", "cpu.generic", "--without", "backward,softcap,bf16,f16"],
    )
    problems = re.findall(r"--problem \"([^\"]*)\"", done.stdout)
    assert problems
    for problem in problems:
        assert problem.startswith("attention_forward")
        assert "softcap" not in problem
        assert " dtype=f16" not in problem


def test_each_operation_has_its_turn(tilewise):
    """Without --operation problems of all are drawn; an implementation without a row of one refuses it."""
    rows = summary(tilewise("verify", "--count", "9", "--max-flops", "1e5").stdout)
    passed, failed, refused = rows["cpu.generic"]
    assert (failed, passed + refused) == (0, 9)
    assert passed >= 6
    assert rows["cpu.avx2"][2] >= 3  # turns of merge and route
    done = tilewise("verify", "--operation", "merge", "--count", "20", "--max-flops", "1e5", "--tolerance-scale", "0",
                    "--implementation", "cpu.generic", "--without", "backward,f16", status=1)  # fmt: skip
    problems = re.findall(r"--problem \"([^\"]*)\"", done.stdout)
    assert problems
    assert all(problem.startswith("merge ") and "dtype=f16" not in problem for problem in problems)
    one = tilewise("verify", "--problem", "merge seqlen_q=5 head_dim_v=9", "--implementation", "cpu.avx2", status=1)
    assert "computes no merge" in one.stdout


def test_bad_operations(tilewise):
    error = tilewise("verify", "--operation", "conv", status=2).stderr
    assert "attention" in error and "merge" in error and "'conv'" in error
    error = tilewise("verify", "--operation", "merge", "--without", "softcup", status=2).stderr
    assert "--without: must be of forward, backward," in error
    assert "f32_parts" in error
    assert "(got 'softcup')" in error


def test_what_is_left_out_may_be_of_any_operation(tilewise):
    """One list serves scripts that check several operations: the KV cache step has no f64 to leave out."""
    options = ["--implementation", "cpu.generic", "--count", "6", "--max-flops", "1e5"]
    for operation in ("attention", "kv_cache", "merge"):
        rows = summary(
            tilewise(
                "verify", "--operation", operation, "--without", "f32,f64,softcap,score_mod,mask_mod", *options
            ).stdout
        )
        assert rows["cpu.generic"] == [6, 0, 0]


def test_progress_bar_on_a_terminal(command, environment):
    """Standard error is a terminal: the bar is drawn there, wiped in the end, and kept out of the output."""
    terminal, side = pty.openpty()
    words = [command, "verify", "--count", "40", "--max-flops", "1e6", "--implementation", "cpu.generic"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=side, text=True, timeout=120, env=environment)
    os.close(side)
    drawn = ""
    with contextlib.suppress(OSError):  # how a terminal whose other side is closed says that it is read out
        while chunk := os.read(terminal, 1 << 16):
            drawn += chunk.decode()
    os.close(terminal)
    assert done.returncode == 0
    assert re.search(r"\r\x1b\[K\[[#.]{30}\] \d+/40 cpu\.generic: 0 failed", drawn)
    assert drawn.endswith("\r\x1b[K")
    assert "\r" not in done.stdout


def test_report_without_a_gpu(tilewise):
    nowhere = {"TILEWISE_CUDA_DRIVER": "/nowhere/libcuda.so", "TILEWISE_HIP_DRIVER": "/nowhere/libamdhip64.so"}
    report = tilewise("verify", "--report", status=1, **nowhere).stdout
    assert "cuda.sm80: not here: /nowhere/libcuda.so: " in report
    assert "hip.rdna: not here: /nowhere/libamdhip64.so: " in report
    assert report.endswith("No GPU that Tilewise can use is here.\n")
    checked = tilewise("verify", "--gpu", "--count", "1", "--without", "f32,f64", status=1, **nowhere).stdout
    assert re.search(r"cuda\.sm80 +0 +0 +1 +-  /nowhere/libcuda\.so", checked)
    assert "Nothing was checked" in checked
