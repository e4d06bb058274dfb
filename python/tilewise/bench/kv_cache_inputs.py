"""The tensors of a KV cache step, what libraries without pages or fp8 make of them, and what its result must be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from tilewise.bench import reference
from tilewise.bench.inputs import normal_values
from tilewise.bench.kv_cache_cases import KvCase
from tilewise.bench.reference import Accuracy

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 448.0  # of fp8 e4m3
_POOL = 2**22 - 3  # numbers that are drawn; longer tensors repeat them, no two rows at the same place


@dataclass(frozen=True)
class KvInputs:
    """As kv_cache_attention() takes them. Every sequence has the same length, and pages lie in random order."""

    q: Tensor
    k_cache: Tensor
    v_cache: Optional[Tensor]
    k: Optional[Tensor]
    v: Optional[Tensor]
    cache_seqlens: Tensor
    block_table: Optional[Tensor]
    k_scale: Optional[Tensor]
    v_scale: Optional[Tensor]


def make_kv_inputs(case: KvCase, seed: int = 0) -> KvInputs:
    """Standard normal queries and new keys, caches of normal values in the case's format."""
    import torch

    sizes, device = case.shape, case.torch_device
    draw = normal_values(seed, device)
    pages = (sizes.batch_size * case.pages, case.page_size) if case.page_size else (sizes.batch_size, sizes.seqlen_k)

    pool = draw((min(_POOL, math.prod(pages) * sizes.num_heads_k * sizes.head_dim),))

    def cache(width: int) -> tuple[Tensor, Optional[Tensor]]:
        shape = (*pages, sizes.num_heads_k, width)
        values = pool.repeat(-(-math.prod(shape) // len(pool)))[: math.prod(shape)].view(shape)
        if case.cache == "bf16":
            return values.bfloat16(), None
        scaled = shape[2:3] if case.cache == "fp8_head" else shape[:3]
        scale = draw(scaled).abs().add(1.0).div(64.0)
        return values.mul(64.0).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn), scale

    def rows(heads: int, width: int) -> Tensor:
        new: Tensor = draw((sizes.batch_size, sizes.seqlen_q, heads, width)).bfloat16()
        return new

    q = rows(sizes.num_heads_q, sizes.head_dim)
    k_cache, k_scale = cache(sizes.head_dim)
    v_cache, v_scale = (None, None) if case.mla else cache(case.head_dim_v)
    k = rows(sizes.num_heads_k, sizes.head_dim) if case.append else None
    v = rows(sizes.num_heads_k, case.head_dim_v) if case.append and not case.mla else None
    before = sizes.seqlen_k - (sizes.seqlen_q if case.append else 0)
    seqlens = torch.full((sizes.batch_size,), before, dtype=torch.int32, device=device)
    table = None
    if case.page_size:
        order = torch.randperm(pages[0], generator=torch.Generator().manual_seed(seed))
        table = order.view(sizes.batch_size, case.pages).to(device, torch.int32)
    return KvInputs(q, k_cache, v_cache, k, v, seqlens, table, k_scale, v_scale)


def gathered(case: KvCase, cache: Tensor, scale: Optional[Tensor], table: Optional[Tensor]) -> Tensor:
    """[batch, seqlen_k, heads, width] of a cache in bf16, by torch's functions."""
    values = cache if table is None else taken(cache, table.long()).flatten(1, 2)
    values = values[:, : case.shape.seqlen_k]
    if scale is None:
        return values
    if scale.dim() > 1:
        scale = (scale if table is None else scale[table.long()].flatten(1, 2))[:, : case.shape.seqlen_k]
    return (values.float() * scale[..., None]).bfloat16()


def taken(cache: Tensor, index: Any) -> Tensor:
    """cache[index]; bytes are moved of fp8, which not every version of torch indexes on every device."""
    import torch

    return cache[index] if cache.itemsize > 1 else cache.view(torch.uint8)[index].view(cache.dtype)


def append_by_torch(case: KvCase, cache: Tensor, scale: Optional[Tensor], new: Tensor, inputs: KvInputs) -> None:
    """Writes the new rows where kv_cache_attention() writes them, scales per token with them."""
    import torch

    places = inputs.cache_seqlens.long()[:, None] + torch.arange(case.shape.seqlen_q, device=new.device)
    sequences = torch.arange(case.shape.batch_size, device=new.device)[:, None].expand_as(places)
    where = (sequences, places)
    if inputs.block_table is not None:
        where = (inputs.block_table.long()[sequences, places // case.page_size], places % case.page_size)
    if scale is None:
        cache[where] = new
        return
    rows = new.float()
    if scale.dim() > 1:
        own = rows.abs().amax(-1) / _LARGEST
        scale[where] = torch.where(own == 0, 1.0, own)
        scale = scale[where]
    stored = (rows / scale[..., None]).clamp(-_LARGEST, _LARGEST).to(cache.dtype)
    cache.view(torch.uint8)[where] = stored.view(torch.uint8)


@dataclass(frozen=True)
class FewSequences:
    """Exact results of some sequences, by index: float64 [seqlen_q, heads, head_dim_v]. Others must be finite."""

    exact: dict[int, reference.Array]

    def judge(self, results: Sequence[Any]) -> Accuracy:
        """Of [out]."""
        (out,) = results
        bad = int((~out.isfinite()).sum())
        if bad:
            return reference.unwritten(bad, out.numel())
        actual = [out[index].double().cpu().numpy() for index in self.exact]
        return reference.compare(actual, list(self.exact.values()), "bf16")


def few_sequences(case: KvCase, inputs: KvInputs) -> FewSequences:
    """The first and the last one. The new keys are appended to copies of their caches."""
    last = case.shape.batch_size - 1
    return FewSequences({index: _exact(case, inputs, index) for index in dict.fromkeys((0, last))})


def _exact(case: KvCase, inputs: KvInputs, index: int) -> reference.Array:
    import torch

    sizes = case.shape
    keys = _rows_of(case, inputs, index, inputs.k_cache, inputs.k_scale, inputs.k)
    if inputs.v_cache is None:
        values = keys[..., : case.head_dim_v]
    else:
        values = _rows_of(case, inputs, index, inputs.v_cache, inputs.v_scale, inputs.v)
    group = sizes.num_heads_q // sizes.num_heads_k
    q = inputs.q[index].double().unflatten(1, (sizes.num_heads_k, group))
    scores = torch.einsum("ihgd,jhd->hgij", q, keys) / math.sqrt(sizes.head_dim)
    visible = torch.ones(sizes.seqlen_q, sizes.seqlen_k, dtype=torch.bool, device=q.device)
    scores = scores.masked_fill(~visible.tril(sizes.seqlen_k - sizes.seqlen_q), -math.inf)
    out: reference.Array = torch.einsum("hgij,jhd->ihgd", scores.softmax(-1), values).flatten(1, 2).cpu().numpy()
    return out


def _rows_of(
    case: KvCase, inputs: KvInputs, index: int, cache: Tensor, scale: Optional[Tensor], new: Optional[Tensor]
) -> Tensor:
    """float64 [seqlen_k, heads, width] of one sequence after the append, as they are stored."""
    import torch

    pick = index if inputs.block_table is None else inputs.block_table[index].long()
    values = taken(cache, pick).reshape(-1, *cache.shape[2:])[: case.shape.seqlen_k].double()
    scales = None
    if scale is not None:
        per_token = scale.dim() > 1
        scales = scale[pick].reshape(-1, scale.shape[2])[: case.shape.seqlen_k] if per_token else scale
        values = values * scales[..., None].double()
    if new is None:
        return values
    rows = new[index].float()
    if scale is not None:
        own = rows.abs().amax(-1) / _LARGEST if scale.dim() > 1 else scale
        stored = (rows / own[..., None]).clamp(-_LARGEST, _LARGEST).to(cache.dtype)
        rows = stored.float() * own[..., None]
    return torch.cat([values[: -case.shape.seqlen_q], rows.double()])
