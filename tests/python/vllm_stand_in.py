# What tilewise.vllm sees of vLLM, release by release: names, signatures and what is asked, without an engine behind.
# `make nightly` runs the same classes inside vLLM itself.
"""Stand-ins for vLLM's modules."""

from __future__ import annotations

import dataclasses
import logging
import sys
from abc import ABC, abstractmethod
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
import vllm_experts_stand_in

SHARED: list[bool] = []  # what OpenMP's threads were asked for
RELEASES = ("0.26.0", "0.32.0", "0.33.0")


class AttentionType(str, Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


class AttentionCGSupport(Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class MultipleOf:
    def __init__(self, base: int) -> None:
        self.base = base


class AttentionImpl(ABC):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        self.dcp_world_size = self.pcp_world_size = 1
        return self

    @abstractmethod
    def __init__(self, num_heads: int, head_size: int, scale: float) -> None: ...

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor: ...


class AttentionMetadataBuilder(ABC):
    _cudagraph_support = AttentionCGSupport.NEVER

    @abstractmethod
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = (
            kv_cache_spec,
            layer_names,
            vllm_config,
            device,
        )

    @abstractmethod
    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any: ...


def backend_class(release: str) -> type:
    """AttentionBackend, whose validate_configuration asks supports_* for the selector's fields of that release."""

    class AttentionBackend(ABC):
        forward_includes_kv_cache_update = True
        supported_dtypes: ClassVar[list[Any]] = [torch.float16, torch.bfloat16]
        supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

        @staticmethod
        @abstractmethod
        def get_name() -> str: ...

        @staticmethod
        @abstractmethod
        def get_impl_cls() -> type: ...

        @staticmethod
        @abstractmethod
        def get_builder_cls() -> type: ...

        @classmethod
        def validate_configuration(cls, **fields: Any) -> list[str]:
            asked = {
                "head_size": cls.supports_head_size,
                "attn_type": cls.supports_attn_type,
                "device_capability": cls.supports_compute_capability,
                "dtype": lambda dtype: dtype in cls.supported_dtypes,
                "kv_cache_dtype": lambda dtype: dtype in cls.supported_kv_cache_dtypes,
                "has_sink": lambda given: not given or cls.supports_sink(),
                "has_sliding_window": lambda given: not given or cls.supports_sliding_window(),
                "use_non_causal": lambda given: not given or cls.supports_non_causal(),
                "use_batch_invariant": lambda given: not given or cls.supports_batch_invariance(),
                "use_mla": lambda given: not given,
            }
            return [name for name, value in fields.items() if not asked.get(name, lambda given: not given)(value)]

    if release.startswith("0.26"):
        AttentionBackend.get_kv_cache_shape = staticmethod(abstractmethod(lambda *sizes: sizes))
        AttentionBackend.__abstractmethods__ |= {"get_kv_cache_shape"}
    return AttentionBackend


def metadata_class(release: str) -> type:
    """CommonAttentionMetadata: what a step gives, and fields that say nothing where nobody asked for them."""
    given = [
        "query_start_loc", "query_start_loc_cpu", "seq_lens", "num_reqs", "num_actual_tokens", "max_query_len",
        "max_seq_len", "block_table_tensor", "slot_mapping",
    ]  # fmt: skip
    silent = [
        "logits_indices_padded", "num_logits_indices", "encoder_seq_lens", "encoder_seq_lens_cpu", "dcp_local_seq_lens",
        "positions", "is_prefilling", "seq_lens_cpu_upper_bound", "mm_req_doc_ranges", "rswa_prefix_lens",
        "_num_computed_tokens_cache",
    ]  # fmt: skip
    if not release.startswith("0.26"):
        silent += ["max_logits_per_req", "req_idx", "replayssm_decode_base_cpu"]
    fields = [(name, Any, dataclasses.field(default=None)) for name in silent]
    causal = ("causal", Any, dataclasses.field(default=True))
    return dataclasses.make_dataclass("CommonAttentionMetadata", [*((name, Any) for name in given), causal, *fields])


class QueryLenSupport(Enum):
    SINGLE_ONLY = "single_only"
    UNIFORM = "uniform"


class MLACommonBackend:
    @classmethod
    def is_mla(cls) -> bool:
        return True


class MLACommonMetadataBuilder(AttentionMetadataBuilder):
    query_len_support = QueryLenSupport.SINGLE_ONLY


class MLACommonImpl(ABC):
    """What it keeps of a layer: its sizes alone."""

    need_to_return_lse_for_decode = False

    def __init__(self, num_heads: int, head_size: int, scale: float, *others: Any, kv_lora_rank: int, **more: Any):
        self.num_heads, self.head_size, self.scale, self.kv_lora_rank = num_heads, head_size, float(scale), kv_lora_rank

    @abstractmethod
    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any) -> Any: ...


class MLAPrefillBackend:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def prepare_metadata(self, prefill_metadata: Any) -> None:
        self._prefill_metadata = prefill_metadata


def prefill_registry() -> dict[str, Any]:
    overrides: dict[Any, str] = {}

    class MLAPrefillBackendEnum(Enum):
        FLASH_ATTN = "vllm.v1.attention.backends.mla.prefill.flash_attn.FlashAttnPrefillBackend"
        CUSTOM = None

        def get_path(self) -> str:
            return overrides.get(self, self.value)

        def is_overridden(self) -> bool:
            return self in overrides

    return {
        "MLAPrefillBackendEnum": MLAPrefillBackendEnum,
        "register_mla_prefill_backend": overrides.__setitem__,
    }


def registry_module() -> dict[str, Any]:
    overrides: dict[Any, str] = {}

    class AttentionBackendEnum(Enum):
        FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
        CPU_ATTN = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
        CUSTOM = None

        def get_path(self) -> str:
            path = overrides.get(self, self.value)
            if not path:
                raise ValueError(f"Backend {self.name} must be registered before use.")
            return path

        def is_overridden(self) -> bool:
            return self in overrides

    def register_backend(backend: Any, class_path: str) -> None:
        assert isinstance(backend, AttentionBackendEnum)  # 0.26 takes members alone
        overrides[backend] = class_path

    return {"AttentionBackendEnum": AttentionBackendEnum, "register_backend": register_backend}


def modules(release: str, cpu: bool = True) -> dict[str, ModuleType]:
    """vLLM's modules by name."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": release},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: cpu)},
        "vllm.v1.attention.backends.registry": registry_module(),
        "vllm.v1.attention.backend": {
            "AttentionBackend": backend_class(release),
            "AttentionCGSupport": AttentionCGSupport,
            "AttentionImpl": AttentionImpl,
            "AttentionMetadataBuilder": AttentionMetadataBuilder,
            "AttentionType": AttentionType,
            "CommonAttentionMetadata": metadata_class(release),
            "MultipleOf": MultipleOf,
        },
        "vllm.model_executor.layers.attention.mla_attention": {
            "MLACommonBackend": MLACommonBackend,
            "MLACommonImpl": MLACommonImpl,
            "MLACommonMetadataBuilder": MLACommonMetadataBuilder,
            "QueryLenSupport": QueryLenSupport,
        },
        "vllm.v1.attention.backends.mla.prefill.base": {"MLAPrefillBackend": MLAPrefillBackend},
        "vllm.v1.attention.backends.mla.prefill.registry": prefill_registry(),
        **vllm_experts_stand_in.modules(release),
    }
    made: dict[str, ModuleType] = {}
    for name, content in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        vars(made[name]).update(content)
    made["vllm"].envs = made["vllm.envs"]
    return made


def install(monkeypatch: Any, release: str, cpu: bool = True) -> None:
    """Puts them in vLLM's place, and has tilewise.vllm be imported anew."""
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm" or name.startswith("tilewise.vllm")]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in modules(release, cpu).items():
        monkeypatch.setitem(sys.modules, name, module)
    # What a process of vLLM's shares for as long as it lives, tests do not.
    SHARED.clear()
    monkeypatch.setattr("tilewise._core.share_openmp_threads", SHARED.append)
