"""CUDA graphs of tilewise.sglang without a GPU: a replay is a step over the tensors that a capture had, into which
SGLang and the backend have copied another batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attending import backend, draw, run
from sglang.srt.layers.attention.graph_utils import attention_input_scope
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import build_replay_fb_view
from sglang_batches import (
    MAX_REQUESTS,
    buffers,
    fill,
    make_batch,
    make_layer,
    make_runner,
    mha_pool,
    mla_pool,
    swa_pool,
)


def replayed(
    attention: Any, step: Any, batch: Any, layer: Any, tensors: Any, slots: Any, width: int = 1
) -> torch.Tensor:
    """What a graph that was captured with `step` makes of a batch: SGLang pads it in its own tensors, the backend fills
    the step's, and launches read no others."""
    raw, padded = batch.batch_size, len(slots.seq_lens)
    slots.seq_lens.fill_(attention.get_cuda_graph_seq_len_fill_value())
    slots.req_pool_indices.zero_()
    for name in ("seq_lens", "req_pool_indices", "seq_lens_cpu"):
        getattr(slots, name)[:raw].copy_(getattr(batch, name))
    view = build_replay_fb_view(batch, slots, padded, raw, padded * width, None, 1, batch.forward_mode, False)
    attention.init_forward_metadata_out_graph(view)
    attention.init_forward_metadata_in_graph(view)
    attention.forward_metadata = step
    rows = []
    for tensor in tensors:
        wide = torch.zeros(padded * width, *tensor.shape[1:], dtype=tensor.dtype)
        wide[: len(tensor)].copy_(tensor)
        rows.append(wide)
    captured = view_of(slots, batch.forward_mode, width, batch.spec_info)
    captured.out_cache_loc.zero_()
    captured.out_cache_loc[: len(batch.out_cache_loc)].copy_(batch.out_cache_loc)
    return attention.forward(*rows, layer, captured)[: len(tensors[0])]


def slots_of(requests: int, width: int = 1) -> SimpleNamespace:
    """SGLang's tensors of a captured batch."""
    whole = {name: torch.zeros(requests, dtype=torch.int64) for name in ("req_pool_indices", "seq_lens_cpu")}
    tokens = {name: torch.zeros(requests * width, dtype=torch.int64)
              for name in ("input_ids", "positions", "out_cache_loc")}  # fmt: skip
    return SimpleNamespace(
        **whole, **tokens, seq_lens=torch.ones(requests, dtype=torch.int64), mamba_track_indices=None
    )


def view_of(slots: SimpleNamespace, mode: Any, width: int = 1, spec_info: Any = None) -> ForwardBatch:
    """The batch of a capture."""
    return ForwardBatch(
        forward_mode=mode, batch_size=len(slots.seq_lens), input_ids=slots.input_ids,
        req_pool_indices=slots.req_pool_indices, seq_lens=slots.seq_lens, seq_lens_cpu=slots.seq_lens_cpu + 1,
        out_cache_loc=slots.out_cache_loc, seq_lens_sum=len(slots.seq_lens), spec_info=spec_info,
    )  # fmt: skip


def addresses(step: Any) -> list[int]:
    tensors = [value for value in vars(step).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) >= 3
    return [tensor.data_ptr() for tensor in tensors]


POOLS = {
    "plain": lambda: mha_pool(2, 64, torch.float32),
    "pages": lambda: mha_pool(2, 64, torch.float32, page_size=16),
    "windows": lambda: swa_pool(2, 64, torch.float32, page_size=4),
    "latent": lambda: mla_pool(torch.float32, lora=64, rope=32),
}


@pytest.mark.parametrize("name", POOLS)
def test_graphs_of_single_tokens(name: str) -> None:
    """Replayed over batches of all sizes up to the captured one, in any order."""
    runner = make_runner(POOLS[name]())
    fill(runner.token_to_kv_pool)
    attention, slots = backend(runner), slots_of(MAX_REQUESTS)
    attention.init_cuda_graph_state(MAX_REQUESTS, MAX_REQUESTS)
    attention.init_forward_metadata_out_graph(view_of(slots, ForwardMode.DECODE), in_capture=True)
    step = attention.forward_metadata
    captured = addresses(step)
    for seed in range(6):
        batch = make_batch(runner, "DECODE", seed)
        layer = make_layer(4, 96, 1, v_head_dim=64) if name == "latent" else make_layer(4, 64, 2)
        if name == "windows":
            layer = make_layer(4, 64, 2, layer_id=1, sliding_window_size=12)
        q, k, v = draw(batch, layer, torch.float32)
        tensors = (q, k, k[..., :64]) if name == "latent" else (q, k, v)
        stored = buffers(runner.token_to_kv_pool)
        before = [buffer.clone() for buffer in stored]
        expected = run(runner, backend, batch, layer, tensors)
        written = [buffer.clone() for buffer in stored]
        for buffer, old in zip(stored, before):
            buffer.copy_(old)
        actual = replayed(attention, step, batch, layer, tensors, slots)
        torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)
        assert addresses(step) == captured
        page = runner.token_to_kv_pool.page_size  # padding writes to the first page, which is nobody's
        assert all(torch.equal(now[page:], then[page:]) for now, then in zip(stored, written))


def test_graphs_of_draft_tokens_to_verify() -> None:
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    drafted = 3
    spec = EagleVerifyInput.__new__(EagleVerifyInput)
    spec.draft_token_num, spec.topk = drafted, 1
    runner = make_runner(mha_pool(2, 64, torch.float32))
    fill(runner.token_to_kv_pool)
    attention, slots, layer = backend(runner), slots_of(4, drafted), make_layer(4, 64, 2)
    attention.init_cuda_graph_state(4, 4 * drafted)
    view = view_of(slots, ForwardMode.TARGET_VERIFY, drafted, spec)
    attention.init_forward_metadata_out_graph(view, in_capture=True)
    step = attention.forward_metadata
    assert (step.tokens, step.max_seqlen_q, step.cu_seqlens_q.tolist()) == (12, 3, [0, 3, 6, 9, 12])
    batch = make_batch(runner, "EXTEND", 8)
    rows = batch.req_pool_indices[batch.seq_lens > drafted][:2]
    lengths = batch.seq_lens[batch.seq_lens > drafted][:2] - drafted
    table = runner.req_to_token_pool.req_to_token
    out = torch.cat([table[row, length : length + drafted].long() for row, length in zip(rows, lengths)])
    verify = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY, batch_size=len(rows), input_ids=torch.zeros(len(out)),
        req_pool_indices=rows, seq_lens=lengths, seq_lens_cpu=lengths, out_cache_loc=out,
        seq_lens_sum=int(lengths.sum()), spec_info=spec,
    )  # fmt: skip
    tensors = draw(verify, layer, torch.float32)
    expected = run(runner, backend, verify, layer, tensors)
    actual = replayed(attention, step, verify, layer, tensors, slots, drafted)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


def test_attention_between_the_pieces_of_a_prompts_graph() -> None:
    """SGLang captures what stands between layers' attention, which writes where the next piece reads."""
    runner = make_runner(mha_pool(2, 64, torch.float32))
    fill(runner.token_to_kv_pool)
    batch, layer = make_batch(runner, "EXTEND", 2), make_layer(4, 64, 2)
    batch.positions = torch.zeros_like(batch.out_cache_loc)
    tensors = draw(batch, layer, torch.float32)
    expected = run(runner, backend, batch, layer, tensors)
    tokens = len(expected)
    output = torch.full((tokens + 3, 256), 7.0)
    attention = backend(runner)
    attention.init_forward_metadata(batch)
    with attention_input_scope(batch, output, tokens, tokens, {}):
        actual = attention.forward(*tensors, layer, batch)
    assert actual.data_ptr() == output.data_ptr() and torch.equal(output[tokens:], torch.full((3, 256), 7.0))
    torch.testing.assert_close(output[:tokens], expected, rtol=0, atol=2e-6)


def test_graphs_that_are_refused() -> None:
    runner = make_runner(mha_pool(2, 64, torch.float32))
    attention, prompts = backend(runner), make_batch(runner, "EXTEND", 1)
    with pytest.raises(RuntimeError, match=r"init_cuda_graph_state\(\) must come before a capture"):
        attention.init_forward_metadata_out_graph(make_batch(runner, "DECODE", 1), in_capture=True)
    attention.init_cuda_graph_state(8, 8)
    with pytest.raises(NotImplementedError, match=r"CUDA graphs of whole prompts: must be breakable or off .*EXTEND\)"):
        attention.init_forward_metadata_out_graph(prompts, in_capture=True)
