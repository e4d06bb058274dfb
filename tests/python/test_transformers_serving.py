"""Continuous batching of transformers (generate_batch) under "tilewise": tiny random models make the tokens that they
make under "sdpa", keys are read and written where they lie, and what cannot be served is refused by name."""

from __future__ import annotations

import importlib
import os
import runpy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.23")

from serving_support import (  # noqa: E402
    CONFIGS,
    FULL,
    OTHERS,
    SLIDING,
    WINDOW,
    make_model,
    make_prompts,
    regret,
    serve,
    watched_calls,
    watched_steps,
)
from transformers import CompileConfig  # noqa: E402
from transformers.generation.continuous_batching import PagedAttentionCache, initialization  # noqa: E402
from transformers.generation.continuous_batching import cache as cache_module  # noqa: E402
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs  # noqa: E402
from transformers.generation.continuous_batching.model_runner import ModelRunner  # noqa: E402

import tilewise  # noqa: E402
import tilewise.transformers as hook  # noqa: E402
from tilewise.transformers import paged, serving  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(
        transformers.__version__.rpartition(".")[0] not in serving._KNOWN_VERSIONS,
        reason="this version's continuous batching is refused, as test_transformers.py finds",
    ),
]


def padded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of fixed sizes, as a captured graph needs them: tokens, sequences and keys are followed by padding."""
    initialize = ModelRunner.__init__

    def padding(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        self.pad_inputs = True

    monkeypatch.setattr(ModelRunner, "__init__", padding)


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("name", FULL + SLIDING)
def test_tokens_are_those_of_sdpa(name: str, page_size: int) -> None:
    """A prompt of 41 tokens in chunks of at most 24, beside others that decode meanwhile."""
    ours, expected = (
        serve(make_model(name, kind), make_prompts(), page_size=page_size) for kind in ("tilewise", "sdpa")
    )
    assert ours == expected
    assert len({tuple(tokens) for tokens in ours}) == len(ours)


@pytest.mark.parametrize("name", OTHERS)
def test_tokens_of_other_architectures(name: str) -> None:
    prompts = make_prompts((5, 17, 30))
    ours, expected = (serve(make_model(name, kind), prompts) for kind in ("tilewise", "sdpa"))
    assert ours == expected


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_softcap_and_sinks(name: str) -> None:
    """Neither "sdpa" nor "paged|eager" knows both: against generation of each prompt by itself."""
    prompts = make_prompts((5, 30, 11))
    model = make_model(name, "eager")
    settings = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": -1}
    alone = [model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist() for prompt in prompts]
    assert serve(make_model(name, "tilewise"), prompts) == alone


@pytest.mark.parametrize("name", ["llama", "qwen2_sliding"])
def test_bf16_chooses_as_well_as_sdpa(name: str) -> None:
    prompts, dtype = make_prompts(), torch.bfloat16
    ours, expected = (
        regret(name, prompts, serve(make_model(name, kind, dtype), prompts), dtype, "cpu")
        for kind in ("tilewise", "sdpa")
    )
    assert ours <= 2 * expected + 0.05, (ours, expected)


@pytest.mark.parametrize("name", ["llama", "mistral_sliding"])
def test_sizes_padded_for_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    padded_steps(monkeypatch)
    config = {"q_padding_interval_size": 8, "kv_padding_interval_size": 32, "max_requests_per_batch": 8}
    padding = Counter[str]()

    def attend(real: Any) -> Any:
        def call(*tensors: Any, **given: Any) -> Any:
            out = real(*tensors, **given)
            if given.get("cu_seqlens_q") is None:
                padding["absent sequences"] += int((given["cache_seqlens"] < 0).sum())
            else:
                rows = int(given["cu_seqlens_q"][-1])
                padding["rows"] += len(out) - rows
                assert (out[rows:] == 0).all()
            return out

        return call

    for function in ("attention", "kv_cache_attention"):
        monkeypatch.setattr(tilewise, function, attend(getattr(tilewise, function)))
    ours = serve(make_model(name, "tilewise"), make_prompts(), **config)
    assert ours == serve(make_model(name, "sdpa"), make_prompts(), **config)
    # Of sliding layers, graphs that serve chunks serve single tokens too.
    assert padding["rows"] > 0 and (padding["absent sequences"] > 0) == (name == "llama")


@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("name", ["llama", "mistral_sliding"])
def test_kernels_of_gpus(name: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under emulation, which watches over every access to the pages, and over padding that no sequence has."""
    prompts, config = make_prompts((5, 17, 1, 30)), {}
    if padded:
        padded_steps(monkeypatch)
        config = {"q_padding_interval_size": 8, "kv_padding_interval_size": 32, "max_requests_per_batch": 8}
    monkeypatch.setenv("TILEWISE_FORCE", "emulation.sm80")
    calls = watched_calls(monkeypatch)
    tokens = serve(make_model(name, "tilewise", torch.bfloat16), prompts, new_tokens=5, **config)
    monkeypatch.delenv("TILEWISE_FORCE")
    expected = serve(make_model(name, "sdpa", torch.bfloat16), prompts, new_tokens=5)
    ours, theirs = (regret(name, prompts, chosen, torch.bfloat16, "cpu") for chosen in (tokens, expected))
    assert calls and ours <= 2 * theirs + 0.05


def test_prefixes_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = []
    search = PagedAttentionCache.search_prefix_match

    def watched(self: Any, *args: Any) -> int:
        matches.append(search(self, *args))
        return matches[-1]

    monkeypatch.setattr(PagedAttentionCache, "search_prefix_match", watched)
    prompts = make_prompts((30, 27, 40, 21), shared=20)
    # One request at a time, so that the first one's pages are there for the others.
    ours, expected = (
        serve(make_model("llama", kind), prompts, max_requests_per_batch=1) for kind in ("tilewise", "sdpa")
    )
    assert ours == expected
    assert matches[: len(matches) // 2] == matches[len(matches) // 2 :] and matches.count(20) == 6


@pytest.mark.parametrize(("kind", "expected"), [("tilewise", ["wait default", "transfer"]), ("sdpa", ["transfer"])])
def test_batches_ahead_wait_for_what_fills_their_tensors(
    kind: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers itself orders a batch's copies before its kernels alone. Streams are a GPU's, hence these."""
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"default of {device}")
    filled = SimpleNamespace(
        config=SimpleNamespace(_attn_implementation=kind), device="cuda:1", get_model_kwargs=lambda use_padding: {}
    )
    pair = SimpleNamespace(device_io=filled, h2d_over=None, transfer_inputs_h2d=lambda stream: seen.append("transfer"))
    waits = {"default of cuda:1": "wait default"}
    inputs: Any = ContinuousBatchingAsyncIOs.__new__(ContinuousBatchingAsyncIOs)
    inputs.io_pairs, inputs.current_pair = [pair], 0
    inputs.h2d_stream = SimpleNamespace(
        wait_stream=lambda stream: seen.append(waits[stream]), record_event=lambda event: None
    )
    inputs.compute_stream = SimpleNamespace(wait_event=lambda event: None)
    assert inputs.get_model_kwargs() == {}
    assert seen == expected


def test_copies_of_a_request() -> None:
    """Shared and copied pages: the children of a request go on where it was."""
    ours, expected = (
        serve(make_model("qwen3", kind), make_prompts((9, 14)), copies=3) for kind in ("tilewise", "sdpa")
    )
    assert ours == expected


def test_full_layers_gather_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but Tilewise touches the cache, and no step waits for the device, from the first chunk to the last."""
    with watched_steps(monkeypatch) as seen:
        serve(make_model("llama", "tilewise"), make_prompts())
    steps = seen.pop("steps")
    assert steps > 9
    assert set(seen) == {"kv_cache_attention"} and seen["kv_cache_attention"] == 2 * steps
    with watched_steps(monkeypatch) as seen:
        serve(make_model("llama", "sdpa"), make_prompts())
    assert seen["updates"] > 0 and seen["index_select"] > 0, "the count sees gathers"


def test_rings_gather_for_chunks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched_steps(monkeypatch) as seen:
        serve(make_model("mistral_sliding", "tilewise"), make_prompts())
    steps, chunks = seen["steps"], seen["updates"] // 2
    assert 0 < chunks < steps
    assert seen["append_kv"] == seen["kv_cache_attention"] == 2 * (steps - chunks)
    assert not any(name.startswith("waits") for name in seen)


@pytest.mark.parametrize("window_pages", [4, 16])
def test_rings_larger_and_smaller_than_a_page(window_pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sequence decodes past its window of 6, in rings of two pages, the last of them half in use, and of one."""
    calls = watched_calls(monkeypatch)
    prompts = make_prompts((1, 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW))
    settings = {"page_size": window_pages, "new_tokens": 2 * WINDOW + 2}
    ours, expected = (serve(make_model("mistral_sliding", kind), prompts, **settings) for kind in ("tilewise", "sdpa"))
    assert ours == expected
    tables = [given["block_table"] for name, given in calls if name == "kv_cache_attention"]
    assert {table.shape[1] for table in tables} == {-(-WINDOW // window_pages)}


def test_rings_without_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model need not hand positions on to its attention, which says where in its ring a token lies."""
    attend = paged.attend

    def without(*operands: Any) -> Any:
        del operands[-1]["position_ids"]
        return attend(*operands)

    monkeypatch.setattr(paged, "attend", without)
    calls = watched_calls(monkeypatch)
    ours = serve(make_model("mistral_sliding", "tilewise"), make_prompts())
    assert ours == serve(make_model("mistral_sliding", "sdpa"), make_prompts())
    assert {name for name, _ in calls} == {"attention"}


def test_each_token_of_a_batch_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one token each are a batch with a table that transformers made; no index of each token is needed."""
    calls = watched_calls(monkeypatch)
    serve(make_model("llama", "tilewise"), make_prompts((5, 6)), new_tokens=9)
    plain = [given for _, given in calls if set(given) == {"cache_seqlens", "block_table", "softmax_scale", "mask"}]
    assert len(calls) == 18 and len(plain) == 16
    tables = [given["block_table"] for given in plain]
    assert all(table.dtype == torch.int32 for table in tables)
    assert len({table.data_ptr() for table in tables[::2]}) <= 8 and tables[0] is tables[1], "built once a step"


@pytest.mark.parametrize(("kind", "masks", "tables"), [("tilewise", 0, True), ("sdpa", 1, False)])
def test_what_the_manager_decides(kind: str, masks: int, tables: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is set aside for masks, and requests of one token each have tables on a CPU too."""
    handlers = []
    handler = cache_module.PagedAttentionMemoryHandler
    initialize = handler.__init__

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        handlers.append(self)

    monkeypatch.setattr(handler, "__init__", watched)
    model = make_model("llama", kind)
    serve(model, make_prompts((5,)))
    assert [(found.num_attention_masks, found.max_blocks_per_request > 0) for found in handlers] == [(masks, tables)]
    # Graphs and batches prepared ahead go by this, where there is a device for them.
    assert initialization.is_flash_attention_requested(model.config) == (kind == "tilewise")
    assert not initialization.is_flash_attention_requested(model.config, version=[2, 3])


def test_lengths_beyond_the_table() -> None:
    """Sequences longer than max_blocks_per_request decode by the index of each token."""
    config = {"max_blocks_per_request": 2}
    ours, expected = (serve(make_model("qwen2", kind), make_prompts(), **config) for kind in ("tilewise", "sdpa"))
    assert ours == expected


def test_compiled() -> None:
    compiled = CompileConfig(backend="eager", mode=None, fullgraph=False)
    model, prompts = make_model("llama", "tilewise"), make_prompts((5,))
    settings: dict[str, Any] = {"new_tokens": 3, "max_requests_per_batch": 1}
    assert serve(model, prompts, **settings, decode_compile_config=compiled) == serve(model, prompts, **settings)


def test_the_implementation_stays_and_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = watched_calls(monkeypatch)
    model = make_model("llama", "tilewise")
    serve(model, make_prompts((5,)))
    assert calls and model.config._attn_implementation == "tilewise"
    calls.clear()
    serve(make_model("llama", "sdpa"), make_prompts((5,)))
    model.set_attn_implementation("eager")
    serve(model, make_prompts((5,)))
    assert not calls


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama", "tilewise")
    monkeypatch.setattr(importlib.import_module("transformers"), "__version__", "5.99.1")
    words = (
        r"attn_implementation: continuous batching with 'tilewise' is known for transformers 5\.23\.x, 5\.24\.x "
        r"\(got 5\.99\.1\)"
    )
    with pytest.raises(NotImplementedError, match=words):
        serve(model, [[5, 6]])
    with pytest.raises(NotImplementedError, match=words):
        call(PagedAttentionCache.__new__(PagedAttentionCache))
    serve(make_model("llama", "sdpa"), make_prompts((5,)))


def call(cache: Any, **keywords: Any) -> Any:
    q = torch.zeros(1, 4, 5, 8)
    return hook.attention_forward(torch.nn.Module(), q, q, q, None, cache=cache, **keywords)


@pytest.mark.parametrize("keyword", ["output_attentions", "position_bias", "dropout", "indices"])
def test_what_cannot_be_served_is_refused(keyword: str) -> None:
    cache = PagedAttentionCache.__new__(PagedAttentionCache)
    with pytest.raises(NotImplementedError, match=f"{keyword}: .*tilewise"):
        call(cache, **{keyword: 0.5})


@pytest.mark.parametrize("keyword", ["read_index", "write_index", "block_table", "k_cache"])
def test_a_step_without_its_cache_is_refused(keyword: str) -> None:
    """As one of an unknown version would come, whose keys may be gathered already, or not."""
    lengths = torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=f"{keyword}: tables of pages go with continuous batching's cache"):
        call(None, **{keyword: [torch.zeros(5)]}, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)


def test_registering_twice_is_harmless() -> None:
    from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs

    before = ContinuousBatchingIOs.get_model_kwargs, PagedAttentionCache.update
    hook.register()
    assert (ContinuousBatchingIOs.get_model_kwargs, PagedAttentionCache.update) == before


def test_the_command_takes_the_name() -> None:
    """`transformers serve` checks the name against a list of its own before it loads a model."""
    manager = pytest.importorskip("transformers.cli.serving.model_manager").ModelManager
    with pytest.raises(ValueError, match="Unsupported attention implementation: 'tilewise'"):
        manager(device="cpu", attn_implementation="tilewise", continuous_batching=True)
    before = manager._validate_args
    try:
        serving.install_command_line()
        serving.install_command_line()
        assert manager(device="cpu", attn_implementation="tilewise").attn_implementation == "tilewise"
        with pytest.raises(ValueError, match="Unsupported attention implementation: 'tile'"):
            manager(device="cpu", attn_implementation="tile")
    finally:
        manager._validate_args = before


def test_the_command_is_transformers_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    manager = pytest.importorskip("transformers.cli.serving.model_manager").ModelManager
    monkeypatch.setattr(manager, "_validate_args", manager._validate_args)  # put back after the test
    monkeypatch.setattr("sys.argv", ["tilewise.transformers", "version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("tilewise.transformers", run_name="__main__")
    assert not end.value.code and transformers.__version__ in capsys.readouterr().out
    assert hasattr(manager._validate_args, "__wrapped__")


def test_every_config_is_served() -> None:
    assert set(CONFIGS) == {*FULL, *SLIDING, *OTHERS, "gemma2", "gpt_oss"}
