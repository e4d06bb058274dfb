"""The wheel that `pip install .` builds: its size, its contents, its metadata, and that it works without torch."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_BYTES = 5_000_000  # of a published wheel, whose three parts have a C++ runtime each: scripts/wheels.sh
PROJECT = "https://github.com/tilewise/tilewise"
THIRD_PARTY = ["CLI11", "nanobind", "nlohmann-json", "robin-map", "zig"]

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
    # Beside build/: where ccache's base_dir makes paths relative, those from here are the same. From a temporary folder
    # they were others, and all 227 objects were compiled again: 200 s of two processors rather than 8.
    build = ROOT / "build-wheel"
    shutil.rmtree(build, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        # The flags of `make test-build`, whose objects ccache then has.
        f"--config-settings=cmake.define.TILEWISE_WERROR={'ON' if os.environ.get('CI') else 'OFF'}",
        f"--config-settings=cmake.define.TILEWISE_UNITY={'ON' if os.environ.get('CI') else 'OFF'}",
        f"--config-settings=build-dir={build}",
        "-w",
        folder,
        ROOT,
    ]
    # CMake's own choice of compiler, not that of whoever built Python: ccache tells them apart by name.
    environment = {"CC": "cc", "CXX": "c++"} | os.environ
    if shutil.which("ccache"):
        environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    shutil.rmtree(build, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("tilewise-*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        for entry in archive.infolist():  # as pip does when it installs
            if (entry.external_attr >> 16) & stat.S_IXUSR:
                (folder / entry.filename).chmod(0o755)
    return folder


def run_command(unpacked: Path, *words: str) -> str:
    """What the `tilewise` command prints, by the script that an installation puts into PATH."""
    (script,) = unpacked.glob("tilewise-*.data/scripts/tilewise")
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_is_small(wheel: Path) -> None:
    assert 0 < wheel.stat().st_size < MOST_BYTES


def test_holds_the_library_once(unpacked: Path) -> None:
    """The module and the command take it from tilewise/lib: what they add is small beside it."""
    (library,) = unpacked.glob("tilewise/lib/libtilewise.so.*")
    (module,) = unpacked.glob("tilewise/_core*.so")
    for path in (module, unpacked / "tilewise/bin/tilewise"):
        assert path.stat().st_size < library.stat().st_size / 2, path
        assert library.name.encode() in path.read_bytes()


def test_holds_the_package_and_nothing_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.split("/")[0] for name in names}
    assert all(re.fullmatch(r"tilewise(-[\d.]+\.(dist-info|data))?", name) for name in top), top
    assert {
        "tilewise/__init__.py",
        "tilewise/py.typed",
        "tilewise/_core.pyi",
        "tilewise/jax/__init__.py",
        "tilewise/transformers/__init__.py",
        "tilewise/include/tilewise/tilewise.h",
        "tilewise/lib/cmake/tilewise/tilewiseConfig.cmake",
    } <= names


def test_carries_the_licences_of_all_within(unpacked: Path) -> None:
    (folder,) = unpacked.glob("tilewise-*.dist-info/licenses")
    wanted = ["LICENSE", "NOTICE", *(f"third_party/licenses/{name}.txt" for name in THIRD_PARTY)]
    carried = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(folder)) for path in carried) == sorted(wanted)
    for path in carried:
        assert path.read_bytes() == (ROOT / path.relative_to(folder)).read_bytes()


@pytest.fixture(scope="module")
def metadata(unpacked: Path) -> Message:
    (path,) = unpacked.glob("tilewise-*.dist-info/METADATA")
    return message_from_string(path.read_text(encoding="utf-8"))


def test_names_its_licences_and_addresses(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSD-3-Clause AND MIT"
    urls = dict(entry.split(", ", 1) for entry in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= urls.keys()
    assert all(url.startswith(PROJECT) for url in urls.values())


def test_long_description_links_are_absolute(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)]+)\)", prose)
    assert f"{PROJECT}/blob/main/docs/semantics.md" in links
    assert f"{PROJECT}#what-works" in links
    assert [link for link in links if not link.startswith("https://")] == []


def test_documents_itself(unpacked: Path) -> None:
    definition = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-m", "tilewise.semantics"], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == definition
    (data,) = unpacked.glob("tilewise-*.data/data/share")
    assert (data / "man" / "man1" / "tilewise.1").read_text() == run_command(unpacked, "manual") != ""
    for path in ("bash-completion/completions/tilewise", "zsh/site-functions/_tilewise"):
        assert (data / path).read_text()
    assert "tilewise" in (data / "fish" / "vendor_completions.d" / "tilewise.fish").read_text()


def test_works_without_torch(unpacked: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert str(unpacked) in done.stdout


def test_carries_the_command(unpacked: Path) -> None:
    assert re.search(r"\d+\.\d+\.\d+", run_command(unpacked, "--version"))
    assert "tilewise-compiler not found" not in run_command(unpacked, "doctor")


def test_carries_the_compiler_process(wheel: Path, unpacked: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        mode = archive.getinfo("tilewise/tilewise-compiler").external_attr >> 16
    assert mode & stat.S_IXUSR, oct(mode)
    program = unpacked / "tilewise" / "tilewise-compiler"
    done = subprocess.run([program], input=b"", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"TWR1"), "its answer to a request that is none"


def test_a_c_program_is_built_on_it(unpacked: Path, tmp_path: Path) -> None:
    """As in an environment: find_package() by the package's folder, a shared library that is found at run time."""
    source = ROOT / "tests" / "wheels" / "consumer"
    configure = ["cmake", "-S", source, "-B", tmp_path, f"-Dtilewise_ROOT={unpacked / 'tilewise'}"]
    for command in (configure, ["cmake", "--build", tmp_path]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([tmp_path / "attention"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
