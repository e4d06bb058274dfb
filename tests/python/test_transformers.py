"""The transformers hook against "sdpa" (or "eager" where sdpa lacks a feature) on tiny random models:
prefill, gradients, generation with a cache, and every mask it turns into native arguments."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402

import tilewise  # noqa: E402
import tilewise.transformers as hook  # noqa: E402
from tilewise.transformers import forward  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 97
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
DECODER = {**TINY, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": None}
WINDOW = 6

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**DECODER),
    "qwen2": lambda: transformers.Qwen2Config(**DECODER),
    "qwen2_sliding": lambda: transformers.Qwen2Config(
        **DECODER, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**DECODER, head_dim=24),
    "mistral_sliding": lambda: transformers.MistralConfig(**DECODER, head_dim=12, sliding_window=WINDOW),
    "bert": lambda: transformers.BertConfig(**TINY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "modernbert": lambda: transformers.ModernBertConfig(
        **TINY, local_attention=WINDOW, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2, bos_token_id=1,
        eos_token_id=2,
    ),
    # What sdpa cannot do: softcap and sinks.
    "gemma2": lambda: transformers.Gemma2Config(
        **DECODER, head_dim=12, sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=12
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **DECODER, head_dim=12, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=1
    ),
}  # fmt: skip
ENCODERS = ("bert", "modernbert")
EAGER_ONLY = ("gemma2", "gpt_oss")
GENERATORS = tuple(name for name in CONFIGS if name not in ENCODERS)


def make_model(name: str, implementation: str) -> Any:
    """The same random weights for every implementation, spread wide enough for sharp attention."""
    torch.manual_seed(0)
    config = CONFIGS[name]()
    auto = transformers.AutoModelForMaskedLM if name in ENCODERS else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=implementation, dtype=torch.float32).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim > 1 or "sinks" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def make_pair(name: str) -> tuple[Any, Any]:
    return make_model(name, "tilewise"), make_model(name, "eager" if name in EAGER_ONLY else "sdpa")


def make_batch(padding: str, length: int = 13, batch_size: int = 3) -> dict[str, torch.Tensor]:
    """Token ids and the 0/1 mask of sequences padded on the given side ("none" pads nothing)."""
    ids = torch.randint(3, VOCABULARY, (batch_size, length), generator=torch.Generator().manual_seed(1))
    visible = torch.ones(batch_size, length, dtype=torch.int64)
    for row in range(batch_size):
        if padding == "left":
            visible[row, : 2 * row] = 0
        elif padding == "right" and row:
            visible[row, -2 * row :] = 0
        elif padding == "holes":
            visible[row, 3 : 3 + row] = 0
    return {"input_ids": ids * visible, "attention_mask": visible}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Keyword arguments of every call of tilewise.attention that follows."""
    seen: list[dict[str, Any]] = []
    real = tilewise.attention

    def attention(*tensors: Any, **keywords: Any) -> Any:
        seen.append(keywords)
        return real(*tensors, **keywords)

    monkeypatch.setattr(tilewise, "attention", attention)
    return seen


@pytest.mark.parametrize("padding", ["none", "left", "right", "holes"])
@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_logits(name: str, padding: str, calls: list[dict[str, Any]]) -> None:
    model, expected_model = make_pair(name)
    batch = make_batch(padding)
    with torch.no_grad():
        logits, expected = model(**batch).logits, expected_model(**batch).logits
    assert len(calls) == TINY["num_hidden_layers"]
    if padding != "holes":
        assert all(call.get("bias") is None for call in calls), "this mask has native arguments"
    visible = batch["attention_mask"].bool()
    torch.testing.assert_close(logits[visible], expected[visible], rtol=2e-4, atol=2e-4)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_training_step_gradients(name: str, padding: str) -> None:
    gradients = []
    for model in make_pair(name):
        model.train()
        batch = make_batch(padding)
        # A token counts where it and the one it is predicted from are real: padding's own output has no meaning.
        visible = batch["attention_mask"].bool()
        labels = batch["input_ids"].masked_fill(~(visible & visible.roll(1, dims=1)), -100)
        model(**batch, labels=labels).loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    ours, expected = gradients
    assert ours.keys() == expected.keys() and ours
    for parameter_name, gradient in expected.items():
        torch.testing.assert_close(
            ours[parameter_name], gradient, rtol=1e-3, atol=1e-5, msg=lambda m, n=parameter_name: f"{n}: {m}"
        )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", GENERATORS)
def test_batched_generation(name: str, padding: str, cache: str, calls: list[dict[str, Any]]) -> None:
    settings: dict[str, Any] = {
        "max_new_tokens": 9,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    if cache == "static":
        settings["cache_implementation"] = "static"
    ours, expected = (model.generate(**make_batch(padding), **settings) for model in make_pair(name))
    assert ours.sequences.shape[1] == 13 + 9
    assert torch.equal(ours.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(expected.logits), rtol=1e-3, atol=1e-3)
    if cache == "dynamic":
        assert all(call.get("bias") is None for call in calls), "every step has native arguments"
        if padding == "left":
            assert any(call.get("leftpad_k") is not None for call in calls)


def test_cache_continues_over_a_second_prompt() -> None:
    """Chunked prefill: several queries on a filled cache, causal from the bottom right."""
    model, expected_model = make_pair("mistral_sliding")
    ids = make_batch("none", length=20)["input_ids"]
    with torch.no_grad():
        cache = model(ids[:, :9], use_cache=True).past_key_values
        logits = model(ids[:, 9:], past_key_values=cache).logits
        expected = expected_model(ids).logits[:, 9:]
    torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def visible_positions(mask: hook.LazyMask) -> torch.Tensor:
    """What tilewise.attention lets through: with equal scores and one-hot values, out > 0 where visible."""
    batch_size, _, q_length, kv_length = mask.shape
    q, k = torch.zeros(batch_size, q_length, 1, 8), torch.zeros(batch_size, kv_length, 1, 8)
    v = torch.eye(kv_length)[None, :, None, :].repeat(batch_size, 1, 1, 1)
    return tilewise.attention(q, k, v, **mask.arguments).transpose(1, 2) > 0


PATTERNS = {
    "causal": (masking_utils.causal_mask_function, None),
    "sliding": (masking_utils.sliding_window_causal_mask_function(3), 3),
    "sliding_one": (masking_utils.sliding_window_causal_mask_function(1), 1),
    "bidirectional": (masking_utils.bidirectional_mask_function, None),
    "bidirectional_sliding": (masking_utils.sliding_window_bidirectional_mask_function(2), 2),
}
# (first, past last) token of each of two sequences, on a sequence of seven keys.
PADDINGS = {
    "none": None,
    "left": [(0, 7), (3, 7)],
    "right": [(0, 7), (0, 4)],
    "both": [(0, 7), (2, 5)],
    "unfilled cache": [(0, 5), (0, 5)],
    "left and unfilled": [(1, 5), (3, 5)],
    "all padding": [(0, 7), (0, 0)],
}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_native_arguments_mean_the_mask(pattern: str, padding: str) -> None:
    function, local_size = PATTERNS[pattern]
    rows = PADDINGS[padding]
    padding_mask = None
    if rows is not None:
        padding_mask = torch.tensor([[begin <= j < end for j in range(7)] for begin, end in rows])
    native = 0
    for q_length, q_offset, kv_offset in itertools.product((1, 3, 7), (0, 2, 4, 6), (0, 1, 2)):
        arguments = {
            "batch_size": 2,
            "q_length": q_length,
            "kv_length": 7 - kv_offset,
            "q_offset": q_offset,
            "kv_offset": kv_offset,
            "mask_function": function,
            "attention_mask": padding_mask,
            "local_size": local_size,
        }
        expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
        mask = hook.attention_mask(**arguments, allow_is_bidirectional_skip=True)
        if isinstance(mask, hook.LazyMask):
            native += 1
            assert mask.shape == expected.shape
            assert torch.equal(visible_positions(mask), expected), mask
        assert torch.equal(mask & True, expected)
    assert native > 0


def test_usual_masks_are_native() -> None:
    def arguments_of(**keywords: Any) -> dict[str, Any]:
        mask = hook.attention_mask(batch_size=2, **keywords)
        assert isinstance(mask, hook.LazyMask)
        return mask.arguments

    assert arguments_of(q_length=7, kv_length=7) == {"mask": "causal", "window": (-1, -1)}
    assert arguments_of(q_length=1, kv_length=7, q_offset=6) == {"window": (-1, -1)}
    sliding = masking_utils.sliding_window_causal_mask_function(4)
    assert arguments_of(q_length=7, kv_length=7, mask_function=sliding) == {"mask": "causal", "window": (3, -1)}
    assert arguments_of(q_length=3, kv_length=3, mask_function=sliding) == {"mask": "causal", "window": (-1, -1)}
    # A static cache of 7 with two tokens in it and three to come.
    static = arguments_of(q_length=3, kv_length=7, q_offset=torch.tensor(2))
    assert static["mask"] == "causal" and static["seqused_k"].tolist() == [5, 5]


def test_foreign_mask_functions_become_arrays() -> None:
    chunked = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64))
    mask = hook.attention_mask(batch_size=2, q_length=7, kv_length=7, mask_function=chunked)
    assert isinstance(mask, hook.LazyMask) and mask.arguments.keys() == {"bias"}
    expected = masking_utils.sdpa_mask(2, 7, 7, mask_function=chunked, allow_is_causal_skip=False)
    assert torch.equal(mask.arguments["bias"], expected) and torch.equal(mask, expected)
    asked_for = hook.attention_mask(batch_size=2, q_length=7, kv_length=7, allow_is_causal_skip=False)
    assert not isinstance(asked_for, hook.LazyMask)


def test_lazy_mask_behaves_like_an_array() -> None:
    mask = hook.attention_mask(batch_size=2, q_length=5, kv_length=5)
    assert isinstance(mask, hook.LazyMask) and "causal" in repr(mask)
    assert (mask.ndim, mask.dtype, mask.contiguous() is mask) == (4, torch.bool, True)
    expected = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(mask[1, 0], expected)
    assert torch.equal(~mask[..., :3], ~expected[None, None, :, :3].expand(2, 1, 5, 3))
    with pytest.raises(NotImplementedError, match="writes into a mask"):
        mask.logical_not_()


def test_learned_position_bias_and_its_gradient() -> None:
    """T5: a bias of each head, with the decoder's causal mask and the encoder's padding."""
    results = []
    for implementation in ("tilewise", "eager"):
        torch.manual_seed(0)
        config = transformers.T5Config(
            vocab_size=VOCABULARY, d_model=48, d_kv=12, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
            decoder_start_token_id=0,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=implementation)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        batch = make_batch("right")
        output = model(**batch, labels=make_batch("none")["input_ids"])
        output.loss.backward()
        results.append((output.logits.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (logits, gradients), (expected_logits, expected_gradients) = results
    torch.testing.assert_close(logits, expected_logits, rtol=1e-3, atol=1e-3)
    bias_names = [n for n in gradients if "relative_attention_bias" in n]
    assert bias_names and all(gradients[n].abs().sum() > 0 for n in bias_names)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_dropout_acts_in_training_only(calls: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**DECODER, attention_dropout=0.5)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="tilewise", dtype=torch.float32)
    batch = make_batch("none")

    def logits_of(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with torch.no_grad():
            return model(**batch).logits

    model.train()
    first, again, other = logits_of(1), logits_of(1), logits_of(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert all(call["dropout_p"] == 0.5 for call in calls)
    model.eval()
    assert torch.equal(logits_of(1), logits_of(2))


def test_packed_sequences_by_cumulative_lengths() -> None:
    model, _ = make_pair("llama")
    ids = make_batch("none", length=7, batch_size=1)["input_ids"]
    boundaries = torch.tensor([0, 3, 7])
    packed = {
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": 4,
        "max_length_k": 4,
        "is_causal": True,
    }
    query, key, value = torch.randn(3, 1, 4, 7, 12, generator=torch.Generator().manual_seed(3))
    module = model.model.layers[0].self_attn
    out, _ = hook.attention_forward(module, query, key[:, :2], value[:, :2], None, **packed)
    for begin, end in ((0, 3), (3, 7)):
        part = (tensor[:, :, begin:end] for tensor in (query, key[:, :2], value[:, :2]))
        torch.testing.assert_close(out[:, begin:end], hook.attention_forward(module, *part, None)[0])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad():
        by_mask = model(ids, position_ids=positions, use_cache=False).logits
        apart = [model(ids[:, a:b], use_cache=False).logits for a, b in ((0, 3), (3, 7))]
    torch.testing.assert_close(by_mask, torch.cat(apart, dim=1), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("padding", ["none", "left"])
def test_compiles_into_one_graph(padding: str) -> None:
    model, expected_model = make_pair("llama")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    batch = make_batch(padding)
    with torch.no_grad():
        logits = compiled(**batch, use_cache=False).logits
        expected = expected_model(**batch, use_cache=False).logits
    visible = batch["attention_mask"].bool()
    torch.testing.assert_close(logits[visible], expected[visible], rtol=2e-4, atol=2e-4)


def tiny_call(mask: torch.Tensor | None = None, **keywords: Any) -> torch.Tensor:
    q = torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(2))
    return hook.attention_forward(torch.nn.Module(), q, q, q, mask, **keywords)[0]


def test_masks_given_as_arrays() -> None:
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    expected = tiny_call()
    torch.testing.assert_close(tiny_call(causal), expected)
    additive = torch.zeros(1, 1, 5, 5).masked_fill(~causal, torch.finfo(torch.float32).min)
    torch.testing.assert_close(tiny_call(additive), expected)
    torch.testing.assert_close(tiny_call(additive.to(torch.float16), is_causal=False), expected)
    assert not torch.allclose(tiny_call(is_causal=False), expected)
    assert not torch.allclose(tiny_call(sliding_window=2), expected)


@pytest.mark.parametrize("keyword", ["output_attentions", "head_mask", "block_indices", "cache", "sinks"])
def test_what_cannot_be_honoured_is_refused(keyword: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{keyword}: .*tilewise"):
        tiny_call(**{keyword: torch.ones(1)})
    tiny_call(**{keyword: None})


def test_indices_select_keys() -> None:
    random = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 5, 8, generator=random)
    indices = torch.tensor([[[0, 3]], [[2, 4]]], dtype=torch.int64).expand(2, 5, 2)
    selected = torch.zeros(2, 1, 5, 5, dtype=torch.bool).scatter_(3, indices[:, None], True)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    own = hook.attention_forward(torch.nn.Module(), q, q, q, causal, indices=indices)[0]
    masked = hook.attention_forward(torch.nn.Module(), q, q, q, causal & selected)[0]
    torch.testing.assert_close(own, masked)
    # A GPU's sums of selected keys have no order: where one is asked for, the others are hidden.
    on_gpu = torch.empty(2, 4, 5, 8, device="meta")
    selects = forward._select_keys({"bias": causal}, indices.to("meta"), on_gpu, 5, False)
    assert selects["key_indices"].shape == (2, 5, 1, 2) and selects["bias"] is causal
    hides = forward._select_keys({}, indices.to("meta"), on_gpu, 5, True)
    assert hides["bias"].shape == (2, 1, 5, 5) and "key_indices" not in hides
    with pytest.raises(ValueError, match=r"indices: expected \[2, 5, top_k\] \(got \[1\]\)"):
        tiny_call(indices=torch.ones(1))
    lengths = torch.tensor([0, 10])
    with pytest.raises(NotImplementedError, match="indices: selected keys beside cu_seq_lens are not supported"):
        tiny_call(indices=indices, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)


def test_bad_masks_are_named() -> None:
    with pytest.raises(ValueError, match=r"attention_mask: expected .* \(got \[2, 5\]\)"):
        tiny_call(torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"attention_mask: expected .*\(got \[2, 1, 5, 6\]\)"):
        tiny_call(torch.ones(2, 1, 5, 6, dtype=torch.bool))
    with pytest.raises(TypeError, match="attention_mask: dtype"):
        tiny_call(torch.ones(2, 1, 5, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"cu_seq_lens_q: must end at 10, .*\(got 5\)"):
        tiny_call(cu_seq_lens_q=torch.tensor([0, 5]), cu_seq_lens_k=torch.tensor([0, 5]))


def test_registering_twice_is_harmless() -> None:
    hook.register()
    assert transformers.AttentionInterface()["tilewise"] is hook.attention_forward
    assert masking_utils.AttentionMaskInterface()["tilewise"] is hook.attention_mask


def test_continuous_batching_of_an_unknown_version_is_refused() -> None:
    """Here by a version that is installed; any other is refused in the same place (test_transformers_serving.py)."""
    if transformers.__version__.startswith(("5.23.", "5.24.")):
        pytest.skip("this version is known")
    model = make_model("llama", "tilewise")
    message = (
        r"continuous batching with 'tilewise' is known for transformers 5\.23\.x, .*\(got 5\..*load the model with"
    )
    with pytest.raises(NotImplementedError, match=message):
        model.generate_batch([[5, 6, 7]], generation_config=transformers.GenerationConfig(max_new_tokens=2))
