"""The command as a whole: help, version, exit statuses, and messages that name what is wrong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SUBCOMMANDS = ["doctor", "explain", "run", "verify", "bench", "tune", "cache", "compile", "completion", "manual"]
PROBLEM = "attention_forward seqlen_q=16 head_dim=8"


def test_version(tilewise):
    assert re.fullmatch(r"tilewise \d+\.\d+\.\d+\n", tilewise("--version").stdout)


def test_help_lists_the_subcommands(tilewise):
    text = tilewise("--help").stdout
    for name in SUBCOMMANDS:
        assert re.search(rf"^\s+{name}\s+\S", text, re.MULTILINE), name
    assert "Exit status" in text


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_of_each_subcommand(tilewise, name):
    text = tilewise(name, "--help").stdout
    assert "Usage: " in text
    assert "--help" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["subcommand"]),
        (["paint"], ["SUBCOMMAND", "doctor", "paint"]),
        (["doctor", "--colour"], ["--colour"]),
        (["explain"], ["PROBLEM"]),
        (["explain", "paint"], ["operation", "paint"]),
        (["explain", PROBLEM, PROBLEM], ["PROBLEM", "one problem", "2"]),
        (["explain", "attention_forward seqlen_q=16 head_dim=8 colour=blue"], ["colour"]),
        (["explain", "attention_forward seqlen_q=16 head_dim=640"], ["head_dim", "<= 576", "640"]),
        (["explain", "attention_forward seqlen_q=x head_dim=64"], ["seqlen_q", "x"]),
        (["explain", "attention_forward seqlen_q=8 head_dim=64 mask=causal window_right=3"], ["window_right", "3"]),
        (["explain", "attention_forward seqlen_q=8 head_dim=64 num_heads_q=6 num_heads_k=4"], ["num_heads", "6", "4"]),
        (["explain", "attention_forward seqlen_q=8 head_dim=64 dropout_p=1"], ["dropout_p", "< 1"]),
        (["explain", "attention_forward seqlen_q=8 head_dim=64 softmax_scale=nan"], ["softmax_scale", "nan"]),
        (
            ["explain", "attention_forward seqlen_q=99999999999999999999 head_dim=64"],
            ["seqlen_q", "99999999999999999999"],
        ),
        (["explain", PROBLEM, "--implementation", "cpu.abacus"], ["implementation", "cpu.abacus"]),
        (["cache"], ["subcommand"]),
        (["cache", "paint"], ["SUBCOMMAND", "list, clear", "paint"]),
        (["verify", "--count", "0"], ["--count", ">= 1", "0"]),
        (["verify", "--count", "many"], ["--count", "integer", "many"]),
        (["verify", "--seed", "-1"], ["--seed", "integer", "-1"]),
        (["verify", "--threads", "0"], ["--threads", "1 to 1024", "0"]),
        (["verify", "--implementation", "cpu.abacus"], ["--implementation", "cpu.abacus", "reference"]),
        (["verify", "--without", "colour"], ["--without", "softcap", "colour"]),
        (["verify", "--tolerance-scale", "2"], ["--tolerance-scale", "<= 1", "2"]),
        (["verify", "--problem", "paint"], ["paint"]),
        (["verify", "--report", "--count", "100"], ["--count excludes --report"]),
        (["verify", "--report", "--seed", "1"], ["--seed excludes --report"]),
        (["verify", "--report", "--implementation", "reference"], ["--implementation excludes --report"]),
        (["verify", "--report", "--problem", PROBLEM], ["--problem excludes --report"]),
        (["verify", "--report", "--without", "dropout"], ["--without excludes --report"]),
        (["verify", "--report", "--max-flops", "1e6"], ["--max-flops excludes --report"]),
        (["verify", "--report", "--tolerance-scale", "1"], ["--tolerance-scale excludes --report"]),
        (["verify", "--without", "forward,backward"], ["forward"]),
        (["bench", "paint"], ["paint"]),
        (["tune", "paint"], ["paint"]),
        (["tune"], ["PROBLEM: must be given, or a file of them with --problems (got none)"]),
        (["tune", "--problems", "nothing.txt"], ["--problems: nothing.txt can't be read"]),
        (["tune", PROBLEM], ["PROBLEM: must be attention_forward or attention_backward on a GPU"]),
        (["tune", PROBLEM.replace("forward", "backward")], ["or attention_backward on a GPU (got attention_backward "]),
        (["tune", PROBLEM, "--seconds", "0"], ["--seconds", "0"]),
        (["bench", "--min-time", "-1"], ["--min-time", "-1"]),
        (["bench", "--threads", "1.5"], ["--threads", "integer", "1.5"]),
        (["run", "--q", "q.npy"], ["--k is required"]),
        (["run", "--sofcap", "3"], ["--sofcap: must be an option of `tilewise run`; did you mean --softcap?"]),
        (["run", "--is-causal"], ["--is-causal: must be an option", "did you mean --mask causal?"]),
        (["run", "--window_size=3"], ["--window_size: ", "did you mean --window-left and --window-right?"]),
        (["run", "--scale", "0.5"], ["--scale: ", "did you mean --softmax-scale?"]),
        (["run", "--block-tabel", "t.npy"], ["--block-tabel: ", "did you mean --block-table?"]),
        (["explain", PROBLEM, "--implementaton", "reference"], ["did you mean --implementation?"]),
        (["cache", "list", "--jsno"], ["`tilewise cache list`; did you mean --json?"]),
        (
            ["explain", "attention_forward seqlenq=16 head_dim=8"],
            ["unknown key; did you mean seqlen_q? (got 'seqlenq')"],
        ),
        (["explain", "attention_forward", "causal=1"], ["unknown key; did you mean mask=causal? (got 'causal')"]),
        (["docter"], ["SUBCOMMAND: must be one of doctor, ", "; did you mean doctor? (got 'docter')"]),
        (["cache", "lits"], ["must be one of list, clear; did you mean list? (got 'lits')"]),
        (["completion", "bsh"], ["SHELL: must be one of bash|zsh|fish; did you mean bash? (got 'bsh')"]),
        (["explain", "atention_forward"], ["operation: must be one of ", "; did you mean attention_forward? (got 'at"]),
        (["explain", f"{PROBLEM} mask=casual"], ["must be one of none, causal; did you mean causal? (got 'casual')"]),
        (
            ["explain", f"{PROBLEM} dtype=fp16"],
            ["dtype: must be one of f32, bf16, f16, f64, fp8_e4m3; did you mean f16? (got 'fp16')"],
        ),
        (["explain", f"{PROBLEM} layout=bsdh"], ["layout: must be one of ", "did you mean bshd? (got 'bsdh')"]),
        (["explain", PROBLEM, "--implementation", "avx512"], ["; did you mean cpu.avx512? (got 'avx512')"]),
        (
            ["verify", "--implementation", "refrence"],
            ["--implementation: ", "did you mean reference? (got 'refrence')"],
        ),
        (["verify", "--without", "sofcap"], ["--without: must be of ", "did you mean softcap? (got 'sofcap')"]),
        (["verify", "--operation", "atention"], ["did you mean attention? (got 'atention')"]),
        (["run", "--layout", "bsdh"], ["--layout: must be one of ", "did you mean bshd? (got 'bsdh')"]),
        (
            ["compile", "--target", "sm90", "--problem", PROBLEM],
            ["target: must be one of sm_80, ", "; did you mean sm_90? (got 'sm90')"],
        ),
        (
            ["compile", "--target", "sm_90", "--implementation", "cuda.sm8", "--problem", PROBLEM],
            ["must be one of those for sm_90: cuda.sm80; did you mean cuda.sm80? (got 'cuda.sm8')"],
        ),
        (
            ["verify", "--problem", "attention_forward seqlen_q=16 headdim=8"],
            ["did you mean head_dim? (got 'headdim')"],
        ),
        (
            ["compile", "--target", "sm_90", "--problem", "attention_forward seqlenq=16 head_dim=8"],
            ["did you mean seqlen_q? (got 'seqlenq')"],
        ),
    ],
)
def test_bad_usage(tilewise, arguments, words):
    done = tilewise(*arguments, status=2)
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TILEWISE_CPU_ISA", "sse9"),
        ("TILEWISE_NUM_THREADS", "-3"),
        ("TILEWISE_FORCE", "cpu.abacus"),
        ("TILEWISE_DISABLE", "cpu.abacus"),
        ("TILEWISE_LOG", "everything"),
    ],
)
def test_bad_environment(tilewise, variable, value):
    done = tilewise("bench", PROBLEM, "--min-time", "0.001", "--no-ceilings", status=2, **{variable: value})
    assert variable in done.stderr
    assert value in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "meant"),
    [
        ("TILEWISE_CPU_ISA", "avx521", "avx512"),
        ("TILEWISE_FORCE", "cpu.avx521", "cpu.avx512"),
        ("TILEWISE_DISABLE", "refrence", "reference"),
    ],
)
def test_misspelt_environment(tilewise, variable, value, meant):
    done = tilewise("bench", PROBLEM, "--min-time", "0.001", "--no-ceilings", status=2, **{variable: value})
    assert done.stderr.startswith(f"tilewise: {variable}: must ")
    assert f"; did you mean {meant}? (got '{value}')" in done.stderr


def test_a_variable_that_nobody_reads_is_logged_once(tilewise):
    words = ["bench", PROBLEM, PROBLEM.replace("16", "17"), "--min-time", "0.001", "--no-ceilings"]
    misspelt = {"TILEWISE_NUM_THREAD": "1", "TILEWISE_COLOUR": "1"}
    lines = tilewise(*words, TILEWISE_LOG="dispatch", **misspelt).stderr.splitlines()
    assert sorted(lines[:2]) == [
        "tilewise: TILEWISE_COLOUR: must be a variable that Tilewise reads (got an unknown name)",
        "tilewise: TILEWISE_NUM_THREAD: must be a variable that Tilewise reads; did you mean TILEWISE_NUM_THREADS?"
        " (got an unknown name)",
    ]
    assert len(lines) == 4
    assert all(line.startswith("tilewise: attention_forward ") for line in lines[2:])
    assert tilewise(*words, **misspelt).stderr == ""


def test_a_full_disk_is_a_failure(command, environment):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [command, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment
        )
    assert done.returncode == 1
    assert "standard output" in done.stderr
