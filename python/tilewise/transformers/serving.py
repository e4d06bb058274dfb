"""Continuous batching (`generate_batch` and `transformers serve`) with attn_implementation="tilewise".

transformers' manager knows "sdpa", "paged|eager" and flash's names alone. What it decides by these names is asked
about NAME too here: NAME needs no mask, reads shared heads as they are, and takes block tables on every device.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

from tilewise.transformers.paged import PagedStep
from tilewise.transformers.support import NAME

__all__ = ["check_version", "install", "install_command_line", "is_paged_cache"]

# The paged cache's layout and the manager's methods belong to nobody's interface: what was not read is not served. Of
# each version, who hands new keys and values to the cache: the attention function, or the model before it calls that.
_KNOWN_VERSIONS = {"5.23": "attention", "5.24": "model"}
_PACKAGE = "transformers.generation.continuous_batching"


def check_version() -> str:
    """Who updates the cache in this transformers, "attention" or "model".

    Raises NotImplementedError for one whose continuous batching is not known.
    """
    # Of the module of this name now: transformers puts another in its place while it is imported.
    version = importlib.import_module("transformers").__version__
    updater = _KNOWN_VERSIONS.get(version.rpartition(".")[0])
    if updater is None:
        raise NotImplementedError(
            f"attn_implementation: continuous batching with {NAME!r} is known for transformers "
            f'{", ".join(f"{known}.x" for known in _KNOWN_VERSIONS)} (got {version}); load the model with "sdpa"'
        )
    return updater


def is_paged_cache(cache: Any) -> bool:
    """Whether this is the cache of continuous batching."""
    return any(base.__name__ == "PagedAttentionCache" for base in type(cache).__mro__)


def install() -> None:
    """Has continuous batching take NAME. Again is harmless.

    In a version of transformers that is not known nothing is touched but the first thing that its manager asks of a
    model, which says so.
    """
    try:
        manager: Any = importlib.import_module(f"{_PACKAGE}.continuous_api").ContinuousBatchingManager
        switch = manager.switch_to_cb_friendly_attn
    except (ImportError, AttributeError):  # attention itself refuses other managers' caches
        return
    if hasattr(switch, "__wrapped__"):
        return

    @functools.wraps(switch)
    def switch_to_cb_friendly_attn(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if model.config.get_text_config()._attn_implementation != NAME:
            return switch(self, model, *args, **kwargs)
        check_version()
        return None

    manager.switch_to_cb_friendly_attn = switch_to_cb_friendly_attn
    try:
        updater = check_version()
    except NotImplementedError:
        return
    _install_decisions()
    _install_inputs()
    if updater == "model":
        _install_update()


def _install_decisions() -> None:
    """What depends on the implementation's name: memory for masks, graphs, batches prepared ahead, block tables."""
    initialization: Any = importlib.import_module(f"{_PACKAGE}.initialization")
    cache: Any = importlib.import_module(f"{_PACKAGE}.cache")
    is_flash, ensure = initialization.is_flash_attention_requested, initialization.ensure_decode_fast_path_is_available

    @functools.wraps(is_flash)
    def is_flash_attention_requested(config: Any = None, *args: Any, **kwargs: Any) -> bool:
        versions = args or kwargs  # NAME is no version of flash_attn, for all that it does as they do
        if config is not None and config._attn_implementation == NAME and not versions:
            return True
        return bool(is_flash(config, *args, **kwargs))

    @functools.wraps(ensure)
    def ensure_decode_fast_path_is_available(config: Any, cb_config: Any, user_requested: bool) -> None:
        kinds = [cache.ATTN_TYPE_TO_ALLOCATOR[kind] for kind in cache.group_layers_by_attn_type(config)]
        if config._attn_implementation != NAME or not all(kind.supports_block_table for kind in kinds):
            ensure(config, cb_config, user_requested)

    cache.is_flash_attention_requested = initialization.is_flash_attention_requested = is_flash_attention_requested
    initialization.ensure_decode_fast_path_is_available = ensure_decode_fast_path_is_available


def _install_inputs() -> None:
    """What a step's layers share comes with the step's inputs, and so does a mask: models that are given none look
    for packed sequences in the positions, for which the host waits, and make an array of tokens x tokens."""
    inputs: Any = importlib.import_module(f"{_PACKAGE}.input_outputs").ContinuousBatchingIOs
    get = inputs.get_model_kwargs

    @functools.wraps(get)
    def get_model_kwargs(self: Any, use_padding: bool = False) -> Any:
        kwargs = get(self, use_padding)
        if self.config._attn_implementation == NAME:
            nothing = kwargs["position_ids"].new_empty(1, 1, 0, 0)
            kinds = list(kwargs["cu_seq_lens_k"])
            kwargs["attention_mask"] = nothing if len(kinds) == 1 else dict.fromkeys(kinds, nothing)
            kwargs["tilewise_step"] = PagedStep(use_padding)
        return kwargs

    inputs.get_model_kwargs = get_model_kwargs
    _install_order(importlib.import_module(f"{_PACKAGE}.input_outputs").ContinuousBatchingAsyncIOs)


def _install_update() -> None:
    """Has a model that updates the cache leave its step to attention, which is handed the cache instead.

    The cache's own update gathers all keys of a chunk's requests, and of sliding layers at every step.
    """
    cache: Any = importlib.import_module(f"{_PACKAGE}.cache").PagedAttentionCache
    own = cache.update

    @functools.wraps(own)
    def update(self: Any, key_states: Any, value_states: Any, layer_idx: int, kwargs: dict[str, Any]) -> Any:
        if "tilewise_step" not in kwargs or "cache" in kwargs:  # attention's own call has both
            return own(self, key_states, value_states, layer_idx, kwargs)
        kwargs["cache"] = self
        return key_states, value_states

    cache.update = update


def _install_order(inputs: Any) -> None:
    """Has batches prepared ahead wait for what their tensors were first filled with.

    The fills are on the stream that is current when the manager is made, a batch comes on one of its own, and nothing
    orders them: on a GPU that other programs use too, one of 25 calls of generate_batch lost its first chunk of
    tokens, and one of 45 with transformers' own "sdpa" (transformers 5.23, H200, twelve processes).
    """
    get = inputs.get_model_kwargs

    @functools.wraps(get)
    def get_model_kwargs(self: Any, use_padding: bool = False) -> Any:
        device = self.io_pairs[0].device_io
        if device.config._attn_implementation == NAME:
            self.h2d_stream.wait_stream(torch.cuda.current_stream(device.device))
        return get(self, use_padding)

    inputs.get_model_kwargs = get_model_kwargs


def install_command_line() -> None:
    """Has `transformers serve --attn-implementation` take NAME, in this process. Again is harmless."""
    manager: Any = importlib.import_module("transformers.cli.serving.model_manager").ModelManager
    validate = manager._validate_args
    if hasattr(validate, "__wrapped__"):
        return

    @functools.wraps(validate)
    def _validate_args(self: Any) -> None:
        asked = self.attn_implementation
        self.attn_implementation = None if asked == NAME else asked
        try:
            validate(self)
        finally:
            self.attn_implementation = asked

    manager._validate_args = _validate_args
