"""Continuous batching of transformers on a GPU: tokens beside its own "sdpa", steps captured in graphs and prepared
ahead, prefixes that are shared, and nothing that waits for the device or gathers keys."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers", minversion="5.23")

from serving_support import (
    FULL,
    SLIDING,
    make_model,
    make_prompts,
    regret,
    serve,
    watched_calls,
    watched_steps,
)

import tilewise.transformers  # noqa: F401  registers "tilewise"
from tilewise.transformers import paged

PLAIN = {"use_cuda_graph": False, "use_async_batching": False}
GRAPHS = {"use_cuda_graph": True, "use_async_batching": False}
AHEAD = {"use_cuda_graph": True, "use_async_batching": True}


def served(name, kind, prompts, dtype, **config):
    return serve(make_model(name, kind, dtype, "cuda"), prompts, **config)


@pytest.mark.parametrize("config", [PLAIN, GRAPHS, AHEAD, {}], ids=["plain", "graphs", "ahead", "default"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FULL + SLIDING)
def test_chooses_as_well_as_sdpa(name, dtype, config):
    prompts = make_prompts()
    ours = regret(name, prompts, served(name, "tilewise", prompts, dtype, **config), dtype, "cuda")
    expected = regret(name, prompts, served(name, "sdpa", prompts, dtype, **PLAIN), dtype, "cuda")
    assert ours <= 2 * expected + 0.05, (ours, expected)


@pytest.mark.parametrize("name", ["llama", "mistral_sliding"])
def test_graphs_make_the_tokens_of_plain_steps(name, monkeypatch):
    """Most of 40 steps and more replay what an earlier one captured, with other lengths and tables."""
    prompts = [*make_prompts(), *make_prompts((7, 33, 2))]
    long = {"new_tokens": 40, "num_blocks": 192}
    calls = watched_calls(monkeypatch)
    plain = served(name, "tilewise", prompts, torch.float16, **long, **PLAIN)
    each_step = len(calls)
    calls.clear()
    graphs = served(name, "tilewise", prompts, torch.float16, **long, **GRAPHS, q_padding_interval_size=8)
    assert len(calls) < 0.7 * each_step
    ours, expected = (regret(name, prompts, tokens, torch.float16, "cuda") for tokens in (graphs, plain))
    assert ours <= 2 * expected + 0.05


@pytest.mark.parametrize("config", [PLAIN, GRAPHS], ids=["plain", "graphs"])
def test_prefixes_are_shared(config):
    prompts = make_prompts((30, 27, 40, 21), shared=20)
    tokens = served("llama", "tilewise", prompts, torch.float16, max_requests_per_batch=1, **config)
    expected = served("llama", "sdpa", prompts, torch.float16, max_requests_per_batch=1, **PLAIN)
    ours, theirs = (regret("llama", prompts, chosen, torch.float16, "cuda") for chosen in (tokens, expected))
    assert ours <= 2 * theirs + 0.05


def test_no_step_gathers_or_waits(monkeypatch):
    """torch itself would raise where attention made the host wait for the device."""
    real = paged.attend

    def attend(*operands):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return real(*operands)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    served("llama", "tilewise", make_prompts(), torch.bfloat16, **PLAIN)  # compiles kernels, which may wait
    served("mistral_sliding", "tilewise", make_prompts(), torch.bfloat16, **PLAIN)
    monkeypatch.setattr(paged, "attend", attend)
    with watched_steps(monkeypatch) as seen:
        served("llama", "tilewise", make_prompts(), torch.bfloat16, **PLAIN)
    steps = seen.pop("steps")
    assert set(seen) == {"kv_cache_attention"} and seen["kv_cache_attention"] == 2 * steps
    with watched_steps(monkeypatch) as seen:
        served("mistral_sliding", "tilewise", make_prompts(), torch.bfloat16, **PLAIN)
    assert not any(name.startswith("waits") for name in seen)
