"""What is installed from a wheel alone, with NumPy and without a compiler; `make test-wheels` makes such environments.

The README that is run is the one in the wheel, as its description.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest

import tilewise

PACKAGE = Path(tilewise.__file__).parent
PYTHON = os.environ.get("TEST_PYTHON", sys.executable)  # another machine's is run by an emulator


def run(*words: object, status: int = 0) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_no_compiler_and_no_torch_are_here() -> None:
    assert [name for name in ("c++", "g++", "clang++", "cc", "nvcc") if shutil.which(name)] == []
    with pytest.raises(ImportError):
        __import__("torch")


def test_the_readmes_example_runs() -> None:
    description = distribution("tilewise").metadata.get_payload()
    examples = re.findall(r"^```python\n(.*?)^```$", str(description), re.MULTILINE | re.DOTALL)
    numpy_alone = [example for example in examples if "numpy" in example and "torch" not in example]
    assert numpy_alone
    for example in numpy_alone:
        run(PYTHON, "-c", example)


def test_doctor_finds_no_problems() -> None:
    report = json.loads(run("tilewise", "doctor", "--json"))
    assert report["version"] == distribution("tilewise").version
    assert report["problems"] == []
    emulation = [library for library in report["libraries"] if library["name"] == "compiler for emulation"]
    assert not emulation[0]["found"], emulation
    nvidia = [library["detail"] for library in report["libraries"] if library["name"] == "compiler for NVIDIA"]
    assert "tilewise-compiler not found" not in nvidia[0], "the helper is in the wheel"


def test_the_command_verifies_implementations() -> None:
    run("tilewise", "verify", "--count", "60", "--seed", "1", "--max-flops", "2e6")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_is_its_formula(dtype: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 33, 3, 40)).astype(dtype) for _ in range(3))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k, dtype=np.float64) / np.sqrt(40.0)
    scores = np.where(np.tril(np.ones((33, 33), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    out = tilewise.attention(q, k, v, mask="causal")
    assert out.dtype == q.dtype
    np.testing.assert_allclose(out, expected, atol=1e-5 if dtype == "float32" else 1e-13)


def test_a_kernel_that_needs_a_compiler_is_refused_by_name() -> None:
    q = np.ones((1, 8, 1, 32), np.float16)
    with pytest.raises(Exception, match=r"no C\+\+ compiler"):
        tilewise.attention(q, q, q, implementation="emulation.sm80")


def test_all_that_is_promised_is_within() -> None:
    files = [str(path) for path in distribution("tilewise").files or []]
    for name in (
        "tilewise/tilewise-compiler",
        "tilewise/bin/tilewise",
        "tilewise/include/tilewise/tilewise.h",
        "tilewise/include/tilewise/attention.hpp",
        "tilewise/include/tilewise/third_party/dlpack/dlpack.h",
        "tilewise/lib/cmake/tilewise/tilewiseConfig.cmake",
        "tilewise/semantics.md",
        "tilewise/py.typed",
    ):
        assert name in files
    for name in ("licenses/LICENSE", "licenses/NOTICE", "licenses/third_party/licenses/nanobind.txt"):
        assert any(path.endswith(f".dist-info/{name}") for path in files), name
    assert any(path.endswith("share/man/man1/tilewise.1") for path in files)
    helper = PACKAGE / "tilewise-compiler"
    assert os.access(helper, os.X_OK)


def test_the_shared_library_serves_c() -> None:
    import ctypes

    (path,) = (PACKAGE / "lib").glob("libtilewise.so.*")
    library = ctypes.CDLL(str(path))
    library.tilewise_version.restype = ctypes.c_char_p
    assert library.tilewise_version().decode() == distribution("tilewise").version


def test_the_command_writes_its_manual() -> None:
    assert run("tilewise", "--version").split() == ["tilewise", distribution("tilewise").version]
    assert ".TH" in run("tilewise", "manual")
