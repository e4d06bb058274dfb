"""Latent layers of tilewise.vllm, against a formula: decoding over the latent cache, and prompts with unfolded heads,
of which a part came before."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vllm_stand_in  # noqa: E402
from kv_cache_step import attend  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS, LATENT, ROPE, SCALE = 4, 64, 16, 0.2
LENGTHS = (8, 39, 130)


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_stand_in.install(monkeypatch, "0.26.0", cpu=False)


def make_impl(**changes: Any) -> Any:
    given = {
        "alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto", "logits_soft_cap": None,
        "attn_type": "decoder", "kv_sharing_target_layer_name": None, "kv_lora_rank": LATENT, **changes,
    }  # fmt: skip
    return importlib.import_module("tilewise.vllm.mla").TilewiseMlaImpl(HEADS, LATENT + ROPE, SCALE, 1, **given)


def decode_step(block_size: int, dtype: Any) -> tuple[Any, Any, list[Any]]:
    """A cache between rows of poison, what vLLM's builder makes of it, and each request's rows."""
    torch.manual_seed(0)
    counts = [-(-length // block_size) for length in LENGTHS]
    order = torch.randperm(sum(counts)) + 1
    wide = torch.full((sum(counts) + 1, block_size, LATENT + ROPE + 16), torch.nan, dtype=dtype)
    cache = wide[..., : LATENT + ROPE]
    table = torch.full((len(LENGTHS), max(counts)), 10**6, dtype=torch.int32)
    rows = [torch.randn(length, LATENT + ROPE).to(dtype) for length in LENGTHS]
    for request, (blocks, mine) in enumerate(zip(order.split(counts), rows)):
        table[request, : len(blocks)] = blocks
        for place, block in enumerate(blocks):
            part = mine[place * block_size : (place + 1) * block_size]
            cache[block, : len(part)] = part
    decode = SimpleNamespace(seq_lens=torch.tensor(LENGTHS, dtype=torch.int32), block_table=table)
    return cache, SimpleNamespace(decode=decode), rows


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_decoding(queries: int, block_size: int, dtype: Any, bound: float) -> None:
    """One query of each request, or as many of each to be verified at once."""
    cache, step, rows = decode_step(block_size, dtype)
    q = torch.randn(len(LENGTHS) * queries, HEADS, LATENT + ROPE).to(dtype)
    impl = make_impl()
    impl.need_to_return_lse_for_decode = True
    out, lse = impl.forward_mqa(q, cache, step, None)
    parts, none = make_impl().forward_mqa((q[..., :LATENT], q[..., LATENT:]), cache, step, None)
    assert none is None and torch.equal(parts, out)
    assert out.shape == (len(q), HEADS, LATENT) and lse.shape == (len(q), HEADS)
    for request, keys in enumerate(rows):
        mine = slice(request * queries, (request + 1) * queries)
        want, want_lse = attend(q[mine], keys[:, None], keys[:, None, :LATENT], True, scale=SCALE)
        torch.testing.assert_close(out[mine].double(), want, rtol=bound, atol=bound)
        torch.testing.assert_close(lse[mine].double(), want_lse.T, rtol=bound, atol=bound)


@pytest.mark.parametrize("by_index", [True, False], ids=["0.26", "later"])
def test_prompts_of_which_a_part_came_before(by_index: bool) -> None:
    """The two parts, joined by their LSE, are attention over everything."""
    torch.manual_seed(0)
    new, before, dim, dim_v = (5, 1, 30), (17, 0, 40), 48, 32
    backend = importlib.import_module("tilewise.vllm.mla").TilewiseMlaPrefill(SCALE)
    starts = [torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int() for lengths in (new, before)]
    context = SimpleNamespace(cu_seq_lens=[None, starts[1]], max_seq_lens=[None, max(before)]) if by_index else None
    backend.prepare_metadata(
        SimpleNamespace(query_start_loc=starts[0], max_query_len=max(new), chunked_context=context)
    )
    q, k = torch.randn(2, sum(new), HEADS, dim)
    v = torch.randn(sum(new), HEADS, dim_v)
    old_k, old_v = torch.randn(sum(before), HEADS, dim), torch.randn(sum(before), HEADS, dim_v)
    own, own_lse = backend.run_prefill_new_tokens(q, k, v, True)
    part = SimpleNamespace(
        query_start_loc=starts[0], max_query_len=max(new), cu_seq_lens=starts[1], max_seq_len=max(before)
    )
    which = {"chunk_idx": 1} if by_index else {"chunk": part}
    older, older_lse = backend.run_prefill_context_chunk(q=q, k=old_k, v=old_v, **which)
    assert own_lse.shape == older_lse.shape == (HEADS, sum(new))
    torch.testing.assert_close(backend.run_prefill_new_tokens(q, k, v, False), own)
    together = torch.logaddexp(own_lse, older_lse)
    weights = [torch.exp(lse - together).T[..., None] for lse in (own_lse, older_lse)]
    joined = own * weights[0] + torch.where(weights[1] > 0, older, 0) * weights[1]
    for a, b, c, d in zip(starts[0], starts[0][1:], starts[1], starts[1][1:]):
        keys, values = torch.cat([old_k[c:d], k[a:b]]), torch.cat([old_v[c:d], v[a:b]])
        want, _ = attend(q[a:b], keys, values, True, scale=SCALE)
        torch.testing.assert_close(joined[a:b].double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp8"}, r"kv_cache_dtype: must be of auto, float16, bfloat16 .* \(got 'fp8'\)"),
        ({"attn_type": "encoder"}, r"attn_type: must be of decoder .* \(got 'encoder'\)"),
        ({"sliding_window": 7}, r"sliding_window: is not supported .* passed by a latent layer \(got 7\)"),
        ({"indexer": torch.ones(2)}, r"indexer: is not supported .* \(got Tensor\)"),
    ],
)
def test_layers_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        make_impl(**options)


def test_calls_that_are_refused() -> None:
    cache, step, _ = decode_step(16, torch.float32)
    with pytest.raises(NotImplementedError, match=r"q: must have as many tokens of each request .* \(got 4 of 3 req"):
        make_impl().forward_mqa(torch.ones(4, HEADS, LATENT + ROPE), cache, step, None)
    backend = importlib.import_module("tilewise.vllm.mla").TilewiseMlaPrefill(SCALE)
    with pytest.raises(NotImplementedError, match="output_scale: is not supported"):
        backend.run_prefill_new_tokens(None, None, None, False, output_scale=torch.ones(1))
