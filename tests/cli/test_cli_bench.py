"""`tilewise bench`: the table, the JSON and the counting of work. Times themselves are not judged."""

from __future__ import annotations

import json

import pytest

QUICK = ["--min-time", "0.001", "--no-ceilings"]


def bench(tilewise, *problems: str) -> list[dict]:
    return json.loads(tilewise("bench", *problems, *QUICK, "--json").stdout)["results"]


def test_table(tilewise):
    text = tilewise("bench", "attention_forward seqlen_q=64 head_dim=32", *QUICK).stdout
    for word in [
        "implementation",
        "time",
        "GFLOP/s",
        "GB/s",
        "of ceiling",
        "attention_forward seqlen_q=64 head_dim=32",
    ]:
        assert word in text


def test_several_problems(tilewise):
    problems = ["attention_forward seqlen_q=16 head_dim=8", "attention_backward dtype=bf16 seqlen_q=16 head_dim=8"]
    assert [row["problem"] for row in bench(tilewise, *problems)] == problems
    assert bench(tilewise, *" ".join(problems).split())[1]["problem"] == problems[1]


def test_rates_follow_from_the_work(tilewise):
    (row,) = bench(tilewise, "attention_forward batch_size=2 seqlen_q=48 num_heads_q=3 head_dim=32")
    assert row["seconds"] >= row["best_seconds"] > 0
    assert row["runs"] >= 1
    assert row["gflops"] == pytest.approx(row["flops"] / row["seconds"] * 1e-9)
    assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["seconds"] * 1e-9)
    assert row["bytes"] == 4 * 2 * 48 * 3 * (4 * 32 + 1)  # q, k, v, out and the log-sum-exp
    assert row["ceiling_fraction"] is None


@pytest.mark.parametrize(
    ("options", "pairs"),
    [
        ("", 6 * 10),
        (" mask=causal", sum(range(5, 11))),
        (" mask=causal alignment=top_left", sum(range(1, 7))),
        (" window_left=0 window_right=0", 6),
        (" num_heads_k=1 bias=f32[1,h,1,k] alibi_slopes=[h] sink=1 seqused_k=1 leftpad_k=1 dropout_p=0.5", 6 * 10),
    ],
)
def test_visible_work_is_counted(tilewise, options, pairs):
    shape = f"seqlen_q=6 seqlen_k=10 num_heads_q=2 head_dim=16{options}"
    forward, backward = bench(tilewise, f"attention_forward {shape}", f"attention_backward {shape}")
    assert forward["flops"] == 4 * 2 * pairs * 16
    assert backward["flops"] == 2.5 * forward["flops"]


def test_packed_sequences_share_the_total(tilewise):
    text = "layout=thd batch_size=4 max_seqlen_q=8 max_seqlen_k=8 total_q=16 total_k=16 head_dim=16"
    (row,) = bench(tilewise, f"attention_forward {text}")
    assert row["flops"] == 4 * 4 * (4 * 4) * 16


def test_ceilings_are_measured_in_the_same_run(tilewise):
    words = ["bench", "attention_forward dtype=bf16 seqlen_q=64 head_dim=64", "--min-time", "0.01", "--threads", "1"]
    report = json.loads(tilewise(*words, "--json").stdout)
    assert report["num_threads"] == 1
    assert report["ceilings"]["read_gb_per_s"] > 0
    (row,) = report["results"]
    assert row["ceiling_fraction"] > 0
    assert row["bound"] in ("compute", "memory")


def test_default_grid(tilewise):
    results = bench(tilewise)
    problems = [row["problem"] for row in results]
    assert len(problems) == len(set(problems)) == 12
    for word in ["attention_forward", "attention_backward", "dtype=bf16", "mask=causal", "seqlen_q=1 "]:
        assert any(word in problem for problem in problems), word


def test_forced_implementation(tilewise):
    text = "attention_forward seqlen_q=16 head_dim=8"
    done = tilewise("bench", text, *QUICK, "--json", "--implementation", "reference")
    assert json.loads(done.stdout)["results"][0]["implementation"] == "reference"
    refused = tilewise("bench", text, *QUICK, "--implementation", "cpu.avx2", status=1, TILEWISE_CPU_ISA="generic")
    assert "TILEWISE_CPU_ISA" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attention_forward device=cuda dtype=bf16 seqlen_q=16 head_dim=64"], "device: must be of the CPU (got cuda)"),
        (["--implementation", "hip.cdna"], "--implementation: must be of the CPU (got hip.cdna)"),
    ],
)
def test_gpus_are_measured_elsewhere(tilewise, words, message):
    refused = tilewise("bench", *words, *QUICK, status=2)
    assert message in refused.stderr
    assert "python -m tilewise.bench --device cuda" in refused.stderr


def test_merge_is_measured_too(tilewise):
    text = "merge parts=3 seqlen_q=40 num_heads_q=2 head_dim_v=16"
    backward = text.replace("merge ", "merge_backward ")
    rows = bench(tilewise, text, backward, f"{text} layout=bhsd stacked=1", "attention_forward seqlen_q=16 head_dim=8")
    elements = 3 * 40 * 2 * 16
    assert [row["flops"] for row in rows] == [2 * elements, 4 * elements, 2 * elements, 4 * 16 * 16 * 8]
    tensor, lse = 40 * 2 * 16 * 4, 40 * 2 * 4
    assert rows[0]["bytes"] == rows[2]["bytes"] == 4 * (tensor + lse)
    assert rows[1]["bytes"] == 7 * tensor + 6 * lse
    assert rows[2]["problem"].startswith("merge layout=bhsd")


def test_linear_layers_are_measured_too(tilewise):
    text = "linear dtype=bf16 tokens=10 n=12 k=33"
    grouped = f"{text} w_format=mxfp4 groups=counts_i64 num_experts=3 bias=f32"
    rows = bench(tilewise, text, grouped, text.replace("linear", "linear_backward"))
    flops = 2 * 10 * 12 * 33
    assert [row["flops"] for row in rows] == [flops, flops, 2 * flops]
    x, w, out = 2 * 10 * 33, 2 * 12 * 33, 2 * 10 * 12
    assert [rows[0]["bytes"], rows[2]["bytes"]] == [x + w + out, 2 * (x + w) + out]
    elements, scales = 3 * 12 * 17, 3 * 12 * 2  # rows of fp4 begin on bytes
    assert rows[1]["bytes"] == x + elements + scales + out + 4 * 3 * 12 + 8 * 3


def test_cache_steps_are_measured_too(tilewise):
    text = "kv_cache_attention seqlen_q=2 num_heads_q=4 num_heads_k=2 head_dim=8 mask=causal"
    fp8 = "batch_size=3 dtype=bf16 cache_dtype=fp8_e4m3 scales=token rotary_dim=8 append=1 cache_seqlens=1"
    mla = "kv_cache_attention seqlen_q=1 num_heads_q=4 num_heads_k=1 head_dim=8 head_dim_v=6 mla=1 capacity=10"
    packed = "append_kv layout=thd batch_size=2 max_seqlen_k_new=3 head_dim=8 capacity=10"
    rows = bench(
        tilewise,
        f"{text} capacity=16",
        f"{text} {fp8} page_size=4 num_pages=9 max_pages_per_seq=3",
        mla,
        f"{packed} cache_batch_idx=1 batch_size_cache=3",
        "append_kv seqlen_k_new=2 head_dim=8 slots=i64 page_size=4 num_pages=3",
    )
    # Row by row one sees 15 and 16 of 16 keys, then 11 and 12 of 12.
    seen = [(15 + 16) * 4 * (8 + 8), 3 * (11 + 12) * 4 * (8 + 8), 10 * 4 * (8 + 6), 0, 0]
    assert [row["flops"] for row in rows] == [2 * pairs for pairs in seen]
    rows_of_queries = 4 * 2 * 4 * 8
    assert rows[0]["bytes"] == 2 * rows_of_queries + 4 * 2 * 16 * (8 + 8)
    assert rows[2]["bytes"] == 4 * 4 * (8 + 6) + 4 * 10 * 8
    new_rows, starts, slots = 4 * 6 * (8 + 8), 4 * 3, 8 * 2
    assert rows[3]["bytes"] == 2 * new_rows + starts + 4 * 2
    assert rows[4]["bytes"] == 2 * 4 * 2 * (8 + 8) + slots
    assert rows[3]["problem"].startswith("append_kv layout=thd")
