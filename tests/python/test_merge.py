"""merge(): lists and stacked parts, dtypes, out=, gradients, torch.compile and the formula, on every kind of array."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch
from cases import assert_close
from checking import Exporter

import tilewise
from tilewise._torch import merge_formula

SHAPES = {"bshd": (2, 5, 3, 4), "sbhd": (5, 2, 3, 4), "bhsd": (2, 3, 5, 4), "thd": (5, 3, 4)}
LAYOUTS = pytest.mark.parametrize("layout", SHAPES)


def _draw(layout="bshd", parts=3, dtype=torch.float32, part_dtype=None):
    """outs, lses and sink; rows 1 of all parts and 2 of the first saw nothing, whatever their out holds."""
    torch.manual_seed(parts)
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    outs = torch.randn(parts, *SHAPES[layout]).to(part_dtype or dtype)
    lses = torch.randn(parts, *((3, 5) if layout == "thd" else (2, 3, 5)), dtype=statistics)
    lses[..., 1] = -torch.inf
    lses[0, ..., 2] = -torch.inf
    everything = slice(None)
    outs[
        {"bshd": (0, everything, 2), "sbhd": (0, 2), "bhsd": (0, everything, everything, 2), "thd": (0, 2)}[layout]
    ] = torch.nan
    return outs, lses, torch.randn(3, dtype=statistics)


@LAYOUTS
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_lists_and_stacked_parts_agree(layout, with_sink, dtype):
    outs, lses, sink = _draw(layout, dtype=dtype)
    sink = sink if with_sink else None
    listed = tilewise.merge(list(outs), list(lses), sink, layout=layout)
    stacked = tilewise.merge(outs, lses, sink, layout=layout)
    for one, other in zip(listed, stacked):
        assert torch.equal(one, other)
    assert listed[0].dtype == dtype
    expected = merge_formula.forward(outs, lses, sink, torch.float64, layout)
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-6, torch.float64: 1e-6}[dtype]
    assert_close(listed[0].double(), expected[0], tolerance)
    assert_close(listed[1], expected[1].to(lses.dtype), 1e-6, "softmax_lse")


def test_return_lse():
    outs, lses, sink = _draw()
    out, lse = tilewise.merge(outs, lses, sink)
    only = tilewise.merge(outs, lses, sink, return_lse=False)
    assert torch.equal(only, out)
    arrays = (tensor.numpy() for tensor in (outs, lses, sink))
    np.testing.assert_array_equal(tilewise.merge(*arrays, return_lse=False), out.numpy())
    assert lse.shape == (2, 3, 5)


@pytest.mark.parametrize("stacked", [False, True])
def test_out_decides_the_dtype(stacked):
    outs, lses, _ = _draw()
    sink = torch.randn(3).bfloat16()  # the dtype of out
    parts = (outs, lses) if stacked else (list(outs), list(lses))
    out = torch.full(SHAPES["bshd"], torch.nan, dtype=torch.bfloat16)
    result, lse = tilewise.merge(*parts, sink, out=out)
    assert result is out
    expected, expected_lse = tilewise.merge(*parts, sink.float())
    assert_close(out.float(), expected, 2e-2)
    assert torch.equal(lse, expected_lse)
    mixed = [outs[0], outs[1].bfloat16(), outs[2]]
    tilewise.merge(mixed, list(lses), sink, out=out)
    assert_close(out.float(), expected, 2e-2)


def test_numpy_and_dlpack_arrays():
    outs, lses, sink = _draw(parts=4)
    expected, expected_lse = tilewise.merge(outs, lses, sink)
    arrays = [tensor.numpy() for tensor in (outs, lses, sink)]
    for parts in (arrays[:2], [list(arrays[0]), list(arrays[1])]):
        out, lse = tilewise.merge(*parts, arrays[2])
        assert isinstance(out, np.ndarray)
        np.testing.assert_array_equal(out, expected.numpy())
        np.testing.assert_array_equal(lse, expected_lse.numpy())
    exported = [[Exporter(array) for array in parts] for parts in (arrays[0], arrays[1])]
    out = tilewise.merge(*exported, return_lse=False)
    np.testing.assert_array_equal(np.asarray(out), tilewise.merge(*arrays[:2])[0])
    narrow = [array.astype(ml_dtypes.bfloat16) for array in arrays[0]]
    out, _ = tilewise.merge(narrow, list(arrays[1]))
    assert out.dtype == ml_dtypes.bfloat16
    target = np.zeros(SHAPES["bshd"], ml_dtypes.bfloat16)
    assert tilewise.merge(*arrays, out=target, return_lse=False) is target
    assert np.isfinite(target.astype(np.float32)).all()


@pytest.mark.parametrize("implementation", ["cpu.generic", "reference"])
def test_implementations(implementation):
    outs, lses, sink = _draw()
    expected = tilewise.merge(outs, lses, sink)
    for one, other in zip(tilewise.merge(outs, lses, sink, implementation=implementation), expected):
        assert_close(one, other, 1e-6)


def test_a_forced_implementation_of_attention_leaves_merge_alone(monkeypatch):
    monkeypatch.setenv("TILEWISE_FORCE", "cpu.avx2")
    outs, lses, _ = _draw()
    tilewise.merge(outs, lses)


# --- gradients ---


def _differentiable(layout, dtype=torch.float64):
    outs, lses, sink = _draw(layout, dtype=dtype)
    return [tensor.requires_grad_() for tensor in (outs.nan_to_num(0.3), lses, sink)]


@LAYOUTS
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("with_sink", [False, True])
def test_gradcheck(layout, stacked, with_sink):
    outs, lses, sink = _differentiable(layout)
    with torch.no_grad():  # differences of -inf are no numbers
        lses.nan_to_num_(neginf=-1.0)

    def call(outs, lses, sink):
        parts = (outs, lses) if stacked else (list(outs.unbind()), list(lses.unbind()))
        return tilewise.merge(*parts, sink if with_sink else None, layout=layout)

    assert torch.autograd.gradcheck(call, (outs, lses, sink))


@LAYOUTS
def test_gradients_of_parts_that_saw_nothing(layout):
    """The formula, differentiated by torch itself, over the parts that count; zeros elsewhere."""
    outs, lses, sink = _draw(layout, dtype=torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (outs, lses, sink)]
    results = tilewise.merge(*leaves, layout=layout)
    dout, dlse = torch.randn_like(results[0]), torch.randn_like(results[1])
    got = torch.autograd.grad(results, leaves, (dout, dlse))
    expected = merge_formula.backward(dout, dlse, outs, lses, sink, layout)
    for one, other, name in zip(got, expected, ("douts", "dlses", "dsink")):
        assert_close(one, other, 1e-12, name)
    assert (got[1][..., 1] == 0.0).all()
    assert (got[1][0, ..., 2] == 0.0).all()


def test_only_what_is_needed():
    outs, lses, sink = _differentiable("bshd")
    everything = torch.autograd.grad(tilewise.merge(outs, lses, sink)[0].sum(), (outs, lses, sink))
    for wanted in itertools.product([False, True], repeat=3):
        if not any(wanted):
            continue
        leaves = [tensor if want else tensor.detach() for tensor, want in zip((outs, lses, sink), wanted)]
        needed = [tensor for tensor, want in zip(leaves, wanted) if want]
        got = torch.autograd.grad(tilewise.merge(*leaves)[0].sum(), needed)
        expected = [gradient for gradient, want in zip(everything, wanted) if want]
        for one, other in zip(got, expected):
            assert torch.equal(one, other)
    part, other = (outs[i].detach().requires_grad_() for i in (0, 1))
    (gradient,) = torch.autograd.grad(tilewise.merge([part, other.detach()], list(lses[:2]))[1].sum(), [part])
    assert (gradient == 0.0).all()  # the log-sum-exp does not depend on it


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_two_halves_has_the_gradients_of_the_whole(dtype):
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 24, 4, 32, dtype=dtype) for _ in range(3))
    sink = torch.randn(4)
    dout = torch.randn(2, 24, 4, 32, dtype=dtype)

    def gradients(call):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v, sink)]
        return torch.autograd.grad(call(*leaves), leaves, dout)

    def halves(q, k, v, sink):
        parts = [tilewise.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 10), (10, 24))]
        return tilewise.merge([part[0] for part in parts], [part[1] for part in parts], sink)[0]

    whole = gradients(lambda q, k, v, sink: tilewise.attention(q, k, v, sink=sink))
    for one, other in zip(gradients(halves), whole):
        assert_close(one.float(), other.float(), 1e-5 if dtype == torch.float32 else 5e-2)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(stacked, backend):
    outs, lses, sink = _differentiable("bshd", torch.float32)

    def call(outs, lses, sink):
        parts = (outs * 2.0, lses) if stacked else (list((outs * 2.0).unbind()), list(lses.unbind()))
        out, lse = tilewise.merge(*parts, sink)
        return out.sum() + lse.nan_to_num(neginf=0.0).sum()

    expected = torch.autograd.grad(call(outs, lses, sink), (outs, lses, sink))
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    for one, other in zip(torch.autograd.grad(compiled(outs, lses, sink), (outs, lses, sink)), expected):
        assert_close(one, other, 1e-6)


def test_meta_device_gives_shapes():
    outs, lses = torch.empty(3, 2, 5, 3, 4, device="meta"), torch.empty(3, 2, 3, 5, device="meta")
    for parts in ((outs, lses), (list(outs), list(lses))):
        out, lse = tilewise.merge(*parts)
        assert (out.shape, lse.shape, lse.dtype) == ((2, 5, 3, 4), (2, 3, 5), torch.float32)


# --- the formula that serves GPUs where no implementation does ---


@LAYOUTS
@pytest.mark.parametrize("with_sink", [False, True])
def test_the_formula_agrees(layout, with_sink):
    outs, lses, sink = _draw(layout)
    sink = sink if with_sink else None
    merged = merge_formula.forward(outs, lses, sink, torch.float32, layout)
    expected = tilewise.merge(outs, lses, sink, layout=layout)
    assert_close(merged[0], expected[0], 1e-6)
    assert_close(merged[1], expected[1], 1e-6, "softmax_lse")
