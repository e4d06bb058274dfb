"""tilewise.sglang beside SGLang's own torch_native backend, over SGLang's own pools, layers and batches, on a CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attending import backend, draw, run
from sglang.srt.arg_groups import choices
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import get_context
from sglang_batches import (
    buffers,
    fill,
    make_batch,
    make_layer,
    make_runner,
    mha_pool,
    mla_pool,
    swa_pool,
)

import tilewise.sglang

SEEDS = range(3)
MODES = ("EXTEND", "MIXED", "DECODE")
# Beside sums in another order: of weights and values near one.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def both(runner: Any, batch: Any, layer: Any, tensors: Any, dtype: torch.dtype, **options: Any) -> None:
    """Holds outputs, and what was written, against torch_native's."""
    pool = runner.token_to_kv_pool
    before = [buffer.clone() for buffer in buffers(pool)]
    expected = run(runner, TorchNativeAttnBackend, batch, layer, tensors, **options)
    written = [buffer.clone() for buffer in buffers(pool)]
    for buffer, old in zip(buffers(pool), before):
        buffer.copy_(old)
    actual = run(runner, backend, batch, layer, tensors, **options)
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(buffers(pool), written))


# ---- beside torch_native --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mode", MODES)
def test_random_batches(mode: str, page_size: int, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        runner = make_runner(mha_pool(2, 64, dtype, page_size))
        fill(runner.token_to_kv_pool)
        batch, layer = make_batch(runner, mode, seed), make_layer(8, 64, 2, layer_id=1)
        both(runner, batch, layer, draw(batch, layer, dtype), dtype)


@pytest.mark.parametrize("mode", MODES)
def test_a_window_without_a_pool_of_its_own(mode: str) -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32))
    fill(runner.token_to_kv_pool)
    batch, layer = make_batch(runner, mode, 3), make_layer(4, 64, 2, sliding_window_size=7)
    both(runner, batch, layer, draw(batch, layer, torch.float32), torch.float32)


def test_an_encoder_sees_both_ways() -> None:
    runner = make_runner(mha_pool(4, 32, torch.float32))
    batch = make_batch(runner, "EXTEND", 1, prefixes=False)
    layer = make_layer(4, 32, 4, attn_type=AttentionType.ENCODER_ONLY)
    both(runner, batch, layer, draw(batch, layer, torch.float32), torch.float32)


def test_values_of_another_width_and_layers_that_share_a_cache() -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32, v_head_dim=32))
    fill(runner.token_to_kv_pool)
    batch, layer = make_batch(runner, "EXTEND", 2), make_layer(4, 64, 2, v_head_dim=32)
    tensors = draw(batch, layer, torch.float32)
    both(runner, batch, layer, tensors, torch.float32)
    both(runner, batch, layer, (tensors[0], None, None), torch.float32)
    both(runner, batch, layer, tensors, torch.float32, save_kv_cache=False)


@pytest.mark.parametrize("mode", MODES)
def test_an_fp8_cache(mode: str) -> None:
    runner = make_runner(mha_pool(2, 64, torch.float8_e4m3fn))
    fill(runner.token_to_kv_pool)
    batch, layer = make_batch(runner, mode, 4), make_layer(4, 64, 2)
    both(runner, batch, layer, draw(batch, layer, torch.bfloat16), torch.bfloat16)


@pytest.mark.parametrize("cache", [torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_latent_keys(mode: str, cache: torch.dtype) -> None:
    runner = make_runner(mla_pool(cache, lora=64, rope=32))
    fill(runner.token_to_kv_pool)
    batch, layer = make_batch(runner, mode, 5), make_layer(4, 96, 1, v_head_dim=64)
    q, k, _ = draw(batch, layer, torch.float32)
    both(runner, batch, layer, (q, k, k[..., :64]), torch.float32)


# ---- beside a formula, for what torch_native passes over ------------------------------------


def formula(runner: Any, batch: Any, layer: Any, tensors: Any, sinks: torch.Tensor | None) -> torch.Tensor:
    """In float64, request by request, over the keys that the table names, or its translation for a windowed layer."""
    pool = runner.token_to_kv_pool
    translated = isinstance(pool, SWAKVPool) and pool.layers_mapping[layer.layer_id][1]
    keys, values = runner.token_to_kv_pool.get_kv_buffer(layer.layer_id)
    shared = layer.tp_q_head_num // layer.tp_k_head_num
    lengths = [1] * batch.batch_size if batch.forward_mode.is_decode() else batch.extend_seq_lens_cpu
    results = []
    rows = tensors[0].double().view(-1, layer.tp_q_head_num, layer.qk_head_dim).split(list(lengths))
    for query, row, length in zip(rows, batch.req_pool_indices, batch.seq_lens):
        places = runner.req_to_token_pool.req_to_token[row, :length].long()
        if translated:
            places = pool.translate_loc_from_full_to_swa(places)
        k, v = (buffer[places].double().repeat_interleave(shared, dim=1) for buffer in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, k) * layer.scaling
        if layer.logit_cap > 0:
            scores = layer.logit_cap * torch.tanh(scores / layer.logit_cap)
        behind = torch.arange(int(length)) - torch.arange(int(length) - len(query), int(length))[:, None]
        scores = scores.masked_fill(behind > 0, -math.inf)
        if layer.sliding_window_size > -1:
            scores = scores.masked_fill(behind < -layer.sliding_window_size, -math.inf)
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, len(query), 1)
            scores = torch.cat([scores, column], dim=-1)
        weights = scores.softmax(dim=-1)[..., : int(length)]
        results.append(torch.einsum("hqk,khd->qhd", weights, v).flatten(1))
    return torch.cat(results)


@pytest.mark.parametrize("mode", MODES)
def test_softcap_and_sinks(mode: str) -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32))
    fill(runner.token_to_kv_pool)
    batch, layer = make_batch(runner, mode, 6), make_layer(4, 64, 2, logit_cap=1.5)
    tensors, sinks = draw(batch, layer, torch.float32), torch.randn(4).bfloat16()
    actual = run(runner, backend, batch, layer, tensors, sinks=sinks)
    expected = formula(runner, batch, layer, tensors, sinks)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=TOLERANCE[torch.float32])
    without = run(runner, backend, batch, layer, tensors)
    torch.testing.assert_close(without.double(), formula(runner, batch, layer, tensors, None), rtol=0, atol=2e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layer_id", [0, 1])
def test_a_pool_of_fewer_places_for_windowed_layers(layer_id: int, mode: str) -> None:
    """torch_native writes to such a pool's own places and reads it by the other pool's."""
    for seed in SEEDS:
        runner = make_runner(swa_pool(2, 64, torch.float32, page_size=4 if seed % 2 else 1))
        fill(runner.token_to_kv_pool)
        batch = make_batch(runner, mode, seed)
        layer = make_layer(4, 64, 2, layer_id=layer_id, sliding_window_size=12 if layer_id == 1 else -1)
        tensors = draw(batch, layer, torch.float32)
        actual = run(runner, backend, batch, layer, tensors)
        expected = formula(runner, batch, layer, tensors, None)
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=TOLERANCE[torch.float32])
        places = runner.token_to_kv_pool.translate_loc_from_full_to_swa(batch.out_cache_loc) if layer_id else None
        keys = runner.token_to_kv_pool.get_key_buffer(layer_id)
        assert torch.equal(keys[batch.out_cache_loc if places is None else places], tensors[1])


def test_fp8_scales_of_a_layer() -> None:
    runner = make_runner(mha_pool(2, 64, torch.float8_e4m3fn))
    fill(runner.token_to_kv_pool)
    batch, layer = make_batch(runner, "EXTEND", 4), make_layer(4, 64, 2)
    layer.k_scale, layer.v_scale = torch.tensor(0.5), torch.tensor(0.25)
    layer.k_scale_float, layer.v_scale_float = 0.5, 0.25
    q, k, v = draw(batch, layer, torch.float32)
    actual = run(runner, backend, batch, layer, (q, k, v))
    plain = make_runner(mha_pool(2, 64, torch.float32), req_to_token_pool=runner.req_to_token_pool)
    for mine, theirs, scale in zip(
        plain.token_to_kv_pool.get_kv_buffer(0), runner.token_to_kv_pool.get_kv_buffer(0), (0.5, 0.25)
    ):
        mine.copy_(theirs.float() * scale)
    expected = formula(plain, batch, layer, (q, k, v), None)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=2e-6)


def test_prompts_of_a_model_with_latent_keys_are_attended_as_they_come() -> None:
    runner = make_runner(mla_pool(torch.float32, lora=64, rope=32))
    batch = make_batch(runner, "EXTEND", 7, prefixes=False)
    layer = make_layer(4, 48, 4, v_head_dim=32)
    q, k, v = draw(batch, layer, torch.float32)
    actual = run(runner, backend, batch, layer, (q, k, v), save_kv_cache=False)
    plain = make_runner(mha_pool(4, 48, torch.float32, v_head_dim=32), req_to_token_pool=runner.req_to_token_pool)
    expected = run(plain, TorchNativeAttnBackend, batch, layer, (q, k, v))
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)
    with pytest.raises(NotImplementedError, match=r"k: must be the latent keys of the pool, or prompts without a"):
        run(runner, backend, make_batch(runner, "EXTEND", 9), layer, (q, k, v), save_kv_cache=False)


def test_draft_tokens_to_verify_are_a_chunk_behind_a_prefix() -> None:
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    runner = make_runner(mha_pool(2, 64, torch.float32))
    fill(runner.token_to_kv_pool)
    layer = make_layer(4, 64, 2)
    batch = make_batch(runner, "EXTEND", 8)
    drafted = 3
    keep = batch.seq_lens > drafted
    assert bool(keep.any())
    rows, lengths = batch.req_pool_indices[keep], batch.seq_lens[keep]
    count = int(keep.sum())
    out = torch.cat([runner.req_to_token_pool.req_to_token[row, length - drafted : length].long()
                     for row, length in zip(rows, lengths)])  # fmt: skip
    tokens = torch.zeros(count * drafted, dtype=torch.int64)
    shared: dict[str, Any] = {
        "batch_size": count, "input_ids": tokens, "req_pool_indices": rows, "out_cache_loc": out,
        "seq_lens_sum": int(lengths.sum()),
    }  # fmt: skip
    kind = type(batch)
    modes = type(batch.forward_mode)
    chunk = kind(
        forward_mode=modes.EXTEND, seq_lens=lengths, seq_lens_cpu=lengths,
        extend_seq_lens=torch.full((count,), drafted), extend_seq_lens_cpu=[drafted] * count,
        extend_prefix_lens=lengths - drafted, extend_prefix_lens_cpu=(lengths - drafted).tolist(), **shared,
    )  # fmt: skip
    spec = EagleVerifyInput.__new__(EagleVerifyInput)
    spec.draft_token_num, spec.topk = drafted, 1
    verify = kind(
        forward_mode=modes.TARGET_VERIFY, seq_lens=lengths - drafted, seq_lens_cpu=lengths - drafted, spec_info=spec,
        **shared,
    )  # fmt: skip
    tensors = draw(chunk, layer, torch.float32)
    expected = run(runner, TorchNativeAttnBackend, chunk, layer, tensors)
    torch.testing.assert_close(run(runner, backend, verify, layer, tensors), expected, rtol=0, atol=2e-6)
    spec.topk = 4
    with pytest.raises(NotImplementedError, match=r"spec_info: must be a chain of draft tokens.*tree_topk 4"):
        run(runner, backend, verify, layer, tensors)


# ---- what is registered, and what is refused ------------------------------------------------


def test_registering_again_is_harmless() -> None:
    for _ in range(2):
        tilewise.sglang.register()
    for offered in (choices.ATTENTION_BACKEND_CHOICES, choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES):
        assert offered.count("tilewise") == 1


def test_sglang_loads_the_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import plugins

    assert "tilewise" in plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP)


def test_padding_is_zeroed_and_an_idle_rank_is_passed_over() -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32))
    batch, layer = make_batch(runner, "EXTEND", 1), make_layer(4, 64, 2)
    q, k, v = draw(batch, layer, torch.float32)
    padded = torch.cat([q, torch.full((3, q.shape[1]), math.nan)])
    actual = run(runner, backend, batch, layer, (padded, k, v))
    assert torch.equal(actual[len(q) :], torch.zeros(3, q.shape[1])) and bool(actual.isfinite().all())
    batch.forward_mode = type(batch.forward_mode).IDLE
    assert run(runner, backend, batch, layer, (q[:0], k[:0], v[:0])).shape == (0, 256)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"is_cross_attention": True}, r"is_cross_attention: must be False"),
        ({"attn_type": AttentionType.DECODER_BIDIRECTIONAL}, r"attn_type: must be decoder or encoder_only"),
        ({"attn_type": AttentionType.ENCODER_ONLY, "sliding_window_size": 4}, r"sliding_window_size: must be -1"),
        ({"logit_cap": 1.0, "logit_capping_method": "rectanh"}, r"logit_capping_method: must be tanh"),
        ({"pos_encoding_mode": "ALIBI"}, r"pos_encoding_mode: must be NONE .* \(got ALIBI\)"),
        ({"use_irope": True}, r"use_irope: must be False where the model attends in chunks .* \(got chunks of 64\)"),
    ],
)
def test_layers_that_are_refused(layer: dict[str, Any], message: str) -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32), attention_chunk_size=64)
    batch, made = make_batch(runner, "EXTEND", 1), make_layer(4, 64, 2, **layer)
    with pytest.raises(NotImplementedError, match=message):
        run(runner, backend, batch, made, draw(batch, made, torch.float32))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"encoder_lens": torch.ones(1)}, r"encoder_lens: is not supported by tilewise's attention in SGLang"),
        ({"multi_item_delimiter_indices": [torch.ones(1)]}, r"multi_item_delimiter_indices: is not supported"),
    ],
)
def test_batches_that_are_refused(facts: dict[str, Any], message: str) -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32))
    with pytest.raises(NotImplementedError, match=message):
        backend(runner).init_forward_metadata(make_batch(runner, "EXTEND", 1, **facts))


def test_a_phase_that_is_refused() -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32))
    batch, layer = make_batch(runner, "EXTEND", 1), make_layer(4, 64, 2)
    batch.mha_return_lse = True
    refusal = r"mha_return_lse: is not supported .* passed by a batch \(got True\)"
    with pytest.raises(NotImplementedError, match=refusal):
        run(runner, backend, batch, layer, draw(batch, layer, torch.float32))


def test_deterministic_inference_is_batch_invariant() -> None:
    with get_context().override_server_args(enable_deterministic_inference=True):
        runner = make_runner(mha_pool(2, 64, torch.float32))
        fill(runner.token_to_kv_pool)
        batch, layer = make_batch(runner, "DECODE", 1), make_layer(4, 64, 2)
        assert batch.batch_size > 1
        q, k, v = draw(batch, layer, torch.float32)
        together = run(runner, backend, batch, layer, (q, k, v))
        row = batch.req_pool_indices[:1]
        alone = type(batch)(
            forward_mode=batch.forward_mode, batch_size=1, input_ids=batch.input_ids[:1], req_pool_indices=row,
            seq_lens=batch.seq_lens[:1], seq_lens_cpu=batch.seq_lens[:1], out_cache_loc=batch.out_cache_loc[:1],
            seq_lens_sum=int(batch.seq_lens[0]),
        )  # fmt: skip
        made = backend(runner)
        assert made._options == {"batch_invariant": True}
        assert torch.equal(run(runner, backend, alone, layer, (q[:1], k[:1], v[:1])), together[:1])


def test_an_unknown_keyword_says_nothing_or_is_refused() -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32))
    batch, layer = make_batch(runner, "EXTEND", 1), make_layer(4, 64, 2)
    tensors = draw(batch, layer, torch.float32)
    run(runner, backend, batch, layer, tensors, score_mod=None)
    with pytest.raises(NotImplementedError, match=r"topk_indices: is not supported .* \(got Tensor\)"):
        run(runner, backend, batch, layer, tensors, topk_indices=torch.ones(1))


def test_runners_that_are_refused() -> None:
    for facts, message in (
        ({"is_draft_worker": True}, r"the draft model of speculative decoding: must have another"),
        ({"token_to_kv_pool": mha_pool(2, 64, torch.float8_e5m2)}, r"kv_cache_dtype: must be of .*float8_e5m2\)"),
        ({"token_to_kv_pool": object()}, r"token_to_kv_pool: must be MHATokenToKVPool, .* \(got object\)"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            backend(make_runner(mha_pool(2, 64, torch.float32), **facts))
