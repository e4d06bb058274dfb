# Derivatives that attention does not have: dual tensors of forward-mode AD where no formula is asked, and options that
# require gradients, are refused on every way to the operators, never dropped. And arrays that must not change are not
# written.
"""Refusal of what would be lost silently."""

import sys
import types

import numpy as np
import pytest
import torch
from checking import Exporter
from torch.autograd import forward_ad

import tilewise

REFUSED = "must be no dual tensor here, since forward AD goes through tilewise.attention"


def _qkv(requires_grad=False):
    return [torch.randn(1, 8, 2, 16, requires_grad=requires_grad) for _ in range(3)]


def _dual(*shape):
    return forward_ad.make_dual(torch.randn(shape or (1, 8, 2, 16)), torch.randn(shape or (1, 8, 2, 16)))


LSE = torch.zeros(1, 2, 8)
CALLS = {
    "alibi_slopes": ("alibi_slopes", lambda q, k, v: tilewise.attention(q, k, v, alibi_slopes=_dual(2))),
    "softmax_scale": ("softmax_scale", lambda q, k, v: tilewise.attention(q, k, v, softmax_scale=_dual(1)[0])),
    "out": ("out", lambda q, k, v: tilewise.attention(q, k, v, out=_dual())),
    "with_out": ("q", lambda q, k, v: tilewise.attention(_dual(), k, v, out=torch.empty_like(q))),
    "compiled": ("q", lambda q, k, v: torch.compile(tilewise.attention, backend="eager")(_dual(), k, v)),
    "operator": ("k", lambda q, k, v: torch.ops.tilewise.attention_forward(q, _dual(), v)),
    "operator_out": ("q", lambda q, k, v: torch.ops.tilewise.attention_forward_out(_dual(), k, v, torch.empty_like(q))),
    "operator_merge": (r"outs\[0\]", lambda q, k, v: torch.ops.tilewise.merge([_dual()], [LSE], None, "bshd")),
    "operator_backward": (
        "dout",
        lambda *qkv: torch.ops.tilewise.attention_backward(_dual(), None, *qkv, qkv[0], LSE, *[True] * 3, False, False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("no_grad", [False, True], ids=["grad", "no_grad"])  # no_grad does not stop forward AD
@pytest.mark.parametrize("name", CALLS)
def test_dual_tensors(name, no_grad):
    argument, call = CALLS[name]
    with forward_ad.dual_level(), torch.set_grad_enabled(not no_grad):
        with pytest.raises(NotImplementedError, match=f"{argument}: {REFUSED}"):
            call(*_qkv())
        tilewise.attention(*_qkv())  # others are welcome inside a dual level


@pytest.mark.parametrize("no_grad", [False, True], ids=["grad", "no_grad"])
def test_dual_tensors_where_the_compiler_gave_up(no_grad):
    """After an error torch.compile runs attention() itself as it is, and begins with a frame below it."""
    q, k, v = _qkv(requires_grad=not no_grad)
    tilewise.attention(q, k, v)  # the short way is there
    call = torch.compile(tilewise.attention, backend="eager")
    with pytest.raises(Exception, match="is_causal"):
        call(q, k, v, is_causal=True)
    with forward_ad.dual_level(), torch.set_grad_enabled(not no_grad):
        with pytest.raises(NotImplementedError, match=f"k: {REFUSED}"):
            call(q, _dual(), v)
        assert torch.equal(call(q, k, v), tilewise.attention(q, k, v))
    torch._dynamo.reset()


def test_dual_gradients_of_the_operator():
    qkv = _qkv(requires_grad=True)
    out, _ = torch.ops.tilewise.attention_forward(*qkv)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=f"dout: {REFUSED}"):
        torch.autograd.grad(out, qkv, _dual())


@pytest.mark.parametrize("name", ["softmax_scale", "softcap", "dropout_p", "alibi_slopes"])
@pytest.mark.parametrize("other", [{}, {"window": (3, 3)}], ids=["alone", "with_others"])
def test_options_without_gradient(name, other):
    q, k, v = _qkv()
    value = torch.tensor(0.3) if name != "alibi_slopes" else torch.zeros(2)
    options = {**other, "seed": 1}
    expected = tilewise.attention(q, k, v, **options, **{name: value})
    value.requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"{name}: has no gradient; pass {name}.detach\(\)"):
        tilewise.attention(q, k, v, **options, **{name: value})
    with torch.no_grad():
        assert torch.equal(tilewise.attention(q, k, v, **options, **{name: value}), expected)


def test_operators_without_gradient():
    q, k, v = _qkv()
    q.requires_grad_()
    with pytest.raises(NotImplementedError, match="q: has no gradient"):
        torch.ops.tilewise.attention_forward_out(q, k, v, torch.empty_like(k))
    with pytest.raises(NotImplementedError, match="q: has no gradient"):
        torch.ops.tilewise.attention_backward_out(k, None, q, k, v, k, LSE, torch.empty_like(k), None, None)
    with pytest.raises(NotImplementedError, match=r"outs\[0\]: has no gradient"):
        torch.ops.tilewise.merge_out([q], [LSE], None, torch.empty_like(k))


@pytest.mark.parametrize(("library", "kind"), [("jax", "Array"), ("tensorflow", "Tensor")])
def test_out_of_an_immutable_array(monkeypatch, library, kind):
    """Neither library is needed: a class of the name that is asked for exports memory as theirs do."""
    immutable = type(kind, (Exporter,), {})
    monkeypatch.setitem(sys.modules, library, types.SimpleNamespace(**{kind: immutable}))
    q = np.ones((1, 8, 2, 16), np.float32)
    memory = np.zeros_like(q)
    with pytest.raises(TypeError, match=rf"out: must be a writable array \(got {library}.{kind}, which is immutable\)"):
        tilewise.attention(q, q, q, out=immutable(memory))
    assert not memory.any()


def test_out_of_jax():
    jax = pytest.importorskip("jax")
    q = jax.numpy.ones((1, 8, 2, 16))
    out = jax.numpy.zeros((1, 8, 2, 16))
    with pytest.raises(TypeError, match=r"out: must be a writable array \(got jax.Array"):
        tilewise.attention(q, q, q, out=out)
    assert not out.any()
