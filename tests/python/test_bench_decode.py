"""bench/decode_gpu.py: its steps, and a run on the CPU. No timing is judged."""

from __future__ import annotations

import pytest
from bench_support import assert_refused, cells

pytest.importorskip("torch")


@pytest.fixture
def decode(bench_module):
    return bench_module("decode_gpu")


def test_lengths(decode, monkeypatch, capsys):
    assert decode.lengths("1x300+2x40") == ("1x300+2x40", (300, 40, 40))
    for text in ("300", "0x300", "1x0", "1x300+", "ax40"):
        monkeypatch.setattr("sys.argv", ["decode_gpu.py", "--device", "cpu", "--steps", text])
        assert_refused(decode.parse_arguments, capsys, "--steps", repr(text))


def test_bytes_of_a_step(decode):
    step = decode.Step("2x100", (100, 100), "fp8_token", 16, "bf16")
    assert step.traffic_bytes() == 200 * 8 * 2 * (128 + 4) + 2 * 32 * 128 * 4
    assert step.copies(step.traffic_bytes()) == 4 and step.copies(0) == 2


def test_capacity(decode, monkeypatch, capsys):
    step = decode.Step("2x40", (40, 33), "bf16", 16, "bf16", capacity=100)
    assert step.places() == 100 and decode.Step("2x40", (40, 33), "bf16", 16, "bf16", capacity=7).places() == 40
    cache, block_table = decode.make_cache(step, "cpu", 0)
    assert block_table.shape == (2, 7) and len(cache["k_cache"]) == 6  # pages of keys that are there alone
    assert sorted(block_table[block_table > 0].tolist()) == [1, 2, 3, 4, 5]
    which = ["--steps", "2x40", "--caches", "bf16", "--page-sizes", "0,16", "--capacities", "0,100"]
    monkeypatch.setattr("sys.argv", ["decode_gpu.py", "--device", "cpu", *which])
    assert decode.main() == 0
    report = capsys.readouterr().out
    for pages in ("contiguous", "16"):
        assert 0.0 < float(cells(report, "2x40", "100", "bf16", pages)[-1]) < 1e-2
        assert cells(report, "2x40", "40", "bf16", pages)


def test_a_run(decode, monkeypatch, capsys, tmp_path):
    rows = tmp_path / "rows.csv"
    which = ["--steps", "2x40,1x70+1x33", "--caches", "bf16,fp8_head,fp8_token", "--dtypes", "bf16,f16"]
    monkeypatch.setattr(
        "sys.argv", ["decode_gpu.py", "--device", "cpu", *which, "--page-sizes", "0,16", "--csv", str(rows)]
    )
    assert decode.main() == 0
    report = capsys.readouterr().out
    assert 0.0 < float(cells(report, "2x40", "40", "fp8_token", "contiguous", "f16")[-1]) < 1e-3
    assert 0.0 < float(cells(report, "1x70+1x33", "70", "bf16", "16", "bf16")[-1]) < 1e-2
    assert len(rows.read_text().splitlines()) == 1 + 3 * 5  # unequal lengths are paged alone, f16 has no bf16 cache
