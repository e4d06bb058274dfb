"""Runs the `tilewise` command under qemu-x86_64 with a chosen processor model.

TILEWISE_CLI names the command (default: build/tilewise). Without qemu-x86_64 (Debian: qemu-user) the
tests skip, unless TILEWISE_REQUIRE_QEMU=1 says that it must be there.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def qemu() -> str:
    path = shutil.which("qemu-x86_64")
    reason = None
    if platform.machine() != "x86_64":
        reason = f"the command built here is for {platform.machine()}"
    elif path is None:
        reason = "qemu-x86_64 is not installed (Debian: apt-get install qemu-user)"
    if reason:
        assert os.environ.get("TILEWISE_REQUIRE_QEMU") != "1", reason
        pytest.skip(reason)
    return str(path)


@pytest.fixture(scope="session")
def emulate(qemu: str) -> Callable[..., Completed]:
    """emulate(model, *words): runs a program on an emulated processor of that model."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWISE_")}

    def run(model: str, *words: str | Path) -> Completed:
        return subprocess.run([qemu, "-cpu", model, *words], capture_output=True, text=True, timeout=240, env=kept)

    return run


@pytest.fixture(scope="session")
def command() -> Path:
    default = Path(__file__).resolve().parents[2] / "build" / "tilewise"
    path = Path(os.environ.get("TILEWISE_CLI", default)).resolve()
    assert path.is_file(), f"{path} is missing: run `make build`, or set TILEWISE_CLI"
    return path
