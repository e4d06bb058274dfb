"""bench/vanishing_weights.py: what it times, and that its weights do vanish. No timing is judged."""

from __future__ import annotations

import pytest
import torch

import tilewise


@pytest.fixture
def bench(bench_module):
    return bench_module("vanishing_weights")


def test_every_case_is_timed_forward_and_backward(bench, monkeypatch):
    monkeypatch.setattr(bench, "SEQLEN", 60)
    rows = list(bench.measure("cpu.generic", 1))
    assert len(rows) == len({label for label, _ in rows}) == 2 * 2 * len(bench.cases())
    assert all(ratio > 0 for _, ratio in rows)
    assert rows[0][0] == "f32 forward, mask of -100"


def test_weights_vanish(bench):
    torch.manual_seed(0)
    q, k = (torch.randn(1, bench.SEQLEN, bench.NUM_HEADS, bench.HEAD_DIM) for _ in range(2))
    v = torch.eye(bench.SEQLEN)[None, :, None].repeat(1, 1, bench.NUM_HEADS, 1)

    def vanishing(options):
        weights = tilewise.attention(q, k, v, implementation="cpu.generic", **options)
        return (weights == 0).float().mean().item()

    for name, (options, plain) in bench.cases().items():
        assert vanishing(plain) == 0
        assert vanishing(options) > 0.05, name
