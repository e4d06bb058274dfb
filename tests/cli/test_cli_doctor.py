"""`tilewise doctor`: the report in both forms, and what it says about a bad environment."""

from __future__ import annotations

import json

ISAS = ["generic", "avx2", "avx512", "avx512_bf16", "amx_bf16"]


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
