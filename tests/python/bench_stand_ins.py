# flash_attn and flashinfer, a GPU and a timer, each replaced by something that the CPU and torch can do.
"""Shared by the tests of python -m tilewise.bench --device cuda."""

import math
import sys
import types

import pytest

from tilewise.bench import gpu_contenders
from tilewise.bench.shapes import Case, Shape
from tilewise.bench.timing import Timing

torch = pytest.importorskip("torch")

CHUNK = Shape(batch_size=2, seqlen_q=5, seqlen_k=12, num_heads_q=4, num_heads_k=2, head_dim=8)
DECODE = Shape(batch_size=2, seqlen_q=1, seqlen_k=32, num_heads_q=8, num_heads_k=2, head_dim=16)
SQUARE = Shape(1, 16, 16, 2, 2, 8)


def on_cuda(shape, mask="none", **options):
    """A case of a GPU in bf16."""
    return Case(shape, "bf16", mask, device="cuda", **options)


def torch_attention(q, k, v, causal):
    """bshd, bottom-right: what the stand-ins below compute."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (tensor.transpose(1, 2).float() for tensor in (q, k, v))
    scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) / math.sqrt(q.shape[3])
    if causal:
        visible = torch.ones(scores.shape[2:], dtype=torch.bool).tril(scores.shape[3] - scores.shape[2])
        scores = scores.masked_fill(~visible, -torch.inf)
    return (scores.softmax(3) @ v.repeat_interleave(group, 1)).transpose(1, 2)


class FakePrefill:
    def __init__(self, workspace, layout):
        assert (layout, workspace.dtype) == ("NHD", torch.uint8)

    def plan(self, starts_q, starts_k, heads_q, heads_k, head_dim, *, causal, q_data_type, kv_data_type):
        assert starts_q.dtype == starts_k.dtype == torch.int32
        self.batch_size, self.causal = len(starts_q) - 1, causal
        self.totals, self.heads = (int(starts_q[-1]), int(starts_k[-1])), (heads_q, heads_k, head_dim)

    def run(self, q, k, v):
        assert (q.shape[0], k.shape[0]) == self.totals
        assert (q.shape[1], k.shape[1], q.shape[2]) == self.heads
        q, k, v = (tensor.unflatten(0, (self.batch_size, -1)) for tensor in (q, k, v))
        return torch_attention(q, k, v, self.causal).to(q.dtype).flatten(0, 1).contiguous()


class FakeDecode:
    def __init__(self, workspace, layout, use_tensor_cores):
        assert use_tensor_cores

    def plan(self, starts, pages, last, heads_q, heads_k, head_dim, page_size, *, q_data_type, kv_data_type):
        self.batch_size = len(starts) - 1
        assert pages.tolist() == list(range(int(starts[-1])))
        assert last.tolist() == [page_size] * self.batch_size
        self.page = (page_size, heads_k, head_dim)

    def run(self, q, cache):
        assert cache[0].shape[1:] == self.page
        k, v = (pages.flatten(0, 1).unflatten(0, (self.batch_size, -1)) for pages in cache)
        return torch_attention(q[:, None], k, v, False).to(q.dtype)[:, 0].contiguous()


def replace_libraries(monkeypatch):
    """flash_attn and flashinfer with the signatures that are called, computing by torch on the CPU."""
    flash_attn, flashinfer = types.ModuleType("flash_attn"), types.ModuleType("flashinfer")
    flash_attn.flash_attn_func = lambda q, k, v, *, causal: torch_attention(q, k, v, causal).to(q.dtype)
    flashinfer.BatchPrefillWithRaggedKVCacheWrapper = FakePrefill
    flashinfer.BatchDecodeWithPagedKVCacheWrapper = FakeDecode
    flashinfer.__version__ = "1.2.3"
    for module in (flash_attn, flashinfer):
        module.__spec__ = types.SimpleNamespace(name=module.__name__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(gpu_contenders, "FLASHINFER_WORKSPACE_BYTES", 64)
    return flash_attn, flashinfer


def counting_timer(calls):
    """Two samples of every call, of which each takes as many microseconds as the name has letters."""
    return {name: Timing((len(name) * 1e-6,) * 2) for name, call in calls.items() if call() is not None}
