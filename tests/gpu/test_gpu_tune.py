# The command finds the quickest schedule and later programs plan with it.
"""`tilewise tune` on a GPU that has implementations with several schedules."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import tilewise

# Beside the helper that TILEWISE_COMPILER names, or in the build folder whose python/ the package is in: not resolved,
# since a build's package is links to the sources.
HELPER = os.environ.get("TILEWISE_COMPILER")
COMMAND = Path(HELPER).parent / "tilewise" if HELPER else Path(tilewise.__file__).absolute().parents[2] / "tilewise"
FORWARD = "attention_forward device=cuda dtype=bf16 batch_size=2 seqlen_q=1000 num_heads_q=4 head_dim=64"
BACKWARD = FORWARD.replace("forward", "backward")

if not COMMAND.is_file():
    pytest.skip(f"no command at {COMMAND}: TILEWISE_COMPILER names a helper beside it", allow_module_level=True)
if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)


def run(folder, *arguments):
    environment = {**os.environ, "TILEWISE_CACHE_DIR": str(folder)}
    return subprocess.run([str(COMMAND), *arguments], capture_output=True, text=True, env=environment, timeout=200)


def schedule(folder, problem):
    (row,) = (
        row for row in json.loads(run(folder, "explain", problem, "--json").stdout)["implementations"] if row["chosen"]
    )
    return row["schedule"]


@pytest.mark.parametrize("problem", [FORWARD, BACKWARD])
def test_what_was_tuned_is_planned(tmp_path, problem):
    before = schedule(tmp_path, problem)
    done = run(tmp_path, "tune", problem, "--seconds", "0.02", "--json")
    assert done.returncode == 0, done.stderr
    (tuned,) = json.loads(done.stdout)
    assert tuned["implementation"] == "cuda.hopper"
    assert len({each["schedule"] for each in tuned["schedules"]}) == len(tuned["schedules"]) > 1
    assert all(each["seconds"] > 0 for each in tuned["schedules"]), tuned
    quickest = min(tuned["schedules"], key=lambda each: each["seconds"])
    assert tuned["quickest"] == quickest["schedule"]
    (file,) = (tmp_path / "tuned").glob("*.txt") if tuned["worthwhile"] else (None,)
    assert (schedule(tmp_path, problem) != before) == tuned["worthwhile"]
    if file is not None:
        assert f"{tuned['quickest']}\tcuda.hopper {tuned['problem']}" in file.read_text()


@pytest.mark.parametrize(
    "problem",
    [
        FORWARD,
        BACKWARD,
        "attention_backward device=cuda dtype=bf16 batch_size=8 seqlen_q=1100 num_heads_q=16 head_dim=128 mask=causal "
        "window_left=300",
        "attention_backward device=cuda dtype=bf16 batch_size=8 seqlen_q=700 num_heads_q=20 head_dim=64 "
        "deterministic=1",
    ],
    ids=["forward", "backward", "window", "deterministic"],
)
def test_every_schedule_is_right(tmp_path, problem):
    (tuned,) = json.loads(run(tmp_path, "tune", problem, "--seconds", "0.01", "--dry-run", "--json").stdout)
    version = run(tmp_path, "--version").stdout.split()[-1]
    file = tmp_path / "tuned" / f"sm_90a-{torch.cuda.get_device_properties(0).multi_processor_count}.txt"
    file.parent.mkdir(mode=0o700, exist_ok=True)
    seen = set()
    for each in tuned["schedules"]:
        file.write_text(f"tilewise {version}\n{each['schedule']}\tcuda.hopper {tuned['problem']}\n")
        seen.add(schedule(tmp_path, problem))
        done = run(tmp_path, "verify", "--implementation", "cuda.hopper", "--problem", problem)
        assert done.returncode == 0, (each["schedule"], done.stdout)
    assert len(seen) > 1


def test_other_operations_are_refused(tmp_path):
    done = run(tmp_path, "tune", "merge device=cuda dtype=bf16 parts=2 seqlen_q=8 num_heads_q=2 head_dim_v=64")
    assert done.returncode == 2
    assert "PROBLEM: must be attention_forward or attention_backward on a GPU" in done.stderr
