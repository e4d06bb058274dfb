"""What `cmake --install` lays out: licences, documents, pkg-config's file, and what the command wrote of itself."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
LICENCES = {"CLI11.txt", "nanobind.txt", "nlohmann-json.txt", "robin-map.txt", "zig.txt"}


def run(*words: object, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed in one place and moved to another, which nothing may mind."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", BUILD, "--prefix", folder / "first")
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


def test_licences_and_definitions_are_installed(prefix: Path) -> None:
    documents = prefix / "share" / "doc" / "tilewise"
    for name in ("LICENSE", "NOTICE"):
        assert (documents / name).read_bytes() == (ROOT / name).read_bytes()
    assert (documents / "semantics.md").read_bytes() == (ROOT / "docs" / "semantics.md").read_bytes()
    assert {path.name for path in (documents / "third_party" / "licenses").iterdir()} == LICENCES


def test_the_notice_names_every_licence() -> None:
    notice = (ROOT / "NOTICE").read_text().lower()
    kept = {path.name for path in (ROOT / "third_party" / "licenses").iterdir()}
    assert kept == LICENCES
    for name in ("nanobind", "cli11", "json for modern c++", "robin-map", "dlpack", "zig", "third_party/licenses"):
        assert name in notice


def test_nanobinds_licence_is_the_installed_ones() -> None:
    from importlib.metadata import files

    (installed,) = [path for path in files("nanobind") or [] if path.name == "LICENSE"]
    assert (ROOT / "third_party" / "licenses" / "nanobind.txt").read_text() == installed.read_text()


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("share/man/man1/tilewise.1", ["manual"]),
        ("share/bash-completion/completions/tilewise", ["completion", "bash"]),
        ("share/zsh/site-functions/_tilewise", ["completion", "zsh"]),
        ("share/fish/vendor_completions.d/tilewise.fish", ["completion", "fish"]),
    ],
)
def test_what_the_command_says_of_itself_is_installed(prefix: Path, path: str, arguments: list[str]) -> None:
    assert (prefix / path).read_text() == run(prefix / "bin" / "tilewise", *arguments)


@pytest.mark.parametrize("language", ["c++", "c"])
def test_pkg_config_compiles_and_links(prefix: Path, tmp_path: Path, language: str) -> None:
    assert shutil.which("pkg-config"), "pkg-config is missing: make bootstrap-dev installs it"
    library = next(prefix.glob("lib*/**/pkgconfig/tilewise.pc")).parent
    query = ["pkg-config", "--cflags", "--libs", "tilewise"]
    flags = run(*query, PKG_CONFIG_PATH=str(library)).split()
    assert f"-I{prefix}/include" in [str(Path(flag[:2] + os.path.normpath(flag[2:]))) for flag in flags]
    source = ROOT / "examples" / "consumer" / ("attention.cpp" if language == "c++" else "attention.c")
    compiler = ["g++", "-std=c++20"] if language == "c++" else ["gcc", "-std=c11"]
    # What the library itself needs must be among the flags: no C++ compiler drives the link of a C program.
    run(*compiler, source, *flags, "-o", tmp_path / "consumer")
    run(tmp_path / "consumer", LD_LIBRARY_PATH=str(library.parent))
    version = run("pkg-config", "--modversion", "tilewise", PKG_CONFIG_PATH=str(library)).strip()
    assert run(prefix / "bin" / "tilewise", "--version") == f"tilewise {version}\n"


ANOTHERS_DLPACK = """\
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
typedef struct {
  void* data;
} DLTensor;
#define NEWER_THAN_OURS 1
#endif
"""


def installed_into(prefix: Path) -> Path:
    run("cmake", "--install", BUILD, "--component", "tilewise_development", "--prefix", prefix)
    return prefix / "include" / "dlpack" / "dlpack.h"


def compiles(program: Path, *includes: object) -> bool:
    flags = [f"-I{folder}" for folder in includes]
    done = subprocess.run(["gcc", "-std=c11", "-Werror", "-fsyntax-only", *flags, program], capture_output=True)
    return done.returncode == 0


def test_dlpack_of_another_project_is_left_alone_and_used(tmp_path: Path) -> None:
    header, program = tmp_path / "include" / "dlpack" / "dlpack.h", tmp_path / "program.c"
    header.parent.mkdir(parents=True)
    header.write_text(ANOTHERS_DLPACK)
    installed_into(tmp_path)
    assert header.read_text() == ANOTHERS_DLPACK
    program.write_text("#include <tilewise/tilewise.h>\nint is_newer = NEWER_THAN_OURS;\n")
    assert compiles(program, tmp_path / "include")


def test_dlpack_of_our_own_is_in_nobodys_way(tmp_path: Path) -> None:
    assert not installed_into(tmp_path / "prefix").parent.exists()
    program, own = tmp_path / "program.c", tmp_path / "own" / "dlpack" / "dlpack.h"
    program.write_text("#include <tilewise/tilewise.h>\nint major = DLPACK_MAJOR_VERSION;\nDLTensor q;\n")
    assert compiles(program, tmp_path / "prefix" / "include")
    own.parent.mkdir(parents=True)
    own.write_text(ANOTHERS_DLPACK)
    program.write_text(
        "#include <tilewise/tilewise.h>\n#include <dlpack/dlpack.h>\nint is_newer = NEWER_THAN_OURS;\nDLTensor q;\n"
    )
    assert compiles(program, tmp_path / "prefix" / "include", own.parents[1])
