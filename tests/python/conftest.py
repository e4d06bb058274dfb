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


@pytest.fixture(scope="module")
def one_thread():
    """Tiny models gain nothing from threads, and two busy pools lose much on a busy machine."""
    torch = importlib.import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fake_libraries(monkeypatch):
    """flash_attn and flashinfer as bench_stand_ins.py has them."""
    pytest.importorskip("torch")
    return importlib.import_module("bench_stand_ins").replace_libraries(monkeypatch)


@pytest.fixture
def cpu_as_cuda(monkeypatch):
    """The benchmark's cases of "cuda" get tensors of the CPU: everything but the device itself is as on a GPU."""
    for case in ("shapes.Case", "kv_cache_cases.KvCase"):
        monkeypatch.setattr(f"tilewise.bench.{case}.torch_device", "cpu")
    yield
    importlib.import_module("tilewise").set_num_threads(0)
