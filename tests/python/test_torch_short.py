# The overloads of attention_forward for packed sequences, windows and softcap, beside the operator with all options.
# test_torch_registration.py runs this file a second time with the operators registered from Python.
"""tilewise::attention_forward.short and .short_lse."""

import functools

import pytest
import torch
from torch_support import ALL_OPTIONS, Recorder, assert_same, gradients

import tilewise
from tilewise._options import Options, Short, short_options
from tilewise._torch import operators

STARTS = torch.tensor([0, 3, 3, 9], dtype=torch.int32), torch.tensor([0, 2, 6, 11], dtype=torch.int32)
CALLS = {
    "window": {"window": (3, 1)},
    "causal_window": {"mask": "causal", "window": (4, -1)},
    "softcap": {"softcap": 2.0, "softmax_scale": 0.3},
    "heads_first": {"layout": "bhsd", "window": (2, 2), "softcap": 1.5},
    "packed": {"layout": "thd", "cu_seqlens_q": STARTS[0], "cu_seqlens_k": STARTS[1]},
    "packed_longest": {
        "layout": "thd",
        "cu_seqlens_q": STARTS[0],
        "cu_seqlens_k": STARTS[1],
        "max_seqlen_q": 6,
        "max_seqlen_k": 5,
        "mask": "causal",
    },
}


def _tensors(options):
    torch.manual_seed(0)
    if options.get("layout") == "thd":  # the last rows belong to no sequence
        return [torch.randn(rows, 4, 16) for rows in (10, 12, 12)]
    return [torch.randn(2, rows, 4, 16) for rows in ((4, 4, 4) if "layout" in options else (7, 11, 11))]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("return_lse", [False, True])
def test_short_calls_compute_the_same(name, return_lse):
    options = CALLS[name]
    tensors = _tensors(options)
    call = functools.partial(tilewise.attention, **options, return_lse=return_lse)
    with Recorder() as recorder:
        result = call(*tensors)
    assert set(recorder.calls) == {operators.short_lse if return_lse else operators.short}
    full = call(*tensors, **ALL_OPTIONS)
    assert_same(result if return_lse else (result,), full if return_lse else (full,), 0.0)
    results, grads = gradients(call, *tensors)
    expected, expected_grads = gradients(functools.partial(call, **ALL_OPTIONS), *tensors)
    assert_same((*results, *grads), (*expected, *expected_grads), 0.0)


@pytest.mark.parametrize("name", ["window", "packed_longest"])
@pytest.mark.parametrize("operator", [operators.short, operators.short_lse], ids=["out", "lse"])
def test_opcheck(name, operator):
    options = CALLS[name]
    tensors = _tensors(options)
    with Recorder() as recorder:
        tilewise.attention(*tensors, **options)
    torch.library.opcheck(operator, recorder.calls[operators.short], test_utils=("test_schema", "test_faketensor"))


def test_schema_is_short_for_options():
    for operator in (operators.short, operators.short_lse):
        assert tuple(argument.name for argument in operator._schema.arguments)[3:] == Short._fields
    call = Short(5, 0.3, *STARTS, 6, 5, 4, 2, 1.5)
    assert short_options(call.options()) == tuple(call)
    assert call.options().layout == "bhsd"


OTHERS = [name for name in Options._fields if name not in (*Short._fields, "layout", "causal")]


@pytest.mark.parametrize("field", OTHERS)
def test_other_options_are_not_left_out(field):
    """Whatever else a call has, but for a seed where nothing is dropped, makes it one for all options."""
    other = {"dropout_p": 0.1, "implementation": "reference"}.get(field, True if field != "seed" else 3)
    assert (short_options(Options()._replace(**{field: other})) is None) == (field != "seed")


def test_errors_have_their_types():
    q = torch.randn(1, 5, 2, 8)
    with pytest.raises(ValueError, match=r"window"):
        tilewise.attention(q, q, q, mask="causal", window=(3, 2))
    with pytest.raises(TypeError, match=r"k: dtype must be f32 \(got bf16\)"):
        tilewise.attention(q, q.bfloat16(), q, softcap=2.0)
    with pytest.raises(TypeError, match="cu_seqlens_q: dtype must be i32"):
        tilewise.attention(q[0], q[0], q[0], layout="thd", cu_seqlens_q=torch.tensor([0, 5]), cu_seqlens_k=STARTS[0])
