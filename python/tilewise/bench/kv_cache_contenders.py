"""The libraries on the KV cache step: Tilewise, torch on a gathered cache, flash_attn, flashinfer."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tilewise
from tilewise.bench.contenders import Contender, GpuOnly, OfTilewise, OfTorch, Prepared, Unsupported
from tilewise.bench.gpu_contenders import FLASHINFER_PAGE_SIZE, FLASHINFER_TENSOR_CORE_GROUP, Installed, Workspace
from tilewise.bench.inputs import poisoned_like
from tilewise.bench.kv_cache_cases import KvCase
from tilewise.bench.kv_cache_inputs import KvInputs, append_by_torch, gathered

FLASH_ATTN_PAGES = 256  # its kernels take pages of multiples of this

KvContender = Contender[KvCase, KvInputs]


class KvTilewise(OfTilewise[KvCase, KvInputs]):
    """tilewise.kv_cache_attention."""

    def explanation(self, case: KvCase) -> tilewise.Explanation:
        return tilewise.explain(case.problem_text(), implementation=self.forced)

    def prepare(self, case: KvCase, inputs: KvInputs) -> Prepared:
        options: dict[str, Any] = {
            "cache_seqlens": inputs.cache_seqlens,
            "block_table": inputs.block_table,
            "k_scale": inputs.k_scale,
            "v_scale": inputs.v_scale,
            "head_dim_v": case.head_dim_v if case.mla else None,
            "mask": "causal" if case.shape.seqlen_q > 1 else None,
            "implementation": self.forced,
        }
        tensors = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.k, inputs.v)

        def call(out: Any = None) -> Any:
            return tilewise.kv_cache_attention(*tensors, out=out, **options)

        return Prepared(call, lambda: [call(poisoned_like(inputs.q[..., : case.head_dim_v].contiguous()))])


class KvTorch(OfTorch[KvCase, KvInputs]):
    """scaled_dot_product_attention on the cache gathered from its pages, in bf16; all of it is timed."""

    def implementation(self, case: KvCase) -> str:
        made = [word for word, needed in (("gathered", case.page_size), ("widened", case.cache != "bf16")) if needed]
        return ", ".join((*made, "sdpa"))

    def prepare(self, case: KvCase, inputs: KvInputs) -> Prepared:
        from torch.nn.functional import scaled_dot_product_attention

        options: dict[str, Any] = {"enable_gqa": case.shape.num_heads_q != case.shape.num_heads_k}
        if case.shape.seqlen_q > 1:
            options["attn_mask"] = _bottom_right(case)

        def call() -> Any:
            if inputs.k is not None:
                append_by_torch(case, inputs.k_cache, inputs.k_scale, inputs.k, inputs)
            if inputs.v is not None and inputs.v_cache is not None:
                append_by_torch(case, inputs.v_cache, inputs.v_scale, inputs.v, inputs)
            k = gathered(case, inputs.k_cache, inputs.k_scale, inputs.block_table)
            if inputs.v_cache is None:
                v = k[..., : case.head_dim_v]
            else:
                v = gathered(case, inputs.v_cache, inputs.v_scale, inputs.block_table)
            q, k, v = (tensor.transpose(1, 2) for tensor in (inputs.q, k, v))
            return scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

        return Prepared(call, lambda: [call()])


def _bottom_right(case: KvCase) -> Any:
    """A causal mask of fewer queries than keys; on a GPU one that torch's kernels know by name."""
    import torch

    rows, keys = case.shape.seqlen_q, case.shape.seqlen_k
    if case.torch_device != "cpu":
        return importlib.import_module("torch.nn.attention.bias").causal_lower_right(rows, keys)
    return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)


class KvFlashAttn(Installed[KvCase, KvInputs]):
    """flash_attn.flash_attn_with_kvcache."""

    name = "flash_attn"
    function = "flash_attn_with_kvcache"

    def implementation(self, case: KvCase) -> str:
        return self.function

    def prepare(self, case: KvCase, inputs: KvInputs) -> Prepared:
        if case.mla:
            raise Unsupported("flash_attn needs a cache of values")
        if case.cache != "bf16":
            raise Unsupported(f"flash_attn has no fp8 caches (got {case.cache})")
        if case.page_size % FLASH_ATTN_PAGES:
            raise Unsupported(f"flash_attn takes pages of multiples of {FLASH_ATTN_PAGES} (got {case.page_size})")
        attend = importlib.import_module(self.name).flash_attn_with_kvcache
        tensors = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.k, inputs.v)
        options = {"cache_seqlens": inputs.cache_seqlens, "block_table": inputs.block_table, "causal": True}

        def call() -> Any:
            return attend(*tensors, **options)

        return Prepared(call, lambda: [call()])


class KvFlashInfer(Installed[KvCase, KvInputs]):
    """flashinfer's paged wrappers. A contiguous cache is one of pages in their order, so nothing is copied.

    plan() is outside the timed call, as an inference engine calls it once for all layers.
    """

    name = "flashinfer"
    function = "BatchPrefillWithPagedKVCacheWrapper"

    def __init__(self) -> None:
        self._workspace = Workspace()

    def version(self) -> str:
        return str(getattr(importlib.import_module(self.name), "__version__", "?"))

    def implementation(self, case: KvCase) -> str:
        return "paged decode" if case.shape.seqlen_q == 1 else "paged prefill"

    def prepare(self, case: KvCase, inputs: KvInputs) -> Prepared:
        import torch

        if case.mla or inputs.v_cache is None:
            raise Unsupported("flashinfer keeps the two parts of MLA's keys in caches of their own")
        if case.cache != "bf16":
            raise Unsupported(f"flashinfer has one scale for an fp8 cache (got {case.cache})")
        size = case.page_size or FLASHINFER_PAGE_SIZE
        if case.shape.seqlen_k % size:
            raise Unsupported(f"flashinfer's pages of {size} must divide the keys (got {case.shape.seqlen_k})")
        shape = (-1, size, case.shape.num_heads_k, case.shape.head_dim)
        caches = (inputs.k_cache.view(shape), inputs.v_cache.view(shape))
        count = case.shape.seqlen_k // size
        pages = torch.arange(case.shape.batch_size * count, device=inputs.q.device, dtype=torch.int32)
        if inputs.block_table is not None:
            pages = inputs.block_table.flatten()
        starts = torch.arange(case.shape.batch_size + 1, device=inputs.q.device, dtype=torch.int32)
        table = (starts * count, pages, torch.full_like(starts[1:], size))
        wrapper = self._planned(case, inputs, table, size, starts)
        append = self._append(case, inputs, table, caches)

        def call() -> Any:
            append()
            return wrapper.run(inputs.q.flatten(0, 1), caches).view(inputs.q.shape)

        return Prepared(call, lambda: [call()])

    def _planned(self, case: KvCase, inputs: KvInputs, table: tuple[Any, Any, Any], size: int, starts: Any) -> Any:
        module, sizes = importlib.import_module(self.name), case.shape
        heads = (sizes.num_heads_q, sizes.num_heads_k, sizes.head_dim, size)
        dtypes = {"q_data_type": inputs.q.dtype, "kv_data_type": inputs.k_cache.dtype}
        space = self._workspace.on(inputs.q.device)
        if sizes.seqlen_q == 1:
            tensor_cores = sizes.num_heads_q // sizes.num_heads_k >= FLASHINFER_TENSOR_CORE_GROUP
            wrapper = module.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=tensor_cores)
            wrapper.plan(*table, *heads, **dtypes)
        else:
            wrapper = module.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
            wrapper.plan(starts * sizes.seqlen_q, *table, *heads, causal=True, **dtypes)
        return wrapper

    def _append(
        self, case: KvCase, inputs: KvInputs, table: tuple[Any, Any, Any], caches: tuple[Any, Any]
    ) -> Callable[[], object]:
        if inputs.k is None or inputs.v is None:
            return lambda: None
        import torch

        starts, pages, last = table
        rows = case.shape.seqlen_q
        sequences = torch.arange(case.shape.batch_size, device=inputs.q.device, dtype=torch.int32)
        places = torch.arange(case.shape.seqlen_k - rows, case.shape.seqlen_k, device=inputs.q.device)
        where = (sequences.repeat_interleave(rows), places.to(torch.int32).repeat(case.shape.batch_size))
        new = (inputs.k.flatten(0, 1), inputs.v.flatten(0, 1))
        append = importlib.import_module(self.name).append_paged_kv_cache
        return lambda: append(*new, *where, caches, pages, starts, last, kv_layout="NHD")


def make_kv_rival(name: str, device: str) -> KvContender:
    """The contender of one of contenders.RIVALS on a device."""
    if name == "torch":
        return KvTorch()
    if device == "cpu":
        return GpuOnly(name)
    return KvFlashAttn() if name == "flash_attn" else KvFlashInfer()
