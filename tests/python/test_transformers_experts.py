"""experts_implementation="tilewise": tiny random models of many types beside "eager", and refusals by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS  # noqa: E402
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: E402
from transformers_matrix import experts as matrix  # noqa: E402
from transformers_matrix import table  # noqa: E402
from transformers_matrix.checks import compare, configuration_auto, inputs_of, model_class, outputs_of  # noqa: E402
from transformers_matrix.tiny import tiny_config  # noqa: E402

import tilewise.transformers as hook  # noqa: E402
from tilewise.transformers import experts, fp8  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

DOCS = Path(__file__).parents[2] / "docs" / "transformers_experts.md"
# One of each way to compute experts: plain, biased, interleaved, transposed, clamped, without a gate.
FORMS = {
    "mixtral": ("concatenated", "silu", None),
    "qwen3_moe": ("concatenated", "silu", None),
    "olmoe": ("concatenated", "silu", None),
    "phimoe": ("concatenated", "silu", None),
    "gpt_oss": ("interleaved", "swiglu_oai", 7.0),
    "minimax_m3_vl_text": ("concatenated", "swiglu_oai", 7.0),
    "openai_privacy_filter": ("concatenated", "swiglu_oai", 7.0),
    "deepseek_v4": ("concatenated", "silu", 10.0),
    "hy_v4": ("concatenated", "silu", 10.0),
    "nemotron_h": ("none", "relu_squared", None),
    "granitemoe": ("concatenated", "silu", None),
    "aria_text": ("concatenated", "silu", None),
}
REFUSED = {
    "llama4_text": "Llama4TextExperts never asks",
    "jetmoe": "JetMoe.* never asks",
    "longcat_flash": "LongcatFlashExperts never asks",
    "inkling2": "Inkling2Experts cannot use 'tilewise': its _apply_gate",
}


def _build(model_type: str, implementation: str) -> Any:
    if model_type not in configuration_auto.CONFIG_MAPPING_NAMES:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    config = tiny_config(configuration_auto.CONFIG_MAPPING[model_type], model_type)
    cls = model_class(model_type, config)
    torch.manual_seed(0)
    model = cls._from_config(
        config, attn_implementation="eager", experts_implementation=implementation, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.15)
    return model


def _experts(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "_is_expert_parallel")]


@pytest.mark.parametrize("model_type", FORMS)
def test_equals_eager(model_type: str) -> None:
    eager, ours = _build(model_type, "eager"), _build(model_type, "tilewise")
    ours.load_state_dict(eager.state_dict())
    gate, activation, limit = FORMS[model_type]
    assert _experts(ours), "a model without experts shows nothing"
    for module in _experts(ours):
        form = experts.recognise(module)
        assert (form.gate, form.activation, form.limit) == (gate, activation, limit)
    batch = inputs_of(eager, "none")
    with torch.no_grad():
        for one, other in zip(outputs_of(ours, batch), outputs_of(eager, batch)):
            compare(one, other, model_type)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "nemotron_h"])
def test_gradients_equal_eager(model_type: str) -> None:
    eager, ours = _build(model_type, "eager"), _build(model_type, "tilewise")
    ours.load_state_dict(eager.state_dict())
    batch = inputs_of(eager, "none")
    for model in (eager, ours):
        sum(each.square().mean() for each in outputs_of(model, batch)).backward()
    named = dict(eager.named_parameters())
    compared = 0
    for name, parameter in ours.named_parameters():
        expected = named[name].grad
        if expected is None:
            assert parameter.grad is None or not parameter.grad.any(), name
            continue
        compare(parameter.grad, expected, name)
        compared += "experts" in name
    assert compared


@pytest.mark.parametrize("model_type", REFUSED)
def test_refused_by_name(model_type: str) -> None:
    eager = _build(model_type, "eager")
    with pytest.raises(NotImplementedError, match=REFUSED[model_type]):
        eager.set_experts_implementation("tilewise")
    assert all(module.config._experts_implementation == "eager" for module in _experts(eager))
    with pytest.raises(NotImplementedError, match=REFUSED[model_type]):
        _build(model_type, "tilewise")


def test_registered_in_both_registries() -> None:
    hook.register()
    assert ALL_EXPERTS_FUNCTIONS["tilewise"] is experts.experts_forward
    assert ALL_FP8_EXPERTS_FUNCTIONS["tilewise"] is fp8.experts_forward


def test_experts_of_other_ranks_add_nothing() -> None:
    model = _build("mixtral", "tilewise")
    module = _experts(model)[0]
    hidden = torch.randn(5, module.gate_up_proj.shape[-1])
    ids, weights = torch.tensor([[0, 1]] * 5), torch.rand(5, 2)
    whole = experts.experts_forward(module, hidden, ids, weights)
    ids[2] = module.num_experts
    part = experts.experts_forward(module, hidden, ids, weights)
    assert not part[2].any()
    torch.testing.assert_close(part[[0, 1, 3, 4]], whole[[0, 1, 3, 4]])


def test_an_activation_of_its_own_is_refused() -> None:
    model = _build("mixtral", "eager")
    module = _experts(model)[0]
    type(module)._apply_gate, before = (
        (lambda self, x: x.chunk(2, -1)[0].tanh() * x.chunk(2, -1)[1]),
        module._apply_gate,
    )
    try:
        with pytest.raises(NotImplementedError, match="MixtralExperts cannot use 'tilewise': its _apply_gate"):
            model.set_experts_implementation("tilewise")
    finally:
        type(module)._apply_gate = before.__func__


def _rows(heading: str) -> list[list[str]]:
    """Cells of the lines of one of the page's tables."""
    _, _, text = DOCS.read_text().partition(f"| models | {heading} |")
    lines = text.partition("\n\n")[0].splitlines()[2:]
    return [line.strip("| ").split(" | ") for line in lines]


def test_every_class_and_router_is_documented() -> None:
    if f"transformers {transformers.__version__}:" not in DOCS.read_text():
        pytest.skip("docs/transformers_experts.md is about another version of transformers")
    classes = [(folder, cls.__name__) for folder in matrix.folders() for cls in matrix.classes(folder)]
    rows = _rows("class")
    assert [(row[0], row[1]) for row in rows] == classes
    assert {row[2] for row in rows} <= {"pass", "refused", "not built"}
    assert sum(row[2] == "pass" for row in rows) >= 60
    assert sum(row[3].endswith(", fp8") for row in rows) >= 55
    routers = _rows("router")
    assert [tuple(row[:3]) for row in routers] == matrix.routers()
    assert len(routers) == 80


@pytest.mark.parametrize("folder", ["mixtral", "gpt_oss", "deepseek_v4", "inkling2", "llama4"])
def test_the_page_says_what_is(folder: str) -> None:
    if f"transformers {transformers.__version__}:" not in DOCS.read_text():
        pytest.skip("docs/transformers_experts.md is about another version of transformers")
    found = [[v.model_type, v.model, v.result, table.cell(v.detail)] for v in matrix.examine(folder)]
    assert found == [row for row in _rows("class") if row[0] == folder]
