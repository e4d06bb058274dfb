"""The images and the roots that stand in for them run the same steps, from a context without what was built."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = {path.name for path in (ROOT / "scripts" / "fresh").glob("*.sh")}


def steps_of(path: str) -> list[str]:
    return re.findall(r"/fresh/(\w+\.sh)", (ROOT / path).read_text(encoding="utf-8"))


def test_every_step_is_run_by_an_image_and_by_the_roots() -> None:
    images = steps_of("docker/Dockerfile.wheels") + steps_of("docker/Dockerfile.clean")
    assert images == steps_of("scripts/fresh_root.sh")
    assert set(images) == STEPS != set()


@pytest.mark.parametrize("path", ["scripts/fresh_root.sh", *(f"scripts/fresh/{name}" for name in sorted(STEPS))])
def test_scripts_are_read_by_their_shell(path: str) -> None:
    shell = "bash" if "bash" in (ROOT / path).read_text(encoding="utf-8").splitlines()[0] else "sh"
    done = subprocess.run([shell, "-n", ROOT / path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_clean_image_installs_no_compiler() -> None:
    installed = (ROOT / "scripts" / "fresh" / "install_clean.sh").read_text(encoding="utf-8")
    assert not re.search(r"\b(g\+\+|gcc|clang|build-essential|cmake|python3-dev|nvidia)", installed)


def test_the_context_holds_nothing_that_was_built() -> None:
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert {".git", ".venv", "build*", "dist", "bench/results"} <= set(left_out)


def test_a_folder_that_is_there_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "scripts" / "fresh_root.sh", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"fresh_root: FOLDER: must be absent (got {tmp_path})\n"
