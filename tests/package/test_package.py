"""The wheel that `pip install .` builds: its size, its contents, and that it works without torch."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing torch fails from here on
import numpy as np
import tilewise
q = np.ones((1, 8, 2, 16), np.float32)
print(tilewise.__file__)
assert np.allclose(tilewise.attention(q, q, q, mask="causal"), 1.0)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sources with what is installed here; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        # The flags of `make test-build`, whose objects ccache then has.
        "--config-settings=cmake.define.TILEWISE_WERROR=ON",
        "-w",
        folder,
        ROOT,
    ]
    # CMake's own choice of compiler, not that of whoever built Python: ccache tells them apart by name.
    environment = {"CC": "cc", "CXX": "c++"} | os.environ
    if shutil.which("ccache"):
        environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("tilewise-*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_is_small(wheel: Path) -> None:
    assert 0 < wheel.stat().st_size < 10 * MEGABYTE


def test_holds_the_package_and_nothing_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.split("/")[0] for name in names}
    assert all(re.fullmatch(r"tilewise(-[\d.]+\.(dist-info|data))?", name) for name in top), top
    assert {"tilewise/__init__.py", "tilewise/py.typed", "tilewise/_core.pyi", "tilewise/transformers.py"} <= names
    assert any(re.fullmatch(r"tilewise-.*\.dist-info/licenses/LICENSE", name) for name in names)


def test_works_without_torch(unpacked: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert str(unpacked) in done.stdout


def test_carries_the_command(unpacked: Path) -> None:
    (command,) = unpacked.glob("tilewise-*.data/scripts/tilewise")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)  # pip does so when it installs
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+\.\d+\.\d+", done.stdout)


def test_carries_the_compiler_process(wheel: Path, unpacked: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        mode = archive.getinfo("tilewise/tilewise-compiler").external_attr >> 16
    assert mode & stat.S_IXUSR, oct(mode)
    program = unpacked / "tilewise" / "tilewise-compiler"
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run([program], input=b"", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"TWR1"), "its answer to a request that is none"
