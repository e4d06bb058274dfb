"""`tilewise doctor`: the report in both forms, and what it says about a bad environment."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

ISAS = ["generic", "avx2", "avx512", "avx512_bf16", "amx_bf16", "neon", "neon_bf16"]


def test_text_report(tilewise):
    text = tilewise("doctor").stdout
    for word in ["Devices", "Instruction sets", "CPU threads", "Implementations", "GPU libraries", "libcuda.so.1"]:
        assert word in text
    for word in [*ISAS, "TILEWISE_FORCE", "Plan cache", "reference", "No problems found."]:
        assert word in text


def test_json_report(tilewise):
    report = json.loads(tilewise("doctor", "--json").stdout)
    assert [isa["name"] for isa in report["instruction_sets"]] == ISAS
    for isa in report["instruction_sets"]:
        assert isa["available"] == (isa["reason"] == "")
    assert report["instruction_sets"][0]["available"]
    assert report["num_threads"] >= 1
    assert report["cpu"]["processors"] >= 1
    assert report["cpu"]["memory_bytes"] > 0
    assert "reference" in [row["name"] for row in report["implementations"]]
    assert report["problems"] == []
    libraries = {library["name"]: library for library in report["libraries"]}
    compilers = [f"compiler for {kind}" for kind in ["NVIDIA", "AMD", "emulation"]]
    assert list(libraries) == ["libcuda.so.1", "libamdhip64.so", *compilers]
    for library in libraries.values():
        assert library["detail"], library["name"]


def test_libraries_that_do_not_work_are_told(tilewise):
    bad = {"TILEWISE_NVRTC": "/no/such/nvrtc", "TILEWISE_CLANG": "none", "TILEWISE_HIPRTC": "/no/such/hiprtc"}
    report = json.loads(tilewise("doctor", "--json", **bad, TILEWISE_CXX="no-such-compiler").stdout)
    libraries = {library["name"]: library for library in report["libraries"]}
    for kind, words in {"NVIDIA": "/no/such/nvrtc", "AMD": "/no/such/hiprtc", "emulation": "no-such-compiler"}.items():
        assert not libraries[f"compiler for {kind}"]["found"]
        assert words in libraries[f"compiler for {kind}"]["detail"]


def test_environment_in_force(tilewise):
    report = json.loads(tilewise("doctor", "--json", TILEWISE_CPU_ISA="generic", TILEWISE_NUM_THREADS="1").stdout)
    assert report["num_threads"] == 1
    available = [isa["name"] for isa in report["instruction_sets"] if isa["available"]]
    assert available == ["generic"]
    assert "TILEWISE_CPU_ISA=generic" in report["instruction_sets"][1]["reason"]
    assert {"TILEWISE_CPU_ISA": "generic", "TILEWISE_NUM_THREADS": "1"}.items() <= {
        variable["name"]: variable["value"] for variable in report["environment"]
    }.items()


def test_bad_environment_is_a_problem(tilewise):
    bad = {"TILEWISE_CPU_ISA": "sse9", "TILEWISE_NUM_THREADS": "many", "TILEWISE_TYPO": "1"}
    text = tilewise("doctor", status=1, **bad).stdout
    report = json.loads(tilewise("doctor", "--json", status=1, **bad).stdout)
    assert len(report["problems"]) == 3
    for variable in bad:
        assert sum(variable in problem for problem in report["problems"]) == 1
        assert variable in text
    assert report["num_threads"] is None


def test_what_others_may_write_is_told(tilewise, tmp_path):
    cache, bundle, compiler = tmp_path / "cache", tmp_path / "kernels.bundle", tmp_path / "compiler"
    cache.mkdir()
    bundle.write_text("")
    compiler.write_text("#!/bin/sh\necho g++ 12.2\n")
    for path in [cache, bundle, compiler]:
        path.chmod(0o777)
    words = "must be writable by nobody else than its owner (mode 0777)"
    named = {"TILEWISE_CACHE_DIR": str(cache), "TILEWISE_BUNDLE": str(bundle), "TILEWISE_CXX": str(compiler)}
    report = json.loads(tilewise("doctor", "--json", status=1, **named).stdout)
    assert report["kernel_cache"]["reason"] == f"{cache}: {words}; kernels there are ignored"
    assert report["problems"] == [
        f"kernel cache: {cache}: {words}; kernels there are ignored",
        f"TILEWISE_BUNDLE: {bundle} is ignored: {bundle}: {words}",
    ]
    emulation = {library["name"]: library for library in report["libraries"]}["compiler for emulation"]
    assert not emulation["found"]
    assert f"ignored: {compiler}: {words}" in emulation["detail"]
    text = tilewise("doctor", status=1, **named).stdout
    for path in [cache, bundle, compiler]:
        assert f"{path}: {words}" in text


def without_home(command, environment, *words, status):
    """The command where nothing names a folder for the cache."""
    bare = {name: value for name, value in environment.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    done = subprocess.run([command, *words], capture_output=True, text=True, timeout=60, env=bare)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_a_cache_without_a_place_is_a_problem(command, environment):
    problem = "kernel cache: none of TILEWISE_CACHE_DIR, XDG_CACHE_HOME and HOME is set"
    report = json.loads(without_home(command, environment, "doctor", "--json", status=1).stdout)
    assert report["problems"] == [problem]
    assert f"\nProblems\n  {problem}\n" in without_home(command, environment, "doctor", status=1).stdout


def test_a_cache_that_is_closed_to_writing_is_none_where_kernels_are_in_it(tilewise, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / ("a" * 64 + ".kernel")).write_bytes(b"no kernel")
    tmp_path.chmod(0o555)
    report = json.loads(tilewise("doctor", "--json", TILEWISE_CACHE_DIR=str(tmp_path)).stdout)
    assert report["kernel_cache"]["reason"] == f"{tmp_path}: Permission denied"
    assert report["problems"] == []


def test_a_misspelt_variable_is_told_with_what_it_was_meant_to_be(tilewise):
    text = "TILEWISE_NUM_THREAD: must be a variable that Tilewise reads; did you mean TILEWISE_NUM_THREADS? (got an"
    report = json.loads(tilewise("doctor", "--json", status=1, TILEWISE_NUM_THREAD="2").stdout)
    assert report["problems"] == [f"{text} unknown name)"]


def test_a_compiler_that_is_passed_over_is_told_beside_the_one_found(tilewise, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "c++").write_text("#!/bin/sh\necho g++ 12.2\n")
    (folder / "c++").chmod(0o755)
    folder.chmod(0o777)
    report = json.loads(tilewise("doctor", "--json", PATH=f"{folder}:{os.environ['PATH']}").stdout)
    emulation = {library["name"]: library for library in report["libraries"]}["compiler for emulation"]
    assert emulation["found"]
    assert f"(ignored: {folder}: must be writable by nobody else" in emulation["detail"]


def test_a_bundle_that_is_none_is_a_problem(tilewise, tmp_path):
    report = json.loads(tilewise("doctor", "--json", status=1, TILEWISE_BUNDLE=str(tmp_path / "absent")).stdout)
    assert report["problems"] == [f"bundle: {tmp_path / 'absent'}: can't be read"]
