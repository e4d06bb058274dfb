# Models of transformers with attn_implementation="flex_attention" within routed(), against the same weights under
# "eager": logits and gradients, padded on either side.
"""transformers through the drop-in for torch's flex_attention."""

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torchs = pytest.importorskip("torch.nn.attention.flex_attention")
if not hasattr(torchs, "AuxRequest"):
    pytest.skip(f"torch {torch.__version__} has no AuxRequest", allow_module_level=True)

from tilewise.compat.flex_attention import routed  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS, WINDOW = 2, 6
TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**TINY),
    "llama of three heads": lambda: transformers.LlamaConfig(
        **{**TINY, "num_attention_heads": 3, "num_key_value_heads": 1}
    ),
    "mistral": lambda: transformers.MistralConfig(**TINY, sliding_window=WINDOW),
    "gemma2": lambda: transformers.Gemma2Config(
        **TINY, sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=12
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**TINY, sliding_window=WINDOW, query_pre_attn_scalar=12),
}
LENGTHS = (13, 7, 10)


def make_model(name, implementation):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        CONFIGS[name](), attn_implementation=implementation, dtype=torch.float32
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def make_batch(side):
    torch.manual_seed(1)
    tokens = torch.randint(1, 97, (len(LENGTHS), max(LENGTHS)))
    places = torch.arange(max(LENGTHS))
    places = places if side == "right" else places.flip(0)
    mask = (places < torch.tensor(LENGTHS)[:, None]).long() if side else torch.ones_like(tokens)
    return {"input_ids": tokens * mask, "attention_mask": mask}


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name, side):
    batch = make_batch(side)
    model, eager = (make_model(name, way) for way in ("flex_attention", "eager"))
    with routed(strict=True) as calls, torch.no_grad():
        got = model(**batch).logits
    assert calls.routed == LAYERS
    tokens = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = eager(**batch).logits
    torch.testing.assert_close(got[tokens], expected[tokens], rtol=1e-3, atol=1e-3)


def test_training():
    batch = make_batch("right")
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    model, eager = (make_model("gemma2", way).train() for way in ("flex_attention", "eager"))
    with routed(strict=True):
        model(**batch).loss.backward()
    eager(**batch).loss.backward()
    for own, other in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=1e-4)


def test_decoding():
    batch = make_batch("left")
    model, eager = (make_model("gemma2", way) for way in ("flex_attention", "eager"))
    with routed(strict=True) as calls:
        generated = model.generate(**batch, max_new_tokens=4, do_sample=False)
    assert calls.routed == LAYERS * 4
    assert torch.equal(generated, eager.generate(**batch, max_new_tokens=4, do_sample=False))
