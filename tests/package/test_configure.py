"""Warnings are errors in the presets and in continuous integration, and nowhere else."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: object) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def only_the_library() -> list[str]:
    return [f"-DTILEWISE_BUILD_{part}=OFF" for part in ("TESTS", "TOOLS", "BENCH", "PYTHON")]


def library_flags(folder: Path) -> list[str]:
    commands = json.loads((folder / "compile_commands.json").read_text())
    return [command["command"] for command in commands if command["file"].startswith(f"{ROOT}/src/")]


def test_a_plain_build_warns_and_goes_on(tmp_path: Path, only_the_library: list[str]) -> None:
    run("cmake", "-S", ROOT, "-B", tmp_path, *only_the_library)
    flags = library_flags(tmp_path)
    assert flags
    assert all("-Wall -Wextra -Wconversion" in command for command in flags)
    assert not any("-Werror" in command for command in flags)


def test_a_preset_stops_at_a_warning(tmp_path: Path, only_the_library: list[str]) -> None:
    run("cmake", "--preset", "release", "-S", ROOT, "-B", tmp_path, *only_the_library)
    assert all("-Werror" in command for command in library_flags(tmp_path))


def test_every_preset_is_strict() -> None:
    presets = {
        preset["name"]: preset for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    }

    def variables(name: str) -> dict[str, str]:
        preset = presets[name]
        return (variables(preset["inherits"]) if "inherits" in preset else {}) | preset.get("cacheVariables", {})

    assert {"release", "debug", "asan", "fuzz"} <= presets.keys()
    for name in presets:
        assert variables(name)["TILEWISE_WERROR"] == "ON", name
        assert "-Wno" not in variables(name).get("CMAKE_CXX_FLAGS", ""), f"{name}: turns warnings off"


@pytest.mark.parametrize(("value", "wanted"), [("true", "ON"), ("", "OFF")])
def test_make_is_strict_in_continuous_integration(value: str, wanted: str) -> None:
    printed = run("make", "--dry-run", "--no-print-directory", "test-build", f"CI={value}", "BUILD=elsewhere")
    assert re.findall(r"-DTILEWISE_WERROR=(\w+)", printed) == [wanted]
