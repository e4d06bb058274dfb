# The two ways to register the torch operators: from C++ through torch's C interface, and from
# Python. The tests of the operators run again, in a process of their own, under the second.
"""Registration of the torch operators."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tilewise._torch

OPERATOR_TESTS = (
    "test_torch_ops.py",
    "test_torch_short.py",
    "test_torch_compile.py",
    "test_torch_transforms.py",
    "test_torch_flops.py",
)


def _import_in(environment):
    code = "import torch, tilewise._torch; print(tilewise._torch.registered_by)"
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10), reason="torch has no torch_library_impl"
)
def test_registered_from_cpp():
    assert tilewise._torch.registered_by == "c++"


def test_unknown_way_is_refused():
    result = _import_in({"TILEWISE_TORCH_OPS": "rust"})
    assert result.returncode != 0
    assert "TILEWISE_TORCH_OPS: must be c++ or python (got 'rust')" in result.stderr


def test_operators_registered_from_python():
    result = _import_in({"TILEWISE_TORCH_OPS": "python"})
    assert result.stdout.strip() == "python (TILEWISE_TORCH_OPS=python)"
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        "not inductor and not first_call",
    ]
    result = subprocess.run(
        [*command, *(str(here / name) for name in OPERATOR_TESTS)],
        env={**os.environ, "TILEWISE_TORCH_OPS": "python"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-4000:]
