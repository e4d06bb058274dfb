# Where the GPU tests find the cases of tests/python, and the reason they skip without a GPU.
"""Configuration of the GPU tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))


def _reason() -> str:
    """Why there is nothing to run on; empty where there is."""
    from tilewise.bench.gpu import gpu_kind, refusal

    return refusal(gpu_kind())


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "huge: needs tens of gigabytes of GPU memory; run on its own")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := _reason():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))
