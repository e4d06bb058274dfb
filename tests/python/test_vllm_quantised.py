"""tilewise.vllm's quantised experts beside stand-ins of vLLM's classes: what is loaded as a checkpoint has it, what is
computed of it, and what stays vLLM's own."""

from __future__ import annotations

import importlib
import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vllm_stand_in  # noqa: E402
from vllm_experts_stand_in import RoutedExperts, Theirs, moe_config  # noqa: E402

import tilewise  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
QUANTISATIONS = "vllm.model_executor.layers.quantization"


def install(monkeypatch: pytest.MonkeyPatch, release: str, cpu: bool = True) -> None:
    monkeypatch.setenv("TILEWISE_VLLM", "experts")
    vllm_stand_in.install(monkeypatch, release, cpu)
    for _ in range(2):
        importlib.import_module("tilewise.vllm").register()


@pytest.fixture(params=vllm_stand_in.RELEASES)
def release(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    install(monkeypatch, request.param)
    return request.param


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "0.32.0")


def config_of(method: str, **settings: Any) -> Any:
    return importlib.import_module(QUANTISATIONS).get_quantization_config(method)(**settings)


def fp8(**settings: Any) -> Any:
    return config_of("fp8", **{"weight_block_size": [128, 128], **settings})


def quantised(shape: tuple[int, ...], format: str) -> tuple[Any, Any, Any]:
    """(elements, scales, what they stand for) of random weights, as a checkpoint has them."""
    elements, scales = tilewise.quantize(torch.randn(shape) / 8, format)  # type: ignore[arg-type]
    wide = tilewise.dequantize(elements, scales, format)  # type: ignore[arg-type]
    return (elements.view(torch.uint8) if format == "mxfp4" else elements), scales, wide


def load_by_expert(layer: Any, format: str, scale_name: str, as_bytes: bool) -> tuple[Any, Any]:
    """Gates, ups and downs, each by itself, as most models' checkpoints come; (gate and up, down) as they are."""
    moe, wide = layer.moe_config, {}
    sizes = {"w1": (moe.intermediate_size, moe.hidden_dim), "w3": (moe.intermediate_size, moe.hidden_dim),
             "w2": (moe.hidden_dim, moe.intermediate_size)}  # fmt: skip
    for shard, shape in sizes.items():
        name = "w2" if shard == "w2" else "w13"
        wide[shard] = []
        for expert in range(moe.num_experts):
            elements, scales, values = quantised(shape, format)
            scales = scales.view(torch.uint8) if as_bytes else scales
            for suffix, tensor in (("weight", elements), (scale_name, scales)):
                parameter = getattr(layer, f"{name}_{suffix}")
                parameter.weight_loader(parameter, tensor, f"experts.{name}_{suffix}", shard, expert)
            wide[shard].append(values)
    gate, up, down = (torch.stack(wide[shard]) for shard in ("w1", "w3", "w2"))
    return torch.cat((gate, up), 1), down


def tokens_of(layer: Any) -> tuple[Any, Any, Any]:
    moe = layer.moe_config
    x = torch.randn(5, moe.hidden_dim)
    return x, torch.rand(5, 2), torch.randint(moe.num_experts, (5, 2), dtype=torch.int32)


def run(layer: Any, x: Any, weights: Any, ids: Any) -> Any:
    method = layer.quant_method
    method.process_weights_after_loading(layer)
    assert not method.is_monolithic and method.get_fused_moe_quant_config(layer) is None
    assert method.maybe_make_prepare_finalize(routing_tables=None) is None
    return method.apply(layer, x, weights, ids, shared_experts=None, shared_experts_input=None)


FORMS = {
    "fp8": (lambda: fp8(), "fp8_128x128", "weight_scale_inv", False),
    "mxfp4": (lambda: config_of("mxfp4"), "mxfp4", "weight_scale", True),
    "mxfp4_in_e8m0": (lambda: config_of("mxfp4"), "mxfp4", "weight_scale", False),
    "fp8_config_of_mxfp4": (lambda: fp8(store_dtype="mxfp4", weight_block_size=None), "mxfp4", "weight_scale", True),
}


@pytest.mark.parametrize("name", FORMS)
def test_weights_as_they_are_stored(release: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config, format, scale_name, as_bytes = FORMS[name]
    torch.manual_seed(0)
    layer = RoutedExperts(moe_config(), config())
    gate_up, down = load_by_expert(layer, format, scale_name, as_bytes)
    x, weights, ids = tokens_of(layer)
    expected = torch.zeros(5, 256)
    for token, (row, w, chosen) in enumerate(zip(x, weights, ids.tolist())):
        for weight, expert in zip(w, chosen):
            gate, up = (gate_up[expert] @ row).chunk(2)
            expected[token] += weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    torch.testing.assert_close(run(layer, x, weights, ids), expected, rtol=1e-4, atol=1e-4)
    lines = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert lines == [f"Tilewise computes experts in {'fp8 blocks' if name == 'fp8' else 'mxfp4'}"]


def test_gpt_oss(release: str) -> None:
    """Whose experts come all at once, gates and ups in turns by rows, with biases."""
    torch.manual_seed(0)
    moe = moe_config(activation="swigluoai", has_bias=True, in_dtype=torch.bfloat16)
    layer = RoutedExperts(moe, config_of("gpt_oss_mxfp4"), alpha=1.702, limit=0.5, beta=1.0)
    assert layer.quant_method.weight_dtype == "mxfp4"
    wide = {}
    for name, shape in (("w13", (4, 256, 256)), ("w2", (4, 256, 128))):
        elements, scales, wide[name] = quantised(shape, "mxfp4")
        wide[f"{name}_bias"] = torch.randn(shape[:2]).bfloat16()
        given = {"weight": elements, "weight_scale": scales.view(torch.uint8), "bias": wide[f"{name}_bias"]}
        for suffix, tensor in given.items():
            parameter = getattr(layer, f"{name}_{suffix}")
            parameter.weight_loader(parameter, tensor, f"experts.{name}_{suffix}", None, None)
    x, weights, ids = tokens_of(layer)
    out = run(layer, x.bfloat16(), weights, ids)
    expected = torch.zeros(5, 256)
    for token, (row, w, chosen) in enumerate(zip(x.bfloat16().float(), weights, ids.tolist())):
        for weight, e in zip(w, chosen):
            rows = wide["w13"][e] @ row + wide["w13_bias"][e].float()
            gate, up = rows[0::2].clamp(max=0.5), rows[1::2].clamp(-0.5, 0.5)
            hidden = (gate * torch.sigmoid(1.702 * gate) * (up + 1)).bfloat16().float()
            expected[token] += weight * (wide["w2"][e] @ hidden + wide["w2_bias"][e].float())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


def test_other_layers_are_vllms(release: str, caplog: pytest.LogCaptureFixture) -> None:
    """And so are experts that a checkpoint says are not quantised, without a word."""
    for config in (fp8(), config_of("mxfp4"), config_of("gpt_oss_mxfp4")):
        assert config.get_quant_method(torch.nn.Linear(1, 1), "layers.0.proj") == "of another layer"
    layer = RoutedExperts(moe_config(), fp8(ignored_layers=["layers.0.experts"]))
    assert isinstance(layer.quant_method, Theirs) and not caplog.records


@pytest.mark.parametrize(
    ("config", "changes", "reason"),
    [
        (fp8, {"tp": 2}, "its experts are spread over ranks"),
        (fp8, {"activation": "situ"}, r"moe\(\) has no activation situ"),
        (fp8, {"intermediate_size": 192}, "its intermediate size, 192, is no multiple of 128"),
        (fp8, {"in_dtype": torch.float64}, "its tokens are torch.float64"),
        (fp8, {"is_lora_enabled": True}, "it may have adapters"),
        (lambda: fp8(weight_block_size=[64, 64]), {}, r"their fp8 weights have blocks of \[64, 64\]"),
        (lambda: fp8(weight_block_size=None), {}, "their fp8 weights have blocks of None"),
        (lambda: config_of("mxfp4"), {"hidden_dim": 272}, "its hidden size, 272, is no multiple of 32"),
        (lambda: config_of("gpt_oss_mxfp4"), {"activation": "swigluoai", "ep": 2}, "its experts are spread over ranks"),
    ],
)  # fmt: skip
def test_what_is_refused_is_vllms_own(
    vllm: None, config: Any, changes: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    layer = RoutedExperts(moe_config(**changes), config())
    assert isinstance(layer.quant_method, Theirs)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("layers.0.experts: its experts are vLLM's own, since ") and re.search(reason, line)


def test_a_device_that_no_implementation_is_for(vllm: None, caplog: pytest.LogCaptureFixture) -> None:
    """explain() is asked of the layer that is to be made, of its own device."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    layer = RoutedExperts(moe_config(device=torch.device("cuda", 1), in_dtype=torch.bfloat16), fp8())
    assert isinstance(layer.quant_method, Theirs)
    assert "its experts are vLLM's own, since " in caplog.text and "cuda" in caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["fp8", "mxfp4", "gpt_oss"])
def test_the_problem_that_explain_is_asked(vllm: None, name: str, dtype: Any) -> None:
    """It is that of the call but for the number of tokens, on GPUs too."""
    theirs = importlib.import_module("tilewise.vllm.quantised")
    changes = {"activation": "swigluoai", "has_bias": True} if name == "gpt_oss" else {}
    layer = SimpleNamespace(moe_config=moe_config(in_dtype=dtype, **changes), swiglu_alpha=None, swiglu_limit=None)
    layer.activation = layer.moe_config.activation
    text = theirs._problem(layer, theirs._FP8 if name == "fp8" else theirs._MXFP4)
    assert tilewise.explain(text).chosen is not None
    layer.moe_config.device = torch.device("cuda")
    on_gpu = tilewise.explain(theirs._problem(layer, theirs._FP8 if name == "fp8" else theirs._MXFP4)).problem
    assert on_gpu.replace("device=cuda ", "") == tilewise.explain(text).problem


def test_float32_on_cpus_alone(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.float32 in config_of("gpt_oss_mxfp4").get_supported_act_dtypes()
    install(monkeypatch, release, cpu=False)
    assert torch.float32 not in config_of("gpt_oss_mxfp4").get_supported_act_dtypes()


def test_another_plugins_quantisation_stays(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    vllm_stand_in.install(monkeypatch, "0.32.0")
    theirs = importlib.import_module(f"{QUANTISATIONS}.mxfp4").Mxfp4Config
    other = type("Other", (theirs,), {"__module__": "other"})
    importlib.import_module(QUANTISATIONS).register_quantization_config("mxfp4")(other)
    monkeypatch.setenv("TILEWISE_VLLM", "experts")
    importlib.import_module("tilewise.vllm").register()
    assert type(config_of("mxfp4")) is other and type(fp8()) is not type(config_of("mxfp4"))
    assert "layers in mxfp4 stay those of other.Other, which was registered before" in caplog.text
