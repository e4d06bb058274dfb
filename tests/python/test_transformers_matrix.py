"""The quick part of the matrix of transformers' model types, and what happens to a model that cannot use Tilewise.

The whole matrix is `make matrix`; docs/transformers.md has its result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402
from transformers_matrix import table  # noqa: E402
from transformers_matrix.checks import configuration_auto, examine, model_class, model_types  # noqa: E402
from transformers_matrix.tiny import tiny_config  # noqa: E402

import tilewise.transformers as hook  # noqa: E402
from tilewise.transformers.support import find_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

DOCS = Path(__file__).parents[2] / "docs" / "transformers.md"

# Models that add the mask to scores of their own, and models that pick from a table of their own.
REFUSED = {
    "bloom": "BloomAttention", "mpt": "MptAttention", "xglm": "XGLMAttention",
    "mpnet": "MPNetSelfAttention", "luke": "LukeSelfAttention", "squeezebert": "SqueezeBertSelfAttention",
    "roformer": "RoFormerSelfAttention", "convbert": "ConvBertSelfAttention", "ibert": "IBertSelfAttention",
    "nystromformer": "NystromformerSelfAttention", "canine": "CanineSelfAttention", "tapas": "TapasSelfAttention",
    "longformer": "LongformerSelfAttention", "big_bird": "BigBird", "megatron-bert": "MegatronBertSelfAttention",
    "led": "LEDEncoderSelfAttention", "falcon": "FALCON_ATTENTION_CLASSES", "gpt_neo": "GPT_NEO_ATTENTION_CLASSES",
    "deepseek_v4": "reads the mask as numbers",
}  # fmt: skip
# One of each way to attend: GQA, encoders, cross attention, learned biases, windows, chunks, softcap, sinks,
# MLA, selected keys, experts, layers of several types, vision, text with images.
PASSED = (
    "bart", "bert", "clip", "deepseek_v3", "deepseek_v32", "gemma2", "gemma3_text", "gpt2", "gpt_oss", "jamba", "llama",
    "llama4_text", "modernbert", "opt", "qwen3_moe", "t5", "vit",
)  # fmt: skip


@pytest.fixture(scope="module")
def documented() -> dict[str, str]:
    return table.read(DOCS)


@pytest.mark.parametrize("model_type", REFUSED)
def test_refused_with_the_reason(model_type: str, documented: dict[str, str]) -> None:
    verdict = examine(model_type)
    assert verdict.result == "refused", verdict
    assert REFUSED[model_type] in verdict.detail and "'tilewise'" in verdict.detail
    assert documented[model_type] == "refused"


@pytest.mark.parametrize("model_type", PASSED)
def test_computes_what_eager_computes(model_type: str, documented: dict[str, str]) -> None:
    verdict = examine(model_type)
    assert verdict.result == "pass", verdict
    assert "no attention" not in verdict.detail and "gradients" in verdict.detail
    assert documented[model_type] == "pass"


def test_every_type_of_the_registry_is_documented(documented: dict[str, str]) -> None:
    if f"transformers {transformers.__version__}:" not in DOCS.read_text():
        pytest.skip("docs/transformers.md is about another version of transformers")
    assert sorted(documented) == model_types()
    assert "FAILED" not in documented.values()
    assert sum(result in ("pass", "refused") for result in documented.values()) >= 150


@pytest.mark.parametrize("model_type", ["axk2", "glm_moe_dsa", "hy_v4", "mistral_large4_text"])
def test_models_that_select_keys_compute_what_eager_computes(model_type: str) -> None:
    """The tiny ones select 4 keys of 13, and some layers what another one selected."""
    verdict = examine(model_type)
    assert verdict.result == "pass", verdict
    assert "no attention" not in verdict.detail


def test_layers_that_select_nothing_are_served() -> None:
    """Of one class some layers select blocks of keys and others do not, as the configuration says."""
    name = "minimax_m3_vl_text"
    config = tiny_config(configuration_auto.CONFIG_MAPPING[name], name)
    cls = model_class(name, config)
    assert set(config.layer_types) == {"full_attention"}
    cls._from_config(config, attn_implementation="tilewise")
    config.layer_types = ["full_attention", "minimax_m3_sparse"]
    with pytest.raises(NotImplementedError, match="Attention passes block_indices to attention, and block-sparse"):
        cls._from_config(config, attn_implementation="tilewise")


def tiny_llava() -> Any:
    text = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 99}  # fmt: skip
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 32, "patch_size": 8}  # fmt: skip
    return transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=98)


def test_parts_of_a_model_have_their_own_implementation() -> None:
    parts = {"text_config": "tilewise", "vision_config": "eager"}
    model = transformers.LlavaForConditionalGeneration._from_config(tiny_llava(), attn_implementation=parts)
    assert model.config.text_config._attn_implementation == "tilewise"
    assert model.config.vision_config._attn_implementation == "eager"
    text = transformers.BloomConfig(hidden_size=32, n_head=4, n_layer=1, vocab_size=99)
    config = tiny_llava()
    config.text_config = text
    with pytest.raises(NotImplementedError, match="attn_implementation: BloomModel cannot use 'tilewise'"):
        transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation=parts)
    swapped = {"text_config": "eager", "vision_config": "tilewise"}
    transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation=swapped)


def test_switching_after_loading() -> None:
    ids = torch.arange(3, 12)[None]
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=99
    )
    model = transformers.LlamaForCausalLM(config).eval()
    expected = model(ids).logits
    model.set_attn_implementation("tilewise")
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)

    bloom = transformers.BloomForCausalLM(
        transformers.BloomConfig(hidden_size=32, n_head=4, n_layer=1, vocab_size=99)
    ).eval()
    expected = bloom(ids).logits
    for request in ("tilewise", {"": "tilewise"}):
        with pytest.raises(NotImplementedError, match="BloomModel cannot use 'tilewise': BloomAttention computes"):
            bloom.set_attn_implementation(request)
    assert torch.equal(bloom(ids).logits, expected), "a refusal leaves the model as it was"


def test_a_refused_part_leaves_the_whole_as_it_was() -> None:
    config = tiny_llava()
    config.text_config = transformers.BloomConfig(hidden_size=32, n_head=4, n_layer=1, vocab_size=99)
    model = transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation="eager")
    for request in ("tilewise", {"vision_config": "tilewise", "text_config": "tilewise"}):
        with pytest.raises(NotImplementedError, match="BloomModel"):
            model.set_attn_implementation(request)
        configs = (model.config, model.config.text_config, model.config.vision_config)
        assert [part._attn_implementation for part in configs] == ["eager"] * 3


def test_attention_weights_are_refused_where_the_model_keeps_the_request_to_itself() -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=99)
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="tilewise")
    with pytest.raises(NotImplementedError, match=r"output_attentions: .*'tilewise' \(passed by GPT2Attention\)"):
        model(torch.arange(3, 12)[None], output_attentions=True)
    model(torch.arange(3, 12)[None], output_hidden_states=True)


class AddingAttention(torch.nn.Module):
    """A module of a model from elsewhere that adds whatever mask it gets."""

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(-1, -2) + attention_mask, dim=-1) @ x


class ForeignModel(transformers.LlamaPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.attention = AddingAttention()


def test_models_from_elsewhere_are_read_too() -> None:
    assert find_attention(ForeignModel).own == ["AddingAttention"]
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4)
    with pytest.raises(NotImplementedError, match="ForeignModel cannot use 'tilewise': AddingAttention computes"):
        ForeignModel._from_config(config, attn_implementation="tilewise")
    ForeignModel._from_config(config, attn_implementation="eager")


@pytest.mark.parametrize("padding", [None, "left", "holes"])
@pytest.mark.parametrize(
    "read",
    [
        lambda mask, scores: scores + mask,
        lambda mask, scores: scores + mask[:, :, :, :5],
        lambda mask, scores: mask < 0,
        lambda mask, scores: mask == 0,
        lambda mask, scores: (1.0 - mask.float()) * -1e9,
        lambda mask, scores: mask.to(scores.dtype),
        lambda mask, scores: torch.nn.functional.pad(mask, (0, 1), value=0.0),
        lambda mask, scores: torch.cat([mask, torch.ones(2, 1, 5, 1, dtype=torch.bool)], dim=-1),
    ],
)
def test_a_mask_read_as_numbers_is_refused(padding: str | None, read: Any) -> None:
    visible = torch.ones(2, 5, dtype=torch.bool)
    if padding:
        visible[0, 0 if padding == "left" else 2] = False
    config = transformers.LlamaConfig()
    mask = hook.attention_mask(2, 5, 5, attention_mask=visible, config=config)
    assert isinstance(mask, hook.LazyMask)
    with pytest.raises(NotImplementedError, match=r"attention_mask: llama reads the mask as numbers .*'tilewise'"):
        read(mask, torch.zeros(2, 1, 5, 5))


def test_a_mask_in_logic_is_a_mask() -> None:
    mask = hook.attention_mask(2, 5, 5)
    expected = masking_utils.sdpa_mask(2, 5, 5, allow_is_causal_skip=False)
    other = torch.ones(2, 1, 5, 5, dtype=torch.bool).triu(-1)
    both = mask & other
    assert isinstance(both, hook.LazyMask) and torch.equal(both, expected & other)
    lowest = torch.finfo(torch.float32).min
    floating = torch.where(mask, torch.zeros(()), lowest)
    assert not isinstance(floating, hook.LazyMask) and torch.equal(floating == 0, expected)


OLD_VERSION = """
import sys, types
old = types.ModuleType("transformers")
old.__version__ = "4.57.1"
old.__path__ = []
sys.modules["transformers"] = old
import tilewise.transformers
"""


def test_transformers_4_is_refused_by_its_version() -> None:
    ended = subprocess.run([sys.executable, "-c", OLD_VERSION], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last == "ImportError: tilewise.transformers: needs transformers 5 or newer (got 4.57.1)"
