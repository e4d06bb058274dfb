# What tilewise.vllm's linear layers see of vLLM: layers, their parameters by which loaders cut weights, quantisations.
"""Stand-ins for vLLM's modules of linear layers, among those of vllm_stand_in.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any

import torch

LOADED_BY_PARAMETERS: list[str] = []  # names of methods' classes


class LinearMethodBase(ABC):
    @abstractmethod
    def create_weights(self, layer: Any, *sizes: Any, **attributes: Any) -> None: ...

    @abstractmethod
    def apply(self, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor: ...


class Theirs(LinearMethodBase):
    """vLLM's own method of quantised layers."""

    def create_weights(
        self, layer: Any, input_size_per_partition: int, output_partition_sizes: list[int], *sizes: Any, **more: Any
    ) -> None:
        layer.made_by_vllm = (input_size_per_partition, output_partition_sizes)

    def apply(self, layer: Any, x: torch.Tensor, bias: Any = None) -> Any:
        return "vLLM's own"


class _Parameter(torch.nn.Parameter):
    def __new__(cls, data: torch.Tensor, **kwargs: Any) -> Any:
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, weight_loader: Any, input_dim: int = -1, output_dim: int = -1) -> None:
        self.weight_loader, self.input_dim, self.output_dim = weight_loader, input_dim, output_dim


class ModelWeightParameter(_Parameter): ...


class BlockQuantScaleParameter(_Parameter): ...


class GroupQuantScaleParameter(_Parameter): ...


class ChannelQuantScaleParameter(_Parameter):
    def __init__(self, data: torch.Tensor, weight_loader: Any, output_dim: int) -> None:
        super().__init__(data, weight_loader, output_dim=output_dim)


class PerTensorScaleParameter(_Parameter):
    def __init__(self, data: torch.Tensor, weight_loader: Any) -> None:
        super().__init__(data, weight_loader)


class LinearBase(torch.nn.Module):
    """A layer that joins matrices (parts: their rows), of which a rank of tp has a share of rows, or of columns."""

    def __init__(
        self, columns: int, parts: list[int], quant_config: Any, dtype: Any = torch.float32, tp: int = 1, by: str = ""
    ) -> None:
        super().__init__()
        self.tp_size, self.tp_rank, self.by = tp, tp - 1, by
        self.prefix = "layers.0.proj"
        self.shares = [rows // tp for rows in parts] if by == "rows" else parts
        self.quant_method = quant_config.get_quant_method(self, self.prefix)
        assert type(self.quant_method).__name__ in (*LOADED_BY_PARAMETERS, "Theirs")
        self.quant_method.create_weights(
            self, columns // tp if by == "columns" else columns, self.shares, columns, sum(parts), dtype,
            weight_loader=self.load,
        )  # fmt: skip

    def load(self, parameter: Any, loaded: torch.Tensor, part: int = 0) -> None:
        """One matrix of them."""
        if isinstance(parameter, PerTensorScaleParameter):
            parameter.data[part] = loaded.reshape(())
            return
        start, size = sum(self.shares[:part]), self.shares[part]
        if isinstance(parameter, BlockQuantScaleParameter):
            start, size = (-(-number // self.weight_block_size[0]) for number in (start, size))
        if self.by == "rows":
            loaded = loaded.narrow(parameter.output_dim, self.tp_rank * size, size)
        elif self.by == "columns" and parameter.input_dim >= 0:
            columns = loaded.shape[1] // self.tp_size
            loaded = loaded.narrow(parameter.input_dim, self.tp_rank * columns, columns)
        target = parameter.data.narrow(parameter.output_dim, start, size)
        assert target.shape == loaded.shape
        target.copy_(loaded)


def compressed_tensors(base: type) -> type:
    class CompressedTensorsConfig(base):
        """Whose dtypes are asked of an instance alone."""

        def __init__(self, weights: Any = None, transform_config: Any = None, **scheme: Any) -> None:
            self.scheme = None if weights is None else {"weights": SimpleNamespace(**weights), **scheme}
            self.transform_config = transform_config

        def get_scheme_dict(self, layer: Any, layer_name: str | None = None) -> Any:
            return self.scheme

        def get_supported_act_dtypes(self) -> list[torch.dtype]:
            return [torch.float32, torch.float16, torch.bfloat16]

        @classmethod
        def get_name(cls) -> str:
            return "compressed-tensors"

    return CompressedTensorsConfig


def fbgemm(base: type) -> type:
    class FBGEMMFp8Config(base):
        def __init__(self, ignore_list: Any = ()) -> None:
            self.ignore_list = ignore_list

        @classmethod
        def get_name(cls) -> str:
            return "fbgemm_fp8"

    return FBGEMMFp8Config


def modules(base: type) -> dict[str, dict[str, Any]]:
    """What each of them holds, by its name; base: of quantisations."""

    def register(cls: type) -> type:
        LOADED_BY_PARAMETERS.append(cls.__name__)
        return cls

    LOADED_BY_PARAMETERS.clear()
    parameters = (ModelWeightParameter, BlockQuantScaleParameter, GroupQuantScaleParameter,
                  ChannelQuantScaleParameter, PerTensorScaleParameter)  # fmt: skip
    layers = "vllm.model_executor.layers"
    return {
        f"{layers}.linear": {
            "LinearBase": LinearBase,
            "LinearMethodBase": LinearMethodBase,
            "register_weight_loader_v2_supported_method": register,
        },
        "vllm.model_executor.parameter": {cls.__name__: cls for cls in parameters},
        f"{layers}.quantization.compressed_tensors.compressed_tensors": {
            "CompressedTensorsConfig": compressed_tensors(base)
        },
        f"{layers}.quantization.fbgemm_fp8": {"FBGEMMFp8Config": fbgemm(base)},
    }
