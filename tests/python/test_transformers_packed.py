"""Packed sequences given by cu_seq_lens_q and cu_seq_lens_k to transformers models, with all that may come beside them.

The oracle is "eager" on each sequence by itself. TILEWISE_TEST_PACKED says how many random batches are drawn, one
a type where it is not set, and TILEWISE_TEST_PACKED_SEED which is the first; the nightly run draws many.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers_matrix.packing import TYPES, compare_packed, draw  # noqa: E402

import tilewise  # noqa: E402
import tilewise.transformers as hook  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = int(os.environ.get("TILEWISE_TEST_PACKED", len(TYPES)))
FIRST = int(os.environ.get("TILEWISE_TEST_PACKED_SEED", "0"))
LENGTHS = (5, 3, 4)
TOTAL = sum(LENGTHS)
CU = torch.tensor([0, 5, 8, 12], dtype=torch.int32)
PACKED = {"cu_seq_lens_q": CU, "cu_seq_lens_k": CU, "max_length_q": 5, "max_length_k": 5}


@pytest.mark.parametrize("seed", range(FIRST, FIRST + DRAWS))
def test_random_batches_are_each_sequence_by_itself(seed: int) -> None:
    model_type = TYPES[seed % len(TYPES)]
    batch = draw(seed)
    error, gradient_error = compare_packed(model_type, batch)
    assert error < 1e-4 and gradient_error < 1e-4, f"{model_type}, {batch}: {error:.2g}, gradients {gradient_error:.2g}"


def tiny(implementation: str, kind: str = "llama", **more: Any) -> Any:
    torch.manual_seed(0)
    common = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 61,
    }
    heads = {"num_key_value_heads": 2, "head_dim": 8}
    config = transformers.AutoConfig.for_model(kind, **{**common, **heads, **more})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(len(name)))
    return model


def tokens() -> torch.Tensor:
    return torch.randint(5, 60, (1, TOTAL), generator=torch.Generator().manual_seed(1))


def alone(model: Any, ids: torch.Tensor, **keywords: Any) -> torch.Tensor:
    return torch.cat([model(input_ids=part, **keywords).logits for part in ids.split(LENGTHS, dim=1)], dim=1)


def packed_positions() -> torch.Tensor:
    return torch.cat([torch.arange(length) for length in LENGTHS])[None]


def block_diagonal() -> torch.Tensor:
    return torch.block_diag(*(torch.ones(n, n).tril() for n in LENGTHS)).bool()[None, None]


MASKS = {
    "causal over the row": lambda: torch.ones(1, 1, TOTAL, TOTAL, dtype=torch.bool).tril(),
    "causal in each": block_diagonal,
    "additive": lambda: torch.zeros(1, 1, TOTAL, TOTAL).masked_fill(~block_diagonal(), torch.finfo(torch.float32).min),
    "half precision's lowest": lambda: torch.zeros(1, 4, TOTAL, TOTAL).masked_fill(~block_diagonal(), -65504.0),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_the_users_own(name: str) -> None:
    model = tiny("tilewise")
    with torch.no_grad():
        want = alone(tiny("eager"), tokens())
        got = model(tokens(), position_ids=packed_positions(), attention_mask=MASKS[name](), **PACKED).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_window_of_the_users_own() -> None:
    """The array is narrower than the layer's own mask would be, and it is the array that counts."""
    distance = torch.arange(TOTAL)[:, None] - torch.arange(TOTAL)
    window = ((distance >= 0) & (distance < 2))[None, None]
    with torch.no_grad():
        want = alone(tiny("eager", "mistral", sliding_window=2), tokens())
        got = tiny("tilewise")(tokens(), position_ids=packed_positions(), attention_mask=window, **PACKED).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["holes", "numbers", "nothing", "one head", "batch"])
def test_a_mask_that_is_no_band_is_refused(kind: str) -> None:
    mask = block_diagonal()
    if kind == "holes":
        mask[0, 0, 4, 1] = False
    elif kind == "numbers":
        mask = torch.zeros(mask.shape).masked_fill(~mask, -3.0)
    elif kind == "nothing":
        mask = torch.zeros_like(mask)
    elif kind == "one head":
        mask = mask.repeat(1, 4, 1, 1)
        mask[0, 3] = True
    else:
        mask = mask.repeat(2, 1, 1, 1)
    with pytest.raises(
        NotImplementedError, match=r"attention_mask: beside cu_seq_lens_q .*band.*'tilewise'.*LlamaAttention"
    ):
        tiny("tilewise")(tokens(), attention_mask=mask, **PACKED)


@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_within_a_sequence(side: str) -> None:
    visible = torch.ones(1, TOTAL, dtype=torch.int64)
    visible[0, {"left": slice(5, 6), "right": slice(10, 12), "inside": slice(2, 3)}[side]] = 0
    eager = tiny("eager")
    with torch.no_grad():
        pairs = zip(
            tokens().split(LENGTHS, dim=1), visible.split(LENGTHS, dim=1), packed_positions().split(LENGTHS, dim=1)
        )
        want = torch.cat([eager(a, attention_mask=b, position_ids=c).logits for a, b, c in pairs], dim=1)
        got = tiny("tilewise")(tokens(), position_ids=packed_positions(), attention_mask=visible, **PACKED).logits
    real = visible.bool()
    torch.testing.assert_close(got[real], want[real], rtol=1e-4, atol=1e-4)


def test_rows_behind_the_last_sequence_are_zero_and_pass_no_gradient() -> None:
    model = tiny("tilewise")
    short = {**PACKED, "cu_seq_lens_q": CU[:3], "cu_seq_lens_k": CU[:3]}
    positions = torch.cat([packed_positions()[:, :8], torch.arange(4)[None]], dim=1)
    got = model(tokens(), position_ids=positions, **short).logits
    want = alone(tiny("eager"), tokens())
    torch.testing.assert_close(got[:, :8], want[:, :8], rtol=1e-4, atol=1e-4)
    got[:, :8].sum().backward()
    assert torch.isfinite(got).all() and all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_lengths_count_more_than_positions() -> None:
    """Positions that jump inside of a sequence, as an image's do, end none."""
    positions = torch.tensor([[0, 1, 5, 6, 7, 0, 1, 2, 0, 3, 4, 5]])
    eager, mask = tiny("eager"), torch.ones(1, TOTAL, dtype=torch.int64)
    with torch.no_grad():
        parts = zip(tokens().split(LENGTHS, dim=1), positions.split(LENGTHS, dim=1), mask.split(LENGTHS, dim=1))
        # With a mask of ones transformers looks for no packed sequences in the positions.
        want = torch.cat([eager(a, position_ids=b, attention_mask=c).logits for a, b, c in parts], dim=1)
        got = tiny("tilewise")(tokens(), position_ids=positions, use_cache=False, **PACKED).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_batch_is_one_row_after_the_other() -> None:
    ids = torch.cat([tokens(), tokens().flip(1)])
    cu = torch.cat([CU, CU[1:] + TOTAL])
    lengths = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu}
    with torch.no_grad():
        want = torch.cat([alone(tiny("eager"), row[None]) for row in ids])
        got = tiny("tilewise")(ids, position_ids=packed_positions().expand(2, -1), **lengths).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"cu_seq_lens_q: must end at 24, .*\(got 12\)"):
        tiny("tilewise")(ids, **PACKED)


@pytest.mark.parametrize(("kind", "mask"), [("llama", None), ("mistral", "ones")])
def test_in_one_graph(kind: str, mask: str | None) -> None:
    more = {"sliding_window": 3} if kind == "mistral" else {}
    compiled = torch.compile(tiny("tilewise", kind, **more), backend="aot_eager", fullgraph=True)
    keywords: dict[str, Any] = {**PACKED, "position_ids": packed_positions(), "use_cache": False}
    if mask:
        keywords["attention_mask"] = torch.ones(1, TOTAL, dtype=torch.int64)
    with torch.no_grad():
        want = alone(tiny("eager", kind, **more), tokens())
        got = compiled(tokens(), **keywords).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_cache_goes_on_for_one_sequence_alone() -> None:
    model, eager, ids = tiny("tilewise"), tiny("eager"), tokens()
    one = {"cu_seq_lens_q": CU[[0, 3]], "cu_seq_lens_k": CU[[0, 3]]}
    with torch.no_grad():
        cache = model(ids, use_cache=True, **one).past_key_values
        got = model(ids[:, :2], past_key_values=cache, **one).logits
        want = eager(torch.cat([ids, ids[:, :2]], dim=1)).logits[:, -2:]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        cache = model(ids, use_cache=True, **PACKED).past_key_values
        with pytest.raises(NotImplementedError, match=r"cu_seq_lens_q: 3 packed sequences cannot go on from a cache"):
            model(ids[:, :2], past_key_values=cache, **PACKED)


def test_a_static_cache_is_filled_by_packed_sequences() -> None:
    model = tiny("tilewise")
    cache = transformers.StaticCache(config=model.config, max_cache_len=TOTAL + 9)
    with torch.no_grad():
        got = model(tokens(), position_ids=packed_positions(), past_key_values=cache, **PACKED).logits
        want = alone(tiny("eager"), tokens())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def call(q_length: int, kv_length: int, **keywords: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, 4, q_length, 8, generator=generator)
    k, v = torch.randn(2, 1, 4, kv_length, 8, generator=generator)
    return hook.attention_forward(torch.nn.Module(), q, k, v, **keywords)[0]


def test_lengths_of_keys_of_another_sequence() -> None:
    """Cross attention: each side has its lengths, and those of one side alone are refused."""
    others = torch.tensor([0, 2, 3, 9], dtype=torch.int32)
    cross = {"attention_mask": None, "is_causal": False}
    got = call(TOTAL, 9, cu_seq_lens_q=CU, cu_seq_lens_k=others, **cross)
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, 4, TOTAL, 8, generator=generator).transpose(1, 2)
    k, v = torch.randn(2, 1, 4, 9, 8, generator=generator).transpose(2, 3)
    for a, b, c, d in zip(CU, CU[1:], others, others[1:]):
        torch.testing.assert_close(got[:, a:b], tilewise.attention(q[:, a:b], k[:, c:d], v[:, c:d]))
    with pytest.raises(ValueError, match=r"cu_seq_lens_k: must end at 14, .*\(got 12\)"):
        call(TOTAL, 14, cu_seq_lens_q=CU, cu_seq_lens_k=CU, **cross)
    with pytest.raises(ValueError, match="cu_seq_lens_k: cu_seq_lens_q and cu_seq_lens_k go together"):
        call(TOTAL, TOTAL, cu_seq_lens_q=CU, **cross)


def test_a_learned_bias_is_read_within_each_sequence() -> None:
    bias = torch.randn(1, 4, TOTAL, TOTAL, generator=torch.Generator().manual_seed(3)).requires_grad_()
    got = call(TOTAL, TOTAL, attention_mask=None, position_bias=bias, cu_seq_lens_q=CU, cu_seq_lens_k=CU)
    apart = torch.where(block_diagonal(), bias, -torch.inf)
    want = call(TOTAL, TOTAL, attention_mask=None, position_bias=apart)
    torch.testing.assert_close(got, want)
    (gradient,), (wanted,) = (
        torch.autograd.grad(got.square().sum(), bias),
        torch.autograd.grad(want.square().sum(), bias),
    )
    torch.testing.assert_close(gradient, wanted)


def test_chunks_that_no_sequence_reaches_are_causal() -> None:
    config = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 32, "attention_chunk_size": 5}
    with torch.no_grad():
        want = alone(tiny("eager", "llama4_text", **config), tokens())
        got = tiny("tilewise", "llama4_text", **config)(tokens(), position_ids=packed_positions(), **PACKED).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(NotImplementedError, match="attention_mask: beside cu_seq_lens_q it must be a band"):
        tiny("tilewise", "llama4_text", **{**config, "attention_chunk_size": 4})(tokens(), **PACKED)


def test_what_sequences_a_token_belongs_to_needs_lengths_beside_it() -> None:
    index = torch.zeros(1, TOTAL, dtype=torch.int32)
    tiny("tilewise")(tokens(), seq_idx=index, **PACKED)
    with pytest.raises(NotImplementedError, match="seq_idx: "):
        tiny("tilewise")(tokens(), seq_idx=index)


def test_lengths_that_a_model_keeps_to_itself_are_refused() -> None:
    model = tiny("tilewise", "stablelm")
    with pytest.raises(
        NotImplementedError, match=r"cu_seq_lens_q: StableLmModel does not pass it on to StableLmAttention"
    ):
        model(tokens(), **PACKED)
    model(tokens())  # and a refusal is forgotten


@pytest.mark.parametrize("position_ids", [True, False])
def test_what_the_collator_gives(position_ids: bool) -> None:
    collator = transformers.DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True, return_position_ids=position_ids
    )
    parts = [part[0].tolist() for part in tokens().split(LENGTHS, dim=1)]
    batch = collator([{"input_ids": part} for part in parts])
    starts = [0, 0, 0] if position_ids else [0, 5, 8]
    eager = tiny("eager")
    with torch.no_grad():
        want = torch.cat(
            [
                eager(torch.tensor([p]), position_ids=torch.arange(s, s + len(p))[None]).logits
                for p, s in zip(parts, starts)
            ],
            dim=1,
        )
        got = tiny("tilewise")(**batch).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
