# Python functions of scores become expressions, or are refused with the line that can't.
"""Tracing of score_mod and mask_mod."""

import math

import numpy as np
import pytest

from tilewise.expression import TraceError, trace, traced


def text_of(function):
    return trace(function).text


def test_python_alone():
    assert text_of(lambda score, b, h, q_idx, kv_idx: score * 2 + (q_idx - kv_idx)) == "score*2.0+(q_idx-kv_idx)"
    assert text_of(lambda score, b, h, q_idx, kv_idx: 1 - score / 3) == "1.0-score/3.0"
    assert text_of(lambda score, b, h, q_idx, kv_idx: -(abs(score) ** 3)) == "t0=abs(score);-(t0*t0*t0)"
    assert text_of(lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (h > 0)) == "(kv_idx<=q_idx)&(0<h)"
    assert text_of(lambda b, h, q_idx, kv_idx: ~(7 // (kv_idx + 1) == 7 % 4)) == "~(7//(kv_idx+1)==3)"
    assert text_of(lambda b, h, q_idx, kv_idx: q_idx // 64 != kv_idx % 64) == "q_idx//64!=kv_idx%64"
    assert trace(lambda b, h, q_idx, kv_idx: q_idx <= kv_idx).function == "mask_mod"
    assert text_of(lambda score, b, h, q_idx, kv_idx: h) == "float(h)"


def test_what_python_decides_is_decided_once():
    def score_mod(score, b, h, q_idx, kv_idx):
        for power in range(3):
            score = score + (h if power else q_idx) * 0.5**power
        return score

    assert text_of(score_mod) == "score+q_idx+h*0.5+h*0.25"


def test_what_is_shared_stays_shared():
    def score_mod(score, b, h, q_idx, kv_idx):
        for _ in range(60):
            score = score * score
        return score

    assert len(text_of(score_mod)) < 700


def test_captured_arrays():
    bias, ids = np.zeros((4, 128), np.float32), np.zeros(128, np.int64)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + bias[h, kv_idx] * bias[-1, ids[q_idx]]

    # NumPy does not ask what an index is.
    with pytest.raises(TraceError, match=r"test_expression.py, line \d+: return score \+ bias"):
        trace(score_mod)
    torch = pytest.importorskip("torch")
    bias, ids = torch.from_numpy(bias), torch.from_numpy(ids)
    traced = trace(score_mod)
    assert traced.text == "score+table0[h,kv_idx]*table0[3,table1[q_idx]]"
    assert traced.tables[0] is bias and traced.tables[1] is ids


def test_torch_functions():
    torch = pytest.importorskip("torch")
    scale, flags = torch.tensor(2.0), torch.ones(2, 3, dtype=torch.bool)

    def of_scores(function):
        return text_of(lambda score, b, h, q_idx, kv_idx: function(score, b, h, q_idx, kv_idx))

    assert of_scores(lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf"))) == "select(kv_idx<=q_idx,score,-inf)"
    assert of_scores(lambda s, b, h, q, k: torch.where(flags[b][h], s, s * scale)) == (
        "select(table0[b,h],score,score*table1[0])"
    )
    assert of_scores(lambda s, b, h, q, k: 20 * torch.tanh(s / 20)) == "20.0*tanh(score/20.0)"
    assert of_scores(lambda s, b, h, q, k: s + torch.exp2(-((h + 1) * 8.0 / 4)) * (k - q)) == (
        "score+exp2(-((h+1)*8.0/4.0))*(kv_idx-q_idx)"
    )
    assert of_scores(lambda s, b, h, q, k: torch.clamp(s, min=-1).exp().log()) == "log(exp(max(score,-1.0)))"
    assert of_scores(lambda s, b, h, q, k: s + (q - k).clamp(0, 5).abs()) == "score+abs(min(max(q_idx-kv_idx,0),5))"
    assert (
        of_scores(lambda s, b, h, q, k: torch.maximum(s, torch.minimum(q, k) * 1.0)) == "max(score,min(q_idx,kv_idx))"
    )
    assert of_scores(lambda s, b, h, q, k: s * torch.logical_or(q == k, torch.logical_not(h > 1))) == (
        "score*select((q_idx==kv_idx)|~(1<h),1.0,0.0)"
    )
    assert of_scores(lambda s, b, h, q, k: scale + s) == "table0[0]+score"
    assert of_scores(lambda s, b, h, q, k: torch.div(q, 2, rounding_mode="floor") + s.pow(2)) == "q_idx//2+score*score"
    assert of_scores(lambda s, b, h, q, k: s + k.to(torch.float32) // 2) == "score+kv_idx//2.0"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s, b, h, q, k: s if q > k else -s, "Python can't decide by a value"),
        (lambda s, b, h, q, k: s * math.exp(s), "Python can't know this value"),
        (lambda s, b, h, q, k: s + [1, 2][h], "Python can't know this value"),
        (lambda s, b, h, q, k: s**0.5, "a power's exponent must be an int from 1 to 8"),
        (lambda s, b, h, q, k: s & (q > k), r"'&' takes bools; compare numbers first \(got float, bool\)"),
        (lambda s, b, h, q, k: s.softmax(0), "a value of a traced function has no 'softmax'"),
        (lambda s, b, h, q, k: "score", "an expression is made of numbers"),
        (lambda s, b, h, q, k: q > k, r"must be a float \(got bool\)"),
        (lambda s, b, h, q, k: s + 2**63, "a constant must fit in 64 bits"),
    ],
)
def test_refusals_name_the_line(function, message):
    with pytest.raises(TraceError, match=message) as caught:
        trace(function)
    assert str(caught.value).startswith("score_mod: ")
    assert "lambda" in str(caught.value)


def test_torch_refusals():
    torch = pytest.importorskip("torch")
    table = torch.zeros(3, 4)

    def message_of(function):
        with pytest.raises(TraceError) as caught:
            trace(function)
        assert "test_expression.py, line " in str(caught.value)
        return str(caught.value)

    assert "no expression does what 'sin' does" in message_of(lambda s, b, h, q, k: torch.sin(s))
    assert "no expression does what 'sum, dim' does" in message_of(lambda s, b, h, q, k: torch.sum(s, dim=0))
    assert "(1 indices are missing)" in message_of(lambda s, b, h, q, k: s + table[h])
    assert "(2 indices are missing)" in message_of(lambda s, b, h, q, k: s + table)
    assert "takes 2 indices (got 3)" in message_of(lambda s, b, h, q, k: s + table[b, h, q])
    assert "take numbers as indices (got slice)" in message_of(lambda s, b, h, q, k: s + table[h, :])
    assert "takes ints as indices (got float)" in message_of(lambda s, b, h, q, k: s + table[h, s])
    assert "must be float32" in message_of(lambda s, b, h, q, k: s + table.to(torch.complex64)[h, q])
    assert "turns a float into int32" in message_of(lambda s, b, h, q, k: s.to(torch.int32) + q)


def test_numbers_made_of_others():
    torch = pytest.importorskip("torch")

    def of_masks(function):
        return text_of(lambda b, h, q_idx, kv_idx: function(b, h, q_idx, kv_idx))

    assert of_masks(lambda b, h, q, k: b.new_ones((), dtype=torch.bool) & (q > k)) == "kv_idx<q_idx"
    assert of_masks(lambda b, h, q, k: torch.zeros_like(b, dtype=torch.bool) | (q > k)) == "kv_idx<q_idx"
    assert of_masks(lambda b, h, q, k: q.new_full(size=(), fill_value=3, device=q.device) > k) == "kv_idx<3"
    assert of_masks(lambda b, h, q, k: (q > k).to(b.device)) == "kv_idx<q_idx"
    assert of_masks(lambda b, h, q, k: q.to("cpu", torch.float32) > k) == "float(kv_idx)<float(q_idx)"
    with pytest.raises(TraceError, match=r"'new_ones' makes one number alone, of the size \(\) \(got \(2,\)\)"):
        of_masks(lambda b, h, q, k: b.new_ones((2,)) > k)


def test_arguments_with_defaults_keep_them():
    assert text_of(lambda b, h, q_idx, kv_idx, window=8: q_idx - kv_idx < window) == "q_idx-kv_idx<8"


def test_indices_from_the_end():
    torch = pytest.importorskip("torch")
    table, ids = torch.arange(7), torch.zeros(5, dtype=torch.uint8)

    def of(index):
        function = lambda b, h, q_idx, kv_idx: table[index(b, q_idx, kv_idx)] > 0  # noqa: E731
        return traced(function, from_the_end=True).text.removeprefix("0<")

    assert of(lambda b, q, k: q - k) == "t0=q_idx-kv_idx;0<table0[select(t0<0,t0+7,t0)]"
    assert of(lambda b, q, k: (q + 2 * k) // 3) == "table0[(q_idx+2*kv_idx)//3]"
    assert of(lambda b, q, k: (q - k).abs()) == "table0[abs(q_idx-kv_idx)]"
    assert of(lambda b, q, k: (q - k).clamp(0, 6)) == "table0[min(max(q_idx-kv_idx,0),6)]"
    assert of(lambda b, q, k: (q - k) % 7) == "table0[(q_idx-kv_idx)%7]"
    assert of(lambda b, q, k: torch.where(q > k, b, 3)) == "table0[select(kv_idx<q_idx,b,3)]"
    assert of(lambda b, q, k: ids[q]) == "table1[table0[q_idx]]"
    assert "select" in of(lambda b, q, k: -q) and "select" in of(lambda b, q, k: table[q])
    assert trace(lambda b, h, q_idx, kv_idx: table[q_idx - kv_idx] > 0).text == "0<table0[q_idx-kv_idx]"


@pytest.mark.parametrize("function", [lambda score: score, lambda *scores: scores, 3, math.atan2])
def test_other_signatures_are_refused(function):
    with pytest.raises(TypeError, match="function: must take score, b, h, q_idx and kv_idx, or"):
        trace(function)
