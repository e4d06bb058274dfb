"""What .github/workflows run is what a person runs: make targets, after a line or two that set up the machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
# Everything else that a step may run.
SETUP = (
    r"apt-get update && apt-get install -y --no-install-recommends ca-certificates git make",
    r'git config --global --add safe\.directory "\$GITHUB_WORKSPACE"',
    r'cat build/nightly\.md >>"\$GITHUB_STEP_SUMMARY"',
)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(path: Path) -> list[str]:
    return [step["run"] for job in read(path)["jobs"].values() for step in job["steps"] if "run" in step]


def test_workflows_are_here() -> None:
    assert [path.stem for path in WORKFLOWS] == ["checks", "docs", "nightly", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_call_make_targets(path: Path) -> None:
    made = []
    for command in commands(path):
        if target := re.fullmatch(r"make ([a-z-]+)", command):
            made.append(target[1])
        else:
            assert any(re.fullmatch(form, command) for form in SETUP), command
    assert made
    assert set(made) <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_have_a_limit_and_no_more_rights_than_they_need(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert name == "publish" or job["timeout-minutes"] <= 180
        assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)


def test_checks_need_no_gpu_and_no_secret() -> None:
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert "secrets." not in text
        assert set(re.findall(r"runs-on: (.*)", text)) == {"ubuntu-24.04"}
