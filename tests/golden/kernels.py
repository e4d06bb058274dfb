# What compilers make of a fixed list of problems on every target: registers, spills, and what the mainloop does. No
# GPU takes part.
"""Golden outputs of compiled kernels."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from compare import Entries, Entry, exactly

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from amd_isa import CodeObject, find_tool, instruction_kind, main_loop  # noqa: E402

NAME = "kernels"
TARGETS = (
    "sm_80",
    "sm_89",
    "sm_90a",
    "sm_100",
    "sm_120",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1100",
    "gfx1102",
    "gfx1151",
    "gfx1201",
    "gfx1250",
)
LONG = "dtype=bf16 seqlen_q=4096 seqlen_k=4096 num_heads_q=32"
EVERY_OPTION = (
    "window_left=256 softcap=30 alibi_slopes=[h] bias=query[b,h,q,k] sink=query dropout_p=0.1 seqused_k=1 leftpad_k=1"
)
PAGES = "page_size=16 num_pages=32768 max_pages_per_seq=512 cache_seqlens=1"
CACHE = "batch_size=1 num_heads_q=32 num_heads_k=8 head_dim=128 capacity=8192 cache_seqlens=1 mask=causal"
# The first word is what an entry is called by.
PROBLEMS = {
    "d64": f"attention_forward {LONG} head_dim=64",
    "d128-causal": f"attention_forward {LONG} head_dim=128 mask=causal",
    "d256": f"attention_forward {LONG} head_dim=256",
    "every-option": f"attention_forward {LONG} head_dim=128 mask=causal {EVERY_OPTION}",
    "decode": "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=4096 num_heads_q=32 num_heads_k=8 head_dim=128",
    "backward-d64": f"attention_backward {LONG} head_dim=64",
    "backward-d128-causal": f"attention_backward {LONG} head_dim=128 mask=causal",
    "backward-options": f"attention_backward {LONG} head_dim=128 softcap=30 bias=query[1,h,q,k]",
    "merge": "merge dtype=bf16 parts=20 head_dim_v=128 sink=f32 seqlen_q=64",
    "pages": "kv_cache_attention dtype=bf16 batch_size=64 seqlen_q=1 num_heads_q=32 num_heads_k=8 head_dim=128 "
    f"{PAGES}",
    "fp8-pages": "kv_cache_attention dtype=f16 cache_dtype=fp8_e4m3 scales=token seqlen_q=64 num_heads_q=32 "
    f"num_heads_k=8 head_dim=128 {PAGES} append=1 seqlen_k_new=64 rotary=f32 rotary_dim=64 mask=causal",
    "mla": "kv_cache_attention dtype=bf16 mla=1 batch_size=64 seqlen_q=1 num_heads_q=128 num_heads_k=1 head_dim=576 "
    "head_dim_v=512 page_size=64 num_pages=8192 max_pages_per_seq=128 cache_seqlens=1 mask=causal",
    "chunk": f"kv_cache_attention dtype=bf16 seqlen_q=512 {CACHE}",
}
HOPPER = {
    name: PROBLEMS[name]
    for name in (
        "d64",
        "d128-causal",
        "d256",
        "every-option",
        "decode",
        "backward-d64",
        "backward-d128-causal",
        "backward-options",
        "mla",
        "chunk",
    )
}
# A capacity in which keys are scheduled by lengths; the portable kernels of NVIDIA are those of "mla".
HOPPER |= {
    "mla-scheduled": "kv_cache_attention dtype=bf16 mla=1 batch_size=64 seqlen_q=1 num_heads_q=128 num_heads_k=1 "
    "head_dim=576 head_dim_v=512 page_size=64 num_pages=8192 max_pages_per_seq=512 cache_seqlens=1 mask=causal",
}
COUNTED = ("instructions", "matrix", "transcendental", "shared")


def nvdisasm() -> Path:
    """The disassembler of the package nvidia-cuda-nvdisasm, beside NVRTC's."""
    found = sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin/nvdisasm"))
    if not found:
        sys.exit("nvidia-cuda-nvdisasm: must be installed (scripts/bootstrap.sh dev)")
    return found[-1]


def nvidia_kind(name: str) -> str:
    """What an instruction of NVIDIA's is counted as."""
    if re.fullmatch(r"[HQI]G?MMA|UTC\w*MMA", name):
        return "matrix"
    if name in ("MUFU",):
        return "transcendental"
    return "shared" if name in ("LDS", "LDSM", "STS", "LDGSTS") else "other"


def nvidia_code(image: Path) -> tuple[list[str], list[str], dict[str, int]]:
    """Line by line: the kind of instruction ("" for none), where it jumps to, and which lines have labels."""
    program = nvdisasm()
    if not program.stat().st_mode & 0o100:
        program.chmod(0o755)  # a wheel may lose the mode
    text = subprocess.run([program, "-c", image], capture_output=True, text=True, check=True).stdout
    kinds, jumps, labels = [], [], {}
    for number, line in enumerate(text.splitlines()):
        kind = jump = ""
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = number
        elif code := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*(\w+)[^`]*(?:`\(([.\w]+)\))?", line):
            kind = nvidia_kind(code[1])
            jump = (code[2] or "") if code[1] == "BRA" else ""
        kinds.append(kind)
        jumps.append(jump)
    return kinds, jumps, labels


def amd_code(image: Path, target: str) -> tuple[list[str], list[str], dict[str, int]]:
    """The same of a code object."""
    code = CodeObject(image, target)
    names = {"lds": "shared", "vector": "other"}
    kinds = [instruction_kind(name) if name else "" for name in code.names]
    return [names.get(kind, kind) for kind in kinds], code.jumps, code.labels


def loop_counts(image: Path, target: str) -> dict[str, int]:
    """Of the mainloop: instructions, and how many of them are of each kind. Empty where there is no matrix product."""
    kinds, jumps, labels = nvidia_code(image) if target.startswith("sm_") else amd_code(image, target)
    loop = main_loop(jumps, labels, [kind == "matrix" for kind in kinds])
    if loop is None:
        return {}
    counts = Counter(kind for kind in kinds[loop[0] : loop[1] + 1] if kind)
    counts["instructions"] = counts.total()
    return {name: counts[name] for name in COUNTED}


def portable(target: str) -> str:
    """The implementation of a target's portable kernels: by name where dispatch may take another."""
    return "cuda.sm80" if target.startswith("sm_") else ""


def compile_problems(command: Path, target: str, problems: dict[str, str], implementation: str) -> dict[str, Entry]:
    """The kernels of problems, by their names, on one target, each under the first problem that has it."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "problems")
        listed.write_text("".join(f"{problem}\n" for problem in problems.values()), encoding="utf-8")
        words = ["compile", "--target", target, "--problems", str(listed), "--out", folder]
        if implementation:
            words += ["--implementation", implementation]
        done = subprocess.run([command, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"golden: {target}: {done.stderr}")
        report = json.loads(Path(folder, "launch.json").read_text(encoding="utf-8"))
        kernels = {kernel["file"]: kernel for kernel in report["kernels"]}
        entries: dict[str, Entry] = {}
        for name, problem in zip(problems, report["problems"]):
            asked = name if implementation == portable(target) else f"{name}/{implementation}"
            for step in problem["steps"]:
                if (kernel := kernels.pop(step.get("file"), None)) is not None:
                    key = new_key(entries, f"{target} {asked} {kernel_name(kernel['file'])}")
                    entries[key] = resources(kernel) | loop_counts(Path(folder, kernel["file"]), target)
    return entries


def kernel_name(file: str) -> str:
    """Without the number that tells it from other problems' kernels."""
    return re.sub(r"(_\d+)?\.\w+$", "", file)


def new_key(entries: Entries, key: str) -> str:
    """A problem may have two kernels of one name."""
    return key if key not in entries else f"{key} {1 + sum(other.startswith(key) for other in entries)}"


def resources(kernel: dict[str, Any]) -> dict[str, Any]:
    """What is kept of launch.json."""
    names = ("registers", "accumulation_registers", "spill_bytes", "scratch_bytes", "compiler")
    return {name: kernel[name] for name in names}


def missing_compilers(command: Path) -> dict[str, str]:
    """By the beginning of targets' names, why nothing can be compiled for them here, or not be read."""
    report = subprocess.run([command, "doctor", "--json"], capture_output=True, text=True, check=False).stdout
    libraries = {library["name"]: library for library in json.loads(report)["libraries"]}
    found = {"sm_": libraries["compiler for NVIDIA"], "gfx": libraries["compiler for AMD"]}
    missing = {prefix: library["detail"] for prefix, library in found.items() if not library["found"]}
    for name in ("llvm-objdump", "llvm-readobj"):
        if not find_tool(name):
            missing.setdefault("gfx", f"{name} of LLVM 19 or newer: not found (scripts/bootstrap.sh dev)")
    return missing


def on_hand(key: str, missing: dict[str, str]) -> bool:
    """Whether an entry could be made here."""
    return not key.startswith(tuple(missing))


def find(command: Path, missing: dict[str, str]) -> Entries:
    """Every entry that can be made here."""
    entries: dict[str, Entry] = {}
    for target in TARGETS:
        if not on_hand(target, missing):
            continue
        entries |= compile_problems(command, target, PROBLEMS, portable(target))
        if target == "sm_90a":
            entries |= compile_problems(command, target, HOPPER, "cuda.hopper")
        print(f"golden: kernels for {target}", flush=True)
    return entries


differs = exactly
