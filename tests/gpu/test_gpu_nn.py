# tilewise.nn.FlashAttention on a GPU, and the example that trains a model with it there.
"""The torch module on a GPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_support import qkv

import tilewise
import tilewise.nn

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_bert.py"
GPT = EXAMPLE.with_name("train_gpt.py")


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_it_is_attention(dropout):
    tensors = [tensor.requires_grad_() for tensor in qkv((2, 70, 4, 64))]
    module = tilewise.nn.FlashAttention(0.2, dropout)
    results = []
    for call in (
        lambda: module(*tensors, causal=True),
        lambda: tilewise.attention(*tensors, mask="causal", softmax_scale=0.2, dropout_p=dropout),
    ):
        torch.manual_seed(3)
        out = call()
        results.append((out, *torch.autograd.grad(out, tensors[1:], torch.ones_like(out))))
    assert all(map(torch.equal, *results))


def test_the_example_trains_alike_with_both():
    command = [sys.executable, str(EXAMPLE), "--device", "cuda", "--layers", "2", "--batch-size", "4", "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pattern = r"^(tilewise|sdpa) +[\d.]+ samples/s +(\d+) MiB at most +loss ([\d.]+) to ([\d.]+)$"
    rows = re.findall(pattern, done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["tilewise", "sdpa"]
    for mine, torchs in zip(rows[0][2:], rows[1][2:]):
        assert abs(float(mine) - float(torchs)) < 0.05
    assert float(rows[0][1]) < 1.1 * float(rows[1][1])


def test_a_gpt_trains_alike_with_cudnn():
    options = ["--attention", "cudnn,tilewise", "--width", "256", "--heads", "2", "--seqlen", "1024", "--layers", "2"]
    command = [sys.executable, str(GPT), "--device", "cuda", "--batch-size", "4", "--steps", "20", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pattern = r"^(tilewise|cudnn) .* loss ([\d.]+) to ([\d.]+), at most ([\d.]+)% from cudnn's$"
    rows = re.findall(pattern, done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["cudnn", "tilewise"]
    assert float(rows[1][3]) < 1.0
    assert float(rows[1][2]) < float(rows[1][1])
