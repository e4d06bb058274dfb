"""Which models attn_implementation="tilewise" can serve, decided from what their code does.

A model that never reaches transformers' attention interface would get masks that it misreads, and would
never call Tilewise. The code of a model class, its modules and their helpers says which one it is.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from transformers.modeling_utils import AttentionInterface, PreTrainedModel

__all__ = ["NAME", "SELECTIONS", "Attention", "check", "check_modules", "find_attention", "install"]

NAME = "tilewise"

# Keywords that select the keys of each query in a way that no kernel here can do yet. A model whose attention passes
# one is refused when it is built; a call that has one is refused too. (Selected keys, `indices`, are served.)
SELECTIONS = {"block_indices": "block-sparse selection is not supported"}

_PRODUCTS = {"baddbmm", "bmm", "einsum", "matmul"}
# Ways to build a part from its configuration.
_BUILDERS = {"AutoBackbone", "AutoModel", "AutoModelForCausalLM", "load_backbone"}
# torch's own attention, called past the interface.
_TORCH_ATTENTION = {"MultiheadAttention", "multi_head_attention_forward", "scaled_dot_product_attention"}


@dataclass
class Attention:
    """How the modules of a model class compute attention."""

    interface: list[str] = field(default_factory=list)  # classes that call transformers' attention interface
    own: list[str] = field(default_factory=list)  # classes that compute scores themselves
    own_masked: list[str] = field(default_factory=list)  # of these, the ones that are given a mask
    tables: list[str] = field(default_factory=list)  # dicts of attention classes that do not have NAME
    parts: bool = False  # builds other models, which are looked at by themselves

    @property
    def obstacle(self) -> str | None:
        """Why such a model cannot use NAME; None where it can."""
        if self.tables:
            return f"it picks its attention from {self.tables[0]}, which has no entry for it"
        if self.own and not self.interface and not self.parts:
            return f"{self.own[0]} computes its scores itself and never calls transformers' attention interface"
        return None


def _is_model_code(module: str | None) -> bool:
    """Whether this Python module defines models; the library's own machinery and torch are not followed."""
    top = (module or "").split(".")
    return top[0] not in ("torch", "builtins", "tilewise", "einops") and (
        top[0] != "transformers" or top[1:2] == ["models"]
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """This code and that of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _words(code: CodeType) -> set[str]:
    """Strings of this code, names of keywords that it passes among them."""
    tuples = (constant if isinstance(constant, tuple) else (constant,) for constant in code.co_consts)
    return {word for constants in tuples for word in constants if isinstance(word, str)}


def _methods(cls: type) -> Iterator[Any]:
    """Functions of a class and of its bases that are model code."""
    seen = {"_init_weights"}  # it names every class of its file
    for base in cls.__mro__:
        if not _is_model_code(base.__module__):
            continue
        for name, member in vars(base).items():
            member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            member = inspect.unwrap(member) if callable(member) else member
            if name not in seen and inspect.isfunction(member):
                seen.add(name)
                yield member


class _Reader:
    """Collects what a class and the helper functions that it calls refer to."""

    def __init__(self, cls: type) -> None:
        self.names: set[str] = set()
        self.multiplies = False
        self.interface = False
        self.masked = False
        self.parts = False
        self.selections: set[str] = set()
        self.modules: list[type] = []
        self.tables: list[str] = []
        self._functions: set[Any] = set()
        for method in _methods(cls):
            self.masked = self.masked or any("mask" in name for name in inspect.signature(method).parameters)
            self._read(method)

    def _read(self, function: Any) -> None:
        if function in self._functions:
            return
        self._functions.add(function)
        for code in _codes(function.__code__):
            self.names.update(code.co_names)
            self.parts = self.parts or not _BUILDERS.isdisjoint(code.co_names)
            self.multiplies = self.multiplies or any(
                step.argrepr in ("@", "@=") or step.opname == "BINARY_MATRIX_MULTIPLY"
                for step in dis.get_instructions(code)
            )
            if any(isinstance(function.__globals__.get(name), AttentionInterface) for name in code.co_names):
                self.selections |= _words(code) & SELECTIONS.keys()
            for name in code.co_names:
                self._follow(name, function.__globals__.get(name))

    def _follow(self, name: str, value: Any) -> None:
        if isinstance(value, AttentionInterface):
            self.interface = True
        elif isinstance(value, dict) and "eager" in value:
            if NAME not in value:
                self.tables.append(name)
        elif inspect.isclass(value) and issubclass(value, torch.nn.Module):
            if issubclass(value, PreTrainedModel):
                self.parts = True
            else:
                self.modules.append(value)
        elif inspect.isfunction(value) and _is_model_code(value.__module__):
            self._read(inspect.unwrap(value))

    @property
    def computes_scores(self) -> bool:
        """Whether it, with the modules that it builds, multiplies and then normalizes."""
        if self.names & _TORCH_ATTENTION:
            return True
        return self.normalizes and (self.products or any(_read(module).products for module in self.modules))

    @property
    def normalizes(self) -> bool:
        return any("softmax" in name.lower() for name in self.names)

    @property
    def products(self) -> bool:
        return self.multiplies or not self.names.isdisjoint(_PRODUCTS)


@functools.cache
def _read(cls: type) -> _Reader:
    return _Reader(cls)


@functools.cache
def find_attention(model_class: type) -> Attention:
    """Reads the code of a model class and of the modules it builds. Parts that are models are not entered: each
    is read when it is built itself."""
    found = Attention()
    waiting, seen = [model_class], {model_class}
    while waiting:
        cls = waiting.pop()
        reader = _read(cls)
        found.tables += reader.tables
        found.parts = found.parts or reader.parts
        if reader.interface:
            found.interface.append(cls.__name__)
        elif reader.computes_scores:
            found.own.append(cls.__name__)
            if reader.masked:
                found.own_masked.append(cls.__name__)
        for module in reader.modules:
            if module not in seen and _is_model_code(module.__module__):
                seen.add(module)
                waiting.append(module)
    return found


def check(model_class: type) -> None:
    """Raises NotImplementedError, with the reason, for a model class that NAME cannot serve."""
    obstacle = find_attention(model_class).obstacle
    if obstacle is not None:
        raise _refusal(model_class, obstacle)


def _refusal(model_class: type, obstacle: str) -> NotImplementedError:
    return NotImplementedError(
        f"attn_implementation: {model_class.__name__} cannot use {NAME!r}: {obstacle}; "
        'load it with "eager" (a part of a larger model: by a dict, e.g. '
        f'{{"text_config": "{NAME}", "vision_config": "eager"}})'
    )


def check_modules(model: PreTrainedModel) -> None:
    """Raises NotImplementedError for a model, with its modules built, one of which passes one of SELECTIONS.

    Layers that select have what they select with, as `indexer`; others of the same class have None there. A part
    with a configuration of its own is looked at by itself.
    """
    for module in model.modules():
        cls: Any = type(module)
        if getattr(module, "config", model.config) is not model.config or not _is_model_code(cls.__module__):
            continue
        for name in sorted(_read(cls).selections):
            if getattr(module, "indexer", name) is not None:
                raise _refusal(type(model), f"{cls.__name__} passes {name} to attention, and {SELECTIONS[name]}")


def _configurations(model: PreTrainedModel) -> list[Any]:
    """The configurations of a model and of its parts, each once."""
    waiting = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    found: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(found.values())


def _requests(config: Any, request: str | dict[str, Any] | None) -> dict[int, Any]:
    """The implementation that set_attn_implementation(request) asks for each configuration, by its id."""
    found = {id(config): request.get("", config._attn_implementation) if isinstance(request, dict) else request}
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            wanted = request.get(name, part._attn_implementation) if isinstance(request, dict) else request
            found.update(_requests(part, wanted))
    return found


def install() -> None:
    """Has transformers ask check() and check_modules() whenever a model is built with NAME or switched to it. Again is
    harmless.

    transformers lets no attention implementation look at the model before it runs, so its two methods that
    decide for a model are wrapped, and the one that every model calls when its modules are there.
    """
    resolve, switch = PreTrainedModel.get_correct_attn_implementation, PreTrainedModel.set_attn_implementation
    if hasattr(resolve, "__wrapped__"):
        return

    @functools.wraps(resolve)
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        if requested_attention == NAME:
            check(type(self))
        return str(resolve(self, requested_attention, is_init_check))

    @functools.wraps(switch)
    def set_attn_implementation(
        self: PreTrainedModel, attn_implementation: str | dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        # transformers only warns, and goes on, for models that it cannot switch.
        requests = _requests(self.config, attn_implementation)
        models = [module for module in self.modules() if isinstance(module, PreTrainedModel)]
        for model in models:
            if requests.get(id(model.config), requests[id(self.config)]) == NAME:
                check(type(model))
                check_modules(model)
        before = [(config, config._attn_implementation_internal) for config in _configurations(self)]
        try:
            switch(self, attn_implementation, *args, **kwargs)
        except Exception:
            for config, implementation in before:
                config._attn_implementation_internal = implementation
            raise

    finish = PreTrainedModel.post_init

    @functools.wraps(finish)
    def post_init(self: PreTrainedModel) -> None:
        if self.config._attn_implementation == NAME:
            check_modules(self)
        finish(self)

    PreTrainedModel.post_init = post_init
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
    PreTrainedModel.set_attn_implementation = set_attn_implementation
