# tilewise.attention_backward on NumPy arrays, DLPack arrays and torch tensors: against the float64
# formulas where autograd calls it, and as a function of its own.
"""attention_backward()."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cases import CASES, TOLERANCE, assert_close, draw, lengths, to_layout
from checking import Exporter, Namespaced, check
from formulas import Call, packed

import tilewise

NAMES = ("dq", "dk", "dv", "dbias", "dsink")


def _to_numpy(value):
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.view(torch.uint16).numpy().view(pytest.importorskip("ml_dtypes").bfloat16)


def _to_torch(array):
    bfloat16 = array.dtype.name == "bfloat16"
    return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16) if bfloat16 else torch.from_numpy(array)


class OnNumPy(torch.autograd.Function):
    """attention() and attention_backward() on NumPy arrays, with torch's autograd around them alone."""

    @staticmethod
    def forward(ctx, options, q, k, v, bias, sink):
        ctx.options = {name: _to_numpy(value) for name, value in options.items()}
        out, lse = tilewise.attention(*map(_to_numpy, (q, k, v)), return_lse=True, **ctx.options)
        ctx.save_for_backward(q, k, v, _to_torch(out), _to_torch(lse))
        return _to_torch(out), _to_torch(lse)

    @staticmethod
    def backward(ctx, dout, dlse):
        arrays = map(_to_numpy, (dout, *ctx.saved_tensors))
        result = tilewise.attention_backward(*arrays, dlse=_to_numpy(dlse), **ctx.options)
        assert isinstance(result, tilewise.AttentionGradients)
        return (None, *(None if gradient is None else _to_torch(gradient) for gradient in result))


def _on_numpy(q, k, v, **options):
    return OnNumPy.apply(options, q, k, v, options.get("bias"), options.get("sink"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_against_formulas(name, dtype):
    tensors, options = draw(name, dtype)
    check(tensors, options, _on_numpy, TOLERANCE[dtype])


@pytest.mark.parametrize("layout", ["sbhd", "bhsd"])
def test_layouts(layout):
    def run(*qkv, **options):
        out, lse = _on_numpy(*(to_layout(tensor, layout) for tensor in qkv), layout=layout, **options)
        return to_layout(out, layout), lse

    check(*draw("everything"), run, TOLERANCE[torch.float32])


def test_packed_with_rows_of_no_sequence():
    torch.manual_seed(0)
    cu_q, cu_k = [0, 5, 5, 14], [0, 9, 12, 21]
    shapes = ((16, 4, 16), (23, 2, 16), (23, 2, 8))
    leaves = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    exact = packed(Call(mask="causal"), *leaves, cu_q, cu_k)[0]
    dout = torch.randn(exact.shape)
    expected = torch.autograd.grad(exact[:14], leaves, dout[:14].double())
    q, k, v = (_to_numpy(leaf.float()) for leaf in leaves)
    options = {"layout": "thd", "mask": "causal", "cu_seqlens_q": np.int32(cu_q), "cu_seqlens_k": np.int32(cu_k)}
    out, lse = tilewise.attention(q, k, v, return_lse=True, **options)
    result = tilewise.attention_backward(dout.numpy(), q, k, v, out, lse, **options)
    for name, gradient, wanted in zip(NAMES, result, expected):
        assert_close(torch.from_numpy(gradient), wanted, 1e-4, name)
    assert not result.dq[14:].any()
    assert not result.dk[21:].any()


def _call(name="plain", dtype=torch.float32, kind=lambda tensor: tensor, **options):
    """(arguments, options) of a backward call of a case, the same at every call, tensors as `kind` makes them."""
    (q, k, v), drawn = draw(name, dtype)
    options = {**drawn, **options}
    out, lse = tilewise.attention(q, k, v, return_lse=True, **options)
    dout = torch.randn(out.shape).to(dtype)
    made = {key: kind(value) if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    return [kind(tensor) for tensor in (dout, q, k, v, out, lse)], made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["bias_head", "bias_bool", "sink", "everything"])
def test_every_kind_of_array_gives_the_same(name, dtype):
    arguments, options = _call(name, dtype, deterministic=True)
    expected = tilewise.attention_backward(*arguments, **options)
    given = [gradient is not None for gradient in expected]
    assert given == [True, True, True, name in ("bias_head", "everything"), name in ("sink", "everything")]
    for kind in (_to_numpy, Exporter, Namespaced):
        arguments, options = _call(name, dtype, kind, deterministic=True)
        result = tilewise.attention_backward(*arguments, **options)
        for gradient, wanted in zip(result, expected):
            assert (gradient is None) == (wanted is None)
            if wanted is None:
                continue
            if kind is not Exporter:
                assert type(gradient) is type(arguments[1])
            tensor = _to_torch(gradient) if isinstance(gradient, np.ndarray) else torch.from_dlpack(gradient)
            assert tensor.dtype == wanted.dtype
            assert torch.equal(tensor, wanted)


@pytest.mark.parametrize("name", ["bias_query", "sink", "everything"])
def test_torch_gradients_are_those_of_autograd_without_a_graph(name):
    arguments, options = _call(name, deterministic=True)
    leaves = [tensor.requires_grad_() for tensor in arguments[1:4]]
    leaves += [options[key].requires_grad_() for key in ("bias", "sink") if key in options]
    out, lse = tilewise.attention(*leaves[:3], return_lse=True, **options)
    dlse = torch.randn_like(lse)
    expected = torch.autograd.grad((out, lse), leaves, (arguments[0], dlse))
    result = tilewise.attention_backward(arguments[0], *leaves[:3], out, lse, dlse=dlse, **options)
    gradients = [gradient for gradient in result if gradient is not None]
    assert len(gradients) == len(expected)
    for gradient, wanted in zip(gradients, expected):
        assert not gradient.requires_grad
        assert torch.equal(gradient, wanted)


@pytest.mark.parametrize("kind", [lambda tensor: tensor, _to_numpy], ids=["torch", "numpy"])
@pytest.mark.parametrize("wanted", [("dq",), ["dv", "dk"], ("dbias",), ("dsink", "dq"), NAMES])
def test_only_what_is_asked_for(kind, wanted):
    arguments, options = _call("everything", kind=kind, deterministic=True)
    everything = tilewise.attention_backward(*arguments, **options)
    result = tilewise.attention_backward(*arguments, gradients=wanted, **options)
    for name in NAMES:
        gradient = getattr(result, name)
        assert (gradient is not None) == (name in wanted)
        assert gradient is None or (gradient == getattr(everything, name)).all()


def test_nothing_given_is_written():
    arguments, options = _call("everything", kind=_to_numpy)
    inputs = [*arguments, *(value for value in options.values() if isinstance(value, np.ndarray))]
    before = [array.copy() for array in inputs]
    for array in inputs:
        array.flags.writeable = False
    result = tilewise.attention_backward(*arguments, **options)
    assert all(np.array_equal(array, copy) for array, copy in zip(inputs, before))
    assert not any(np.shares_memory(gradient, array) for gradient in result for array in inputs)


def test_strided_views_are_read_in_place():
    rng = np.random.default_rng(0)
    everything = rng.standard_normal((2, 9, 4, 4, 16)).astype(np.float32)
    q, k, v, dout = (everything[:, :, i] for i in range(4))
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    result = tilewise.attention_backward(dout, q, k, v, out, lse)
    dense = tilewise.attention_backward(*(array.copy() for array in (dout, q, k, v, out)), lse)
    for gradient, wanted in zip(result[:3], dense):
        assert np.array_equal(gradient, wanted)


@pytest.mark.parametrize("implementation", ["reference", "emulation.sm80"])
def test_a_named_implementation(implementation):
    if not any(row.accepted for row in tilewise.explain("attention_backward dtype=f16 seqlen_q=7 head_dim=16",
                                                        implementation=implementation).rows):  # fmt: skip
        pytest.skip("no compiler for the emulation")
    arguments, options = _call("causal", torch.float16, _to_numpy)
    expected = tilewise.attention_backward(*arguments, **options)
    result = tilewise.attention_backward(*arguments, implementation=implementation, **options)
    for name, gradient, wanted in zip(NAMES, result[:3], expected):
        assert_close(torch.from_numpy(gradient), torch.from_numpy(wanted), TOLERANCE[torch.float16], name)


def test_under_vmap_and_compile():
    arguments, options = _call("causal")
    expected = tilewise.attention_backward(*arguments, **options)

    def run(*tensors):
        return tuple(tilewise.attention_backward(*tensors, **options)[:3])

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    mapped = torch.vmap(run)(*(torch.stack((tensor, tensor)) for tensor in arguments))
    for gradient, of_compiled, of_vmap in zip(expected, compiled(*arguments), mapped):
        assert torch.equal(of_compiled, gradient)
        assert torch.equal(of_vmap[1], gradient)


def test_deterministic_algorithms_reach_the_kernel():
    from torch_support import Recorder

    from tilewise._options import Options
    from tilewise._torch import operators

    arguments, options = _call()
    torch.use_deterministic_algorithms(True)
    try:
        with Recorder() as recorder:
            tilewise.attention_backward(*arguments, **options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert Options(*recorder.calls[operators.backward][12:]).deterministic is True


def test_concurrent_callers_get_their_own_results():
    calls = [_call(name, kind=_to_numpy, deterministic=True) for name in ("plain", "causal", "bias", "longer")]
    expected = [tilewise.attention_backward(*arguments, **options) for arguments, options in calls]

    def work(i):
        arguments, options = calls[i]
        return all(
            np.array_equal(gradient, wanted)
            for _ in range(20)
            for gradient, wanted in zip(tilewise.attention_backward(*arguments, **options)[:3], expected[i])
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


# changes of a good call (arguments by position or option by name), exception, pattern of the message
BAD = {
    "dout_shape": ({0: torch.zeros(2, 7, 4, 15)}, ValueError, r"dout: shape must be .*\(got \[2, 7, 4, 15\]"),
    "dout_dtype": ({0: torch.zeros(2, 7, 4, 16).half()}, TypeError, r"dout: dtype must be f32 \(got f16\)"),
    "dout_stride": (
        {0: torch.zeros(()).expand(2, 7, 4, 16)},
        ValueError,
        r"dout: the last dimension must be contiguous",
    ),
    "dout_none": ({0: None}, TypeError, r"dout: must be .*\(got .*NoneType\)"),
    "q_dtype": ({1: torch.zeros(2, 7, 4, 16).int()}, TypeError, r"q: dtype must be .*\(got i32\)"),
    "k_shape": ({2: torch.zeros(2, 11, 2, 8)}, ValueError, r"k: shape must be .*\(got \[2, 11, 2, 8\]"),
    "out_shape": ({4: torch.zeros(2, 7, 4, 8)}, ValueError, r"out: shape must be .*\(got \[2, 7, 4, 8\]"),
    "out_none": ({4: None}, TypeError, r"out: must be .*\(got .*NoneType\)"),
    "lse_shape": ({5: torch.zeros(2, 7, 4)}, ValueError, r"softmax_lse: shape must be .*\(got \[2, 7, 4\]"),
    "lse_dtype": ({5: torch.zeros(2, 4, 7).half()}, TypeError, r"softmax_lse: dtype must be f32 \(got f16\)"),
    "lse_none": ({5: None}, TypeError, r"softmax_lse: must be .*\(got .*NoneType\)"),
    "dlse": ({"dlse": torch.zeros(2, 4, 8)}, ValueError, r"dlse: shape must be .*\(got \[2, 4, 8\]"),
    "dlse_type": ({"dlse": 3.0}, TypeError, r"dlse: must be .*\(got .*float\)"),
    "mask": ({"mask": "diagonal"}, ValueError, r"mask: must be one of"),
    "softcap": ({"softcap": -1.0}, ValueError, r"softcap: must be.*got -1"),
    "seed": (
        {"dropout_p": 0.5},
        ValueError,
        r"seed: must be given with dropout, as attention\(\) took it \(got None\)",
    ),
    "cu_seqlens": ({"cu_seqlens_q": lengths(0, 7)}, ValueError, r"cu_seqlens_q: requires layout=thd"),
    "implementation": ({"implementation": "no_such_thing"}, ValueError, "no_such_thing"),
    "gradients_name": ({"gradients": ("dq", "dw")}, ValueError, r"gradients\[1\]: must be one of 'dq', .*\(got 'dw'\)"),
    "gradients_text": ({"gradients": "dq"}, TypeError, r"gradients: must be a tuple or list of names \(got str\)"),
    "gradients_number": ({"gradients": (3,)}, TypeError, r"gradients\[0\]: must be one of .*\(got int\)"),
    "gradients_none": ({"gradients": ()}, ValueError, r"gradients: must name at least one of 'dq', .*\(got none\)"),
    "dbias": ({"gradients": ("dbias",)}, ValueError, r"gradients: 'dbias' requires bias \(got None\)"),
    "dsink": ({"gradients": ["dsink"]}, ValueError, r"gradients: 'dsink' requires sink \(got None\)"),
    "dbias_bool": (
        {"gradients": ("dbias",), "bias": torch.ones(7, 11, dtype=torch.bool)},
        ValueError,
        r"dbias: a bool bias has no gradient",
    ),
}


@pytest.mark.parametrize("kind", [lambda tensor: tensor, _to_numpy], ids=["torch", "numpy"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, kind):
    changes, exception, pattern = BAD[name]
    arguments, options = _call(kind=kind)
    for key, value in changes.items():
        value = kind(value) if isinstance(value, torch.Tensor) else value
        if isinstance(key, int):
            arguments[key] = value
        else:
            options[key] = value
    with pytest.raises(exception, match=pattern):
        tilewise.attention_backward(*arguments, **options)


def test_kinds_are_not_mixed():
    arguments, _ = _call()
    for i, name in enumerate(("dout", "q", "k", "v", "out", "softmax_lse")):
        mixed = list(arguments)
        mixed[i] = mixed[i].numpy()
        expected = rf"{name}: must be a torch tensor" if name != "q" else "q: must be a torch tensor as dout is"
        with pytest.raises(TypeError, match=expected):
            tilewise.attention_backward(*mixed)


def test_unknown_options_are_refused():
    arguments, _ = _call()
    for name in ("return_lse", "soft_cap"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            tilewise.attention_backward(*arguments, **{name: True})
