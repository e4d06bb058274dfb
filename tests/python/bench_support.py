# Where the scripts of bench/ are, their tables, and their refusals.
"""Shared by the tests of the benchmarks."""

from pathlib import Path

import pytest

# Of every attention row that is measured, in their order.
CSV_COLUMNS = (
    *("library", "version", "implementation", "device", "gpu", "threads", "operation", "dtype", "mask", "layout"),
    *("batch_size", "seqlen_q", "seqlen_k", "num_heads_q", "num_heads_k", "head_dim", "head_dim_v"),
    *("median_us", "best_us", "gflops", "gb_per_s", "of_ceiling", "max_abs_err", "rel_l2_err", "status"),
)
BENCH = Path(__file__).resolve().parents[2] / "bench"


def cells(text, *start):
    """The cells of the one table line that starts with `start`."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    (line,) = (line for line in lines if tuple(line[: len(start)]) == start)
    return line


def data_folder(tmp_path):
    """A folder as docs/benchmarks is one: with what its page is made of, and no data yet."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "page.md.in").write_text("# Benchmarks\n\nbefore\n")
    return folder


def assert_refused(parse, capsys, argument, value):
    """parse() ends the program with a last line that names the argument, the expectation and the value."""
    with pytest.raises(SystemExit) as exit_info:
        parse()
    assert exit_info.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert argument in message
    assert "must" in message
    assert value in message
