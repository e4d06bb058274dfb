"""What `make golden` calls moved, without making anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import compare
import kernels
import model
import pytest
import results
import torch

KERNEL = {"registers": 128, "spill_bytes": 0}
RESULT = {"out": ["aa", 1e-3], "dq": ["bb", 1e-3]}
MODEL = {"tokens": [1, 2, 3], "logits": {"7": 20.0}}


def always(key: str) -> bool:
    return True


def lines(known: dict[str, Any], found: dict[str, Any], differs: compare.Difference) -> list[str]:
    return compare.moved(known, found, always, differs)


def test_what_is_the_same_did_not_move() -> None:
    for entry, module in ((KERNEL, kernels), (RESULT, results), (MODEL, model)):
        assert lines({"a b c": entry}, {"a b c": dict(entry)}, module.differs) == []


@pytest.mark.parametrize(
    ("module", "key", "before", "change", "words"),
    [
        (kernels, "gfx942 d64 forward", KERNEL, {"registers": 132}, "registers 128 -> 132"),
        (kernels, "gfx942 d64 forward", KERNEL, {"spill_bytes": None}, "spill_bytes 0 -> None"),
        (results, "full bf16 cpu.avx2", RESULT, {"out": ["ab", 2e-3]}, "out has other bits (error 0.001 -> 0.002)"),
        (results, "full bf16 cpu.avx2", RESULT, {"dq": ["ab", 1e-3]}, "dq has other bits (error 0.001 -> 0.001)"),
        (results, "dropout bf16 cuda.sm80", RESULT, {"dq": ["ab", 1e-3]}, ""),
        (results, "dropout bf16 cuda.sm80", RESULT, {"dq": ["ab", 2e-3]}, "dq is less exact: error 0.001 -> 0.002"),
        (results, "dropout bf16 cuda.sm80", RESULT, {"out": ["ab", 1e-3]}, "out has other bits"),
        (model, "letter", MODEL, {"tokens": [1, 5, 6]}, "tokens from the 2th on: [2, 3] -> [5, 6]"),
        (model, "letter", MODEL, {"logits": {"7": 20.001}}, ""),
        (model, "letter", MODEL, {"logits": {"7": 20.01}}, "logits differ by 0.01"),
        (model, "letter", MODEL, {"logits": {"8": 20.0}}, "the highest logits are others"),
    ],
)
def test_what_moved_is_told(module: Any, key: str, before: dict[str, Any], change: dict[str, Any], words: str) -> None:
    found = lines({key: before}, {key: before | change}, module.differs)
    assert len(found) == bool(words)
    assert all(line.startswith(f"{key}: {words}") for line in found)


def test_entries_come_and_go() -> None:
    assert lines({"old": KERNEL}, {"new": KERNEL}, kernels.differs) == ["new: new", "old: gone"]


def test_what_is_not_on_hand_is_passed_over_and_kept() -> None:
    missing = {"gfx": "no clang"}

    def on_hand(key: str) -> bool:
        return kernels.on_hand(key, missing)

    known = {"gfx942 d64 forward": KERNEL, "sm_80 d64 forward": KERNEL}
    assert compare.moved(known, {}, on_hand, kernels.differs) == ["sm_80 d64 forward: gone"]
    assert compare.merged(known, {}, on_hand) == {"gfx942 d64 forward": KERNEL}
    found = {"full bf16 cpu.avx2": RESULT}
    assert results.on_hand("causal f32 cpu.avx2", found)
    assert not results.on_hand("causal f32 cpu.amx_bf16", found)


def test_each_gpu_has_entries_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that this machine has not got is played by calls that take place on the CPU, and by its name."""
    calls = results.outputs

    def played(case: str, dtype: str, implementation: str, device: str) -> dict[str, torch.Tensor] | None:
        if device == "cuda":
            return calls(case, dtype, "reference", "cpu") if implementation == "cuda.sm80" else None
        return calls(case, dtype, implementation, device)

    monkeypatch.setattr(results, "outputs", played)
    monkeypatch.setattr(results, "devices", lambda: ["cpu", "cuda"])
    monkeypatch.setattr(results, "implementations", lambda case: ["reference", "cuda.sm80"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    found = dict(results.entries_of("decode", "f32"))
    assert found.keys() == {"decode f32 reference", "decode f32 cuda.sm80@NVIDIA_H200"}
    gpu = found["decode f32 cuda.sm80@NVIDIA_H200"]
    assert gpu["out"][1] == 0.0
    known = dict(found) | {"decode f32 cuda.sm80@NVIDIA_A100": gpu, "full f32 cuda.sm80@NVIDIA_H200": gpu}

    def on_hand(key: str) -> bool:
        return results.on_hand(key, found)

    assert compare.moved(known, found, on_hand, results.differs) == ["full f32 cuda.sm80@NVIDIA_H200: gone"]
    assert compare.merged(known, found, on_hand) == dict(found) | {"decode f32 cuda.sm80@NVIDIA_A100": gpu}


def test_files_hold_an_entry_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "FOLDER", tmp_path)
    assert compare.read("x") == {}
    compare.write("x", {"b": KERNEL, "a": {"registers": 1}})
    assert compare.read("x") == {"a": {"registers": 1}, "b": KERNEL}
    assert len((tmp_path / "x.json").read_text().splitlines()) == 4


def test_every_target_has_every_problem() -> None:
    known = {tuple(key.split()[:2]) for key in compare.read(kernels.NAME)}
    assert known >= {(target, problem) for target in kernels.TARGETS for problem in kernels.PROBLEMS}
    assert {key.split()[0] for key in compare.read(results.NAME)} == set(results.CASES)
    assert compare.read(model.NAME).keys() == model.PROMPTS.keys()


def test_targets_are_those_of_the_sweep() -> None:
    text = (kernels.ROOT / "tests" / "portable" / "register_problems.hpp").read_text(encoding="utf-8")
    swept = re.search(r"kSweptArchitectures\[\] = \{(.*?)\};", text, re.DOTALL)
    assert swept
    assert re.findall(r'"(\w+)"', swept[1]) == list(kernels.TARGETS)


def test_an_old_disassembler_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian 12's llvm-objdump, of LLVM 14, knows no AMD GPU of today."""
    monkeypatch.setenv("PATH", str(tmp_path))
    libraries = [{"name": f"compiler for {name}", "found": True} for name in ("NVIDIA", "AMD")]
    command = tmp_path / "tilewise"
    command.write_text(f"#!/bin/sh\necho '{json.dumps({'libraries': libraries})}'\n")
    command.chmod(0o755)
    for version, prefixes in ((14, {"gfx"}), (19, set())):
        for name in ("llvm-objdump", "llvm-readobj"):
            (tmp_path / name).write_text(f"#!/bin/sh\necho '  Debian LLVM version {version}.0.6'\n")
            (tmp_path / name).chmod(0o755)
        assert set(kernels.missing_compilers(command)) == prefixes


def test_main_loop_of_nvidia_is_the_one_with_the_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = [
        ".L_x_1:",
        "        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;",
        "        /*0020*/              @!P0 BRA `(.L_x_1) ;",
        ".L_x_2:",
        "        /*0030*/                   LDSM.16.M88.4 R8, [R2] ;",
        "        /*0040*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;",
        "        /*0050*/              @!P1 BRA `(.L_x_3) ;",
        "        /*0060*/                   MUFU.EX2 R4, R5 ;",
        ".L_x_3:",
        "        /*0070*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;",
        "        /*0080*/               @P0 BRA `(.L_x_2) ;",
        "        /*0090*/                   EXIT ;",
    ]
    program = tmp_path / "nvdisasm"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(listing) + "\nEND\n")
    monkeypatch.setattr(kernels, "nvdisasm", lambda: program)
    counts = kernels.loop_counts(tmp_path / "image", "sm_90a")
    assert counts == {"instructions": 6, "matrix": 2, "transcendental": 1, "shared": 1}
