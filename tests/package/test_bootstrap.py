"""scripts/bootstrap.sh on a machine where nothing is: what each level asks for."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A machine without apt-get, and without any program that a level needs.
PROGRAMS = ("bash", "env", "dirname", "id", "tr", "uname")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return {"PATH": str(folder), "HOME": str(tmp_path)}


def bootstrap(environment: dict[str, str], *levels: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "bootstrap.sh", *levels], env=environment, capture_output=True, text=True, timeout=60
    )


def missing(environment: dict[str, str], *levels: str) -> set[str]:
    """What a level asks for; headers of the machine that tests run on may be there."""
    done = bootstrap(environment, *levels)
    assert done.returncode == 1
    assert done.stderr.startswith("bootstrap: missing: ")
    return set(done.stderr.split(". Install them")[0].removeprefix("bootstrap: missing: ").split())


def test_wheels_need_no_compiler(bare: dict[str, str]) -> None:
    assert missing(bare, "wheels") >= {"cmake", "ninja-build", "python3", "python3-venv", "python3-dev"}
    assert missing(bare, "sdist") - missing(bare, "wheels") == {"g++"}
    assert missing(bare, "build") == missing(bare, "sdist")


def test_wheels_of_another_machine_need_its_emulator(bare: dict[str, str]) -> None:
    here = missing(bare, "wheels")
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    assert missing(bare | {"MACHINE": other}, "wheels") - here == {"mmdebstrap", "qemu-user"}


def test_documents_and_tests_need_more_than_building(bare: dict[str, str]) -> None:
    build = missing(bare, "build")
    assert missing(bare, "build", "docs") - build == {"doxygen"}
    assert missing(bare, "build", "demo", "dev") - build >= {"qemu-user", "pkg-config"}


def test_a_level_that_is_none_is_named(bare: dict[str, str]) -> None:
    for levels, got in ((("wheel",), "'wheel'"), ((), "nothing")):
        done = bootstrap(bare, *levels)
        assert done.returncode == 2
        levels = "build, demo, dev, docs, vllm, sglang, wheels or sdist"
        assert done.stderr == f"bootstrap: LEVEL: must be {levels} (got {got})\n"
