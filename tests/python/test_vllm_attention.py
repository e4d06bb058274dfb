"""The layers of tilewise.vllm over vLLM's cache as it lies, against a formula: steps that mix prompts, chunks of
prompts and single tokens, in every layout and of every kind of layer."""

from __future__ import annotations

import dataclasses
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vllm_stand_in  # noqa: E402
from kv_cache_step import attend  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

# Tokens of each request with those of the step, and of the step: two decode, a chunk, a prompt of one, a first chunk.
LENGTHS = (8, 39, 130, 1, 19)
NEW = (1, 1, 42, 1, 19)
PADDING = 3  # rows behind the last token, of nobody
LAYER = SimpleNamespace(
    _k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25), _k_scale_float=0.5, _v_scale_float=0.25
)
# The order in memory of a cache's layers, blocks, heads and tokens, as vLLM names them.
LAYOUTS = {
    "LBHNC": (0, 1, 2, 3), "LBNHC": (0, 1, 3, 2), "LHBNC": (0, 2, 1, 3), "BLHNC": (1, 0, 2, 3), "BLNHC": (1, 0, 3, 2),
    "BHLNC": (1, 2, 0, 3),
}  # fmt: skip


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_stand_in.install(monkeypatch, "0.32.0")


def make_impl(heads: int = 4, head_size: int = 64, scale: float = 0.2, heads_k: int = 2, **options: Any) -> Any:
    impl = getattr(importlib.import_module("tilewise.vllm.attention"), options.pop("cls", "TilewiseImpl"))
    return impl(heads, head_size, scale, heads_k, options.pop("alibi_slopes", None),
                options.pop("sliding_window", None), options.pop("kv_cache_dtype", "auto"), **options)  # fmt: skip


def make_cache(layout: str, blocks: int, heads: int, block_size: int, head_size: int, dtype: Any) -> Any:
    """The second of three layers that lie in one memory, full of NaN."""
    sizes = (3, blocks, heads, block_size)
    order = LAYOUTS[layout]
    memory = torch.full([*(sizes[axis] for axis in order), 2 * head_size], torch.nan, dtype=torch.float32).to(dtype)
    return memory.permute(*(order.index(axis) for axis in range(4)), 4)[1]


class Batch:
    """A step of five requests, whose older tokens are in the cache already, in blocks in random order."""

    def __init__(self, impl: Any, block_size: int = 32, layout: str = "LBHNC", dtype: Any = torch.float32) -> None:
        torch.manual_seed(0)
        self.impl, self.block_size = impl, block_size
        counts = [-(-length // block_size) for length in LENGTHS]
        order = (torch.randperm(sum(counts)) + 1).to(torch.int32)  # block 0 is nobody's
        self.table = torch.zeros(len(LENGTHS), max(counts), dtype=torch.int32)
        for request, blocks in enumerate(order.split(counts)):
            self.table[request, : len(blocks)] = blocks
        heads, heads_k, dim = impl.num_heads, impl.num_kv_heads, impl.head_size
        stored = torch.uint8 if impl.kv_cache_dtype.startswith("fp8") else dtype
        self.cache = make_cache(layout, sum(counts) + 1, heads_k, block_size, dim, stored)
        self.keys, self.values = ([torch.randn(length, heads_k, dim).to(dtype) for length in LENGTHS] for _ in range(2))
        # q, k and v are parts of one row, as they come out of a product.
        rows = torch.full((sum(NEW) + PADDING, heads + 2 * heads_k, dim), torch.nan, dtype=dtype)
        self.q, self.k, self.v = rows.split((heads, heads_k, heads_k), dim=1)
        self.q[: sum(NEW)] = torch.randn(sum(NEW), heads, dim).to(dtype)
        starts = [0, *torch.tensor(NEW).cumsum(0).tolist()]
        self.rows = [slice(start, end) for start, end in zip(starts, starts[1:])]
        for new, rows_of, keys, values in zip(NEW, self.rows, self.keys, self.values):
            self.k[rows_of], self.v[rows_of] = keys[-new:], values[-new:]
        self.starts = torch.tensor(starts, dtype=torch.int32)
        for request, (length, new) in enumerate(zip(LENGTHS, NEW)):
            self.write(self.keys[request][: length - new], self.values[request][: length - new], request, 0)

    def slots(self, request: int, first: int, count: int) -> Any:
        places = torch.arange(first, first + count)
        blocks = self.table[request].long()[places // self.block_size]
        return blocks * self.block_size + places % self.block_size

    def write(self, k: Any, v: Any, request: int, first: int) -> None:
        self.impl.do_kv_cache_update(LAYER, k, v, self.cache, self.slots(request, first, len(k)))

    def metadata(self, causal: bool = True, lengths: Any = LENGTHS) -> Any:
        slots = [self.slots(request, n - new, new) for request, (n, new) in enumerate(zip(LENGTHS, NEW))]
        common = importlib.import_module("vllm.v1.attention.backend").CommonAttentionMetadata(
            query_start_loc=self.starts, query_start_loc_cpu=self.starts, num_reqs=len(NEW),
            seq_lens=torch.tensor(lengths, dtype=torch.int32), num_actual_tokens=sum(NEW), max_query_len=max(NEW),
            max_seq_len=max(LENGTHS), block_table_tensor=self.table, slot_mapping=torch.cat(slots), causal=causal,
        )  # fmt: skip
        builder = importlib.import_module("tilewise.vllm.backend").TilewiseBuilder(None, [], None, "cpu")
        return builder.build(0, common)

    def run(self, causal: bool = True) -> Any:
        step = self.metadata(causal)
        self.impl.do_kv_cache_update(LAYER, self.k, self.v, self.cache, step.slot_mapping)
        out = torch.full(self.q.shape, 7.0, dtype=self.q.dtype)
        assert self.impl.forward(LAYER, self.q, self.k, self.v, self.cache, step, output=out) is out
        assert (out[sum(NEW) :] == 7).all(), "rows of padding are nobody's"
        return out[: sum(NEW)]

    def check(self, out: Any, bound: float, causal: bool = True, **options: Any) -> None:
        for rows, keys, values in zip(self.rows, self.keys, self.values):
            want, _ = attend(self.q[rows], keys, values, causal, scale=self.impl.scale, **options)
            torch.testing.assert_close(out[rows].double(), want, rtol=bound, atol=bound)


@pytest.mark.parametrize("cls", ["TilewiseImpl", "TilewiseCpuImpl"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [16, 48, 128])
def test_blocks_and_layouts(layout: str, block_size: int, cls: str) -> None:
    batch = Batch(make_impl(cls=cls), block_size, layout)
    batch.check(batch.run(), 1e-5)


def test_where_keys_and_values_lie() -> None:
    """Beside each other, as vLLM's other backends have them; on CPUs in halves of a head's block, without a copy."""
    cache = torch.arange(2 * 3 * 16 * 8.0).view(2, 3, 16, 8)
    for cls, key_row, value_row in (("TilewiseImpl", 8, 4), ("TilewiseCpuImpl", 4, 64)):
        keys, values = make_impl(head_size=4, heads_k=3, cls=cls)._pages(cache)
        assert keys.shape == values.shape == (2, 16, 3, 4)
        assert (keys[1, 2, 1, 3] - keys[1, 1, 1, 3], values[0, 0, 0, 0] - keys[0, 0, 0, 0]) == (key_row, value_row)
        assert keys.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
    backend = importlib.import_module("tilewise.vllm.backend")
    assert backend.TilewiseCpuBackend.get_impl_cls().__name__ == "TilewiseCpuImpl"
    assert backend.TilewiseBackend.get_impl_cls().__name__ == "TilewiseImpl"


@pytest.mark.parametrize("name", ["fp8", "bf16"])
def test_caches_of_cpus_in_other_dtypes(name: str) -> None:
    dtype = torch.float32 if name == "fp8" else torch.bfloat16
    batches = [Batch(make_impl(cls=cls, kv_cache_dtype="fp8" if name == "fp8" else "auto"), dtype=dtype)
               for cls in ("TilewiseImpl", "TilewiseCpuImpl")]  # fmt: skip
    assert torch.equal(*(batch.run() for batch in batches))


@pytest.mark.parametrize(("head_size", "heads", "heads_k"), [(64, 4, 4), (80, 4, 1), (128, 6, 2), (256, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_head_sizes_and_shared_heads(head_size: int, heads: int, heads_k: int, dtype: Any) -> None:
    batch = Batch(make_impl(heads, head_size, 0.1, heads_k), dtype=dtype)
    batch.check(batch.run(), 1e-5 if dtype == torch.float32 else 3e-2)


SINKS = torch.tensor([0.5, -1.0, 3.0, 0.0])
SLOPES = [0.25, 0.0625, 0.015625, 0.00390625]
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "window": ({"sliding_window": 16}, {"window": (15, 0)}),
    "softcap": ({"logits_soft_cap": 1.5}, {"softcap": 1.5}),
    "sinks": ({"sinks": SINKS}, {"sink": SINKS}),
    "alibi": ({"alibi_slopes": SLOPES}, {"slopes": torch.tensor(SLOPES)}),
    "all": (
        {"sliding_window": 40, "logits_soft_cap": 2.0, "sinks": SINKS, "alibi_slopes": SLOPES},
        {"window": (39, 0), "softcap": 2.0, "sink": SINKS, "slopes": torch.tensor(SLOPES)},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    theirs, formula = OPTIONS[name]
    batch = Batch(make_impl(**theirs))
    batch.check(batch.run(), 1e-5, **formula)


def test_sinks_that_are_loaded_later() -> None:
    """In the weights' dtype, and filled after the layer is made."""
    sinks = torch.zeros(4, dtype=torch.float16)
    batch = Batch(make_impl(sinks=sinks))
    sinks.copy_(SINKS)
    batch.check(batch.run(), 1e-5, sink=SINKS)


def test_tables_keep_stale_entries_behind_windows() -> None:
    """They name blocks that others have got since, or none that there is."""
    batch = Batch(make_impl(sliding_window=16), block_size=16)
    for request, (length, new) in enumerate(zip(LENGTHS, NEW)):
        unseen = max(length - new - 15, 0) // 16
        batch.cache[batch.table[request, :unseen].long()] = torch.nan
        batch.table[request, :unseen] = 10**6
    step = batch.metadata()
    batch.impl.do_kv_cache_update(LAYER, batch.k, batch.v, batch.cache, step.slot_mapping)
    out = torch.empty(batch.q.shape)
    batch.impl.forward(LAYER, batch.q, batch.k, batch.v, batch.cache, step, out)
    batch.check(out[: sum(NEW)], 1e-5, window=(15, 0))


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3"])
def test_fp8_caches_have_scales_of_the_layer(name: str) -> None:
    batch = Batch(make_impl(kv_cache_dtype=name))
    out = batch.run()
    stored = [(batch.keys, LAYER._k_scale), (batch.values, LAYER._v_scale)]
    for tensors, scale in stored:
        for index, tensor in enumerate(tensors):
            tensors[index] = (tensor / scale).to(torch.float8_e4m3fn).float() * scale
    batch.check(out, 1e-5)


def test_slots_of_nobody_are_skipped() -> None:
    batch = Batch(make_impl())
    before = batch.cache.clone()
    batch.impl.do_kv_cache_update(LAYER, batch.k[:4], batch.v[:4], batch.cache, torch.full((4,), -1))
    torch.testing.assert_close(batch.cache, before, rtol=0, atol=0, equal_nan=True)


def test_requests_that_pad_a_graph() -> None:
    """A graph may have more requests than a step: those behind have no query, no key and no slot."""
    batch = Batch(make_impl())
    step, more = batch.metadata(), 2
    nothing = torch.zeros(more, dtype=torch.int32)
    step = dataclasses.replace(
        step,
        num_reqs=len(NEW) + more,
        num_actual_tokens=sum(NEW) + PADDING,
        query_start_loc=torch.cat([step.query_start_loc, nothing + sum(NEW)]),
        seq_lens=torch.cat([step.seq_lens, nothing]),
        block_table=torch.cat([step.block_table, step.block_table[:more]]),
        slot_mapping=torch.cat([step.slot_mapping, torch.full((PADDING,), -1)]),
    )
    batch.impl.do_kv_cache_update(LAYER, batch.k, batch.v, batch.cache, step.slot_mapping)
    out = torch.empty(batch.q.shape)
    batch.impl.forward(LAYER, batch.q, batch.k, batch.v, batch.cache, step, out)
    batch.check(out[: sum(NEW)], 1e-5)


def test_queries_that_see_both_ways() -> None:
    batch = Batch(make_impl())
    batch.check(batch.run(causal=False), 1e-5, causal=False)


@pytest.mark.parametrize("kind", ["encoder", "encoder_only"])
@pytest.mark.parametrize("window", [None, 6])
def test_encoders_have_no_cache(kind: str, window: int | None) -> None:
    batch = Batch(make_impl())
    batch.impl = make_impl(attn_type=kind, sliding_window=window)
    batch.keys, batch.values = ([x[rows] for rows in batch.rows] for x in (batch.k, batch.v))
    step = batch.metadata(causal=False, lengths=NEW)
    out = torch.empty(batch.q.shape)
    batch.impl.do_kv_cache_update(LAYER, batch.k, batch.v, torch.empty(0), step.slot_mapping)
    batch.impl.forward(LAYER, batch.q, batch.k, batch.v, torch.empty(0), step, out)
    options = {} if window is None else {"window": (window - 1, window - 1)}
    batch.check(out[: sum(NEW)], 1e-5, causal=False, **options)


def test_cross_attention_reads_what_the_encoder_left() -> None:
    """Its keys are as many as the encoder had tokens, whatever the decoder has."""
    batch = Batch(make_impl(attn_type="encoder_decoder"))
    for request, (length, new) in enumerate(zip(LENGTHS, NEW)):
        batch.write(batch.keys[request][-new:], batch.values[request][-new:], request, length - new)
    out = torch.empty(batch.q.shape)
    batch.impl.forward(LAYER, batch.q, None, None, batch.cache, batch.metadata(causal=False), out)
    batch.check(out[: sum(NEW)], 1e-5, causal=False)


def test_a_run_that_measures_memory() -> None:
    out = torch.full((4, 4, 64), torch.nan)
    assert make_impl().forward(LAYER, out, out, out, torch.empty(0), None, out) is out
    assert (out == 0).all()


def test_batch_invariance_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("vllm").envs, "VLLM_BATCH_INVARIANT", True)
    seen: list[Any] = []
    batch = Batch(make_impl())
    tilewise = importlib.import_module("tilewise")
    real = tilewise.kv_cache_attention
    monkeypatch.setattr(tilewise, "kv_cache_attention", lambda *a, **k: (seen.append(k), real(*a, **k))[1])
    batch.check(batch.run(), 1e-5)
    assert [given["batch_invariant"] for given in seen] == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp8_e5m2"}, r"kv_cache_dtype: must be of auto, .* \(got 'fp8_e5m2'\)"),
        ({"chunk_lookback": 4}, r"chunk_lookback: is not supported .* passed by a layer \(got 4\)"),
        ({"indexer": torch.ones(2)}, r"indexer: is not supported .* \(got Tensor\)"),
    ],
)
def test_layers_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        make_impl(**options)
    make_impl(chunk_lookback=-1, indexer=None, use_alibi_sqrt=False)


def test_calls_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    impl = make_impl()
    batch = Batch(impl)
    call = (LAYER, batch.q, batch.k, batch.v, batch.cache, batch.metadata(), torch.empty(batch.q.shape))
    for name in ("output_scale", "output_block_scale", "of_tomorrow"):
        with pytest.raises(NotImplementedError, match=f"{name}: is not supported"):
            impl.forward(*call, **{name: torch.ones(1)})
    with pytest.raises(NotImplementedError, match=r"kv_cache: must be \[blocks, heads, block_size, 128\]"):
        impl.forward(*call[:4], batch.cache[..., :64], *call[5:])
    several = SimpleNamespace(_k_scale=torch.ones(2), _v_scale=torch.ones(1), _k_scale_float=1.0, _v_scale_float=1.0)
    fp8 = make_impl(kv_cache_dtype="fp8")
    with pytest.raises(NotImplementedError, match="_k_scale: must be one number for a layer"):
        fp8.forward(several, batch.q, batch.k, batch.v, batch.cache.to(torch.uint8), *call[5:])
    base = importlib.import_module("vllm.v1.attention.backend").AttentionImpl
    monkeypatch.setattr(base, "__new__", lambda cls, *a, **k: _with_ranks(cls))
    with pytest.raises(NotImplementedError, match=r"prefill context parallelism: .* \(got 2 ranks\)"):
        make_impl()


def _with_ranks(cls: type) -> Any:
    made = object.__new__(cls)
    made.pcp_world_size = 2
    return made
