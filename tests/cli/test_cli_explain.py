"""`tilewise explain`: the table, the JSON, and the options that steer the choice."""

from __future__ import annotations

import json

PROBLEM = "attention_forward dtype=bf16 batch_size=2 seqlen_q=64 num_heads_q=4 num_heads_k=2 head_dim=64 mask=causal"


def explain(tilewise, *arguments: str, **environment: str) -> dict:
    return json.loads(tilewise("explain", *arguments, "--json", **environment).stdout)


def test_the_kv_cache_step_is_explained(tilewise):
    cache = "num_heads_k=2 head_dim=64 page_size=16 num_pages=64"
    for problem in (
        f"kv_cache_attention dtype=bf16 batch_size=2 seqlen_q=1 append=1 num_heads_q=8 {cache} max_pages_per_seq=8"
        " cache_seqlens=1 mask=causal",
        f"append_kv dtype=bf16 cache_dtype=fp8_e4m3 {cache.replace(' page', ' slots=i64 page')}",
    ):
        report = explain(tilewise, problem)
        assert report["problem"] == problem
        rows = {row["implementation"]: row for row in report["implementations"]}
        assert rows["reference"]["accepted"] and rows["cuda.sm80"]["reason"] == "runs on cuda, the tensors are on cpu"
        assert explain(tilewise, problem, "--implementation", "reference")["problem"] == problem


def test_quotes_are_optional(tilewise):
    assert explain(tilewise, PROBLEM) == explain(tilewise, *PROBLEM.split())


def test_every_implementation_has_a_verdict(tilewise):
    report = explain(tilewise, PROBLEM)
    assert report["problem"] == PROBLEM
    assert [row["chosen"] for row in report["implementations"]].count(True) == 1
    for row in report["implementations"]:
        if row["accepted"]:
            assert row["estimated_us"] >= 0
            assert row["schedule"]
        else:
            assert row["reason"]
            assert not row["chosen"]


def test_the_cheapest_is_chosen(tilewise):
    rows = explain(tilewise, PROBLEM)["implementations"]
    cheapest = min((row for row in rows if row["accepted"]), key=lambda row: row["estimated_us"])
    assert cheapest["chosen"]


def test_table_names_the_same_rows(tilewise):
    text = tilewise("explain", PROBLEM).stdout
    for row in explain(tilewise, PROBLEM)["implementations"]:
        assert row["implementation"] in text


def test_an_implementation_can_be_asked_for(tilewise):
    for report in [
        explain(tilewise, PROBLEM, "--implementation", "reference"),
        explain(tilewise, PROBLEM, TILEWISE_FORCE="reference"),
        explain(tilewise, PROBLEM, TILEWISE_DISABLE="cpu.*"),
    ]:
        (chosen,) = [row["implementation"] for row in report["implementations"] if row["chosen"]]
        assert chosen == "reference"


def test_instruction_set_cap_is_a_reason(tilewise):
    rows = {
        row["implementation"]: row for row in explain(tilewise, PROBLEM, TILEWISE_CPU_ISA="generic")["implementations"]
    }
    assert not rows["cpu.avx512"]["accepted"]
    assert "TILEWISE_CPU_ISA" in rows["cpu.avx512"]["reason"]
    assert rows["cpu.generic"]["accepted"]
