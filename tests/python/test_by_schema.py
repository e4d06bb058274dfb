"""What Python makes of operations that are stated by a schema: operators, traced shapes and errors, of all of them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tilewise import _calls, _core
from tilewise._torch.by_schema import OPERATIONS

CALLS = pytest.mark.parametrize("name", _calls.CALLS)


@CALLS
def test_operators_take_what_the_schema_says(name):
    call = _calls.CALLS[name]
    arguments = getattr(torch.ops.tilewise, name).default._schema.arguments
    always = any(not tensor.optional for tensor in call.outputs)
    needed = [] if always else [f"need_{tensor.name}" for tensor in call.outputs]
    sizes, dtypes = ([field.name for field in call.choices if field.type == kind] for kind in ("int", "str"))
    fields = [field.name for field in call.fields]
    inputs = [tensor.name for tensor in call.inputs]
    assert [a.name for a in arguments] == [*inputs, *needed, *sizes, *fields, *dtypes, "implementation"]
    types = {a.name: str(a.type) for a in arguments}
    for tensor in call.inputs:
        assert types[tensor.name] == (
            "List[Tensor]" if tensor.list else "Optional[Tensor]" if tensor.optional else "Tensor"
        )
    defaults = {a.name: a.default_value for a in arguments}
    for field in call.fields:
        assert str(defaults[field.name]) == field.by_default or type(defaults[field.name]) is not str
        assert not field.names or field.by_default in field.names


@CALLS
def test_every_gradient_is_one_of_an_input(name):
    call = _calls.CALLS[name]
    if name.endswith("_backward"):
        forward = _calls.CALLS[name.removesuffix("_backward")]
        assert {tensor.derivative_of for tensor in call.outputs} <= {tensor.name for tensor in forward.inputs}
        assert {tensor.derivative_of for tensor in call.inputs} - {""} <= {tensor.name for tensor in forward.outputs}
    else:
        assert {tensor.derivative_of for tensor in (*call.inputs, *call.outputs)} == {""}
        assert name in OPERATIONS


@pytest.mark.parametrize("stacked", [False, True])
def test_traced_sizes_stay_symbols(stacked):
    def merge(outs, lses):
        parts = ([outs], [lses]) if stacked else (list(outs.unbind()), list(lses.unbind()))
        return torch.ops.tilewise.merge(*parts, None)

    def draw(*sizes):
        batch, rows, heads, dim = sizes
        return torch.randn(3, batch, rows, heads, dim).bfloat16(), torch.randn(3, batch, heads, rows)

    traced = make_fx(merge, tracing_mode="symbolic")(*draw(2, 5, 4, 8))
    (call,) = (node for node in traced.graph.nodes if "merge" in str(node.target))
    out, lse = call.meta["val"]
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert all(isinstance(size, torch.SymInt) for size in (*out.shape, *lse.shape))
    other = draw(3, 7, 2, 16)
    for one, expected in zip(traced(*other), merge(*other)):
        assert torch.equal(one, expected)


def test_traced_tensors_on_two_devices():
    with FakeTensorMode():
        outs, lses = [torch.empty(2, 5, 4, 8), torch.empty(2, 5, 4, 8, device="meta")], [torch.empty(2, 4, 5)] * 2
        with pytest.raises(TypeError, match=r"outs\[1\]: must be on cpu, where outs\[0\] is \(got meta\)"):
            torch.ops.tilewise.merge(outs, lses, None)


def test_gradients_without_their_input():
    rows, lses = torch.zeros(2, 5, 4, 8), torch.zeros(2, 4, 5)
    with pytest.raises(RuntimeError, match="dsink: cannot be asked for without its input"):
        torch.ops.tilewise.merge_backward(rows, None, [rows], [lses], None, True, False, True)
    douts, dlses, dsink = torch.ops.tilewise.merge_backward(rows, None, [rows], [lses], None, False, True, False)
    assert (len(douts), len(dlses), dsink.shape) == (0, 1, (0,))


def test_a_list_without_tensors():
    with pytest.raises(RuntimeError, match="outs: must hold at least one partial result"):
        torch.ops.tilewise.merge([], [], torch.zeros(4))


def test_planning_looks_at_no_more_than_it_needs():
    def array(name, *shape, dtype="f32"):
        return _core.Array.without_memory(list(shape), [1] * len(shape), dtype, "cpu", 0, 64, name)

    views = {"outs": [array("outs[0]", 2, 5, 4, 8)], "lses": [array("lses[0]", 9)], "sink": None, "out": None,
             "softmax_lse": None, "layout": "bshd"}  # fmt: skip
    out, lse = _calls.planned_outputs("merge", {}, **views)
    assert (out.name, out.dtype, out.shape) == ("out", "f32", [2, 5, 4, 8])
    assert (lse.name, lse.shape, lse.sources) == ("softmax_lse", [2, 4, 5], [("outs", 0), ("outs", 2), ("outs", 1)])
    views["out"] = array("out", 2, 5, 4, 8, dtype="f64")
    assert _calls.planned_outputs("merge", {}, **views)[1].dtype == "f64"
    views["outs"] = [array("outs[0]", 2, 5)]
    with pytest.raises(ValueError, match=r"outs\[0\]: rank must be 4, \[batch_size, .*\] \(got 2"):
        _calls.planned_outputs("merge", {}, **{**views, "out": None})
