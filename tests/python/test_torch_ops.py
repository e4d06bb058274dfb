# The torch operators as torch sees them: schemas, fake kernels, autograd, compile, vmap, autocast.
# The whole file runs a second time with the operators registered from Python.
"""tilewise::attention_* under torch's machinery."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import CASES, assert_close, draw, lengths
from torch.utils._python_dispatch import TorchDispatchMode

import tilewise
from tilewise import _torch
from tilewise._arguments import Options
from tilewise._torch import autograd, operators

PYTHON_REGISTRATION = os.environ.get("TILEWISE_TORCH_OPS") == "python"


def _options(**options):
    return Options()._replace(**options)


def _grads(function, *tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    result = function(*leaves)
    result = result if isinstance(result, tuple) else (result,)
    torch.manual_seed(0)
    return result, torch.autograd.grad(result, leaves, [torch.randn_like(part) for part in result])


def _assert_same(first, second, tolerance=1e-6):
    for a, b in zip(first, second):
        assert_close(a, b, tolerance)


class Recorder(TorchDispatchMode):
    """Remembers the operators that ran and their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] = args
        return func(*args, **(kwargs or {}))


# --- registration ---


def test_registration():
    if PYTHON_REGISTRATION:
        assert _torch.registered_by == "python (TILEWISE_TORCH_OPS=python)"
    elif tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10):
        assert _torch.registered_by == "c++"


@pytest.mark.skipif(PYTHON_REGISTRATION, reason="this is that run")
def test_this_file_again_with_python_registration():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TILEWISE_TORCH_OPS": "python"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-4000:]


def test_unknown_registration_is_refused():
    environment = {**os.environ, "TILEWISE_TORCH_OPS": "rust"}
    result = subprocess.run(
        [sys.executable, "-c", "import torch, tilewise._torch"], env=environment, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert "TILEWISE_TORCH_OPS: must be c++ or python (got 'rust')" in result.stderr


@pytest.mark.parametrize("operator", [operators.forward, operators.forward_out, operators.backward], ids=str)
def test_schema_and_options_agree(operator):
    arguments = operator._schema.arguments[-len(Options._fields) :]
    assert tuple(argument.name for argument in arguments) == Options._fields
    assert tuple(argument.default_value for argument in arguments) == Options()


# --- torch.library.opcheck ---


def _opcheck_inputs(name):
    tensors, options = draw(name)
    bias, sink = options.get("bias"), options.get("sink")
    given = _options(
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


def test_opcheck_forward_of_a_short_call():
    tensors, _ = _opcheck_inputs("plain")
    torch.library.opcheck(operators.forward, (*tensors, True, 0.5, "bshd"))


def test_opcheck_forward_packed():
    q, k, v = torch.randn(9, 4, 8), torch.randn(11, 2, 8), torch.randn(11, 2, 8)
    options = _options(layout="thd", cu_seqlens_q=lengths(0, 4, 9), cu_seqlens_k=lengths(0, 7, 11), max_seqlen_q=6)
    torch.library.opcheck(operators.forward, (q, k, v, *options))


def test_opcheck_forward_out():
    tensors, _ = draw("causal")
    out = torch.empty(2, 7, 4, 16)
    torch.library.opcheck(operators.forward_out, (*tensors, out, *_options(causal=True)))


@pytest.mark.parametrize("name", ["plain", "bias_head", "sink"])
def test_opcheck_backward(name):
    tensors, options = _opcheck_inputs(name)
    tensors = [tensor.detach() for tensor in tensors]
    with torch.no_grad():
        out, lse = operators.forward(*tensors, *options)
        bias = None if options.bias is None else options.bias.detach()
        sink = None if options.sink is None else options.sink.detach()
    needed = (True, False, True, bias is not None, sink is not None)
    options = options._replace(bias=bias, sink=sink)
    torch.library.opcheck(operators.backward, (torch.randn_like(out), torch.randn_like(lse), *tensors, out, lse,
                                               *needed, *options))  # fmt: skip


def test_opcheck_merge():
    (q, k, v), _ = draw("plain")
    parts = [tilewise.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 4), (4, 11))]
    outs, lses = (list(tensors) for tensors in zip(*parts))
    torch.library.opcheck(torch.ops.tilewise.merge.default, (outs, lses, torch.randn(4), "bshd"))


def test_meta_device_gives_shapes():
    q, k = torch.empty(2, 7, 4, 16, device="meta"), torch.empty(2, 11, 2, 16, device="meta")
    out, lse = tilewise.attention(q, k, k, return_lse=True)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == ((2, 7, 4, 16), torch.float32, (2, 4, 7), torch.float32)


# --- autograd ---


def test_eager_and_registered_autograd_agree():
    (q, k, v), options = draw("bias")
    options = _options(causal=True, bias=options["bias"], sink=torch.randn(4))

    def registered(q, k, v, bias, sink):
        return operators.forward(q, k, v, *options._replace(bias=bias, sink=sink))

    def eager(q, k, v, bias, sink):
        return tilewise.attention(q, k, v, mask="causal", bias=bias, sink=sink, return_lse=True)

    inputs = q, k, v, options.bias, options.sink
    first, first_grads = _grads(registered, *inputs)
    second, second_grads = _grads(eager, *inputs)
    _assert_same(first + first_grads, second + second_grads)


@pytest.mark.parametrize("use", [tilewise.attention, lambda q, k, v: operators.forward(q, k, v)[0]])
def test_double_backward_is_refused(use):
    (q, k, v), _ = draw("plain")
    q.requires_grad_()
    out = use(q, k, v)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="attention: double backward is not supported"):
        dq.sum().backward()


def test_create_graph_alone_is_fine():
    (q, k, v), _ = draw("plain")
    _, (expected, *_) = _grads(tilewise.attention, q, k, v)
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
    plain, plain_grads = _grads(run, q, k, v)
    torch.manual_seed(5)
    again, again_grads = _grads(lambda *qkv: torch.utils.checkpoint.checkpoint(run, *qkv, use_reentrant=False), q, k, v)
    _assert_same(plain + plain_grads, again + again_grads)


def test_deterministic_algorithms_reach_the_kernel():
    (q, k, v), _ = draw("plain")
    q.requires_grad_()

    def deterministic_argument(**options):
        out = tilewise.attention(q, k, v, **options)
        with Recorder() as recorder:
            out.sum().backward()
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
    with pytest.raises(RuntimeError, match="softmax_scale: "):  # the operator itself has torch's type
        operators.forward(q, k, v, False, float("inf"))


def test_an_old_error_is_not_raised_again():
    (q, k, v), _ = draw("plain")
    with pytest.raises(RuntimeError):
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


# --- torch.compile and export ---


def _attend(q, k, v, bias=None, sink=None, **options):
    return tilewise.attention(q * 1.0, k, v, bias=bias, sink=sink, return_lse=True, **options)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, dynamic):
    torch._dynamo.reset()
    (q, k, v), _ = draw("plain")
    compiled = torch.compile(_attend, fullgraph=True, backend=backend, dynamic=dynamic)
    bias, sink = torch.randn(4, 1, 11), torch.randn(4)
    run = lambda f: _grads(lambda *t: f(*t, mask="causal", softcap=2.0), q, k, v, bias, sink)  # noqa: E731
    first, first_grads = run(_attend)
    second, second_grads = run(compiled)
    _assert_same(first + first_grads, second + second_grads, 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": "causal_top_left", "window": (3, -1), "deterministic": True},
        {"leftpad_k": lengths(2, 0), "seqused_k": lengths(5, 11), "alibi_slopes": torch.rand(4)},
        {"dropout_p": 0.4, "seed": 11},
        {"dropout_p": 0.4, "seed": torch.tensor([3, 4])},
        {"implementation": "reference", "batch_invariant": True, "softmax_scale": 0.2},
        {"layout": "bshd", "bias": torch.rand(7, 11) > 0.3},
    ],
    ids=lambda options: "-".join(options),
)
def test_compile_options(options):
    torch._dynamo.reset()
    (q, k, v), _ = draw("plain")
    compiled = torch.compile(_attend, fullgraph=True, backend="aot_eager")
    first, first_grads = _grads(lambda *t: _attend(*t, **options), q, k, v)
    second, second_grads = _grads(lambda *t: compiled(*t, **options), q, k, v)
    _assert_same(first + first_grads, second + second_grads)


def test_compile_packed_and_out():
    torch._dynamo.reset()
    q, k, v = torch.randn(9, 4, 8), torch.randn(11, 2, 8), torch.randn(11, 2, 8)
    options = {"layout": "thd", "cu_seqlens_q": lengths(0, 4, 9), "cu_seqlens_k": lengths(0, 7, 11)}
    expected = tilewise.attention(q, k, v, **options)
    compiled = torch.compile(tilewise.attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, **options), expected)
    assert torch.equal(compiled(q, k, v, max_seqlen_q=5, max_seqlen_k=7, **options), expected)
    out = torch.empty(9, 4, 8)
    compiled(q, k, v, out=out, **options)
    assert torch.equal(out, expected)


def test_compile_draws_a_seed():
    torch._dynamo.reset()
    (q, k, v), _ = draw("plain")
    compiled = torch.compile(lambda *t: tilewise.attention(*t, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = compiled(q, k, v), compiled(q, k, v)
    torch.manual_seed(1)
    assert torch.equal(compiled(q, k, v), first)
    assert not torch.equal(first, second)


def test_compile_refuses_bad_names_while_tracing():
    torch._dynamo.reset()
    (q, k, v), _ = draw("plain")
    compiled = torch.compile(lambda *t: tilewise.attention(*t, layout="hbsd"), backend="aot_eager")
    with pytest.raises(ValueError, match="layout: must be one of"):
        compiled(q, k, v)


def test_compile_is_the_first_call():
    code = """
import tilewise, torch
q = torch.randn(1, 4, 2, 8)
out = torch.compile(lambda q: tilewise.attention(q, q, q), fullgraph=True, backend="aot_eager")(q)
assert torch.equal(out, tilewise.attention(q, q, q))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


def test_export():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return tilewise.attention(q, k, v, mask="causal")

    (q, k, v), _ = draw("plain")
    batch = torch.export.Dim("batch")
    program = torch.export.export(Module(), (q, k, v), dynamic_shapes=({0: batch}, {0: batch}, {0: batch}))
    assert operators.forward in {node.target for node in program.graph.nodes}
    larger = [torch.cat([tensor, tensor]) for tensor in (q, k, v)]
    assert torch.equal(program.module()(*larger), tilewise.attention(*larger, mask="causal"))


# --- autocast ---


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(compiled):
    torch._dynamo.reset()
    (q, k, v), _ = draw("plain")
    bias, sink = torch.randn(7, 11), torch.randn(4)

    def run(q, k, v, bias, sink):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return tilewise.attention(q, k, v, bias=bias, sink=sink)

    function = torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run
    (out,), grads = _grads(function, q, k, v, bias, sink)
    assert out.dtype == torch.bfloat16
    assert all(grad.dtype == torch.float32 for grad in grads)
    halved = tilewise.attention(*(tensor.bfloat16() for tensor in (q, k, v)), bias=bias, sink=sink)
    assert torch.equal(out, halved)


def test_autocast_of_the_operator_itself():
    (q, k, v), _ = draw("plain")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = operators.forward(q, k, v, True)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


# --- vmap and the other transforms ---

VMAP_CASES = ["plain", "causal", "bias", "bias_batch", "bias_head", "bias_scalar", "bias_bool", "alibi", "alibi_batch",
              "sink", "dropout", "seqused", "leftpad", "everything"]  # fmt: skip


def _mapped(name, size=3):
    """The case with every tensor option stacked `size` times, and one without: (q, k, v), options."""
    tensors, options = draw(name)
    stacked = [torch.stack([tensor + i for i in range(size)]) for tensor in tensors]
    return stacked, options


@pytest.mark.parametrize("mapped_options", [False, True])
@pytest.mark.parametrize("name", VMAP_CASES)
def test_vmap(name, mapped_options):
    (q, k, v), options = _mapped(name)
    tensors = {key: value for key, value in options.items() if isinstance(value, torch.Tensor)}
    scalars = {key: value for key, value in options.items() if key not in tensors}
    if mapped_options:
        tensors = {key: torch.stack([value] * 3) for key, value in tensors.items()}

    def run(q, k, v, tensors):
        return tilewise.attention(q, k, v, return_lse=True, **tensors, **scalars)

    actual = torch.vmap(run, in_dims=(0, 0, 0, 0 if mapped_options else None))(q, k, v, tensors)
    each = [
        run(q[i], k[i], v[i], {key: value[i] if mapped_options else value for key, value in tensors.items()})
        for i in range(3)
    ]
    _assert_same(actual, [torch.stack(parts) for parts in zip(*each)])


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, None, 2), (None, 4, 0), (4, 0, None)])
def test_vmap_dimensions(layout, in_dims):
    shapes = ((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8))
    if layout == "bhsd":
        shapes = ((2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    elif layout == "sbhd":
        shapes = ((5, 2, 4, 8), (5, 2, 2, 8), (5, 2, 2, 8))
    tensors = [
        torch.randn(*shape) if dim is None else torch.randn(*shape[:dim], 3, *shape[dim:])
        for shape, dim in zip(shapes, in_dims)
    ]
    run = lambda q, k, v: tilewise.attention(q, k, v, layout=layout, mask="causal")  # noqa: E731
    actual = torch.vmap(run, in_dims=in_dims)(*tensors)
    slices = [
        [tensor if dim is None else tensor.select(dim, i) for tensor, dim in zip(tensors, in_dims)] for i in range(3)
    ]
    expected = torch.stack([run(*(t.contiguous() for t in each)) for each in slices])
    assert_close(actual, expected, 1e-6)


def test_vmap_packed():
    q, k, v = torch.randn(3, 9, 4, 8), torch.randn(3, 11, 2, 8), torch.randn(3, 11, 2, 8)
    options = {"layout": "thd", "cu_seqlens_q": lengths(0, 4, 9), "cu_seqlens_k": lengths(0, 7, 11)}
    actual = torch.vmap(lambda q, k, v: tilewise.attention(q, k, v, **options))(q, k, v)
    expected = torch.stack([tilewise.attention(q[i], k[i], v[i], **options) for i in range(3)])
    assert torch.equal(actual, expected)


def test_vmap_of_the_operator_itself():
    (q, k, v), _ = _mapped("plain")
    actual = torch.vmap(lambda *qkv: operators.forward(*qkv)[0])(q, k, v)
    assert_close(actual, torch.stack([tilewise.attention(q[i], k[i], v[i]) for i in range(3)]), 1e-6)


def test_gradients_through_vmap():
    (q, k, v), _ = _mapped("plain")
    sink = torch.randn(4)
    looped = lambda q, k, v, s: torch.stack(  # noqa: E731
        [tilewise.attention(q[i], k[i], v[i], sink=s) for i in range(3)]
    )
    mapped = lambda q, k, v, s: torch.vmap(lambda *t: tilewise.attention(*t, sink=s))(q, k, v)  # noqa: E731
    first, first_grads = _grads(looped, q, k, v, sink)
    second, second_grads = _grads(mapped, q, k, v, sink)
    _assert_same(first + first_grads, second + second_grads, 1e-5)


def test_func_grad_and_per_sample_gradients():
    (q, k, v), _ = _mapped("plain")
    loss = lambda q, k, v: tilewise.attention(q, k, v, mask="causal").square().sum()  # noqa: E731
    per_sample = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    for i in range(3):
        leaves = [tensor[i].clone().requires_grad_() for tensor in (q, k, v)]
        expected = torch.autograd.grad(loss(*leaves), leaves)
        _assert_same([grad[i] for grad in per_sample], expected, 1e-5)
    with pytest.raises(NotImplementedError, match="double backward is not supported"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, k[0], v[0]).sum())(q[0])


def test_every_vmap_case_exists():
    assert set(VMAP_CASES) <= set(CASES)
