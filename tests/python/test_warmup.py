# tilewise.warmup: the checks of a call without the call, on every kind of array.
"""warmup()."""

import itertools

import numpy as np
import pytest
import torch
from cases import CASES, draw

import tilewise


@pytest.mark.parametrize("name", CASES)
def test_every_case(name):
    tensors, options = draw(name)
    assert tilewise.warmup(*[tensor.requires_grad_() for tensor in tensors], **options) is None


def test_says_what_the_call_would_say():
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(TypeError, match=r"k: dtype must be f32 \(got bf16\)"):
        tilewise.warmup(q, q.bfloat16(), q)
    with pytest.raises(TypeError, match="soft_cap"):
        tilewise.warmup(q, q, q, soft_cap=3.0)
    with pytest.raises(NotImplementedError, match=r"cuda\.sm80: runs on cuda, the tensors are on cpu"):
        tilewise.warmup(q.clone().requires_grad_(), q, q, implementation="cuda.sm80")


def test_writes_nothing():
    q = np.ones((1, 4, 2, 8), np.float32)
    out = np.full_like(q, 7.0)
    tilewise.warmup(q, q, q, out=out, mask="causal")
    assert (out == 7.0).all()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"mask": "causal"}, {"softcap": 2.0}, {"return_lse": True}, {"seed": 1}, {"bias": None}],
    ids=str,
)
def test_makes_the_plans_that_the_call_finds(options, requires_grad, capfd, monkeypatch):
    monkeypatch.setenv("TILEWISE_LOG", "dispatch")
    seqlen = next(_new_seqlens)
    q, k, v = (torch.randn(1, size, 2, 8, requires_grad=requires_grad) for size in (4, seqlen, seqlen))
    if "bias" in options:
        options = {"bias": torch.zeros(4, seqlen)}
    tilewise.warmup(q, k, v, **options)
    assert "-> cpu." in capfd.readouterr().err
    out = tilewise.attention(q, k, v, **options)
    if requires_grad:
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert capfd.readouterr().err == ""


_new_seqlens = itertools.count(1000)  # of problems that no other test has planned


def test_problems_of_any_operation_as_text():
    for problem in ("merge parts=3 seqlen_q=4 head_dim_v=8", "append_kv seqlen_k_new=1 head_dim=8 capacity=9"):
        assert tilewise.warmup(problem) is None
        assert tilewise.warmup(problem, implementation="reference") is None
    with pytest.raises(ValueError, match="seqlen_k: must be an integer"):
        tilewise.warmup("attention_forward seqlen_k=")
    with pytest.raises(TypeError, match="mask: must not be given beside a problem as text"):
        tilewise.warmup("merge parts=3 seqlen_q=4 head_dim_v=8", mask="causal")
    with pytest.raises(NotImplementedError, match="does not support f64"):
        tilewise.warmup("merge device=cuda dtype=f64 parts=3 seqlen_q=4 head_dim_v=8", implementation="cuda.sm80")
