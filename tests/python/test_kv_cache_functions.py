# score_mod and mask_mod of the KV cache step, against the same functions called on whole tensors of scores.
"""Functions of scores over a cache."""

import numpy as np
import pytest

import tilewise

torch = pytest.importorskip("torch")

from kv_cache_step import attend  # noqa: E402

LENGTHS, NEW, HEADS, HEADS_K, DIM = [9, 4], 3, 4, 2, 16
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
# Which of a sequence's new tokens a new token descends from, in trees of speculative decoding.
TREES = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]], [[1, 0, 0], [0, 1, 0], [0, 1, 1]]], dtype=torch.bool)
CONTEXT = torch.tensor(LENGTHS, dtype=torch.int32)


def alibi(score, b, h, q_idx, kv_idx):
    return score - SLOPES[h] * (q_idx - kv_idx)


def tree(b, h, q_idx, kv_idx):
    query, key = q_idx - CONTEXT[b], kv_idx - CONTEXT[b]
    return (key < 0) | TREES[b, query, torch.clamp(key, min=0)]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def step(dtype=torch.float32, page_size=None):
    torch.manual_seed(0)
    q = torch.randn(2, NEW, HEADS, DIM, dtype=dtype)
    k, v = torch.randn(2, 2, NEW, HEADS_K, DIM, dtype=dtype)
    options = {"cache_seqlens": torch.tensor(LENGTHS, dtype=torch.int32)}
    if page_size is None:
        return (q, *torch.randn(2, 2, 16, HEADS_K, DIM, dtype=dtype), k, v), options
    pages = 16 // page_size
    options["block_table"] = torch.randperm(2 * pages).int().view(2, pages)
    return (q, *torch.randn(2, 2 * pages, page_size, HEADS_K, DIM, dtype=dtype), k, v), options


def keys_of(cache, b, options):
    table = options.get("block_table")
    rows = cache[b] if table is None else cache[table[b].long()].flatten(0, 1)
    return rows[: LENGTHS[b] + NEW]


def expected(q, k_cache, v_cache, score_mod, mask_mod, options):
    """Of caches after the step."""
    outs = []
    for b, length in enumerate(LENGTHS):
        k, v = (keys_of(cache, b, options).double().repeat_interleave(2, 1) for cache in (k_cache, v_cache))
        scores = torch.einsum("ihd,jhd->hij", q[b].double(), k) / DIM**0.5
        head, query, key = torch.arange(HEADS), torch.arange(NEW) + length, torch.arange(length + NEW)
        places = (torch.tensor(b), head[:, None, None], query[None, :, None], key[None, None])
        if score_mod is not None:
            scores = score_mod(scores, *places)
        if mask_mod is not None:
            scores = scores.masked_fill(~mask_mod(*places), -torch.inf)
        outs.append(torch.einsum("hij,jhd->ihd", torch.softmax(scores, -1), v))
    return torch.stack(outs)


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize(("score_mod", "mask_mod"), [(alibi, causal), (None, tree), (alibi, tree)])
def test_positions(score_mod, mask_mod, page_size):
    tensors, options = step(page_size=page_size)
    out = tilewise.kv_cache_attention(*tensors, score_mod=score_mod, mask_mod=mask_mod, **options)
    torch.testing.assert_close(out.double(), expected(*tensors[:3], score_mod, mask_mod, options), atol=2e-5, rtol=2e-5)


def test_a_function_says_what_an_option_says():
    tensors, options = step()
    want, want_lse = tilewise.kv_cache_attention(
        *tensors, mask="causal", alibi_slopes=SLOPES, return_lse=True, **options
    )
    out = torch.empty_like(want)
    got, lse = tilewise.kv_cache_attention(
        *tensors, score_mod=alibi, mask_mod=causal, return_lse=True, out=out, **options
    )
    assert got is out
    torch.testing.assert_close((got, lse), (want, want_lse), atol=1e-6, rtol=1e-6)
    text = "score - exp2(-1.0 - h) * (q_idx - kv_idx)"
    arrays = [tensor.numpy() for tensor in tensors]
    own = tilewise.kv_cache_attention(
        *arrays, cache_seqlens=CONTEXT.numpy(), score_mod=text, mask_mod="kv_idx <= q_idx"
    )
    np.testing.assert_allclose(own, want.numpy(), atol=1e-6, rtol=1e-6)


def test_left_padding_and_a_step_without_new_keys():
    (q, k_cache, v_cache, _, _), _ = step()
    leftpad = torch.tensor([2, 0], dtype=torch.int32)
    options = {"cache_seqlens": CONTEXT, "cache_leftpad": leftpad}
    out = tilewise.kv_cache_attention(q, k_cache, v_cache, score_mod=alibi, mask_mod=causal, **options)
    for b, length in enumerate(LENGTHS):
        keys = slice(int(leftpad[b]), length)
        want, _ = attend(q[b], k_cache[b, keys], v_cache[b, keys], True, slopes=SLOPES)
        torch.testing.assert_close(out[b].double(), want, atol=2e-5, rtol=2e-5)


def test_refusals(monkeypatch):
    tensors, options = step()
    with pytest.raises(TypeError, match="score_mod: must be a function of a score_mod's arguments"):
        tilewise.kv_cache_attention(*tensors, score_mod=causal, **options)
    with pytest.raises(ValueError, match="mask_mod: must be a bool"):
        tilewise.kv_cache_attention(*tensors, mask_mod="q_idx", **options)
    slopes = SLOPES.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="table0: must not require gradients"):
        tilewise.kv_cache_attention(*tensors, score_mod=lambda s, b, h, q_idx, kv_idx: s * slopes[h], **options)
    monkeypatch.setenv("TILEWISE_CHECK", "1")
    with pytest.raises(ValueError, match="table0: index 0 must be >= 0 and < 4"):
        tilewise.kv_cache_attention(*tensors, score_mod=lambda s, b, h, q_idx, kv_idx: s + SLOPES[kv_idx], **options)
