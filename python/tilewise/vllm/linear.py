"""Quantised linear layers of vLLM: a layer is one call of tilewise.linear() over its weights as stored.

Its parameters have the names and classes that vLLM's own methods give them, by which its loaders fill them, parts of
several matrices and ranks' shares included. Rows are not quantised, so what a checkpoint says of them is not asked.
Which of the two computes a layer is settled when its sizes are known: vLLM's own methods look for their kernels then,
and on many CPUs there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm import envs
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.parameter import (
    BlockQuantScaleParameter,
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    ModelWeightParameter,
    PerTensorScaleParameter,
)

import tilewise
from tilewise.vllm.asked import announce, share_threads, vllm_logger
from tilewise.vllm.stored import DTYPES, loading_bytes, problem_text, refusal

__all__ = ["LinearStorage", "StoredLinear", "fp8_in", "mx"]


@dataclass(frozen=True)
class LinearStorage:
    """How a checkpoint, and vLLM's parameters, hold a linear layer's weights."""

    name: str  # as logs say it
    w_format: str  # as linear() says it
    scale_class: Any
    block: tuple[int, int] = (1, 1)  # rows and columns of a scale; of a tensor's or a row's there is no such number
    per_element: int = 1  # numbers in an element
    weight_name: str = "weight"
    scale_name: str = "weight_scale"
    has_input_scale: bool = False

    @property
    def in_e8m0(self) -> bool:
        """Whether scales are bytes."""
        return self.w_format.startswith("mx")


def fp8_in(block: Any, *, by_row: bool = False, **more: Any) -> LinearStorage | None:
    """fp8 with scales in f32 of blocks of 128 x 128, of rows, or (block None) of matrices; None for other blocks."""
    if by_row:
        return LinearStorage("fp8 with scales of rows", "fp8_row", ChannelQuantScaleParameter, **more)
    if block is None:
        # Matrices that one layer joins have a scale each, which is that of each of their rows.
        return LinearStorage("fp8 with one scale", "fp8_row", PerTensorScaleParameter, **more)
    if tuple(block) != (128, 128):
        return None
    return LinearStorage("fp8 blocks", "fp8_128x128", BlockQuantScaleParameter, (128, 128), **more)


def mx(name: str, **more: Any) -> LinearStorage:
    """mxfp8 or mxfp4."""
    return LinearStorage(name, name, GroupQuantScaleParameter, (1, 32), **more)


@register_weight_loader_v2_supported_method
class StoredLinear(LinearMethodBase):
    """A layer's method, as vLLM calls it, that computes with weights as they are stored."""

    def __init__(self, storage: LinearStorage, prefix: str, theirs: Callable[[], Any]) -> None:
        """theirs: makes vLLM's own method of the layer."""
        self._storage, self._prefix, self._theirs = storage, prefix, theirs

    def _obstacle(self, columns: int, parts: list[int], is_cut: tuple[bool, bool], dtype: torch.dtype) -> str | None:
        """Why linear() cannot compute a layer; None where it can. is_cut: rows, columns, by ranks."""
        storage = self._storage
        if dtype not in DTYPES:
            return f"its tokens are {dtype}"
        block_rows, block_columns = storage.block
        # A matrix that another one, or another rank's share, follows ends with a block.
        for rows in parts if is_cut[0] else parts[:-1]:
            if rows % block_rows != 0:
                return f"{rows} of its rows, cut or joined so, are no multiple of {block_rows}, those of a block"
        if columns % block_columns != 0 and (is_cut[1] or storage.in_e8m0):
            return f"its {columns} columns are no multiple of {block_columns}, those of a block"
        # Of the number of tokens no implementation asks.
        return refusal(problem_text(
            "linear", torch.empty(0).device.type, dtype=DTYPES[dtype], tokens=1, n=sum(parts), k=columns,
            w_format=storage.w_format,
        ))  # fmt: skip

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        """Parameters as vLLM's loaders fill them, or all that vLLM's own method makes, which then is the layer's."""
        storage, columns, parts = self._storage, input_size_per_partition, list(output_partition_sizes)
        is_cut = (sum(parts) != output_size, columns != input_size)
        reason = self._obstacle(columns, parts, is_cut, params_dtype)
        if reason is not None:
            vllm_logger().warning("%s: it is vLLM's own, since %s", self._prefix, reason)
            layer.quant_method = theirs = self._theirs()
            theirs.create_weights(
                layer, columns, output_partition_sizes, input_size, output_size, params_dtype, **attributes
            )
            return
        announce(f"linear layers in {storage.name}")
        share_threads()
        layer.logical_widths, layer.orig_dtype, layer.params_dtype = parts, params_dtype, params_dtype
        layer.input_size_per_partition, layer.output_size_per_partition = columns, sum(parts)
        # By it vLLM's loaders cut scales.
        is_in_blocks = storage.scale_class is BlockQuantScaleParameter
        layer.weight_block_size = list(storage.block) if is_in_blocks else None

        loader = attributes["weight_loader"]
        elements = torch.uint8 if storage.per_element > 1 else torch.float8_e4m3fn
        weight = torch.empty(sum(parts), columns // storage.per_element, dtype=elements)
        layer.register_parameter(
            storage.weight_name, ModelWeightParameter(data=weight, input_dim=1, output_dim=0, weight_loader=loader)
        )
        layer.register_parameter(storage.scale_name, self._scales(columns, parts, loader))
        if storage.has_input_scale:
            input_scale = torch.ones(len(parts), dtype=torch.float32)
            layer.register_parameter("input_scale", PerTensorScaleParameter(data=input_scale, weight_loader=loader))

    def _scales(self, columns: int, parts: list[int], loader: Callable[..., Any]) -> Any:
        storage, rows = self._storage, sum(parts)
        dtype = torch.uint8 if storage.in_e8m0 else torch.float32
        if storage.scale_class is PerTensorScaleParameter:
            return storage.scale_class(data=torch.ones(len(parts), dtype=dtype), weight_loader=loader)
        if storage.scale_class is ChannelQuantScaleParameter:
            return storage.scale_class(data=torch.ones(rows, 1, dtype=dtype), output_dim=0, weight_loader=loader)
        shape = tuple(-(-size // block) for size, block in zip((rows, columns), storage.block))
        if storage.in_e8m0:
            loader = loading_bytes(loader)
        values = torch.ones(shape, dtype=dtype)
        return storage.scale_class(data=values, input_dim=1, output_dim=0, weight_loader=loader)

    def process_weights_after_loading(self, layer: Any) -> None:
        """They stay as they are, as plain parameters, but for scales of matrices."""
        storage = self._storage
        weight, scale = (getattr(layer, name).data for name in (storage.weight_name, storage.scale_name))
        if storage.scale_class is PerTensorScaleParameter:
            counts = torch.tensor(layer.logical_widths, device=scale.device)
            scale = scale.repeat_interleave(counts).unsqueeze(1)
        for name, values in ((storage.weight_name, weight), (storage.scale_name, scale)):
            setattr(layer, name, torch.nn.Parameter(values, requires_grad=False))
        if storage.has_input_scale:
            del layer.input_scale

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x: [..., columns]."""
        storage = self._storage
        return tilewise.linear(
            x, getattr(layer, storage.weight_name), bias, w_format=storage.w_format,  # type: ignore[arg-type]
            w_scale=getattr(layer, storage.scale_name), batch_invariant=bool(envs.VLLM_BATCH_INVARIANT),
        )  # fmt: skip
