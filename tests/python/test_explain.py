# tilewise.explain: rows, the printed table, and problems as text.
"""explain()."""

import os
import re

import numpy as np
import pytest
import torch

import tilewise


def _qkv(dtype=torch.float32):
    return [torch.randn(2, 128, heads, 64, dtype=dtype) for heads in (8, 2, 2)]


def test_rows_and_table():
    explanation = tilewise.explain(*_qkv(), mask="causal", softcap=30.0, return_lse=True)
    names = [row.implementation for row in explanation.rows]
    assert "reference" in names
    assert len(set(names)) == len(names)
    chosen = [row for row in explanation.rows if row.chosen]
    assert [row.implementation for row in chosen] == [explanation.chosen]
    assert chosen[0].accepted
    assert chosen[0].estimated_us == min(row.estimated_us for row in explanation.rows if row.accepted)
    assert all(row.reason for row in explanation.rows if not row.accepted)
    text = str(explanation)
    assert text == repr(explanation)
    for row in explanation.rows:
        assert row.implementation in text
        assert row.reason in text
        assert row.implementation in repr(row)


def test_problem_text():
    explanation = tilewise.explain(*_qkv(torch.bfloat16), mask="causal", return_lse=True)
    assert explanation.problem == (
        "attention_forward dtype=bf16 batch_size=2 seqlen_q=128 num_heads_q=8 num_heads_k=2 head_dim=64 mask=causal"
    )
    assert tilewise.explain(explanation.problem).problem == explanation.problem
    assert "softmax_lse=0" in tilewise.explain(*_qkv()).problem


def test_text_of_a_backward_pass():
    explanation = tilewise.explain("attention_backward dtype=f32 seqlen_q=64 num_heads_q=2 head_dim=32")
    assert explanation.problem.startswith("attention_backward ")
    assert explanation.chosen is not None


def test_a_named_implementation():
    explanation = tilewise.explain(*_qkv(), implementation="reference")
    assert explanation.chosen == "reference"
    assert tilewise.explain("attention_forward seqlen_q=8 head_dim=8", implementation="reference").chosen == "reference"
    with pytest.raises(ValueError, match="no_such_thing"):
        tilewise.explain(*_qkv(), implementation="no_such_thing")


def test_all_kinds_of_arrays_explain_alike():
    tensors = _qkv()
    arrays = [tensor.numpy() for tensor in tensors]
    options = {"window": (16, 0), "dropout_p": 0.1, "layout": "bshd"}
    from_torch = tilewise.explain(*[tensor.requires_grad_() for tensor in tensors], **options)
    assert from_torch.problem == tilewise.explain(*arrays, seed=3, **options).problem
    seeded = tilewise.explain(*arrays, seed=np.array([1, 2]), **options)
    assert "seed_tensor=1" in seeded.problem


def test_out_is_part_of_the_call():
    q, k, v = _qkv()
    assert tilewise.explain(q, k, v, out=torch.empty_like(q)).chosen
    with pytest.raises(ValueError, match="out: shape must be"):
        tilewise.explain(q, k, v, out=torch.empty(1, 2, 3, 4))


def test_estimates_are_printed_in_units_of_their_size():
    text = str(tilewise.explain("attention_forward dtype=bf16 seqlen_q=8192 num_heads_q=16 head_dim=128"))
    rows = [line.split() for line in text.splitlines()[2:] if " accepted " in line or " chosen " in line]
    assert len(rows) >= 2
    for row in rows:
        assert re.fullmatch(r"\d{1,3}(\.\d{1,2})?", row[2]), row
        assert row[3] in ("us", "ms", "s", "min", "h"), row


def _chosen_us(*arguments, **options):
    explanation = tilewise.explain(*arguments, **options)
    return next(row.estimated_us for row in explanation.rows if row.chosen)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_estimates_go_by_the_threads_of_the_call():
    tensors = [torch.empty(1, 4096, 16, 64) for _ in range(3)]
    arrays = [tensor.numpy() for tensor in tensors]
    of_torch, own = torch.get_num_threads(), tilewise.get_num_threads()
    try:
        tilewise.set_num_threads(None)
        times = {}
        for threads in (1, 2):
            torch.set_num_threads(threads)
            times[threads] = _chosen_us(*tensors)
            assert _chosen_us(*arrays) == _chosen_us(tilewise.explain(*arrays).problem) == times[threads]
        assert 1.8 < times[1] / times[2] <= 2.0
        tilewise.set_num_threads(1)
        assert _chosen_us(*arrays) == _chosen_us(*tensors) == times[1]
    finally:
        torch.set_num_threads(of_torch)
        tilewise.set_num_threads(own)


def test_bad_calls_raise():
    q, k, v = _qkv()
    with pytest.raises(ValueError, match="softcap: "):
        tilewise.explain(q, k, v, softcap=-1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_option'"):
        tilewise.explain(q, k, v, no_such_option=1)
    with pytest.raises(ValueError, match="colour"):
        tilewise.explain("attention_forward seqlen_q=8 head_dim=8 colour=green")
    with pytest.raises(TypeError, match="q: must be an array"):
        tilewise.explain(3, k, v)


def test_a_text_says_it_all():
    text, (_, k, v) = "attention_forward seqlen_q=8 head_dim=8", _qkv()
    for options, given in (({"mask": "causal"}, "mask"), ({"k": k}, "k"), ({"v": v}, "v"), ({"out": None}, "out")):
        with pytest.raises(TypeError, match=f"{given}: must not be given beside a problem as text"):
            tilewise.explain(text, **options)
    with pytest.raises(TypeError, match=r"explain\(\) got an unexpected keyword argument 'is_causal'"):
        tilewise.explain(text, is_causal=True)
