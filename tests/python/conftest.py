"""Fixtures of more than one file of tests."""

import importlib

import pytest
from bench_support import BENCH


@pytest.fixture
def bench_module(monkeypatch):
    """Imports a module of bench/, which is no package."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module
