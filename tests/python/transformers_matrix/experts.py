"""What each class of experts in transformers computes with experts_implementation="tilewise", beside its own forward.

A class is made by itself, from a tiny configuration of its models; of one that never asks which implementation to use a
model without memory is made, which must be refused.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from route_table import OWN_RULES, SERVED
from transformers.models.auto import configuration_auto

from tilewise.transformers import experts
from transformers_matrix import experts_fp8, table
from transformers_matrix.checks import NotBuilt, Verdict, compare, first_line, kind_of, model_class
from transformers_matrix.tiny import tiny_config

TOKENS, TOP_K = 11, 2
# What stands for experts in a class's name, where it is not one of the interface's.
NAMED = re.compile(r"(?<!Shared)(?:Experts|CDMoE)$")
# Sizes of experts by the names that configurations give them.
SIZES: dict[tuple[str, ...], int] = {
    ("hidden_size", "moe_hidden_size", "moe_latent_size"): 32,
    ("intermediate_size", "moe_intermediate_size", "expert_intermediate_size"): 24,
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"): 4,
}
# What gives every layer of a model experts, where its configuration has a word for it.
WITH_EXPERTS = {
    "is_moe": True,
    "encoder_sparse_step": 1,
    "decoder_sparse_step": 1,
    "num_sparse_encoder_layers": 12,
    "num_sparse_decoder_layers": 12,
}


def folders() -> list[str]:
    """The folders of transformers' models whose code has experts."""
    root = Path(transformers.models.__file__).parent
    found = (folder.name for folder in pkgutil.iter_modules([str(root)]) if folder.ispkg)
    return sorted(name for name in found if any(_sources(name)))


def _sources(folder: str) -> Iterator[str]:
    """Modules of a folder that define experts."""
    root = Path(transformers.models.__file__).parent / folder
    for path in sorted(root.glob("modeling_*.py")):
        if re.search(r"^class \w*(?:Experts|CDMoE)\(", path.read_text(), re.MULTILINE):
            yield f"transformers.models.{folder}.{path.stem}"


def asks(cls: type) -> bool:
    """Whether it is one of the interface's."""
    code = getattr(getattr(cls, "forward", None), "__code__", None)
    return code is not None and "experts_interface" in code.co_freevars


def classes(folder: str) -> list[type]:
    """Its classes of routed experts."""
    found = []
    for source in _sources(folder):
        module = importlib.import_module(source)
        members = [member for _, member in inspect.getmembers(module, inspect.isclass) if member.__module__ == source]
        found += [member for member in members if NAMED.search(member.__name__) or asks(member)]
    return [cls for cls in found if issubclass(cls, torch.nn.Module)]


def _configurations(folder: str) -> list[Any]:
    """Kinds of configurations in the folder, the text's before the whole."""
    module = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    found = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    return sorted(found, key=lambda kind: "Text" not in kind.__name__)


def _candidates(folder: str) -> Iterator[Any]:
    """Tiny configurations, and default ones with sizes of experts that are tiny."""
    for kind in _configurations(folder):
        for make in (lambda: tiny_config(kind, kind.model_type), kind):  # noqa: B023 (called at once)
            config: Any = None
            with contextlib.suppress(Exception):
                config = make()
            if config is None:
                continue
            for names, size in SIZES.items():
                for name in names:
                    if hasattr(config, name):
                        own = getattr(config, name)
                        setattr(config, name, [size] * len(own) if isinstance(own, (list, tuple)) else size)
            if getattr(config, "hidden_act", "") is None:
                config.hidden_act = "silu"
            yield config


def _made(cls: type, folder: str) -> Any:
    """One of the class, from the first configuration that does."""
    failure = "no configuration"
    for config in _candidates(folder):
        sized = "intermediate_size" in inspect.signature(cls).parameters
        try:
            module: Any = cls(config, intermediate_size=24) if sized else cls(config)
        except Exception as error:
            failure = first_line(error)
            continue
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
        return module.eval()
    raise NotBuilt(failure)


def _inputs(module: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, the experts that each has, and what these weigh."""
    first = (module.gate_up_proj if module.has_gate else module.up_proj).shape
    num_experts, hidden = first[0], first[1 if module.is_transposed else 2]
    random = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, hidden, generator=random, requires_grad=True)
    weights = torch.rand(TOKENS, TOP_K, generator=random).requires_grad_()
    return x, torch.rand(TOKENS, num_experts, generator=random).topk(TOP_K).indices, weights


def _results(module: Any, implementation: str) -> dict[str, torch.Tensor]:
    """Of a call and its gradients, by name."""
    x, ids, weights = _inputs(module)
    module.config._experts_implementation = implementation
    out = module(x, ids, weights)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    found = {"out": out.detach(), "gradient of x": x.grad, "gradient of top_k_weights": weights.grad}
    for name, parameter in module.named_parameters():
        found[f"gradient of {name}"] = parameter.grad
        parameter.grad = None
    return found


def _compare(cls: type, folder: str) -> str:
    """What was compared of a class of the interface. Raises NotImplementedError where it is refused."""
    module = _made(cls, folder)
    ours, expected = _results(module, "tilewise"), _results(module, "eager")
    for name, value in expected.items():
        compare(ours[name], value, name)
    form = experts.recognise(module)
    words = [form.gate, form.activation, f"limit {form.limit:g} {form.clamp}" if form.limit else ""]
    layout = ["transposed" if module.is_transposed else "", "biases" if module.has_bias else ""]
    stored = experts_fp8.check(module, *_inputs(module))
    return ", ".join(word for word in (*words, *layout, "outputs", "gradients", stored) if word)


def _refuse(cls: type, folder: str) -> str:
    """The message for a model of experts that never ask. Raises AssertionError where nothing refuses it."""
    failure = "no model type of the registry"
    for kind in _configurations(folder):
        if kind.model_type not in configuration_auto.CONFIG_MAPPING_NAMES or not kind_of(kind.model_type):
            continue
        try:
            config = kind()
            for name, value in WITH_EXPERTS.items():
                if hasattr(config, name):
                    setattr(config, name, value)
            with torch.device("meta"):
                model = model_class(kind.model_type, config)._from_config(config, experts_implementation="eager")
        except Exception as error:
            failure = first_line(error)
            continue
        if not any(isinstance(module, cls) for module in model.modules()):
            failure = "its default model has no experts"
            continue
        try:
            model.set_experts_implementation("tilewise")
        except NotImplementedError as error:
            return str(error)
        raise AssertionError(f"{type(model).__name__} took it")
    raise NotBuilt(failure)


def examine(folder: str) -> list[Verdict]:
    """Of each class of experts of a folder. Raises nothing."""
    verdicts = []
    for cls in classes(folder):
        try:
            result, detail = ("pass", _compare(cls, folder)) if asks(cls) else ("refused", _refuse(cls, folder))
        except NotBuilt as error:
            result, detail = "not built", str(error)
        except NotImplementedError as error:
            result, detail = ("refused" if "'tilewise'" in str(error) else "FAILED"), str(error)
        except Exception as error:
            result, detail = "FAILED", first_line(error)
        verdicts.append(Verdict(folder, "interface" if asks(cls) else "own", cls.__name__, result, detail))
    return verdicts


def render(verdicts: list[Verdict]) -> str:
    """Markdown: a summary and one table."""
    counts = Counter(verdict.result for verdict in verdicts)
    summary = ", ".join(f"{count} {table.TITLES[result].lower()}" for result, count in sorted(counts.items()))
    lines = [
        table.BEGIN,
        "",
        f"transformers {transformers.__version__}: {len(verdicts)} classes of experts, {summary}.",
        "",
        "| models | class | result | checked, or message |",
        "|---|---|---|---|",
    ]
    lines += [f"| {v.model_type} | {v.model} | {v.result} | {table.cell(v.detail)} |" for v in verdicts]
    return "\n".join(lines) + "\n\n" + _render_routers(verdicts)


def _render_routers(verdicts: list[Verdict]) -> str:
    """Markdown: every router, who chooses experts for it, and who computes these."""
    results: dict[str, set[str]] = {}
    for verdict in verdicts:
        results.setdefault(verdict.model_type, set()).add(verdict.result)
    lines = [
        "## Routers",
        "",
        f"{len(SERVED)} routers choose as `tilewise.route` can; {len(OWN_RULES)} have a rule of their own.",
        "",
        "| models | router | chooses by | its experts |",
        "|---|---|---|---|",
    ]
    for folder, name, rule in routers():
        experts_of = " and ".join(sorted(results.get(folder, {"no class of experts"})))
        lines.append(f"| {folder} | {name} | {table.cell(rule)} | {experts_of} |")
    return "\n".join(lines) + "\n"


def routers() -> list[tuple[str, str, str]]:
    """(folder, class, rule) of the table of routers."""
    found = [(router.folder, router.name, "`route`") for router in SERVED]
    root = Path(transformers.models.__file__).parent
    for name, reason in OWN_RULES.items():
        (path,) = (path for path in root.glob("*/modeling_*.py") if f"class {name}(" in path.read_text())
        found.append((path.parent.name, name, f"its own: {reason}"))
    return sorted(found)


def main() -> int:
    """usage: cd tests/python && python -m transformers_matrix.experts [FILE], whose table is replaced."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    verdicts = []
    for folder in folders():
        for verdict in examine(folder):
            verdicts.append(verdict)
            print(f"{verdict.result:<10}{folder:<24}{verdict.model:<36}{verdict.detail[:160]}", flush=True)
    print(dict(Counter(verdict.result for verdict in verdicts)))
    for name in sys.argv[1:]:
        text = Path(name).read_text()
        Path(name).write_text(text[: text.index(table.BEGIN)] + render(verdicts))
    return 1 if any(verdict.result == "FAILED" for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
