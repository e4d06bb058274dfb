# torch.compile (forward and backward in one graph) and torch.export.
"""attention() under torch's compilers."""

import subprocess
import sys

import pytest
import torch
from cases import draw, lengths
from torch_support import assert_same, gradients

import tilewise
from tilewise._torch import operators


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()


def _attend(q, k, v, bias=None, sink=None, **options):
    return tilewise.attention(q * 1.0, k, v, bias=bias, sink=sink, return_lse=True, **options)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, dynamic):
    (q, k, v), _ = draw("plain")
    compiled = torch.compile(_attend, fullgraph=True, backend=backend, dynamic=dynamic)
    bias, sink = torch.randn(4, 1, 11), torch.randn(4)
    run = lambda f: gradients(lambda *t: f(*t, mask="causal", softcap=2.0), q, k, v, bias, sink)  # noqa: E731
    first, first_grads = run(_attend)
    second, second_grads = run(compiled)
    assert_same(first + first_grads, second + second_grads, 1e-5)


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
def test_compileoptions_with(options):
    (q, k, v), _ = draw("plain")
    compiled = torch.compile(_attend, fullgraph=True, backend="aot_eager")
    first, first_grads = gradients(lambda *t: _attend(*t, **options), q, k, v)
    second, second_grads = gradients(lambda *t: compiled(*t, **options), q, k, v)
    assert_same(first + first_grads, second + second_grads)


def test_compile_packed_and_out():
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
    (q, k, v), _ = draw("plain")
    compiled = torch.compile(lambda *t: tilewise.attention(*t, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = compiled(q, k, v), compiled(q, k, v)
    torch.manual_seed(1)
    assert torch.equal(compiled(q, k, v), first)
    assert not torch.equal(first, second)


def test_compile_refuses_bad_names_while_tracing():
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
