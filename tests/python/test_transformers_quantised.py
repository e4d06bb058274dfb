"""Quantised checkpoints with experts_implementation="tilewise": as they are stored, beside transformers' widening."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from quantised_checkpoints import NOT_MXFP4, fp8_config, in_fp8, in_mxfp4, moe_config, random_model, write  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers.integrations.finegrained_fp8 import FP8Experts  # noqa: E402
from transformers_matrix.checks import compare  # noqa: E402

from tilewise.transformers import fp8, mxfp4, stored  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(
        not stored.is_supported(), reason="an older transformers, which shows quantizers no configuration"
    ),
    pytest.mark.skipif(torch.cuda.is_available(), reason="compares with what transformers does without a GPU"),
]
TOKENS = torch.tensor([[5, 6, 7, 8, 9, 3, 1], [1, 2, 3, 5, 90, 4, 8]])


def load(folder: Path, implementation: str, dtype: Any = torch.float32, **others: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, experts_implementation=implementation, dtype=dtype, **others
    )


def modules(model: Any, cls: type) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, cls)]


def assert_same_logits(ours: Any, widened: Any) -> None:
    with torch.no_grad():
        compare(ours(TOKENS).logits, widened(TOKENS).logits, "logits")


def fp8_checkpoint(folder: Path, kind: str = "deepseek_v3", format: str = "fp8_128x128", **quantisation: Any) -> Path:
    model = random_model(moe_config(kind))
    return write(folder, model, fp8_config(**quantisation), in_fp8(model, format))


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    quantisation = {"quant_method": "mxfp4", "modules_to_not_convert": NOT_MXFP4}
    return write(tmp_path_factory.mktemp("gpt_oss"), random_model(moe_config("gpt_oss")), quantisation, in_mxfp4)


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fp8_checkpoint(tmp_path_factory.mktemp("deepseek"))


# --- fp8 ---


FP8_FORMS = {
    "deepseek_v3": ("deepseek_v3", "fp8_128x128", {}),
    "qwen3_moe": ("qwen3_moe", "fp8_128x128", {}),
    "mixtral": ("mixtral", "fp8_128x128", {}),
    "e8m0": ("qwen3_moe", "fp8_128x128_e8m0", {"scale_fmt": "ue8m0"}),
    "one_scale": ("qwen3_moe", "fp8_tensor", {"weight_block_size": None}),
    "mxfp8": ("qwen3_moe", "mxfp8", {"scale_fmt": "ue8m0", "weight_block_size": [1, 32], "quant_method": "mxfp8"}),
}


@pytest.mark.parametrize("name", FP8_FORMS)
def test_fp8_as_it_is_stored(name: str, tmp_path: Path) -> None:
    kind, format, quantisation = FP8_FORMS[name]
    folder = fp8_checkpoint(tmp_path, kind, format, **quantisation)
    ours, widened = load(folder, "tilewise"), load(folder, "eager")
    assert not modules(widened, FP8Experts)
    assert modules(ours, FP8Experts) and modules(ours, fp8.Linear)
    for module in modules(ours, FP8Experts):
        assert module.gate_up_proj.dtype == module.down_proj.dtype == torch.float8_e4m3fn
    assert_same_logits(ours, widened)


@pytest.mark.parametrize("intermediate", [64, 100])
def test_blocks_that_end_within_gate_and_up(intermediate: int, tmp_path: Path) -> None:
    """Gates and ups have blocks of their own, so that the rows of the second do not start where a block does."""
    model = random_model(moe_config("qwen3_moe", moe_intermediate_size=intermediate))
    stored_ = write(tmp_path / "stored", model, fp8_config(), in_fp8(model))
    widened = write(tmp_path / "widened", model, None, in_fp8(model, widen=True))
    assert_same_logits(load(stored_, "tilewise"), load(widened, "eager"))


@pytest.mark.parametrize("rank", [128, 544])
def test_rows_that_are_no_multiple_of_a_block(rank: int, tmp_path: Path) -> None:
    """DeepSeek's kv_a_proj_with_mqa has 576 rows. transformers widens 160 in blocks of 80, and refuses 576."""
    model = random_model(moe_config("deepseek_v3", kv_lora_rank=rank))
    stored_ = write(tmp_path / "stored", model, fp8_config(), in_fp8(model))
    widened = write(tmp_path / "widened", model, None, in_fp8(model, widen=True))
    assert_same_logits(load(stored_, "tilewise"), load(widened, "eager"))


def test_bf16_and_gradients_of_what_is_not_quantised(deepseek: Path, tmp_path: Path) -> None:
    model = random_model(moe_config())
    plain = write(tmp_path, model, None, in_fp8(model, widen=True))
    ours, widened = load(deepseek, "tilewise", torch.bfloat16), load(plain, "eager", torch.bfloat16)
    got, expected = (model(TOKENS).logits for model in (ours, widened))
    assert got.dtype == torch.bfloat16
    compare(got.float(), expected.float(), "logits", 0.05)
    ours, widened = load(deepseek, "tilewise"), load(plain, "eager")
    for model in (ours, widened):
        model(TOKENS).logits.square().mean().backward()
    for name in ("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"):
        compare(ours.get_parameter(name).grad, widened.get_parameter(name).grad, name)


def test_static_scales_of_rows_are_not_needed(tmp_path: Path) -> None:
    model = random_model(moe_config("qwen3_moe"))
    quantise = in_fp8(model)

    def change(tensors: dict[str, Any]) -> None:
        quantise(tensors)
        for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
            tensors[name.replace("weight_scale_inv", "activation_scale")] = torch.tensor(0.01)

    folder = write(tmp_path, model, fp8_config(activation_scheme="static"), change)
    assert_same_logits(load(folder, "tilewise"), load(folder, "eager"))


@pytest.mark.parametrize(
    ("quantisation", "words"),
    [
        ({"weight_block_size": [64, 64]}, "fp8 in blocks of 64 x 64 .* with scales in float32"),
        ({"weight_block_size": [1, 32]}, "fp8 in blocks of 1 x 32 .* with scales in float32"),
    ],
)
def test_other_blocks_are_refused_by_name(quantisation: Any, words: str, tmp_path: Path) -> None:
    folder = fp8_checkpoint(tmp_path, "qwen3_moe", **quantisation)
    with pytest.raises(NotImplementedError, match=f"Qwen3MoeForCausalLM cannot use 'tilewise': of model.*{words}"):
        load(folder, "tilewise")


def test_what_transformers_makes_no_fp8_experts_for_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, random_model(moe_config("gpt_oss")), fp8_config(), lambda tensors: None)
    with pytest.raises(
        NotImplementedError, match="GptOssForCausalLM cannot use 'tilewise': transformers makes no fp8 ex"
    ):
        load(tmp_path, "tilewise")


def test_each_class_keeps_what_it_does_between_products(tmp_path: Path) -> None:
    """transformers' class for fp8 has a formula of its own; a model's own one holds."""
    model = load(fp8_checkpoint(tmp_path, "qwen3_moe"), "tilewise")
    module = modules(model, FP8Experts)[0]
    assert module.__dict__["_tilewise_form"].limit is None
    module.config.swiglu_limit = module.limit = 0.01
    x, ids, weights = torch.randn(3, 256), torch.tensor([[0, 1]] * 3), torch.rand(3, 2)
    before = fp8.experts_forward(module, x, ids, weights)
    del module.__dict__["_tilewise_form"]
    assert not torch.allclose(fp8.experts_forward(module, x, ids, weights), before)


# --- mxfp4 ---


def test_mxfp4_as_it_is_stored(gpt_oss: Path) -> None:
    ours, widened = load(gpt_oss, "tilewise"), load(gpt_oss, "eager")
    assert not modules(widened, mxfp4.Mxfp4Experts)
    tensors = load_file(gpt_oss / "model.safetensors")
    for i in range(2):
        for name in ("gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales"):
            full = f"model.layers.{i}.mlp.experts.{name}"
            assert torch.equal(ours.get_parameter(full), tensors[full])
    assert_same_logits(ours, widened)
    ours, widened = (load(gpt_oss, name, torch.bfloat16) for name in ("tilewise", "eager"))
    with torch.no_grad():
        compare(ours(TOKENS).logits.float(), widened(TOKENS).logits.float(), "logits", 0.05)


def test_mxfp4_generates_what_the_widened_model_does(gpt_oss: Path) -> None:
    ours, widened = (load(gpt_oss, name, attn_implementation="eager") for name in ("tilewise", "eager"))
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(TOKENS, **options), widened.generate(TOKENS, **options))


def test_mxfp4_is_saved_as_it_was(gpt_oss: Path, tmp_path: Path) -> None:
    ours = load(gpt_oss, "tilewise")
    ours.save_pretrained(tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (gpt_oss, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert_same_logits(load(tmp_path, "tilewise"), ours)
    assert_same_logits(copy.deepcopy(ours), ours)


def test_stored_mxfp4_cannot_be_switched(gpt_oss: Path) -> None:
    ours = load(gpt_oss, "tilewise")
    ours.set_experts_implementation("eager")
    with pytest.raises(NotImplementedError, match="experts_implementation: 'eager' cannot compute with mxfp4 weights"):
        ours(TOKENS)


def test_mxfp4_of_others_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, random_model(moe_config("mixtral")), {"quant_method": "mxfp4"}, lambda tensors: None)
    with pytest.raises(NotImplementedError, match="MixtralForCausalLM cannot use 'tilewise': its checkpoint is mxfp4"):
        load(tmp_path, "tilewise")


# --- what stays transformers' ---


def test_asked_to_widen_they_are_widened(gpt_oss: Path, deepseek: Path) -> None:
    for folder, config in (
        (gpt_oss, transformers.Mxfp4Config(dequantize=True)),
        (deepseek, transformers.FineGrainedFP8Config(dequantize=True)),
    ):
        ours = load(folder, "tilewise", quantization_config=config)
        assert not modules(ours, FP8Experts) and not modules(ours, mxfp4.Mxfp4Experts)
        assert_same_logits(ours, load(folder, "eager"))


def test_a_request_for_a_part_is_seen(gpt_oss: Path, deepseek: Path) -> None:
    """The experts of other models, and of none, are transformers' own business."""
    for folder in (gpt_oss, deepseek):
        model = load(folder, "grouped_mm")
        assert not modules(model, FP8Experts) and not modules(model, mxfp4.Mxfp4Experts)
        assert not model.config._is_quantized if hasattr(model.config, "_is_quantized") else True


def test_quantising_while_loading_stays_refused_without_a_gpu(tmp_path: Path) -> None:
    random_model(moe_config("qwen3_moe")).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="GPU"):
        load(tmp_path, "tilewise", quantization_config=transformers.FineGrainedFP8Config())
