"""Narrow element types as arrays of NumPy, torch and DLPack bring them: what the core sees, and what is refused."""

import numpy as np
import pytest

import tilewise
from tilewise import _core
from tilewise._arrays import borrow

torch = pytest.importorskip("torch")
dtypes = pytest.importorskip("tilewise._torch.dtypes")
python_kernels = pytest.importorskip("tilewise._torch.python_kernels")

Q = torch.zeros(1, 4, 2, 32)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("float8_e4m3fn", "fp8_e4m3"), ("float8_e5m2", "fp8_e5m2"), ("float8_e8m0fnu", "fp8_e8m0")]
)
def test_bytes_keep_their_shape(theirs, ours):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones((3, 5), getattr(ml_dtypes, theirs))
    assert (borrow("w", array).dtype, borrow("w", array).shape) == (ours, [3, 5])
    if hasattr(torch, theirs):
        tensor = torch.ones(3, 5, dtype=torch.uint8).view(getattr(torch, theirs))
        view = python_kernels.borrow("w", tensor)
        assert (view.dtype, view.shape) == (ours, [3, 5])


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_pairs_of_torch_are_elements():
    tensor = torch.ones(3, 5, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    view = python_kernels.borrow("w", tensor)
    assert (view.dtype, view.shape) == ("fp4_e2m1", [3, 10])
    assert python_kernels.borrow("w", tensor.t()).shape == [10, 3]


def test_bytes_are_read_as_pairs_where_that_is_said():
    view = _core.Array(np.zeros((2, 16), np.uint8), "blocks", "fp4_e2m1")
    assert repr(view) == "fp4_e2m1[2, 32]"
    with pytest.raises(ValueError, match="blocks: pairs of fp4_e2m1 must be contiguous along a dimension"):
        _core.Array(np.zeros((2, 16, 2), np.uint8)[:, :, 0], "blocks", "fp4_e2m1")
    with pytest.raises(TypeError, match=r"blocks: elements must have 8 bits to be read as fp4_e2m1 \(got 16\)"):
        _core.Array(np.zeros((2, 16), np.uint16), "blocks", "fp4_e2m1")


@pytest.mark.parametrize("theirs", list(dtypes.BYTE_DTYPES), ids=str)
def test_no_operation_takes_what_it_has_no_kernel_for(theirs):
    ours = dtypes.BYTE_DTYPES[theirs]
    array = torch.zeros(1, 4, 2, 32, dtype=torch.uint8).view(theirs)
    for function, arguments in (
        (tilewise.attention, (Q, array, Q)),
        (tilewise.merge, ([array], [torch.zeros(1, 2, 4)])),
    ):
        with pytest.raises(TypeError, match=rf"dtype must be .*\(got {ours}\)"):
            function(*arguments)


def test_names_of_core_dtypes_are_the_cores():
    for name in dtypes.CORE_DTYPES.values():
        assert _core.Array.planned("x", [2, 4], name).dtype == name
