"""Runs the `tilewise` command: TILEWISE_CLI names it, by default build/tilewise of the repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment without the variables that Tilewise reads."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TILEWISE_")}


@pytest.fixture(scope="session")
def command() -> Path:
    default = Path(__file__).resolve().parents[2] / "build" / "tilewise"
    path = Path(os.environ.get("TILEWISE_CLI", default)).resolve()
    assert path.is_file(), f"{path} is missing: run `make build`, or set TILEWISE_CLI"
    return path


@pytest.fixture(scope="session")
def tilewise(command: Path, environment: dict[str, str]) -> Callable[..., Completed]:
    """tilewise(*arguments, status=0, **variables): runs the command and checks its exit status."""

    def run(*arguments: str | Path, status: int = 0, **variables: str) -> Completed:
        done = subprocess.run(
            [command, *arguments], capture_output=True, text=True, timeout=120, env=environment | variables
        )
        assert done.returncode == status, f"{arguments}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
