# tilewise on jagged tensors of torch.nested: results and gradients against each sequence on its
# own, no copies, offsets kept, and what is refused.
"""Jagged tensors."""

import numpy as np
import pytest
import torch
from cases import TOLERANCE, assert_close, lengths
from torch.nested import nested_tensor_from_jagged
from torch.utils._python_dispatch import TorchDispatchMode
from torch_support import assert_same, gradients

import tilewise

OFFSETS_Q, OFFSETS_K = [0, 5, 5, 14], [0, 9, 12, 21]


def _jagged(offsets, num_heads, dim=16, dtype=torch.float32, **kwargs):
    values = torch.randn(int(offsets[-1]), num_heads, dim, dtype=dtype)
    return nested_tensor_from_jagged(values, offsets, **kwargs)


def _qkv(dtype=torch.float32, dim_v=8):
    torch.manual_seed(0)
    offsets_q, offsets_k = torch.tensor(OFFSETS_Q), torch.tensor(OFFSETS_K)
    return [_jagged(offsets_q, 4, 16, dtype), *(_jagged(offsets_k, 2, dim, dtype) for dim in (16, dim_v))]


def _leaves(tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


# options of a call on three sequences, each its dtype's own
OPTIONS = {
    "plain": dict,
    "causal": lambda: {"mask": "causal"},
    "window": lambda: {"window": (3, 1), "alignment": "top_left", "softcap": 2.0, "softmax_scale": 0.3},
    "bias": lambda: {"bias": torch.randn(3, 4, 9, 9)},
    "bias_bool": lambda: {"bias": torch.rand(1, 1, 9, 9) > 0.3},
    "alibi": lambda: {"alibi_slopes": torch.rand(3, 4), "mask": "causal"},
    "sink": lambda: {"sink": torch.randn(4)},
    "dropout": lambda: {"dropout_p": 0.3, "seed": 5},
    "seqused": lambda: {"seqused_q": lengths(4, 0, 9), "seqused_k": lengths(7, 3, 2)},
    "leftpad": lambda: {"leftpad_k": lengths(2, 0, 1)},
}


def _gradients(run, leaves, options):
    """(out, lse and the gradients of leaves, bias and sink) of a call, dout the same at every call."""
    options = dict(options)
    for name in ("bias", "sink"):
        if name in options and options[name].is_floating_point():
            options[name] = options[name].clone().requires_grad_()
            leaves = [*leaves, options[name]]
    out, lse = run(*leaves[:3], return_lse=True, **options)
    values = out.values() if out.is_nested else out
    torch.manual_seed(1)
    dout, dlse = torch.randn_like(values), torch.randn_like(lse).masked_fill(torch.isinf(lse), 0.0)
    grads = torch.autograd.grad((values, lse), leaves, (dout, dlse))
    return out, lse, grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_as_a_packed_call(name, dtype):
    """Packed calls are held against formulas in test_attention.py."""
    tensors = _qkv(dtype)
    options = {"deterministic": True, **OPTIONS[name]()}
    out, lse, grads = _gradients(tilewise.attention, _leaves(tensors), options)
    cu_seqlens = {"cu_seqlens_q": lengths(*OFFSETS_Q), "cu_seqlens_k": lengths(*OFFSETS_K), "layout": "thd"}
    packed = _leaves([tensor.values() for tensor in tensors])
    expected, expected_lse, expected_grads = _gradients(tilewise.attention, packed, {**options, **cu_seqlens})
    assert out.offsets() is tensors[0].offsets()
    assert out.shape == (*tensors[0].shape[:3], 8)
    assert torch.equal(out.values(), expected)
    assert torch.equal(lse, expected_lse)
    for tensor, gradient, wanted in zip([*tensors, None, None], grads, expected_grads):
        if tensor is not None:
            assert gradient.offsets() is tensor.offsets()
            gradient = gradient.values()
        assert torch.equal(gradient, wanted)


def test_each_sequence_on_its_own():
    q, k, v = _qkv()
    out = tilewise.attention(q, k, v, mask="causal")
    for part, *sequence in zip(out.unbind(), q.unbind(), k.unbind(), v.unbind()):
        alone = tilewise.attention(*(tensor.unsqueeze(0) for tensor in sequence), mask="causal")[0]
        assert_close(part, alone, TOLERANCE[torch.float32])


def test_out_fits_q():
    """torch adds jagged tensors only if they have one offsets object."""
    offsets = torch.tensor(OFFSETS_Q)
    q, k = _leaves([_jagged(offsets, 4), _jagged(offsets, 4)])
    (q + tilewise.attention(q, k, k)).sum().backward()
    assert q.grad.shape == q.shape
    assert (q.grad + q.detach()).shape == q.shape


def test_heads_before_the_jagged_dimension():
    """What view(...).transpose(1, 2) gives, as torch's scaled_dot_product_attention wants it."""
    leaves = _leaves(_qkv())
    expected, expected_lse = tilewise.attention(*leaves, return_lse=True)
    heads_first = [tensor.transpose(1, 2) for tensor in leaves]
    out, lse = tilewise.attention(*heads_first, layout="bhsd", return_lse=True)
    assert out.shape == (*heads_first[0].shape[:3], 8)
    assert torch.equal(out.transpose(1, 2).values(), expected.values())
    assert torch.equal(lse, expected_lse)
    dout = torch.randn_like(expected.values())
    expected_grads = torch.autograd.grad(expected.values(), leaves, dout)
    grads = torch.autograd.grad(out.transpose(1, 2).values(), leaves, dout)
    for gradient, wanted in zip(grads, expected_grads):
        assert torch.equal(gradient.values(), wanted.values())
    stored = [tensor.values().detach().contiguous() for tensor in heads_first]  # heads first in memory too
    stored = [nested_tensor_from_jagged(each, leaf.offsets(), jagged_dim=2) for each, leaf in zip(stored, leaves)]
    out = tilewise.attention(*stored, layout="bhsd")
    assert torch.equal(out.transpose(1, 2).values(), expected.values())


def test_in_a_layer_of_a_model():
    """Chunks of one projection, which lie beside each other in its rows, against torch on each sequence."""
    torch.manual_seed(0)
    x = _jagged(torch.tensor(OFFSETS_Q), 1, 32).flatten(2)
    weight = torch.randn(96, 32) / 6

    def jagged(weight):
        q, k, v = (part.unflatten(-1, (4, 8)) for part in torch.nn.functional.linear(x, weight).chunk(3, -1))
        return (x + tilewise.attention(q, k, v, mask="causal").flatten(2)).values()

    def each(weight):
        outs = []
        for part in x.unbind():
            q, k, v = (heads.unflatten(-1, (4, 8)).transpose(0, 1) for heads in (part @ weight.T).chunk(3, -1))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            outs.append(part + out.transpose(0, 1).flatten(1))
        return torch.cat(outs)

    assert_same(*(tuple(sum(gradients(function, weight), ())) for function in (jagged, each)), 1e-4)


def test_inference_mode_and_an_empty_batch():
    q, k, v = _qkv()
    expected = tilewise.attention(q, k, v)
    with torch.inference_mode():
        assert torch.equal(tilewise.attention(q, k, v).values(), expected.values())
    nothing = nested_tensor_from_jagged(torch.randn(0, 2, 8), torch.tensor([0]))
    assert tilewise.attention(nothing, nothing, nothing).shape == nothing.shape


class Copies(TorchDispatchMode):
    """The addresses of q, k and v that the kernel got, and the elements of the largest tensor made before and after."""

    def __init__(self, tensors):
        super().__init__()
        dense = (tensor.values() if tensor.is_nested else tensor for tensor in tensors)
        self.known = {tensor.untyped_storage().data_ptr() for tensor in dense}
        self.addresses, self.largest = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if not isinstance(tensor, torch.Tensor) or tensor.is_nested:
                continue
            address = tensor.untyped_storage().data_ptr()
            if func.namespace == "tilewise":
                first = 2 if "backward" in func.name() else 0
                self.addresses = [tensor.data_ptr() for tensor in args[first : first + 3]]
                self.known.add(address)
            elif address not in self.known:
                self.largest = max(self.largest, tensor.numel())
        return result


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_nothing_is_copied(layout, with_lengths):
    offsets = torch.tensor([0, 40, 90])
    more = {"lengths": torch.tensor([30, 50])} if with_lengths else {}
    tensors = [_jagged(offsets, 4, **more) for _ in range(3)]
    addresses = [tensor.values().data_ptr() for tensor in tensors]
    given = [tensor.transpose(1, 2) for tensor in tensors] if layout == "bhsd" else tensors
    with Copies(tensors) as copies:
        tilewise.attention(*given, layout=layout)
    assert copies.addresses == addresses
    assert copies.largest == len(offsets)  # as int32
    out, lse = tilewise.attention(*(tensor.requires_grad_() for tensor in given), layout=layout, return_lse=True)
    dout = out.detach().clone()
    with Copies([*tensors, out, lse, dout]) as copies:
        out.backward(dout)
    assert copies.addresses == addresses
    assert copies.largest <= len(offsets)  # those saved
    with Copies([*tensors, out, lse, dout]) as copies:
        tilewise.attention_backward(dout, *given, out, lse, layout=layout)
    assert copies.addresses == addresses
    assert copies.largest == len(offsets)


@pytest.mark.parametrize("starts", [[0, 0, 0], [1, 0, 2]])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_lengths(layout, starts):
    """torch.nested.narrow gives sequences with gaps between them, the first one not at 0."""
    torch.manual_seed(0)
    sizes = [2, 5, 1]
    dense = [torch.randn(3, 5, 2, 16, requires_grad=True) for _ in range(3)]
    q, k, v = (
        torch.nested.narrow(tensor, 1, torch.tensor(starts), torch.tensor(sizes), layout=torch.jagged)
        for tensor in dense
    )
    given = [tensor.transpose(1, 2) if layout == "bhsd" else tensor for tensor in (q, k, v)]
    out, lse = tilewise.attention(*given, layout=layout, mask="causal", return_lse=True)
    out = out.transpose(1, 2) if layout == "bhsd" else out
    assert (q + out).lengths() is q.lengths()
    assert out.values().shape == q.values().shape
    assert lse.shape == (2, q.values().shape[0])
    dout = torch.randn_like(out.values())
    grads = torch.autograd.grad(out.values(), dense, dout)
    expected_grads = [torch.zeros_like(tensor) for tensor in dense]
    for b, (start, size) in enumerate(zip(starts, sizes)):
        part = slice(start, start + size)
        rows = slice(5 * b + start, 5 * b + start + size)
        leaves = [tensor[b : b + 1, part].detach().requires_grad_() for tensor in dense]
        alone, alone_lse = tilewise.attention(*leaves, mask="causal", return_lse=True)
        assert_close(out.unbind()[b], alone[0], TOLERANCE[torch.float32])
        assert_close(lse[:, rows], alone_lse[0], TOLERANCE[torch.float32], "softmax_lse")
        for gradient, wanted in zip(expected_grads, torch.autograd.grad(alone, leaves, dout[None, rows])):
            gradient[b, part] = wanted[0]
    assert_same(grads, expected_grads, TOLERANCE[torch.float32])
    used = torch.zeros(15, dtype=torch.bool)
    for b, (start, size) in enumerate(zip(starts, sizes)):
        used[5 * b + start : 5 * b + start + size] = True
    used = used[: q.values().shape[0]]
    assert not out.values()[~used].any()
    assert torch.isneginf(lse[:, ~used]).all()


def test_max_seqlen_is_the_one_torch_keeps():
    """It is the size that a bias goes by."""
    offsets = torch.tensor(OFFSETS_Q)
    tensors = [_jagged(offsets, 2, max_seqlen=12, min_seqlen=0) for _ in range(3)]
    bias = torch.randn(1, 1, 12, 12)
    out = tilewise.attention(*tensors, bias=bias)
    assert "max_seqlen_q=12" in tilewise.explain(*tensors).problem
    assert (out._maybe_max_seqlen, out._maybe_min_seqlen) == (12, 0)
    plain = [_jagged(offsets, 2) for _ in range(3)]
    assert "max_seqlen_q=9" in tilewise.explain(*plain).problem
    assert "max_seqlen_q=20" in tilewise.explain(*plain, max_seqlen_q=20).problem


def test_equal_offsets_of_two_objects():
    q, k, v = _qkv()
    other = nested_tensor_from_jagged(v.values(), torch.tensor(OFFSETS_K))
    assert torch.equal(tilewise.attention(q, k, other).values(), tilewise.attention(q, k, v).values())


def test_given_out():
    q, k, v = _qkv()
    out = nested_tensor_from_jagged(torch.full((14, 4, 8), torch.nan), q.offsets())
    address = out.values().data_ptr()
    assert tilewise.attention(q, k, v, out=out) is out
    assert out.values().data_ptr() == address
    assert torch.equal(out.values(), tilewise.attention(q, k, v).values())
    with pytest.raises(ValueError, match="out: cannot be given with inputs that require gradients"):
        tilewise.attention(q.requires_grad_(), k, v, out=out)


def test_autocast():
    q, k, v = _qkv()
    with torch.autocast("cpu", torch.bfloat16):
        out = tilewise.attention(q, k, v, mask="causal")
    assert out.dtype == torch.bfloat16
    assert_close(out.values(), tilewise.attention(q, k, v, mask="causal").values(), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_compile(layout):
    def run(q, k, v):
        q, k, v = (tensor.transpose(1, 2) if layout == "bhsd" else tensor for tensor in (q, k, v))
        return tilewise.attention(q, k, v, layout=layout, mask="causal") * 2

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        offsets = torch.tensor([0, 3 + seed, 9, 20 - seed])
        leaves = _leaves([_jagged(offsets, 2, max_seqlen=16, min_seqlen=1) for _ in range(3)])
        expected, actual = run(*leaves), compiled(*leaves)
        assert torch.equal(actual.values(), expected.values())
        dout = torch.randn_like(expected.values())
        grads = (torch.autograd.grad(out.values(), leaves, dout) for out in (actual, expected))
        for gradient, wanted in zip(*grads):
            assert torch.equal(gradient.values(), wanted.values())


def test_warmup_makes_the_plans_that_the_call_finds(capfd, monkeypatch):
    monkeypatch.setenv("TILEWISE_LOG", "dispatch")
    offsets = torch.tensor([0, 3, 1237])  # a length that no other test has planned
    leaves = _leaves([_jagged(offsets, 1) for _ in range(3)])
    tilewise.warmup(*leaves, mask="causal")
    assert "-> cpu." in capfd.readouterr().err
    tilewise.attention(*leaves, mask="causal").values().sum().backward()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("starts", [[0, 0, 0], [1, 0, 2]])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_attention_backward(layout, starts):
    torch.manual_seed(0)
    offsets, sizes = torch.tensor(starts) + torch.tensor([0, 5, 10]), torch.tensor([2, 5, 1])
    ends = torch.cat((offsets, offsets[-1:] + sizes[-1:]))
    leaves = _leaves([nested_tensor_from_jagged(torch.randn(15, 2, 16), ends, sizes) for _ in range(3)])
    options = {"mask": "causal", "sink": torch.randn(2), "layout": layout, "deterministic": True}
    given = [tensor.transpose(1, 2) if layout == "bhsd" else tensor for tensor in leaves]
    out, lse = tilewise.attention(*given, return_lse=True, **options)
    dense_out = out.transpose(1, 2) if layout == "bhsd" else out
    values, dlse = torch.randn_like(dense_out.values()), torch.randn_like(lse).masked_fill(torch.isinf(lse), 0.0)
    expected = torch.autograd.grad((dense_out.values(), lse), leaves, (values, dlse))
    dout = nested_tensor_from_jagged(values, ends, sizes)
    dout = dout.transpose(1, 2) if layout == "bhsd" else dout
    result = tilewise.attention_backward(dout, *given, out, lse, dlse=dlse, **options)
    for gradient, wanted, like in zip(result, expected, given):
        assert not gradient.requires_grad
        assert gradient.shape == like.shape
        gradient = gradient.transpose(1, 2) if layout == "bhsd" else gradient
        assert torch.equal(gradient.values(), wanted.values())
    assert result.dsink.shape == (2,)
    assert result.dbias is None


def _with(position, change):
    def call():
        tensors = _qkv()
        tensors[position] = change(tensors[position])
        return tensors

    return call


def _sized(tensor):
    return torch.zeros(3, 5, *tensor.shape[2:])


def _shorter(tensor):
    return nested_tensor_from_jagged(tensor.values(), torch.tensor([0, 9, *OFFSETS_K[3:]]))


def _moved(tensor):
    return nested_tensor_from_jagged(tensor.values(), torch.tensor([0, 8, 12, 21]))


def _with_lengths(tensor):
    return nested_tensor_from_jagged(tensor.values(), tensor.offsets(), tensor.offsets().diff())


def _strided(tensor):
    return torch.nested.nested_tensor([torch.zeros(2, 2, 16)] * 3, layout=torch.strided)


# tensors, options, exception, pattern of the message
BAD = {
    "q_dense": (_with(0, _sized), {}, TypeError, r"k: must be .*\(got .*a nested tensor of layout torch\.jagged\)"),
    "k_dense": (_with(1, _sized), {}, TypeError, r"k: must be a jagged tensor like q \(got torch\.Tensor of .*\)"),
    "v_strided": (_with(2, _strided), {}, TypeError, r"v: must be a jagged tensor like q \(got .*nested .*strided\)"),
    "k_numpy": (_with(1, lambda t: np.zeros(3)), {}, TypeError, r"k: must be a jagged .* \(got numpy\.ndarray of .*\)"),
    "rank": (_with(0, lambda t: t.flatten(2)), {}, ValueError, r"q: rank must be 4.*\(got 3\)"),
    "transposed": (_with(1, lambda t: t.transpose(1, 2)), {}, ValueError, r"k: the jagged dimension must be 1 .*got 2"),
    "not_transposed": (_qkv, {"layout": "bhsd"}, ValueError, r"q: the jagged dimension must be 2 .*bhsd \(got 1\)"),
    "layout": (_qkv, {"layout": "thd"}, ValueError, r"layout: must be 'bshd' or 'bhsd' with jagged .*\(got 'thd'\)"),
    "batch_size": (_with(1, _shorter), {}, ValueError, r"k: must have the batch_size of q, 3 \(got 2\)"),
    "v_offsets": (_with(2, _moved), {}, ValueError, r"v: must have the offsets of k"),
    "v_lengths": (_with(2, _with_lengths), {}, ValueError, r"v: must have the lengths of k"),
    "cu_seqlens_q": (_qkv, {"cu_seqlens_q": lengths(0, 1)}, ValueError, r"cu_seqlens_q: must be None with jagged"),
    "cu_seqlens_k": (_qkv, {"cu_seqlens_k": lengths(0, 1)}, ValueError, r"cu_seqlens_k: must be None with jagged"),
    "seqused_q": (
        _with(0, _with_lengths),
        {"seqused_q": lengths(1, 0, 1)},
        ValueError,
        r"seqused_q: must be None with jagged tensors, the lengths of q take its place \(got Tensor\)",
    ),
    "out": (_qkv, {"out": torch.zeros(14, 4, 8)}, TypeError, r"out: must be a jagged tensor like q"),
    "head_dim": (_with(1, lambda t: t[..., :8]), {}, ValueError, r"k: "),
    "option": (_qkv, {"soft_cap": 1.0}, TypeError, "unexpected keyword argument 'soft_cap'"),
    "softcap": (_qkv, {"softcap": -1.0}, ValueError, r"softcap: must be.*got -1"),
    "max_seqlen_q": (_qkv, {"max_seqlen_q": 3}, ValueError, r"max_seqlen_q: must be >= every sequence's length"),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, requires_grad):
    tensors, options, exception, pattern = BAD[name]
    tensors = tensors()
    if requires_grad:
        tensors = [tensor.requires_grad_() if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors]
    with pytest.raises(exception, match=pattern):
        tilewise.attention(*tensors, **options)
    with pytest.raises(exception, match=pattern):
        tilewise.explain(*tensors, **options)


def test_the_same_lengths_from_other_offsets():
    q, k, _ = _qkv()
    sizes = torch.tensor([2, 2, 2])
    k, v = (nested_tensor_from_jagged(k.values(), torch.tensor(offsets), sizes)
            for offsets in ([0, 9, 12, 21], [1, 9, 12, 21]))  # fmt: skip
    assert k.shape == v.shape  # for torch, which looks at the lengths alone
    with pytest.raises(ValueError, match="v: must have the offsets of k"):
        tilewise.attention(q, k, v)


def test_more_rows_than_int32_counts():
    offsets = torch.tensor([0, 2**31])
    tensors = [nested_tensor_from_jagged(torch.zeros(1, 1, 8).expand(2**31, 1, 8), offsets) for _ in range(3)]
    with pytest.raises(ValueError, match=r"q: must have at most 2147483647 rows in all \(got 2147483648\)"):
        tilewise.attention(*tensors)


def test_lengths_and_left_padding_are_not_mixed():
    q, k, v = _qkv()
    k, v = (nested_tensor_from_jagged(tensor.values(), k.offsets(), k.offsets().diff()) for tensor in (k, v))
    for option, pattern in (("leftpad_k", "the lengths of k count"), ("seqused_k", "the lengths of k take")):
        with pytest.raises(ValueError, match=f"{option}: must be None with jagged tensors, {pattern}"):
            tilewise.attention(q, k, v, **{option: lengths(1, 0, 1)})
