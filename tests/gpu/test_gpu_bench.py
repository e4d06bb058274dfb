# The benchmark command from end to end on a GPU: that it measures and judges, not how fast anything is.
"""python -m tilewise.bench --device cuda."""

import csv
import subprocess
import sys

import pytest
import torch
from bench_support import CSV_COLUMNS

from tilewise.bench.gpu import CacheFlush, gpu_kind, gpu_name, l2_bytes, refusal
from tilewise.bench.gpu_contenders import TORCH_BACKENDS
from tilewise.bench.reference import REL_L2_LIMITS

SHAPES = ["2x64x4x64", "1x16/200x4/2x96"]  # the second is causal through a mask that torch knows by name


def run_bench(*arguments):
    command = [sys.executable, "-m", "tilewise.bench", "--device", "cuda", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("backward", [False, True])
def test_tiny_grid_end_to_end(backward, tmp_path):
    file = tmp_path / "out.csv"
    options = ["--shapes", ",".join(SHAPES), "--min-time", "0.001", "--csv", str(file)]
    done = run_bench(*options, *["--backward"] * backward)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kernels of 8 cases compiled or loaded in" in done.stderr
    assert ", 0 failed" in done.stderr
    assert f"{gpu_name()}: torch reaches" in done.stdout
    for words in (*SHAPES, "TFLOP/s", "of ceiling", "geometric mean of 2"):
        assert words in done.stdout
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == CSV_COLUMNS
    ours, torchs = ([row for row in rows if row["library"] == name] for name in ("tilewise", "torch"))
    assert len(ours) == len(torchs) == 2 * 2 * 2  # shapes, dtypes, masks
    for row in (*ours, *torchs):
        assert row["status"] == "ok", row
        assert (row["device"], row["gpu"]) == (gpu_kind(), gpu_name())
        assert float(row["median_us"]) >= float(row["best_us"]) > 0
        assert 0 < float(row["of_ceiling"]) < 1
        assert 0 < float(row["rel_l2_err"]) < REL_L2_LIMITS[row["dtype"]]
    assert all(row["implementation"].startswith(f"{gpu_kind()}.") for row in ours)
    assert all(row["implementation"].upper() in TORCH_BACKENDS for row in torchs)
    if not torch.version.hip:
        square = [row for row in torchs if row["seqlen_q"] == row["seqlen_k"]]
        assert {row["implementation"] for row in square} == {"flash_attention"}


def test_f32_is_refused_with_the_reason():
    done = run_bench("--dtypes", "f32")
    assert done.returncode == 2
    assert "--dtypes: must be of those that run on the GPU (got 'f32': " in done.stderr
    assert "does not support f32" in done.stderr


def test_flush_reads_more_than_the_cache_holds():
    flush = CacheFlush("cuda")
    assert flush._buffer.nbytes > 2 * l2_bytes("cuda") > 0
    flush()
    assert flush._sum.item() == 0.0


def test_kv_cache_end_to_end(tmp_path):
    file = tmp_path / "out.csv"
    options = ["--operation", "kv_cache", "--shapes", "2x1/128x8/2x64", "--min-time", "0.001", "--csv", str(file)]
    done = run_bench(*options)
    if reason := refusal(gpu_kind(), "bf16", "kv_cache_attention seqlen_q=1 head_dim=64 capacity=64"):
        assert done.returncode == 2
        assert reason in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    with file.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["library"] == "tilewise"]
    assert len(rows) == 3 * 3 * 2  # caches, page sizes, appending
    assert {row["status"] for row in rows} == {"ok"}
    assert all(float(row["tokens_per_s"]) > 0 for row in rows)
