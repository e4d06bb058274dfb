"""Ranks that share sequences in tilewise.vllm (decode context parallelism): two of them, each a thread with its part of
the cache and its heads, give what one gives that has everything."""

from __future__ import annotations

import importlib
import sys
import threading
from types import SimpleNamespace
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import vllm_stand_in  # noqa: E402
from kv_cache_step import attend  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

RANKS, HEADS, DIM, BLOCK = 2, 2, 64, 16  # heads of one rank, on one head of keys that all have
LENGTHS, NEW = (8, 39, 130, 1, 19), (1, 1, 42, 1, 19)
SINKS = torch.tensor([0.5, -1.0, 3.0, 0.0])


class Group:
    """What vLLM's group of ranks does, between threads."""

    def __init__(self) -> None:
        self.world_size = RANKS
        self._meeting = threading.Barrier(RANKS, timeout=60)
        self._parts: list[Any] = [None] * RANKS
        self._own = threading.local()

    @property
    def rank_in_group(self) -> int:
        return self._own.rank

    def exchange(self, part: Any) -> list[Any]:
        self._parts[self.rank_in_group] = part
        self._meeting.wait()
        parts = list(self._parts)
        self._meeting.wait()
        return parts

    def all_gather(self, part: Any, dim: int) -> Any:
        return torch.cat(self.exchange(part), dim=dim)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """work(rank) of each, which meet in between."""
        results: list[Any] = [None] * RANKS

        def of_rank(rank: int) -> None:
            self._own.rank = rank
            try:
                with torch.inference_mode():
                    results[rank] = work(rank)
            except BaseException as error:
                results[rank] = error
                self._meeting.abort()

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, threading.BrokenBarrierError):
                raise result
        return results


def join_ranks(out: Any, lse: Any, group: Group, return_lse: bool, is_lse_base_on_e: bool) -> Any:
    """vLLM's cp_lse_ag_out_rs: parts [tokens, heads, dim] and [tokens, heads] joined, and this rank's heads of them."""
    assert return_lse and is_lse_base_on_e
    parts = group.exchange((out, lse))
    together = torch.logsumexp(torch.stack([part for _, part in parts]), 0)
    joined = sum((torch.exp(lse - together).nan_to_num()[..., None] * out for out, lse in parts))
    mine = slice(group.rank_in_group * HEADS, (group.rank_in_group + 1) * HEADS)
    return joined[:, mine], together[:, mine]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    vllm_stand_in.install(monkeypatch, "0.26.0", cpu=False)
    made = Group()
    state = SimpleNamespace(get_dcp_group=lambda: made)
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", state)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.ops.common", SimpleNamespace(cp_lse_ag_out_rs=join_ranks))
    return made


class Sequences:
    """Keys of five requests, of which all ranks have the new ones, and each its turns of all."""

    def __init__(self, stride: int) -> None:
        torch.manual_seed(0)
        self.stride = stride
        self.keys, self.values = ([torch.randn(length, 1, DIM) for length in LENGTHS] for _ in range(2))
        self.q = torch.randn(sum(NEW), RANKS * HEADS, DIM)
        self.starts = torch.tensor([0, *NEW], dtype=torch.int32).cumsum(0).int()

    def new(self, tensors: list[Any]) -> Any:
        return torch.cat([tensor[-new:] for tensor, new in zip(tensors, NEW)])

    def cache(self, rank: int) -> tuple[Any, Any]:
        """[blocks, heads, block, 2 * dim] full of NaN but for the rank's tokens, and the table."""
        counts = [-(-length // BLOCK) for length in LENGTHS]
        table = torch.zeros(len(LENGTHS), max(counts), dtype=torch.int32)
        cache = torch.full((sum(counts) + 1, 1, BLOCK, 2 * DIM), torch.nan)
        block = 1
        for request, length in enumerate(LENGTHS):
            mine = torch.arange(length)
            mine = mine[mine // self.stride % RANKS == rank]
            rows = torch.cat([self.keys[request][mine], self.values[request][mine]], -1)[:, 0]
            for place in range(-(-len(mine) // BLOCK)):
                part = rows[place * BLOCK : (place + 1) * BLOCK]
                cache[block, 0, : len(part)] = part
                table[request, place] = block
                block += 1
        return cache, table


def forward(group: Group, sequences: Sequences, rank: int, **options: Any) -> Any:
    backend = importlib.import_module("tilewise.vllm.backend")
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=RANKS, cp_kv_cache_interleave_size=sequences.stride
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )
    builder = backend.TilewiseBuilder(None, [], config, "cpu")
    cache, table = sequences.cache(rank)
    common = importlib.import_module("vllm.v1.attention.backend").CommonAttentionMetadata(
        query_start_loc=sequences.starts, query_start_loc_cpu=None, seq_lens=torch.tensor(LENGTHS, dtype=torch.int32),
        num_reqs=len(NEW), num_actual_tokens=sum(NEW), max_query_len=max(NEW), max_seq_len=max(LENGTHS),
        block_table_tensor=table, slot_mapping=torch.empty(0), dcp_local_seq_lens=torch.zeros(5, dtype=torch.int32),
    )  # fmt: skip
    mine = slice(rank * HEADS, (rank + 1) * HEADS)
    if "sinks" in options:
        options["sinks"] = options["sinks"][mine]
    impl = backend.TilewiseImpl(HEADS, DIM, 0.2, 1, **options)
    out = torch.empty(sum(NEW), HEADS, DIM)
    k, v = sequences.new(sequences.keys), sequences.new(sequences.values)
    impl.forward(None, sequences.q[:, mine], k, v, cache, builder.build(0, common), out)
    return out


@pytest.mark.parametrize("stride", [1, 4, 16])
@pytest.mark.parametrize("options", [{}, {"sinks": SINKS}, {"logits_soft_cap": 1.5}], ids=["plain", "sinks", "softcap"])
def test_two_ranks_give_what_one_does(group: Group, stride: int, options: dict[str, Any]) -> None:
    sequences = Sequences(stride)
    outs = group.run(lambda rank: forward(group, sequences, rank, **options))
    out = torch.cat(outs, dim=1)
    formula = {"sink": options.get("sinks"), "softcap": options.get("logits_soft_cap", 0.0)}
    for request, (first, end) in enumerate(zip(sequences.starts, sequences.starts[1:])):
        keys, values = sequences.keys[request], sequences.values[request]
        want, _ = attend(sequences.q[first:end], keys, values, True, scale=0.2, **formula)
        torch.testing.assert_close(out[first:end].double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "name"), [({"sliding_window": 16}, "window"), ({"alibi_slopes": [0.5, 0.25]}, "alibi_slopes")]
)
def test_distances_are_refused(group: Group, options: dict[str, Any], name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{name}: is not supported .* with decode context parallelism"):
        group.run(lambda rank: forward(group, Sequences(1), rank, **options))
