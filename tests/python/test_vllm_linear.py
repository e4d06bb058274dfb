"""tilewise.vllm's linear layers beside stand-ins of vLLM's classes: what is loaded as a checkpoint has it, what is
computed of it, and what stays vLLM's own."""

from __future__ import annotations

import importlib
import logging
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vllm_stand_in  # noqa: E402
from vllm_linear_stand_in import LinearBase, Theirs  # noqa: E402

import tilewise  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
QUANTISATIONS = "vllm.model_executor.layers.quantization"


def install(monkeypatch: pytest.MonkeyPatch, release: str, asked: str = "linear") -> None:
    monkeypatch.setenv("TILEWISE_VLLM", asked)
    vllm_stand_in.install(monkeypatch, release)
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


def compressed(bits: int, strategy: str, **more: Any) -> Any:
    weights = {"num_bits": bits, "type": "float", "symmetric": True, "dynamic": False, "strategy": strategy}
    scheme = {name: more.pop(name) for name in ("transform_config", "input_activations", "output_activations")
              if name in more}  # fmt: skip
    return config_of("compressed-tensors", weights={**weights, **more}, **scheme)


def bytes_of(group: int = 32) -> dict[str, Any]:
    return {"group_size": group, "scale_dtype": torch.uint8}


class Static:
    dynamic = False


# A configuration, the format of its weights, the names of elements and scales, and what is logged.
FORMS: dict[str, tuple[Any, str, str, str, str]] = {
    "blocks": (fp8, "fp8_128x128", "weight", "weight_scale_inv", "fp8 blocks"),
    "tensor": (lambda: fp8(weight_block_size=None), "fp8_tensor", "weight", "weight_scale", "fp8 with one scale"),
    "static": (lambda: fp8(weight_block_size=None, activation_scheme="static"), "fp8_tensor", "weight", "weight_scale",
               "fp8 with one scale"),
    "fbgemm": (lambda: config_of("fbgemm_fp8"), "fp8_row", "weight", "weight_scale", "fp8 with scales of rows"),
    "ct_blocks": (lambda: compressed(8, "block", block_structure=[128, 128]), "fp8_128x128", "weight", "weight_scale",
                  "fp8 blocks"),
    "ct_tensor": (lambda: compressed(8, "tensor", input_activations=Static), "fp8_tensor", "weight", "weight_scale",
                  "fp8 with one scale"),
    "ct_rows": (lambda: compressed(8, "channel"), "fp8_row", "weight", "weight_scale", "fp8 with scales of rows"),
    "ct_mxfp8": (lambda: compressed(8, "group", **bytes_of()), "mxfp8", "weight", "weight_scale", "mxfp8"),
    "ct_mxfp4": (lambda: compressed(4, "group", **bytes_of()), "mxfp4", "weight_packed", "weight_scale", "mxfp4"),
}  # fmt: skip


def load(layer: Any, parts: list[int], columns: int, form: str, in_e8m0: bool = False) -> Any:
    """Each matrix by itself, as checkpoints have them; what they stand for, one below the other."""
    _, format, weight_name, scale_name, _ = FORMS[form]
    wide = []
    for part, rows in enumerate(parts):
        # Each of another size: scales of matrices differ.
        elements, scales = tilewise.quantize(torch.randn(rows, columns) * (1 + part), format)
        wide.append(tilewise.dequantize(elements, scales, format))
        elements = elements.view(torch.uint8) if format == "mxfp4" else elements
        scales = scales.view(torch.uint8) if format.startswith("mx") and not in_e8m0 else scales
        for name, tensor in ((weight_name, elements), (scale_name, scales)):
            parameter = getattr(layer, name)
            parameter.weight_loader(parameter, tensor, part)
        if hasattr(layer, "input_scale"):
            layer.input_scale.weight_loader(layer.input_scale, torch.tensor(3.0), part)
    return torch.cat(wide)


def run(layer: Any, x: Any, bias: Any = None) -> Any:
    layer.quant_method.process_weights_after_loading(layer)
    assert all(type(parameter) is torch.nn.Parameter for parameter in layer.parameters())
    assert not hasattr(layer, "input_scale")
    return layer.quant_method.apply(layer, x, bias)


@pytest.mark.parametrize("form", FORMS)
def test_weights_as_they_are_stored(release: str, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """Matrices that one layer joins, the last of them no multiple of a block; rows that are not quantised."""
    caplog.set_level(logging.INFO)
    torch.manual_seed(0)
    parts = [256, 128, 72]
    layer = LinearBase(160, parts, FORMS[form][0]())
    wide = load(layer, parts, 160, form)
    x, bias = torch.randn(2, 3, 160), torch.randn(sum(parts))
    torch.testing.assert_close(run(layer, x, bias), x @ wide.T + bias, rtol=1e-4, atol=1e-4)
    # vLLM takes weights back from any method by the rows of one.
    assert torch.equal(layer.quant_method.apply(layer, torch.eye(160)).T, wide)
    lines = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert lines == [f"Tilewise computes linear layers in {FORMS[form][4]}"]


def test_scales_that_are_loaded_as_numbers(vllm: None) -> None:
    layer = LinearBase(64, [40], compressed(8, "group", **bytes_of()))
    wide = load(layer, [40], 64, "ct_mxfp8", in_e8m0=True)
    x = torch.randn(3, 64)
    torch.testing.assert_close(run(layer, x), x @ wide.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["blocks", "tensor", "ct_rows", "ct_mxfp4"])
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_ranks_share(vllm: None, form: str, by: str) -> None:
    parts = [512, 256] if by == "rows" else [320]
    layer = LinearBase(256, parts, FORMS[form][0](), tp=2, by=by)
    wide = load(layer, parts, 256, form)
    wide = torch.cat([matrix.chunk(2)[1] for matrix in wide.split(parts)]) if by == "rows" else wide[:, 128:]
    x = torch.randn(3, wide.shape[1])
    torch.testing.assert_close(run(layer, x), x @ wide.T, rtol=1e-4, atol=1e-4)


@pytest.fixture
def default_dtype(request: Any) -> Any:
    """vLLM makes a model with its dtype as torch's own."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("default_dtype", [torch.bfloat16, torch.float16], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_other_dtypes(vllm: None, default_dtype: Any, form: str) -> None:
    layer = LinearBase(160, [128, 40], FORMS[form][0](), default_dtype)
    scales = {parameter.dtype for name, parameter in layer.named_parameters() if "scale" in name}
    assert scales <= {torch.float32, torch.uint8}
    torch.set_default_dtype(torch.float32)
    wide = load(layer, [128, 40], 160, form)
    x = torch.randn(3, 160, dtype=default_dtype)
    out = run(layer, x)
    assert out.dtype == default_dtype
    torch.testing.assert_close(out.float(), x.float() @ wide.T, rtol=1e-2, atol=2e-1)


@pytest.mark.parametrize(
    ("config", "sizes", "reason"),
    [
        (fp8, {"parts": [192, 128]}, "192 of its rows, cut or joined so, are no multiple of 128, those of a block"),
        (fp8, {"parts": [384], "tp": 2, "by": "rows"}, "192 of its rows, cut or joined so, are no"),
        (fp8, {"columns": 384, "tp": 2, "by": "columns"}, "its 192 columns are no multiple of 128"),
        (fp8, {"dtype": torch.float64}, "its tokens are torch.float64"),
        (lambda: fp8(weight_block_size=[64, 64]), {}, r"its fp8 weights have blocks of \[64, 64\]"),
        (lambda: compressed(4, "group", **bytes_of()), {"columns": 144}, "its 144 columns are no multiple of 32"),
        (lambda: compressed(4, "tensor_group", **bytes_of(16)), {}, r"no format .* \(4 bits, tensor_group\)"),
        (lambda: compressed(8, "group", group_size=128, scale_dtype=None), {}, r"no format .* \(8 bits, group\)"),
        (lambda: compressed(8, "tensor", output_activations=1), {}, "its checkpoint transforms or quantises"),
        (lambda: compressed(8, "tensor", transform_config=1), {}, "its checkpoint transforms or quantises"),
    ],
)  # fmt: skip
def test_what_is_refused_is_vllms_own(
    vllm: None, config: Any, sizes: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    layer = LinearBase(**{"columns": 256, "parts": [128], "quant_config": config(), **sizes})
    assert isinstance(layer.quant_method, Theirs) and layer.made_by_vllm[1] == layer.shares
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("layers.0.proj: it is vLLM's own, since ") and re.search(reason, line)


def test_what_nobody_implements(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """explain() is asked of the layer's sizes, on the device that it is made on."""
    stored = importlib.import_module("tilewise.vllm.stored")
    asked = []
    monkeypatch.setattr(importlib.import_module("tilewise.vllm.linear"), "refusal", asked.append)
    LinearBase(256, [128, 64], fp8(), torch.bfloat16)
    text = "linear dtype=bf16 tokens=1 n=192 k=256 w_format=fp8_128x128"
    assert asked == [text] and stored.refusal(text) is None
    if not torch.cuda.is_available():
        on_gpu = stored.problem_text("linear", "cuda", dtype="bf16", tokens=1, n=192, k=256, w_format="fp8_128x128")
        assert "the tensors are on cuda" in stored.refusal(on_gpu)


@pytest.mark.parametrize(
    "config",
    [
        lambda: fp8(ignored_layers=["layers.0.proj"]),
        lambda: config_of("mxfp4"),
        lambda: config_of("fbgemm_fp8", ignore_list=["layers.0.proj"]),
        lambda: config_of("compressed-tensors"),
        lambda: compressed(8, "channel", type="int"),
    ],
)
def test_layers_that_are_not_quantised_so(
    vllm: None, monkeypatch: pytest.MonkeyPatch, config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Are vLLM's without a word, and those of which nobody asked."""
    assert isinstance(LinearBase(256, [128], config()).quant_method, Theirs) and not caplog.records
    monkeypatch.setenv("TILEWISE_VLLM", "experts")
    assert isinstance(LinearBase(256, [128], fp8()).quant_method, Theirs) and not caplog.records


def test_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"fp8": "experts linear", "mxfp4": "experts", "fbgemm_fp8": "linear", "compressed-tensors": "linear"}
    for asked in ("experts", "linear"):
        install(monkeypatch, "0.32.0", asked)
        for method in known:
            ours = type(config_of(method)).__module__ == "tilewise.vllm.quantised"
            assert ours == (asked in known[method]), (method, asked)
    assert torch.float32 in config_of("compressed-tensors").get_supported_act_dtypes()
