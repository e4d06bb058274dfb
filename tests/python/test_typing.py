# The package is typed and its checked-in stub is the extension module's own.
"""mypy over the package and over code that uses it; the stub against nanobind's generator."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewise

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "python" / "tilewise"
SAMPLE = Path(__file__).with_name("typing_sample.py")

# mistake: (a piece of the sample, what to put there, a word of the error)
MISTAKES = {
    "mask": ('mask="causal"', 'mask="diagonal"', "mask"),
    "unknown_option": ("softcap=30.0", "soft_cap=30.0", "soft_cap"),
    "keyword_of_torch": ('mask="causal"', "is_causal=True", "is_causal"),
    "option_of_warmup": ('warmup(q, q, q, mask="causal")', "warmup(q, q, q, is_causal=True)", "is_causal"),
    "window": ("window=(128, -1)", "window=128", "window"),
    "layout": ('layout="bhsd"', 'layout="hbsd"', "layout"),
    "lse_without_return_lse": (", return_lse=True)", ")", "returning any"),
    "gradients": ('gradients=("dq", "dk")', 'gradients=("dq", "dw")', "gradients"),
    "backward_mask": ('"causal_top_left")', '"diagonal")', "mask"),
    "num_threads": ("set_num_threads(tilewise.get_num_threads())", 'set_num_threads("2")', "set_num_threads"),
}


def _mypy(*paths):
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_package_and_sample_pass():
    pytest.importorskip("mypy")
    result = _mypy(SOURCE, SAMPLE)
    assert result.returncode == 0, result.stdout + result.stderr
    revealed = re.findall(r'Revealed type is "(.*)"', result.stdout)
    expected = re.findall(r"reveal_type\(.*\)  # (.*)", SAMPLE.read_text())
    assert len(revealed) == len(expected)
    for actual, beginning in zip(revealed, expected):
        assert actual.startswith(beginning)


def test_mistakes_are_found(tmp_path):
    pytest.importorskip("mypy")
    paths = []
    for name, (old, new, _) in MISTAKES.items():
        assert old in SAMPLE.read_text()
        paths.append(tmp_path / f"mistake_{name}.py")
        paths[-1].write_text(SAMPLE.read_text().replace(old, new))
    found = _mypy(*paths).stdout
    for name, (_, _, word) in MISTAKES.items():
        errors = [line for line in found.splitlines() if f"mistake_{name}.py" in line and "error:" in line]
        assert any(word in line.lower() for line in errors), f"{name}: {errors}"


def test_package_says_that_it_is_typed():
    assert (Path(tilewise.__file__).parent / "py.typed").exists()


def test_stub_is_up_to_date(tmp_path):
    pytest.importorskip("nanobind")
    generated = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "tilewise._core", "-o", str(generated)]
    environment = {**os.environ, "PYTHONPATH": str(Path(tilewise.__file__).parents[1])}
    subprocess.run(command, check=True, env=environment)
    committed = (SOURCE / "_core.pyi").read_text()
    same = ast.dump(ast.parse(committed)) == ast.dump(ast.parse(generated.read_text()))
    assert same, "python/tilewise/_core.pyi: write it anew with python " + " ".join(command[1:])
