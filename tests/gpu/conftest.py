# Where the GPU tests find the cases of tests/python, and the reason they skip without a GPU.
"""Configuration of the GPU tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))


def _reason() -> str:
    """Why there is nothing to run on; empty where there is."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    import tilewise

    problem = "attention_forward device={} dtype=bf16 seqlen_q=64 head_dim=64"
    rows = tilewise.explain(problem.format("hip" if torch.version.hip else "cuda")).rows
    if any(row.accepted for row in rows):
        return ""
    return "; ".join(f"{row.implementation}: {row.reason}" for row in rows if "the tensors are on" not in row.reason)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "huge: needs tens of gigabytes of GPU memory; run on its own")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := _reason():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))
