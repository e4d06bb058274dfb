"""kv_cache_attention() and append_kv() on a GPU, beside the CPU: every kind of cache, captured graphs that replay with
other lengths, tables and slots, and lengths and tables that lie."""

import pytest
import torch
from cases import assert_close

import tilewise

CPU = "reference"
BATCH, HEADS, HEADS_K, DIM, CAPACITY = 3, 8, 2, 64, 96


class Step:
    """A call's tensors on the CPU, and copies of them on the GPU."""

    def __init__(self, page_size=0, new=2, fp8="", dtype=torch.bfloat16, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.page_size, self.new = page_size, new
        places = page_size or CAPACITY
        rows = BATCH * -(-CAPACITY // places) + 2
        tensors = {
            "q": self._normal(BATCH, new, HEADS, DIM, dtype=dtype),
            "k": self._normal(BATCH, new, HEADS_K, DIM, dtype=dtype),
            "v": self._normal(BATCH, new, HEADS_K, DIM, dtype=dtype),
            "k_cache": self._normal(rows, places, HEADS_K, DIM, dtype=dtype),
            "v_cache": self._normal(rows, places, HEADS_K, DIM, dtype=dtype),
            "cache_seqlens": torch.tensor([5, 40, CAPACITY - new], dtype=torch.int32),
        }
        if not page_size:
            tensors["cache_batch_idx"] = torch.tensor([4, 0, 2], dtype=torch.int32)
        else:
            tensors["block_table"] = torch.randperm(rows, generator=self.generator)[: rows - 2].int().view(BATCH, -1)
        if fp8:
            shape = {"head": (HEADS_K,), "batch_head": (BATCH, HEADS_K), "token": (rows, places, HEADS_K)}[fp8]
            for name in ("k", "v"):
                tensors[f"{name}_cache"] = tensors[f"{name}_cache"].to(torch.float8_e4m3fn)
                tensors[f"{name}_scale"] = torch.rand(shape, generator=self.generator) + 0.5
        self.cpu = tensors
        self.gpu = {name: tensor.cuda() for name, tensor in tensors.items()}

    def _normal(self, *shape, dtype):
        return torch.randn(shape, generator=self.generator).to(dtype)

    def attend(self, **options):
        """(out, softmax_lse) of the GPU and of the reference; caches are compared bit for bit."""
        run = [tilewise.kv_cache_attention(**self._moved(side, options), return_lse=True) for side in ("gpu", "cpu")]
        self.compare_caches()
        return run

    def _moved(self, side, options):
        moved = {k: v.cuda() if side == "gpu" and isinstance(v, torch.Tensor) else v for k, v in options.items()}
        return (self.gpu if side == "gpu" else {**self.cpu, "implementation": CPU}) | moved

    def compare_caches(self):
        for name in ("k_cache", "v_cache"):
            got, wanted = self.gpu[name].cpu(), self.cpu[name]
            width = torch.uint8 if wanted.dtype == torch.float8_e4m3fn else torch.int16
            assert torch.equal(got.view(width), wanted.view(width)), name
        for name in ("k_scale", "v_scale"):
            if name in self.cpu:
                assert torch.equal(self.gpu[name].cpu(), self.cpu[name]), name


def _assert_alike(results, tolerance=2e-2):
    (out, lse), (expected, expected_lse) = results
    assert_close(out.cpu(), expected, tolerance)
    assert_close(lse.cpu(), expected_lse, 1e-3, "softmax_lse")


@pytest.mark.parametrize("page_size", [0, 1, 3, 16, 64])
@pytest.mark.parametrize("new", [1, 2, 30])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_caches(page_size, new, dtype):
    _assert_alike(Step(page_size, new, dtype=dtype).attend(mask="causal"))


@pytest.mark.parametrize("lengths", [(96, 64, 32), (95, 33, 1), (0, 31, -1)])
@pytest.mark.parametrize("window", [(-1, -1), (20, 0)])
@pytest.mark.parametrize("queries", [1, 7, 40])
@pytest.mark.parametrize("implementation", ["cuda.sm80", "cuda.hopper"])
def test_contiguous_caches_of_which_lengths_alone_are_known(implementation, queries, window, lengths):
    """Blocks ask for a tile of keys before they know how many there are: it may be whole, in part or not there."""
    if implementation == "cuda.hopper" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    step = Step(new=queries)
    for side in (step.cpu, step.gpu):
        del side["cache_batch_idx"], side["k"], side["v"]
        for name in ("k_cache", "v_cache"):
            side[name] = side[name][:BATCH].contiguous()
            for cache, length in zip(side[name], lengths):
                cache[max(length, 0) :] = float("nan")
        side["cache_seqlens"] = torch.tensor(lengths, dtype=torch.int32, device=side["q"].device)
    splits = 3 if implementation == "cuda.sm80" else 0
    step.gpu["implementation"] = implementation
    _assert_alike(step.attend(mask="causal", window=window, num_splits=splits))


@pytest.mark.parametrize("window", [(-1, -1), (20, 0)])
@pytest.mark.parametrize("page_size", [8, 16, 24, 64])
@pytest.mark.parametrize(("queries", "splits"), [(1, 0), (40, 0), (40, 3), (70, 1)])
def test_pages_by_tma(queries, splits, page_size, window):
    """With NaN in the pages of no sequence, where entries lead that no query needs."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    step = Step(page_size, queries)
    lengths = [5, 40, CAPACITY - queries] if queries < 50 else [5, 20, 26]
    for side in (step.cpu, step.gpu):
        table, seqlens = side["block_table"], torch.tensor(lengths, dtype=torch.int32, device=side["q"].device)
        side["cache_seqlens"] = seqlens
        spare = [page for page in range(side["k_cache"].shape[0]) if not (table == page).any()]
        for cache in (side["k_cache"], side["v_cache"]):
            cache[spare] = float("nan")
        for entries, length in zip(table, lengths):
            entries[-(-(length + queries) // page_size) :] = spare[0]
            if window[0] >= 0:
                entries[: max(length - window[0], 0) // page_size] = spare[1]
    step.gpu["implementation"] = "cuda.hopper"
    _assert_alike(step.attend(mask="causal", window=window, num_splits=splits))


@pytest.mark.parametrize("lengths", [(700, 64, 33), (129, 0, -1)])
@pytest.mark.parametrize("page_size", [0, 16, 64])
@pytest.mark.parametrize(("queries", "heads"), [(1, 128), (3, 16), (2, 80)])
@pytest.mark.parametrize("implementation", ["cuda.sm80", "cuda.hopper"])
def test_values_within_the_keys(implementation, queries, heads, page_size, lengths):
    """MLA's form, with NaN past the end of every sequence, and bits that do not change from call to call."""
    if implementation == "cuda.hopper" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    generator = torch.Generator().manual_seed(heads)
    capacity, places = 704, page_size or 704
    rows = BATCH * capacity // places
    q = (torch.randn(BATCH, queries, heads, 576, generator=generator) * 0.3).bfloat16()
    cache = torch.randn(rows, places, 1, 576, generator=generator).bfloat16()
    table = torch.randperm(rows, generator=generator).int().view(BATCH, -1)
    for of_sequence, length in zip(table, lengths):
        used = cache[of_sequence.long()].view(-1, 1, 576)
        used[max(length, 0) :] = float("nan")
        cache[of_sequence.long()] = used.view(-1, places, 1, 576)
    call = {"cache_seqlens": torch.tensor(lengths, dtype=torch.int32)} | ({"block_table": table} if page_size else {})
    if not page_size:
        cache = cache[table[:, 0].long()]
    moved = {name: tensor.cuda() for name, tensor in call.items()}
    options = {"head_dim_v": 512, "mask": "causal", "return_lse": True}
    got, again = (
        tilewise.kv_cache_attention(q.cuda(), cache.cuda(), None, implementation=implementation, **moved, **options)
        for _ in range(2)
    )
    assert torch.equal(got[0], again[0]) and torch.equal(got[1], again[1])
    _assert_alike([got, tilewise.kv_cache_attention(q, cache, None, implementation=CPU, **call, **options)])


@pytest.mark.parametrize("fp8", ["head", "batch_head", "token"])
@pytest.mark.parametrize("page_size", [0, 16])
def test_fp8(fp8, page_size):
    _assert_alike(Step(page_size, fp8=fp8).attend(mask="causal", num_splits=3))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("tables", [torch.float32, torch.bfloat16])
def test_rotary(interleaved, tables):
    step = Step(16)
    angles = torch.randn(CAPACITY, 12)
    rotary = {"rotary_cos": angles.cos().to(tables), "rotary_sin": angles.sin().to(tables)}
    _assert_alike(step.attend(mask="causal", rotary_interleaved=interleaved, rotary_offset=5, **rotary))


def test_options():
    step = Step(16)
    slopes, sink = torch.rand(HEADS), torch.randn(HEADS)
    _assert_alike(step.attend(window=(20, 0), softcap=5.0, alibi_slopes=slopes, sink=sink, num_splits=4))


def test_packed_prefill_beside_decode():
    step = Step(16, new=30)
    starts = torch.tensor([0, 1, 31, 33], dtype=torch.int32)
    for side in (step.cpu, step.gpu):
        for name in ("q", "k", "v"):
            side[name] = side[name].flatten(0, 1)[:33]
    step.cpu["cache_seqlens"][2] = step.gpu["cache_seqlens"][2] = 7
    _assert_alike(step.attend(mask="causal", cu_seqlens_q=starts, max_seqlen_q=30))


def test_splits_change_no_more_than_rounding():
    step = Step(16)
    given = {**step.gpu, "mask": "causal", "k": None, "v": None}
    outs = [tilewise.kv_cache_attention(**given, num_splits=splits) for splits in (1, 2, 7, 100)]
    for out in outs[1:]:
        assert_close(out, outs[0], 1e-2)


@pytest.mark.parametrize("page_size", [0, 16])
@pytest.mark.parametrize("new", [1, 30])
def test_batch_invariant_results_are_those_without_company(page_size, new):
    """Bit for bit: each sequence alone, and among more neighbours of other lengths, in another order."""
    step = Step(page_size, new)
    per_sequence = ("q", "cache_seqlens", "block_table" if page_size else "cache_batch_idx")

    def attend(sequences, lengths):
        given = {name: step.gpu[name][sequences] for name in per_sequence} | {"cache_seqlens": lengths}
        caches = {name: step.gpu[name] for name in ("k_cache", "v_cache")}
        return tilewise.kv_cache_attention(**caches, **given, mask="causal", batch_invariant=True, return_lse=True)

    lengths = step.gpu["cache_seqlens"] + new
    out, lse = attend(slice(None), lengths)
    for b in range(BATCH):
        company = torch.tensor([(b + 1) % BATCH] * 40 + [b] + [(b + 2) % BATCH] * 9, device="cuda")
        shorter = torch.where(company == b, lengths[company], lengths[company] // 2)
        for place, results in ((0, attend([b], lengths[[b]])), (40, attend(company, shorter))):
            for got, wanted in zip(results, (out, lse), strict=True):
                assert torch.equal(got[place], wanted[b]), f"sequence {b} at {place}"


@pytest.mark.parametrize("slots", [torch.int32, torch.int64])
def test_slots(slots):
    step = Step(16)
    places = torch.randperm(step.cpu["k_cache"].shape[0] * 16)[: BATCH * 2].view(BATCH, 2).to(slots)
    places[1, 0] = -1
    for side, moved in (("cpu", places), ("gpu", places.cuda())):
        tensors = getattr(step, side)
        caches = (tensors[name] for name in ("k_cache", "v_cache", "k", "v"))
        tilewise.append_kv(*caches, slots=moved, implementation=CPU if side == "cpu" else None)
    step.compare_caches()


def test_captured_with_other_lengths_tables_and_keys():
    first, second = Step(16, seed=1), Step(16, seed=2)
    second.cpu["cache_seqlens"] = torch.tensor([0, 61, 30], dtype=torch.int32)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    options = {"mask": "causal", "num_splits": 3, "return_lse": True}
    with torch.cuda.stream(stream):  # kernels are loaded, and the stream has its workspace
        tilewise.kv_cache_attention(**first.gpu, **options)
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        results = tilewise.kv_cache_attention(**first.gpu, **options)
    for name, tensor in second.cpu.items():
        first.gpu[name].copy_(tensor)
    graph.replay()
    torch.cuda.synchronize()
    expected = tilewise.kv_cache_attention(**second.cpu, **options, implementation=CPU)
    first.cpu = second.cpu
    first.compare_caches()
    _assert_alike((results, expected))


@pytest.mark.parametrize("batch", [2, 9, 100])
@pytest.mark.parametrize(("mla", "page_size"), [(False, 16), (True, 16), (True, 64)])
def test_captured_with_lengths_that_differ(mla, page_size, batch):
    """In a large capacity parts of the keys are scheduled by lengths that the device alone reads."""
    generator = torch.Generator().manual_seed(batch)
    long, capacity = 9000, 16384
    pages = batch * 4 + -(-long // page_size)
    heads, heads_k, dim = (128, 1, 576) if mla else (HEADS, HEADS_K, DIM)
    q = (torch.randn(batch, 1, heads, dim, generator=generator) * (0.3 if mla else 1.0)).bfloat16()
    k, v = torch.randn(2, pages, page_size, heads_k, dim, generator=generator).bfloat16()
    table = torch.randint(0, pages, (batch, capacity // page_size), generator=generator, dtype=torch.int32)
    first = torch.randint(0, 64, (batch,), generator=generator, dtype=torch.int32)
    first[0] = long
    cpu = {"q": q, "k_cache": k, "v_cache": v, "block_table": table, "cache_seqlens": first, "return_lse": True}
    cpu |= {"v_cache": None, "head_dim_v": 512} if mla else {}
    gpu = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in cpu.items()}
    plain = tilewise.kv_cache_attention(**gpu)
    _assert_alike((plain, tilewise.kv_cache_attention(**cpu, implementation=CPU)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = tilewise.kv_cache_attention(**gpu)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(results[0], plain[0]) and torch.equal(results[1], plain[1])
    for lengths in (first.flip(0), torch.full_like(first, 300), torch.zeros_like(first)):
        gpu["cache_seqlens"].copy_(lengths)
        graph.replay()
        torch.cuda.synchronize()
        _assert_alike((results, tilewise.kv_cache_attention(**(cpu | {"cache_seqlens": lengths}), implementation=CPU)))


def test_slots_in_a_graph():
    step = Step(16)
    caches = [step.gpu[name] for name in ("k_cache", "v_cache", "k", "v")]
    slots = torch.arange(BATCH * 2, device="cuda").view(BATCH, 2)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        tilewise.append_kv(*caches, slots=slots)
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        tilewise.append_kv(*caches, slots=slots)
    slots.add_(50)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(caches[0].flatten(0, 1)[50 : 50 + BATCH * 2], step.gpu["k"].flatten(0, 1))


@pytest.mark.parametrize("lie", [{"cache_seqlens": 2**31 - 1}, {"cache_seqlens": -7}, {"block_table": -5},
                                 {"block_table": 10**6}])  # fmt: skip
def test_lies_lead_nowhere(lie, monkeypatch):
    step = Step(16)
    for name, value in lie.items():
        step.gpu[name].fill_(value)
    before = step.gpu["k_cache"].clone()
    tilewise.kv_cache_attention(**step.gpu, mask="causal")
    torch.cuda.synchronize()
    assert torch.equal(step.gpu["k_cache"], before)
    monkeypatch.setenv("TILEWISE_CHECK", "1")
    if lie != {"cache_seqlens": -7}:  # a sequence of negative length has no cache
        with pytest.raises(ValueError, match=next(iter(lie))):
            tilewise.kv_cache_attention(**step.gpu, mask="causal")


def test_compiled():
    step = Step(16)

    def call(tensors):
        return tilewise.kv_cache_attention(**tensors, mask="causal")

    expected = call({name: tensor.clone() for name, tensor in step.gpu.items()})
    assert torch.equal(torch.compile(call, fullgraph=True)(step.gpu), expected)
