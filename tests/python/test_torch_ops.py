# The torch operators under torch's own checks: schemas, fake kernels, autograd, errors, memory.
# test_torch_registration.py runs this file a second time with the operators registered from Python.
"""tilewise::attention_* as torch operators."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import assert_close, draw, lengths
from torch_support import ALL_OPTIONS, Recorder, assert_same, gradients, options_with

import tilewise
from tilewise._options import FORMS, Options
from tilewise._torch import autograd, operators


@pytest.mark.parametrize("operator", [operators.forward, operators.forward_out, operators.backward,
                                      operators.backward_out], ids=str)  # fmt: skip
def test_schema_and_options_agree(operator):
    arguments = operator._schema.arguments[-len(Options._fields) :]
    assert tuple(argument.name for argument in arguments) == Options._fields
    assert tuple(argument.default_value for argument in arguments) == Options()


# --- torch.library.opcheck ---


def _opcheck_inputs(name):
    tensors, options = draw(name)
    bias, sink = options.get("bias"), options.get("sink")
    given = options_with(
        causal=options.get("mask") is not None,
        softmax_scale=options.get("softmax_scale"),
        bias=None if bias is None else bias.requires_grad_(bias.is_floating_point()),
        sink=None if sink is None else sink.requires_grad_(),
        **{key: options[key] for key in options if key not in ("mask", "softmax_scale", "bias", "sink", "window")},
    )
    return [tensor.requires_grad_() for tensor in tensors], given


@pytest.mark.parametrize(
    "name", ["plain", "bias_head", "bias_bool", "sink", "dropout_causal", "leftpad", "alibi_batch"]
)
def test_opcheck_forward(name):
    tensors, options = _opcheck_inputs(name)
    torch.library.opcheck(operators.forward, (*tensors, *options))


def _stored(tensor, order):
    """The same values with dimensions stored in this order, outermost first."""
    return tensor.permute(order).contiguous().permute(tuple(torch.tensor(order).argsort().tolist()))


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 2, 3)], ids=["rows_first", "heads_first"])
@pytest.mark.parametrize("options", [{}, {"window": (2, 3)}], ids=["plain", "window"])
def test_heads_first_results_are_stored_like_their_inputs(order, options):
    tensors, _ = draw("plain")
    leaves = [_stored(tensor.transpose(1, 2), order).requires_grad_() for tensor in tensors]
    out, lse = tilewise.attention(*leaves, layout="bhsd", return_lse=True, **options)
    gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
    for tensor in (out, *gradients):
        assert tensor.permute(order).is_contiguous()
    expected = tilewise.attention(*tensors, **options).transpose(1, 2)
    assert torch.equal(out, expected)
    assert lse.is_contiguous()
    if options:
        given = options_with(layout="bhsd", window_left=2, window_right=3)
        torch.library.opcheck(operators.forward, (*leaves, *given))
    else:
        torch.library.opcheck(operators.plain_lse, (*(leaf.detach() for leaf in leaves), FORMS[None, "bhsd"]))


def test_opcheck_forward_of_a_short_call():
    tensors, _ = _opcheck_inputs("plain")
    torch.library.opcheck(operators.forward, (*tensors, True, 0.5, "bshd"))


@pytest.mark.parametrize("operator", [operators.plain, operators.plain_lse], ids=str)
def test_opcheck_plain(operator):
    tensors, _ = draw("plain")
    torch.library.opcheck(operator, (*tensors, FORMS["causal", "bshd"], 0.5))


@pytest.mark.parametrize("needed", range(1, 8))
def test_opcheck_plain_backward(needed):
    tensors, _ = draw("plain")
    out, lse = operators.forward(*tensors, True, 0.5)
    arguments = (torch.randn_like(out), torch.randn_like(lse), *tensors, out, lse, needed)
    torch.library.opcheck(operators.plain_backward, (*arguments, FORMS["causal", "bshd"], 0.5))


def test_opcheck_forward_packed():
    q, k, v = torch.randn(9, 4, 8), torch.randn(11, 2, 8), torch.randn(11, 2, 8)
    options = options_with(layout="thd", cu_seqlens_q=lengths(0, 4, 9), cu_seqlens_k=lengths(0, 7, 11), max_seqlen_q=6)
    torch.library.opcheck(operators.forward, (q, k, v, *options))


def test_opcheck_forward_out():
    tensors, _ = draw("causal")
    out = torch.empty(2, 7, 4, 16)
    torch.library.opcheck(operators.forward_out, (*tensors, out, *options_with(causal=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["plain", "bias_head", "sink"])
def test_opcheck_backward(name, dtype):
    tensors, options = _opcheck_inputs(name)
    tensors = [tensor.detach().to(dtype) for tensor in tensors]
    with torch.no_grad():
        out, lse = operators.forward(*tensors, *options)
        bias = None if options.bias is None else options.bias.detach()
        sink = None if options.sink is None else options.sink.detach()
    needed = (True, False, True, bias is not None, sink is not None)
    options = options._replace(bias=bias, sink=sink)
    torch.library.opcheck(operators.backward, (torch.randn_like(out), torch.randn_like(lse), *tensors, out, lse,
                                               *needed, *options))  # fmt: skip


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, True), (False, True, False)], ids=str)
def test_backward_into_views(wanted):
    """attention_backward_out writes what attention_backward returns, into interleaved views of one tensor, and nothing
    where no gradient is wanted."""
    tensors, options = _opcheck_inputs("causal_window")
    q, k, v = (torch.randn(2, 9, 4, 16) for _ in tensors)
    with torch.no_grad():
        out, lse = operators.forward(q, k, v, *options)
        inputs = (torch.randn_like(out), torch.randn_like(lse), q, k, v, out, lse)
        expected = operators.backward(*inputs, *wanted, False, False, *options)
        together = torch.full((2, 9, 3, 4, 16), 7.0)
        gradients = [view if want else None for view, want in zip(together.unbind(2), wanted)]
        torch.library.opcheck(operators.backward_out, (*inputs, *gradients, *options))
        operators.backward_out(*inputs, *gradients, *options)
    for view, want, gradient in zip(together.unbind(2), wanted, expected):
        assert torch.equal(view, gradient if want else torch.full_like(view, 7.0))


def test_opcheck_merge():
    (q, k, v), _ = draw("plain")
    parts = [tilewise.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 4), (4, 11))]
    outs, lses = (list(tensors) for tensors in zip(*parts))
    torch.library.opcheck(torch.ops.tilewise.merge.default, (outs, lses, torch.randn(4), "bshd"))
    torch.library.opcheck(torch.ops.tilewise.merge_out.default, (outs, lses, None, torch.empty_like(outs[0])))
    stacked = [torch.stack(outs)], [torch.stack(lses)]
    for parts in ((outs, lses), stacked):
        needed = [[tensor.clone().requires_grad_() for tensor in tensors] for tensors in parts]
        torch.library.opcheck(torch.ops.tilewise.merge.default, (*needed, torch.randn(4, requires_grad=True)))
        torch.library.opcheck(
            torch.ops.tilewise.merge_backward.default,
            (torch.randn_like(outs[0]), torch.randn_like(lses[0]), *parts, torch.randn(4), True, True, True),
        )


def test_meta_device_gives_shapes():
    q, k = torch.empty(2, 7, 4, 16, device="meta"), torch.empty(2, 11, 2, 16, device="meta")
    out, lse = tilewise.attention(q, k, k, return_lse=True)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == ((2, 7, 4, 16), torch.float32, (2, 4, 7), torch.float32)


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        q, k = torch.empty(2, 7, 4, 16, requires_grad=True), torch.empty(2, 11, 2, 16)
        out = tilewise.attention(q, k, k, mask="causal")
        (dq,) = torch.autograd.grad(out.sum(), q)
    assert isinstance(out, FakeTensor)
    assert dq.shape == q.shape


def test_inference_mode():
    (q, k, v), _ = draw("plain")
    expected = tilewise.attention(q, k, v)
    with torch.inference_mode():
        out = tilewise.attention(q, k, v)
        assert out.is_inference()
        assert torch.equal(tilewise.attention(q * 1, k, v), expected)
    assert torch.equal(out, expected)


def test_the_profiler_sees_the_operator():
    (q, k, v), _ = draw("plain")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tilewise.attention(q, k, v)
    assert "tilewise::attention_forward" in {event.key for event in profile.key_averages()}


# --- the overloads for calls without rarer options ---


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("options", [{}, {"mask": "causal"}, {"softmax_scale": 0.3}], ids=str)
def test_plain_calls_compute_the_same(layout, options):
    q, k, v = torch.randn(3, 5, 4, 16), torch.randn(3, 5, 4, 16), torch.randn(3, 5, 4, 8)

    def run(*tensors, **more):
        return tilewise.attention(*tensors, layout=layout, **options, **more)

    with Recorder() as recorder:
        out = run(q, k, v)
    assert set(recorder.calls) == {operators.plain}
    full = run(q, k, v, return_lse=True, **ALL_OPTIONS)
    for return_lse in (False, True):
        results, grads = gradients(functools.partial(run, return_lse=return_lse), q, k, v)
        expected, expected_grads = gradients(functools.partial(run, return_lse=return_lse, **ALL_OPTIONS), q, k, v)
        assert_same((*results, *grads), (*expected, *expected_grads), 0.0)
    assert_same((out, *run(q, k, v, return_lse=True)), (full[0], *full), 0.0)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qv"])
@pytest.mark.parametrize("through", ["out", "softmax_lse"])
def test_plain_gradients_are_those_wanted(wanted, through):
    (q, k, v), _ = draw("plain")

    def grads(**more):
        leaves = {name: tensor.clone().requires_grad_(name in wanted) for name, tensor in zip("qkv", (q, k, v))}
        out, lse = tilewise.attention(*leaves.values(), return_lse=True, **more)
        with Recorder() as recorder:
            (out if through == "out" else lse).square().sum().backward()
        assert (operators.plain_backward in recorder.calls) == (not more)
        return [leaf.grad for leaf in leaves.values()]

    for actual, expected, name in zip(grads(), grads(**ALL_OPTIONS), "qkv"):
        assert (actual is None) == (expected is None) == (name not in wanted)
        assert actual is None or torch.equal(actual, expected)


def test_rarer_calls_take_the_operator_with_all_options():
    (q, k, v), _ = draw("plain")
    for options in (ALL_OPTIONS, {"dropout_p": 0.1, "seed": 3}, {"sink": torch.zeros(4)}, {"mask": "causal_top_left"}):
        with Recorder() as recorder:
            tilewise.attention(q, k, v, **options)
        assert set(recorder.calls) == {operators.forward}, options


def test_layout_number_is_checked():
    (q, k, v), _ = draw("plain")
    with pytest.raises((RuntimeError, IndexError), match=r"layout: must be 0 to 3, one of bshd, .* \(got 4\)|range"):
        operators.plain(q, k, v, 8)


# --- threads ---


def test_concurrent_callers_get_their_own_results():
    torch.manual_seed(0)
    inputs = [[torch.randn(1, 96 + 8 * i, 2, 32) for _ in range(3)] for i in range(4)]
    expected = [tilewise.attention(*qkv, mask="causal") for qkv in inputs]

    def work(i):
        arrays = [tensor.numpy() for tensor in inputs[i]]
        return all(
            torch.equal(tilewise.attention(*inputs[i], mask="causal"), expected[i])
            and np.array_equal(tilewise.attention(*arrays, mask="causal"), expected[i].numpy())
            for _ in range(20)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


# --- autograd ---


def test_eager_and_registered_autograd_agree():
    (q, k, v), options = draw("bias")
    options = options_with(causal=True, bias=options["bias"], sink=torch.randn(4))

    def registered(q, k, v, bias, sink):
        return operators.forward(q, k, v, *options._replace(bias=bias, sink=sink))

    def eager(q, k, v, bias, sink):
        return tilewise.attention(q, k, v, mask="causal", bias=bias, sink=sink, return_lse=True)

    inputs = q, k, v, options.bias, options.sink
    first, first_grads = gradients(registered, *inputs)
    second, second_grads = gradients(eager, *inputs)
    assert_same(first + first_grads, second + second_grads)


def test_create_graph_alone_is_fine():
    (q, k, v), _ = draw("plain")
    _, (expected, *_) = gradients(tilewise.attention, q, k, v)
    leaf = q.clone().requires_grad_()
    out = tilewise.attention(leaf, k, v)
    torch.manual_seed(0)
    (actual,) = torch.autograd.grad(out, leaf, torch.randn_like(out), create_graph=True)
    assert_close(actual, expected, 1e-6)


def test_changing_an_input_before_backward_is_noticed():
    (q, k, v), _ = draw("plain")
    k.requires_grad_()
    out = tilewise.attention(q, k, v)
    q.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_checkpoint_repeats_dropout():
    (q, k, v), _ = draw("plain")
    run = lambda q, k, v: tilewise.attention(q, k, v, dropout_p=0.5)  # noqa: E731
    torch.manual_seed(5)
    plain, plain_grads = gradients(run, q, k, v)
    torch.manual_seed(5)
    again, again_grads = gradients(
        lambda *qkv: torch.utils.checkpoint.checkpoint(run, *qkv, use_reentrant=False), q, k, v
    )
    assert_same(plain + plain_grads, again + again_grads)


def test_deterministic_algorithms_reach_the_kernel():
    (q, k, v), _ = draw("plain")
    q.requires_grad_()

    def deterministic_argument(**options):
        out = tilewise.attention(q, k, v, **options)
        with Recorder() as recorder:
            out.sum().backward()
        if operators.plain_backward in recorder.calls:  # which has no such argument
            return False
        arguments = recorder.calls[operators.backward]
        return Options(*arguments[12:]).deterministic

    assert deterministic_argument() is False
    assert deterministic_argument(deterministic=True) is True
    torch.use_deterministic_algorithms(True)
    try:
        assert deterministic_argument() is True
    finally:
        torch.use_deterministic_algorithms(False)


def test_errors_have_their_types():
    (q, k, v), _ = draw("plain")
    for tensors in ((q, k, v), [tensor.requires_grad_() for tensor in (q, k, v)]):
        with pytest.raises(ValueError, match="softmax_scale: "):
            tilewise.attention(*tensors, softmax_scale=float("inf"))
        with pytest.raises(TypeError, match="k: dtype must be f32"):
            tilewise.attention(tensors[0], tensors[1].bfloat16(), tensors[2])
    with pytest.raises((RuntimeError, ValueError), match="softmax_scale: "):  # from C++, torch gives it its own type
        operators.forward(q, k, v, False, float("inf"))


def test_an_old_error_is_not_raised_again():
    (q, k, v), _ = draw("plain")
    with pytest.raises((RuntimeError, ValueError)):
        operators.forward(q, k, v, False, float("inf"))
    autograd._core.rethrow_torch_error("an unrelated failure")


def test_repeated_calls_do_not_grow():
    def resident():
        fields = Path("/proc/self/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    q, k, v = (torch.randn(1, 8, 2, 64, requires_grad=True) for _ in range(3))
    bias, seed = torch.randn(8, 8), torch.tensor([1, 2])

    def calls(count):
        for _ in range(count):
            out = tilewise.attention(q, k, v, bias=bias, dropout_p=0.1, seed=seed, softmax_scale=0.3, implementation="")
            out.sum().backward()
            with pytest.raises(ValueError, match="window_left"):
                tilewise.attention(q, k, v, window=(-3, 1))

    calls(100)
    before = resident()
    calls(700)
    assert resident() - before < 4 << 20  # a leak of one tensor a call would be at least 700 * 4 KiB
