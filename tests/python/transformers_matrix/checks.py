"""What one model type computes with attn_implementation="tilewise", beside the same weights under "eager"."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.models.auto import configuration_auto, modeling_auto

import tilewise
from transformers_matrix.tiny import IMAGE, VOCABULARY, tiny_config

LENGTH = 13
BATCH = 2
LIMIT_PARAMETERS = 8_000_000
TOLERANCE = 1e-3  # of the largest value; a wrong mask is off by far more

# The class that a type is built with is the first of these that it has.
KINDS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "encoder-decoder": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "encoder": "MODEL_FOR_MASKED_LM_MAPPING",
    "vision": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "multimodal": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "base": "MODEL_MAPPING",
}


@dataclass
class Verdict:
    """result: "pass", "refused", "not built" or "FAILED"; detail: the message, or what was compared."""

    model_type: str
    kind: str
    model: str
    result: str
    detail: str


class NotBuilt(Exception):
    """The type has no tiny model to compare with; says why."""


def kind_of(model_type: str) -> str | None:
    """The kind of model that a type of the registry is tested as; None where it has none of them."""
    for kind, mapping in KINDS.items():
        if model_type in getattr(modeling_auto, f"{mapping}_NAMES"):
            return kind
    return None


def model_types() -> list[str]:
    """Every type of transformers' registry that has a model of one of the kinds."""
    return sorted(name for name in configuration_auto.CONFIG_MAPPING_NAMES if kind_of(name))


def model_class(model_type: str, config: Any) -> Any:
    kind = kind_of(model_type)
    assert kind is not None
    found = getattr(modeling_auto, KINDS[kind])[type(config)]
    return found[0] if isinstance(found, (tuple, list)) else found


def first_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = re.sub(r"[^\s']*/(site-packages|newest)/", "", text)  # a table is the same wherever packages lie
    return f"{type(error).__name__}: {text[:200]}"


def build(model_type: str) -> tuple[Any, Any]:
    """The "tilewise" and the "eager" model with the same weights. Raises NotBuilt, and what refuses "tilewise"."""
    try:
        config = tiny_config(configuration_auto.CONFIG_MAPPING[model_type], model_type)
        cls = model_class(model_type, config)
        with torch.device("meta"):
            size = sum(p.numel() for p in cls._from_config(config, attn_implementation="eager").parameters())
            config = tiny_config(configuration_auto.CONFIG_MAPPING[model_type], model_type)
            cls._from_config(config, attn_implementation="tilewise")
        if size > LIMIT_PARAMETERS:
            raise NotBuilt(f"the smallest configuration has {size // 1_000_000} million parameters")
        torch.manual_seed(0)
        config = tiny_config(configuration_auto.CONFIG_MAPPING[model_type], model_type)
        expected = cls._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    except NotBuilt:
        raise
    except Exception as error:
        if "'tilewise'" in str(error):
            raise
        raise NotBuilt(first_line(error)) from error
    with torch.no_grad():
        for parameter in expected.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.15)
    config = tiny_config(configuration_auto.CONFIG_MAPPING[model_type], model_type)
    ours = cls._from_config(config, attn_implementation="tilewise", dtype=torch.float32).eval()
    ours.load_state_dict(expected.state_dict())
    return ours, expected


def inputs_of(model: Any, padding: str) -> dict[str, torch.Tensor]:
    """A batch for the model's main input; padding: "none", "left" or "right" (of texts alone)."""
    random = torch.Generator().manual_seed(1)
    main = model.main_input_name
    config = model.config
    if main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", IMAGE)
        size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
        shape = (BATCH, getattr(vision, "num_channels", 3), *size)
        return {main: torch.randn(shape, generator=random)}
    if main == "input_values":
        return {main: torch.randn(BATCH, 1200, generator=random)}
    if main == "input_features":
        audio = getattr(config, "audio_config", config)
        bins = getattr(audio, "num_mel_bins", None) or getattr(audio, "input_feat_per_channel", 16)
        frames = 2 * getattr(audio, "max_source_positions", 30) if model.config.model_type == "whisper" else 60
        batch = {main: torch.randn(BATCH, bins, frames, generator=random)}
    elif main == "input_ids":
        ids = torch.randint(5, VOCABULARY - 30, (BATCH, LENGTH), generator=random)
        visible = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        if padding == "left":
            visible[0, :4] = 0
        elif padding == "right":
            visible[0, -4:] = 0
        batch = {"input_ids": ids * visible}
        if padding != "none":
            batch["attention_mask"] = visible
    else:
        raise NotBuilt(f"no tiny input for {main}")
    if getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = torch.randint(5, VOCABULARY - 30, (BATCH, LENGTH - 4), generator=random)
    return batch


def outputs_of(model: Any, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Floating tensors of the output, logits or last hidden states first."""
    keywords: dict[str, Any] = {"use_cache": False} if "use_cache" in getattr(model.config, "__dict__", {}) else {}
    output = model(**batch, **keywords)
    values = list(output.values()) if hasattr(output, "values") else list(output)
    found = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if not found:
        raise NotBuilt("the output has no floating tensor")
    return found


def compare(ours: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    if ours.shape != expected.shape:
        raise AssertionError(f"{what}: shape {list(ours.shape)}, eager {list(expected.shape)}")
    if not torch.equal(ours.isnan(), expected.isnan()):
        raise AssertionError(f"{what}: not-a-number where eager has none, or the other way around")
    ours, expected = ours.nan_to_num(0, 0, 0), expected.nan_to_num(0, 0, 0)
    scale = expected.abs().max().item() if expected.numel() else 0.0
    error = (ours - expected).abs().max().item() if expected.numel() else 0.0
    if error > tolerance * max(scale, 1e-3):
        raise AssertionError(f"{what}: off by {error:.2g} (largest value {scale:.2g})")


@contextlib.contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Counts the calls of tilewise.attention."""
    real, count = tilewise.attention, [0]

    def attention(*tensors: Any, **keywords: Any) -> Any:
        count[0] += 1
        return real(*tensors, **keywords)

    tilewise.attention = attention
    try:
        yield count
    finally:
        tilewise.attention = real


def visible_part(tensor: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Without the padded positions, whose output means nothing, where the tensor has them."""
    visible = batch.get("attention_mask")
    if visible is None or tensor.shape[:2] != visible.shape:
        return tensor
    return tensor[visible.bool()]


def check_forward(ours: Any, expected: Any, padding: str) -> None:
    batch = inputs_of(expected, padding)
    torch.manual_seed(2)
    with torch.no_grad():
        try:
            want = outputs_of(expected, batch)
        except NotBuilt:
            raise
        except Exception as error:
            if padding != "none":
                return  # the model itself takes no such batch
            raise NotBuilt(f"eager itself: {first_line(error)}") from error
        torch.manual_seed(2)
        got = outputs_of(ours, batch)
    if not any(value.abs().nan_to_num().max() > 0 for value in want if value.numel()):
        raise NotBuilt("eager computes zeros or nothing finite")
    for place, (one, other) in enumerate(zip(got, want)):
        compare(visible_part(one, batch), visible_part(other, batch), f"{padding} padding, output {place}")


def check_causality(ours: Any, expected: Any) -> bool:
    """Whether a change of the last token moves no earlier position. It may only where it does under eager too."""
    batch = inputs_of(ours, "none")
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][:, -1] = (changed["input_ids"][:, -1] + 7) % (VOCABULARY - 30) + 1

    def moved(model: Any) -> float:
        with torch.no_grad():
            before, after = outputs_of(model, batch)[0], outputs_of(model, changed)[0]
        return float((before - after)[:, : LENGTH - 1].abs().max() / before.abs().max())

    if moved(ours) <= 1e-5:
        return True
    if moved(expected) <= 1e-5:
        raise AssertionError(f"causality: the last token moves earlier positions by {moved(ours):.2g}")
    return False


def check_gradients(ours: Any, expected: Any) -> None:
    """Gradients of every parameter, with left padding where the model takes it."""
    padding = "left"
    try:
        outputs_of(expected, inputs_of(expected, padding))
    except Exception:
        padding = "none"
    gradients = []
    for model in (expected, ours):
        torch.manual_seed(2)
        batch = inputs_of(model, padding)
        value = visible_part(outputs_of(model, batch)[0], batch)
        if not value.requires_grad:
            return
        weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(3))
        (value * weights).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    want, got = gradients
    if want.keys() != got.keys():
        raise AssertionError(f"gradients: {sorted(want.keys() ^ got.keys())[:3]} on one side only")
    want = {name: gradient for name, gradient in want.items() if gradient.numel()}
    largest = max((float(gradient.abs().nan_to_num().max()) for gradient in want.values()), default=0.0)
    for name, gradient in want.items():
        error = (got[name] - gradient).abs().nan_to_num().max().item()
        if error > TOLERANCE * max(gradient.abs().nan_to_num().max().item(), 1e-3 * largest):
            raise AssertionError(f"gradient of {name}: off by {error:.2g} (largest {gradient.abs().max().item():.2g})")


def check_attention_weights(ours: Any, expected: Any) -> None:
    """Weights of attention are refused where eager gives them."""
    batch = inputs_of(expected, "none")
    try:
        with torch.no_grad():
            output = expected(**batch, output_attentions=True)
        given = [name for name in output if "attentions" in name and any(x is not None for x in output[name])]
    except Exception:
        return
    if given:
        try:
            with torch.no_grad():
                output = ours(**batch, output_attentions=True)
        except NotImplementedError as error:
            if "output_attentions: " in str(error):
                return
            raise
        if any(x is None for name in given for x in output.get(name) or [None]):
            raise AssertionError(f"output_attentions: {given} without weights, and not refused")


def check_decoding(ours: Any, expected: Any) -> bool:
    """Steps on a cache, from a left-padded prompt. Whether the model can."""
    if not expected.can_generate() or expected.main_input_name != "input_ids":
        return False
    batch = inputs_of(expected, "left")
    batch.pop("decoder_input_ids", None)
    settings: dict[str, Any] = {
        "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True,
        "output_logits": True,
    }  # fmt: skip
    try:
        want = expected.generate(**batch, **settings)
        steps = torch.stack(want.logits)
    except Exception:
        return False
    compare(torch.stack(ours.generate(**batch, **settings).logits), steps, "decoding")
    return True


def examine(model_type: str) -> Verdict:
    """Everything about one type. Raises nothing."""
    kind = kind_of(model_type) or "base"
    name = str(getattr(modeling_auto, f"{KINDS[kind]}_NAMES")[model_type])
    try:
        ours, expected = build(model_type)
        name = type(expected).__name__
        done = ["forward"]
        with counted_calls() as calls:
            check_forward(ours, expected, "none")
        called = calls[0]
        if expected.main_input_name == "input_ids":
            for padding in ("left", "right"):
                check_forward(ours, expected, padding)
            done.append("padding")
            if kind == "causal" and check_causality(ours, expected):
                done.append("causality")
        if called:
            check_attention_weights(ours, expected)
        check_gradients(ours, expected)
        done.append("gradients")
        if check_decoding(ours, expected):
            done.append("decoding")
    except NotBuilt as error:
        return Verdict(model_type, kind, name, "not built", str(error))
    except NotImplementedError as error:
        result = "refused" if "tilewise" in str(error) else "FAILED"
        return Verdict(model_type, kind, name, result, str(error))
    except Exception as error:
        return Verdict(model_type, kind, name, "FAILED", first_line(error))
    if not called:
        done.append("no attention in it")
    return Verdict(model_type, kind, name, "pass", ", ".join(done))
