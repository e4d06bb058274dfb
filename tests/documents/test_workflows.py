"""What .github/workflows run is what a person runs: make targets, after a line or two that set up the machine."""

from __future__ import annotations

import re
import subprocess
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


# What a runner's container need not have, since make installs it.
BOOTSTRAP = re.compile(r"^@?scripts/bootstrap\.sh ", re.MULTILINE)


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
def test_a_bare_container_gets_what_its_job_needs(path: Path) -> None:
    for job in read(path)["jobs"].values():
        targets = [step["run"].split()[1] for step in job["steps"] if step.get("run", "").startswith("make ")]
        if not targets:
            continue
        done = subprocess.run(["make", "-n", targets[0]], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert BOOTSTRAP.search(done.stdout), f"make {targets[0]} must install what is missing"


def test_no_job_leaves_its_token_in_the_checkout() -> None:
    for path in WORKFLOWS:
        for job in read(path)["jobs"].values():
            for step in job["steps"]:
                if step.get("uses", "").startswith("actions/checkout@"):
                    assert step["with"] == {"persist-credentials": False}, path


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
