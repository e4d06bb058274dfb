"""python -m tilewise.bench --operation kv_cache: arithmetic, arguments, judgement, tiny runs. No timing is judged."""

import csv
import dataclasses
import subprocess
import sys

import pytest
from bench_stand_ins import counting_timer, torch, torch_attention
from bench_support import assert_refused

import tilewise
from tilewise.bench import arguments, cli, reference
from tilewise.bench.kv_cache_cases import CACHES, KvCase, default_shapes, parse_kv_shape
from tilewise.bench.kv_cache_contenders import KvTilewise, KvTorch, make_kv_rival
from tilewise.bench.kv_cache_inputs import few_sequences, make_kv_inputs
from tilewise.bench.runner import Settings, run_kv_case
from tilewise.bench.shapes import Shape

DECODE = Shape(batch_size=2, seqlen_q=1, seqlen_k=48, num_heads_q=8, num_heads_k=2, head_dim=16)
CHUNK = Shape(2, 5, 48, 4, 2, 16)
MLA = Shape(2, 1, 40, 8, 1, 32, 24)


# --- arithmetic against values computed by hand ---


def test_shapes_print_and_parse_back():
    for device in ("cpu", "cuda"):
        for shape in default_shapes(device):
            assert parse_kv_shape(str(shape)) == shape
    assert parse_kv_shape("16x1/8192x128/1x576/512") == Shape(16, 1, 8192, 128, 1, 576, 512)
    assert [shape.batch_size for shape in default_shapes("cuda")] == [1, 64, 1, 1, 64]


def test_flops_and_bytes():
    case = KvCase(DECODE)
    assert case.flops() == 4 * 2 * 8 * 48 * 16
    # q and out: 2 * 8 * 16 bf16 each; keys and values: 2 * 48 * 2 * 16 bf16 each.
    assert case.traffic_bytes() == 2 * 512 + 2 * 6144
    assert dataclasses.replace(case, page_size=16).traffic_bytes() == case.traffic_bytes()
    # The row that is appended is not read from the cache, but from k and v, and written.
    assert dataclasses.replace(case, append=True).traffic_bytes() == case.traffic_bytes() + 2 * (2 * 2 * 16) * 2
    assert dataclasses.replace(case, cache="fp8_head").traffic_bytes() == 2 * 512 + 2 * 3072
    assert dataclasses.replace(case, cache="fp8_token").traffic_bytes() == 2 * 512 + 2 * 3072 + 2 * 4 * 2 * 48 * 2
    mla = KvCase(MLA)
    assert mla.flops() == 2 * 2 * 8 * 40 * (32 + 24)
    assert mla.traffic_bytes() == 2 * 2 * 8 * (32 + 24) + 2 * 2 * 40 * 32
    chunk = KvCase(CHUNK)
    assert chunk.flops() == 4 * 2 * 4 * (44 + 45 + 46 + 47 + 48) * 16
    assert chunk.tokens == 10


# --- tensors and reference ---


def every_case():
    for shape in (DECODE, CHUNK, MLA):
        for cache in CACHES:
            for page_size in (0, 3, 16):
                for append in (False, True):
                    yield KvCase(shape, cache, page_size, append)


@pytest.fixture
def default_threads():
    """run_kv_case() leaves its number of threads behind."""
    yield
    tilewise.set_num_threads(0)


@pytest.mark.usefixtures("default_threads")
def test_tilewise_and_torch_agree_with_the_reference(monkeypatch):
    monkeypatch.setattr("tilewise.bench.runner.MOST_KV_COPIES", 2)
    for case in every_case():
        rows = run_kv_case(case, [KvTilewise(), KvTorch()], Settings(timer=counting_timer))
        for row in rows:
            assert row.ok, (row.library, str(case), row.status)
            assert row.rel_l2_err < reference.REL_L2_LIMITS["bf16"]
        ours, theirs = rows
        assert ours.implementation.startswith("cpu.")
        assert ("gathered" in theirs.implementation, "widened" in theirs.implementation) == (
            case.page_size > 0,
            case.cache != "bf16",
        )
        assert ours.tokens_per_s == pytest.approx(case.tokens / 8e-6)


def test_reference_notices():
    for case in (KvCase(DECODE), KvCase(CHUNK, "fp8_token", 16, True)):
        inputs = make_kv_inputs(case)
        expected = few_sequences(case, inputs)
        (out,) = KvTorch().prepare(case, inputs).results()
        assert expected.judge([out]).problem == ""
        wrong = out.clone()
        wrong[-1] *= 1.1
        assert "exceeds" in expected.judge([wrong]).problem
        wrong[0, 0, 0] = torch.nan
        assert "NaN" in expected.judge([wrong]).problem


def test_problem_text_is_a_problem():
    for case in every_case():
        problem = tilewise.explain(case.problem_text()).problem
        assert problem.startswith("kv_cache_attention")
        assert ("page_size=" in problem) == (case.page_size > 0)
        assert ("scales=" in problem or "cache_dtype=fp8_e4m3" in problem) == (case.cache != "bf16")


# --- flash_attn and flashinfer, by stand-ins that compute by torch ---


def rows_of(cache, table, length):
    rows = cache if table is None else cache[table.long()].flatten(1, 2)
    return rows[:, :length]


def append(cache, table, new, places):
    for b, place in enumerate(places):
        for t in range(new.shape[1]):
            if table is None:
                cache[b, place + t] = new[b, t]
            else:
                cache[table[b, (place + t) // cache.shape[1]], (place + t) % cache.shape[1]] = new[b, t]


def flash_attn_with_kvcache(q, k_cache, v_cache, k, v, *, cache_seqlens, block_table, causal):
    length = int(cache_seqlens[0]) + (0 if k is None else k.shape[1])
    for cache, new in ((k_cache, k), (v_cache, v)):
        if new is not None:
            append(cache, block_table, new, cache_seqlens.tolist())
    keys, values = (rows_of(cache, block_table, length) for cache in (k_cache, v_cache))
    return torch_attention(q, keys, values, causal).to(q.dtype)


class FakePaged:
    """Either of flashinfer's paged wrappers."""

    def __init__(self, workspace, layout, use_tensor_cores=True):
        assert (layout, workspace.dtype) == ("NHD", torch.uint8)

    def plan(self, *arguments, causal=False, q_data_type, kv_data_type):
        *self.starts_q, starts, pages, last, _, heads_k, head_dim, page_size = arguments
        assert starts.dtype == pages.dtype == last.dtype == torch.int32
        assert last.tolist() == [page_size] * len(last)
        self.table, self.page = pages.view(len(last), -1), (page_size, heads_k, head_dim)

    def run(self, q, caches):
        assert caches[0].shape[1:] == caches[1].shape[1:] == self.page
        k, v = (rows_of(cache, self.table, None) for cache in caches)
        out = torch_attention(q.unflatten(0, (len(self.table), -1)), k, v, causal=True)
        return out.to(q.dtype).flatten(0, 1).contiguous()


def append_paged_kv_cache(k, v, sequences, places, caches, pages, starts, last, *, kv_layout):
    assert kv_layout == "NHD"
    for cache, new in zip(caches, (k, v)):
        for row, b, place in zip(new, sequences.tolist(), places.tolist()):
            cache[pages[int(starts[b]) + place // cache.shape[1]], place % cache.shape[1]] = row


@pytest.fixture
def fake_kv_libraries(fake_libraries):
    flash_attn, flashinfer = fake_libraries
    flash_attn.flash_attn_with_kvcache = flash_attn_with_kvcache
    flashinfer.BatchDecodeWithPagedKVCacheWrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper = FakePaged
    flashinfer.append_paged_kv_cache = append_paged_kv_cache


@pytest.mark.usefixtures("fake_kv_libraries", "cpu_as_cuda")
@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("page_size", [0, 16])
@pytest.mark.parametrize("shape", [DECODE, CHUNK], ids=str)
def test_every_library(shape, page_size, append, monkeypatch):
    monkeypatch.setattr("tilewise.bench.kv_cache_contenders.FLASH_ATTN_PAGES", 8)
    rivals = [make_kv_rival(name, "cuda") for name in ("flash_attn", "flashinfer")]
    assert [rival.missing() for rival in rivals] == ["", ""]
    case = KvCase(shape, page_size=page_size, append=append, device="cuda")
    for row in run_kv_case(case, [KvTilewise(), *rivals], Settings(timer=counting_timer)):
        assert row.ok, row


@pytest.mark.usefixtures("fake_kv_libraries", "cpu_as_cuda")
@pytest.mark.parametrize(
    ("case", "flash_attn", "flashinfer"),
    [
        (KvCase(MLA), "needs a cache of values", "caches of their own"),
        (KvCase(DECODE, "fp8_head"), "no fp8 caches (got fp8_head)", "one scale for an fp8 cache (got fp8_head)"),
        (KvCase(DECODE, page_size=16), "pages of multiples of 256 (got 16)", ""),
        (KvCase(DECODE, page_size=5), "pages of multiples of 256 (got 5)", "must divide the keys (got 48)"),
    ],
    ids=str,
)
def test_refusals_are_told(case, flash_attn, flashinfer):
    rivals = [make_kv_rival(name, "cuda") for name in ("flash_attn", "flashinfer")]
    rows = run_kv_case(dataclasses.replace(case, device="cuda"), rivals, Settings(timer=counting_timer))
    for row, reason in zip(rows, (flash_attn, flashinfer)):
        assert row.ok == (not reason)
        assert reason in row.status
        assert not row.failed


# --- the command ---

KV = ["--operation", "kv_cache"]


@pytest.mark.parametrize(
    ("given", "argument", "value"),
    [
        (["--operation", "decode"], "--operation", "'decode'"),
        ([*KV, "--masks", "causal"], "--masks", "['causal']"),
        ([*KV, "--dtypes", "f32"], "--dtypes", "['f32']"),
        ([*KV, "--backward"], "--backward", "True"),
        ([*KV, "--compare", "torch,torch_math"], "--compare", "'torch_math'"),
        ([*KV, "--caches", "fp4"], "--caches", "'fp4'"),
        ([*KV, "--page-sizes", "-1"], "--page-sizes", "'-1'"),
        ([*KV, "--appends", "maybe"], "--appends", "'maybe'"),
        ([*KV, "--shapes", "1x8x2"], "--shapes", "'1x8x2'"),
        ([*KV, "--shapes", "1x1/8x2/1x16/17"], "--shapes", "'1x1/8x2/1x16/17'"),
        ([*KV, "--shapes", "1x1/8x2x999"], "--shapes", "'1x1/8x2x999'"),
        (["--caches", "bf16"], "--caches", "['bf16']"),
        (["--page-sizes", "16"], "--page-sizes", "[16]"),
    ],
)
def test_bad_arguments_are_named(given, argument, value, capsys):
    assert_refused(lambda: cli.main(given), capsys, argument, value)


def test_default_cases():
    cases = arguments.cases_of(arguments.parse(KV, ""))
    assert len(cases) == len(set(cases)) == 5 * 3 * 3 * 2
    assert {case.page_size for case in cases} == {0, 16, 256}


def test_tiny_grid_end_to_end(tmp_path):
    pytest.importorskip("rich")
    file = tmp_path / "out.csv"
    command = [sys.executable, "-m", "tilewise.bench", *KV, "--shapes", f"{CHUNK},{MLA}", "--page-sizes", "0,4"]
    command += ["--min-time", "0.001", "--csv", str(file), "--caches", "bf16,fp8_token"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    for name in ("flash_attn", "flashinfer"):
        assert f"{name} " in result.stderr
        assert "not measured" in result.stderr
    for words in ("tokens/s", "2x5/48x4/2x16", "2x1/40x8/1x32/24", "torch cache=fp8_token pages=4 threads=1: tilewise"):
        assert words in result.stdout
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2 * 2 * 2 * 2  # shapes, caches, page sizes, appending, libraries
    for row in rows:
        assert (row["status"], row["operation"], row["device"]) == ("ok", "kv_cache", "cpu")
        assert float(row["tokens_per_s"]) > 0
        assert int(row["page_size"]) in (0, 4)
        assert int(row["head_dim_v"]) in (16, 24)


def test_without_a_gpu_tilewise_says_why(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert_refused(lambda: cli.main([*KV, "--device", "cuda"]), capsys, "--device", "(got 'cuda': ")
