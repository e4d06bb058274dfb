"""Runs the `tilewise` command: TILEWISE_CLI names it, by default build/tilewise of the repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Completed = subprocess.CompletedProcess[str]


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without TILEWISE_ variables, then `changes`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWISE_")}
    return kept | changes


@pytest.fixture(scope="session")
def command() -> Path:
    default = Path(__file__).resolve().parents[2] / "build" / "tilewise"
    path = Path(os.environ.get("TILEWISE_CLI", default)).resolve()
    assert path.is_file(), f"{path} is missing: run `make build`, or set TILEWISE_CLI"
    return path


@pytest.fixture(scope="session")
def tilewise(command: Path) -> Callable[..., Completed]:
    """tilewise(*arguments, status=0, **environment): runs the command and checks its exit status."""

    def run(*arguments: str | Path, status: int = 0, **environment: str) -> Completed:
        done = subprocess.run(
            [command, *arguments], capture_output=True, text=True, timeout=120, env=clean_environment(**environment)
        )
        assert done.returncode == status, f"{arguments}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
