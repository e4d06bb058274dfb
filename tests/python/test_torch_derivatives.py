# Derivatives past the first backward pass: second gradients and forward AD, against finite differences and against
# torch's autograd through formulas of the tests' own.
"""Double backward, forward AD and the Hessians made of them."""

import pytest
import torch
from cases import CASES, assert_close, draw, in_float64, lengths, to_layout
from formulas import Call, dense, packed
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import tilewise
from tilewise._torch import operators

NAMES = [name for name in CASES if name not in ("no_queries", "no_keys", "scale_zero")]


def _leaves(name):
    """(q, k, v and, where they are numbers, bias and sink; options without those), in float64."""
    tensors, options = draw(name)
    options = in_float64(options)
    leaves = {"q": tensors[0], "k": tensors[1], "v": tensors[2]}
    for other in ("bias", "sink"):
        if other in options and options[other].dtype != torch.bool:
            leaves[other] = options.pop(other)
    return {key: leaf.double().requires_grad_() for key, leaf in leaves.items()}, options


def _ours(leaves, options):
    return tilewise.attention(**leaves, **options, return_lse=True)


def _exact(leaves, options):
    return dense(
        Call(**{**options, **{key: leaves[key] for key in leaves if key not in "qkv"}}), *map(leaves.get, "qkv")
    )


def _drawn(like):
    return torch.randn(like.shape, dtype=torch.float64).to(like.dtype)


def _finite(lse):
    return torch.where(torch.isneginf(lse), 0.0, lse)


def _second(function, leaves, options):
    """Second gradients by every leaf and by dout and dlse, for fixed random weights."""
    torch.manual_seed(1)
    out, lse = function(leaves, options)
    rows = [_drawn(part).requires_grad_() for part in (out, lse)]
    total = (out * rows[0]).sum() + (_finite(lse) * rows[1]).sum()
    first = torch.autograd.grad(total, list(leaves.values()), create_graph=True)
    weighted = sum((gradient * _drawn(gradient)).sum() for gradient in first)
    return torch.autograd.grad(weighted, [*leaves.values(), *rows])


@pytest.mark.parametrize("name", NAMES)
def test_double_backward(name):
    ours, exact = (_second(function, *_leaves(name)) for function in (_ours, _exact))
    for what, got, expected in zip((*_leaves(name)[0], "dout", "dlse"), ours, exact):
        assert_close(got, expected, 1e-9, what)


def _tangents(function, leaves, options):
    torch.manual_seed(2)
    with forward_ad.dual_level():
        duals = {key: forward_ad.make_dual(leaf.detach(), torch.randn_like(leaf)) for key, leaf in leaves.items()}
        results = [forward_ad.unpack_dual(part) for part in function(duals, options)]
        return [part.primal.clone() for part in results], [part.tangent.clone() for part in results]


@pytest.mark.parametrize("name", NAMES)
def test_forward_ad(name):
    """out and softmax_lse, and their tangents where all inputs have one."""
    primals, tangents = _tangents(_ours, *_leaves(name))
    exact_primals, exact_tangents = _tangents(_exact, *_leaves(name))
    for got, expected in zip((*primals, *tangents), (*exact_primals, *exact_tangents)):
        assert_close(got, expected, 1e-9)


SMALL = {
    "plain": {},
    "causal": {"mask": "causal", "softcap": 2.0},
    "dropout": {"dropout_p": 0.4, "seed": 11},
    "lengths": {"seqused_k": lengths(3, 5), "leftpad_k": lengths(1, 0)},
}


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("name", SMALL)
def test_finite_differences(name, layout):
    torch.manual_seed(0)
    shapes = ((2, 3, 4, 4), (2, 5, 2, 4), (2, 5, 2, 3))
    qkv = [to_layout(torch.randn(shape, dtype=torch.float64), layout).requires_grad_() for shape in shapes]
    call = lambda q, k, v: tilewise.attention(q, k, v, layout=layout, return_lse=True, **SMALL[name])  # noqa: E731
    assert gradgradcheck(call, qkv, fast_mode=True)
    assert gradcheck(call, qkv, check_forward_ad=True, check_undefined_grad=False, fast_mode=True)


PACKED = {"layout": "thd", "cu_seqlens_q": lengths(0, 4, 4, 8), "cu_seqlens_k": lengths(0, 3, 5, 9)}


@pytest.mark.parametrize("options", [{}, {"seqused_k": lengths(2, 1, 4), "alibi_slopes": torch.rand(3, 2).double()}])
def test_packed(options):
    """Sequence by sequence, one of them empty, with a row after the last."""
    q, k, v = (torch.randn(n, h, 4, dtype=torch.float64, requires_grad=True) for n, h in ((9, 2), (9, 1), (9, 1)))
    bias = torch.randn(3, 1, 4, 4, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, bias):
        return tilewise.attention(q, k, v, bias=bias, mask="causal", return_lse=False, **PACKED, **options)

    assert gradgradcheck(call, (q, k, v, bias), fast_mode=True)
    assert gradcheck(call, (q, k, v, bias), check_forward_ad=True, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    leaves, options = _leaves("causal")
    narrow = {key: leaf.detach().to(dtype).requires_grad_() for key, leaf in leaves.items()}
    second = _second(_ours, narrow, options)
    assert [gradient.dtype for gradient in second] == [*[dtype] * 4, torch.float32]
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    wide = {key: leaf.detach().double().requires_grad_() for key, leaf in narrow.items()}
    for got, expected in zip(second, _second(_exact, wide, options)):
        assert_close(got, expected, tolerance)


# --- transforms and functionals ---


def _loss(q, k, v):
    return lambda x: tilewise.attention(x, k, v, mask="causal", softcap=3.0).square().sum()


def _small(heads_k=1):
    return [torch.randn(shape, dtype=torch.float64) for shape in ((1, 3, 2, 4), (1, 5, heads_k, 4), (1, 5, heads_k, 4))]


def _exact_hessian(q, k, v):
    def loss(x):
        return dense(Call(mask="causal", softcap=3.0), x, k, v)[0].square().sum()

    return torch.autograd.functional.hessian(loss, q)


HESSIANS = {
    "hessian": torch.func.hessian,
    "reverse twice": lambda f: torch.func.jacrev(torch.func.jacrev(f)),
    "forward twice": lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
    "forward in reverse": lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    "functional": lambda f: lambda x: torch.autograd.functional.hessian(f, x),
    "functional, forward": lambda f: (
        lambda x: torch.autograd.functional.hessian(f, x, outer_jacobian_strategy="forward-mode", vectorize=True)
    ),
}


@pytest.mark.parametrize("way", HESSIANS)
def test_hessian(way):
    q, k, v = _small()
    assert_close(HESSIANS[way](_loss(q, k, v))(q), _exact_hessian(q, k, v), 1e-10)


def test_hessian_by_a_model():
    """Of a function of a module's parameters, as optimizers of second order take it."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, 6)
    layer = torch.nn.Linear(6, 18)

    def loss(weight):
        q, k, v = torch.func.functional_call(layer, {"weight": weight}, x).view(1, 4, 3, 1, 6).unbind(2)
        return tilewise.attention(q, k, v).square().mean()

    weight = layer.weight.detach()
    direction = torch.randn_like(weight)
    product = torch.func.jvp(torch.func.grad(loss), (weight,), (direction,))[1]
    _, expected = torch.autograd.functional.hvp(loss, weight, direction)
    assert_close(product, expected, 1e-5)


def test_vmap_over_second_gradients():
    q, k, v = _small()
    stack = torch.stack([q, q + 1, q - 2])
    second = torch.func.grad(lambda x: torch.func.grad(_loss(q, k, v))(x).square().sum())
    assert_close(torch.vmap(second)(stack), torch.stack([second(x) for x in stack]), 1e-10)


def test_third_derivative():
    q, k, v = _small()
    f = lambda x: tilewise.attention(q + x, k, v).square().sum()  # noqa: E731
    g = lambda x: dense(Call(), q + x, k, v)[0].square().sum()  # noqa: E731
    x = torch.zeros((), dtype=torch.float64)
    third = lambda f: torch.func.grad(torch.func.grad(torch.func.grad(f)))(x)  # noqa: E731
    assert_close(third(f), third(g), 1e-10)


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}], ids=["plain", "options"])
def test_tangents_of_gradients(options):
    """Forward AD of a backward pass whose forward pass had none: dout alone is a dual tensor."""
    q, k, v = (tensor.requires_grad_() for tensor in _small())
    dout, tangent = torch.randn_like(q), torch.randn_like(q)
    out = tilewise.attention(q, k, v, **options)
    expected = torch.autograd.grad(out, (q, k, v), tangent, retain_graph=True)  # it is linear in dout
    with forward_ad.dual_level():
        found = torch.autograd.grad(out, (q, k, v), forward_ad.make_dual(dout, tangent))
        for got, each in zip(found, expected):
            assert_close(forward_ad.unpack_dual(got).tangent, each, 1e-10)


def test_the_operators_themselves():
    """Registered autograd of the operators, such as exported programs call them."""
    q, k, v = (tensor.requires_grad_() for tensor in _small())
    for use in (tilewise.attention, lambda *qkv: operators.forward(*qkv)[0]):
        (dq,) = torch.autograd.grad(use(q, k, v).square().sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(dq.sum(), v)
        (dq,) = torch.autograd.grad(dense(Call(), q, k, v)[0].square().sum(), q, create_graph=True)
        assert_close(second, torch.autograd.grad(dq.sum(), v)[0], 1e-10)


def test_nothing_wanted():
    q, k, v = (tensor.requires_grad_() for tensor in _small())
    dq, dk = torch.autograd.grad(tilewise.attention(q, k, v).sum(), (q, k), create_graph=True)
    assert torch.autograd.grad(dk.sum(), q)[0].isfinite().all()
    assert dq.requires_grad


# --- merge ---


def _parts(heads=2):
    torch.manual_seed(0)
    outs = [torch.randn(1, 3, heads, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    lses = [torch.randn(1, heads, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    return [*outs, *lses, torch.randn(heads, dtype=torch.float64, requires_grad=True)]


@pytest.mark.parametrize("sink", [False, True])
def test_merge(sink):
    tensors = _parts()[: None if sink else 6]
    call = lambda *t: tilewise.merge(t[:3], t[3:6], sink=t[6] if sink else None)  # noqa: E731
    assert gradgradcheck(call, tensors)
    assert gradcheck(call, tensors, check_forward_ad=True, check_undefined_grad=False)


def test_merge_of_a_stack():
    *tensors, _ = _parts()
    outs, lses = torch.stack(tensors[:3]), torch.stack(tensors[3:])
    call = lambda o, s: tilewise.merge(o, s)[0]  # noqa: E731
    assert gradgradcheck(call, (outs.detach().requires_grad_(), lses.detach().requires_grad_()))


def test_merge_where_parts_see_nothing():
    *tensors, _ = (tensor.detach() for tensor in _parts())
    tensors[3][0, 0] = -torch.inf
    tensors[4][0, 0, 1] = tensors[5][0, 0, 1] = -torch.inf
    leaves = [tensor.requires_grad_() for tensor in tensors]
    out = tilewise.merge(leaves[:3], leaves[3:])[0]
    first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)
    assert all(gradient.isfinite().all() for gradient in second)
    assert not second[0][0, :, 0].any()  # the first part's first head saw nothing


def test_merge_under_transforms():
    *tensors, _ = (tensor.detach() for tensor in _parts())
    loss = lambda x: tilewise.merge([x, *tensors[1:3]], tensors[3:])[0].square().sum()  # noqa: E731
    expected = torch.autograd.functional.hessian(loss, tensors[0])
    assert_close(torch.func.hessian(loss)(tensors[0]), expected, 1e-10)
    stack = torch.stack([tensors[0], tensors[1]])
    assert_close(torch.vmap(loss)(stack), torch.stack([loss(x) for x in stack]), 1e-10)


# --- what the log says ---


def test_the_dispatch_log_says_who_computes(monkeypatch, capfd):
    monkeypatch.setenv("TILEWISE_LOG", "dispatch")
    q = torch.randn(1, 13, 2, 16, requires_grad=True)
    (dq,) = torch.autograd.grad(tilewise.attention(q, q, q).sum(), q, create_graph=True)
    for _ in range(2):
        torch.autograd.grad(dq.sum(), q, retain_graph=True)
    text = "tilewise: double backward of attention -> torch's operations, which hold scores [1, 2, 13, 13] in memory"
    assert capfd.readouterr().err.count(text) == 1
    torch.func.jvp(lambda x: tilewise.attention(x, x, x), (q,), (q,))
    assert "forward AD of attention -> torch's operations" in capfd.readouterr().err


def test_packed_second_gradients_of_other_layout_agree():
    """The packed way against dense sequences of the tests' formula."""
    q, k, v = (torch.randn(9, h, 4, dtype=torch.float64, requires_grad=True) for h in (2, 1, 1))
    offsets = lengths(0, 4, 9)
    options = {"layout": "thd", "cu_seqlens_q": offsets, "cu_seqlens_k": offsets}

    def second(out):
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (q, k, v))

    exact = packed(Call(mask="causal"), q, k, v, offsets, offsets)[0]
    for got, expected in zip(second(tilewise.attention(q, k, v, mask="causal", **options)), second(exact)):
        assert_close(got, expected, 1e-9)
