# Autocast, vmap and the other transforms of torch.func.
"""attention() under torch's transforms."""

import pytest
import torch
from cases import assert_close, draw, lengths
from torch_support import assert_same, gradients

import tilewise
from tilewise._torch import operators

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
    (out,), grads = gradients(function, q, k, v, bias, sink)
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
    assert_same(actual, [torch.stack(parts) for parts in zip(*each)])


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
    first, first_grads = gradients(looped, q, k, v, sink)
    second, second_grads = gradients(mapped, q, k, v, sink)
    assert_same(first + first_grads, second + second_grads, 1e-5)


def test_func_grad_and_per_sample_gradients():
    (q, k, v), _ = _mapped("plain")
    loss = lambda q, k, v: tilewise.attention(q, k, v, mask="causal").square().sum()  # noqa: E731
    per_sample = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    for i in range(3):
        leaves = [tensor[i].clone().requires_grad_() for tensor in (q, k, v)]
        expected = torch.autograd.grad(loss(*leaves), leaves)
        assert_same([grad[i] for grad in per_sample], expected, 1e-5)
