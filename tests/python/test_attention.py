# tilewise.attention on torch tensors against float64 formulas: every feature, layout and dtype,
# forward and backward.
"""Results of attention()."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import CASES, TOLERANCE, assert_close, draw, lengths, to_layout
from checking import check, check_gradients
from formulas import Call, dense, dropout_keep, packed, philox4x32_10

import tilewise

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_against_formulas(name, dtype):
    tensors, options = draw(name, dtype)
    check(tensors, options, lambda *qkv, **o: tilewise.attention(*qkv, return_lse=True, **o), TOLERANCE[dtype])


@pytest.mark.parametrize("layout", ["sbhd", "bhsd"])
@pytest.mark.parametrize("name", ["causal", "everything", "head_dims"])
def test_layouts(name, layout):
    def run(*qkv, **options):
        qkv = [to_layout(tensor, layout) for tensor in qkv]
        out, lse = tilewise.attention(*qkv, layout=layout, return_lse=True, **options)
        return to_layout(out, layout), lse

    tensors, options = draw(name)
    check(tensors, options, run, TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", ["causal", "bias", "dropout", "everything"])
def test_reference_implementation(name):
    def run(*qkv, **options):
        return tilewise.attention(*qkv, return_lse=True, implementation="reference", **options)

    tensors, options = draw(name)
    check(tensors, options, run, TOLERANCE[torch.float32])


def test_half_precision_bias():
    (q, k, v), options = draw("bias", torch.bfloat16)
    options["bias"] = options["bias"].bfloat16()
    check([q, k, v], options, lambda *a, **o: tilewise.attention(*a, return_lse=True, **o), TOLERANCE[q.dtype])


@pytest.mark.parametrize(("rows", "keys"), [(1, 300), (1, 20000), (40, 300)], ids=["decode", "split", "blocks"])
def test_rounding_of_weights_cancels(rows, keys):
    """Three keys that weigh nearly all, and alike: their mean is the result, rounded once. They come long after a row's
    first keys, so that their weights are no powers of two and bf16 rounds them."""
    torch.manual_seed(0)
    q = torch.zeros(1, rows, 8, 32, dtype=torch.bfloat16)
    k, v = torch.zeros(1, keys, 8, 32, dtype=torch.bfloat16), torch.randn(1, keys, 8, 32).to(torch.bfloat16)
    q[..., 0] = 1
    k[:, -9:-6, :, 0] = 20 + torch.rand(8)
    out = tilewise.attention(q, k, v, softmax_scale=1.0)
    exact = v[:, -9:-6].double().mean(1, keepdim=True).expand_as(out)
    torch.testing.assert_close(out.double(), exact, rtol=2**-8 + 1e-5, atol=1e-6)


# --- packed sequences ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("explicit_max", [False, True])
def test_packed(mask, dtype, explicit_max):
    torch.manual_seed(3)
    cu_q, cu_k = [0, 5, 5, 14], [0, 9, 12, 21]  # the second sequence has no queries
    q, k, v = torch.randn(15, 4, 16), torch.randn(22, 2, 16), torch.randn(22, 2, 8)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (q, k, v)]
    options = {"mask": mask, "cu_seqlens_q": lengths(*cu_q), "cu_seqlens_k": lengths(*cu_k)}
    if explicit_max:
        options.update(max_seqlen_q=10, max_seqlen_k=9)
    out, lse = tilewise.attention(*leaves, layout="thd", return_lse=True, **options)
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact_out, exact_lse = packed(Call(mask=mask), *exact_leaves, cu_q, cu_k)
    exact_lse = torch.cat([exact_lse[:, :14], torch.full((4, 1), -torch.inf)], 1)  # the row of no sequence
    assert_close(out, exact_out, TOLERANCE[dtype])
    assert_close(lse, exact_lse, TOLERANCE[dtype], "softmax_lse")
    check_gradients(out, leaves, exact_out, exact_leaves, TOLERANCE[dtype])


def test_packed_rows_of_no_sequence():
    q, k = torch.randn(6, 2, 8), torch.randn(9, 2, 8)
    options = {"layout": "thd", "cu_seqlens_q": lengths(0, 4), "cu_seqlens_k": lengths(0, 9), "return_lse": True}
    out = torch.full((6, 2, 8), 7.0)
    _, lse = tilewise.attention(q, k, k, out=out, **options)
    assert torch.equal(out[4:], torch.full((2, 2, 8), 7.0))  # a given output keeps them
    assert torch.equal(lse[:, 4:], torch.full((2, 2), -torch.inf))
    arrays = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    fresh, fresh_lse = tilewise.attention(q.numpy(), k.numpy(), k.numpy(), **arrays)
    assert not fresh[4:].any()
    assert np.array_equal(fresh_lse, lse.numpy())


def test_packed_with_used_lengths_and_bias():
    torch.manual_seed(4)
    cu_q, cu_k = [0, 4, 10], [0, 6, 13]
    q, k, v = torch.randn(10, 2, 8), torch.randn(13, 2, 8), torch.randn(13, 2, 8)
    bias = torch.randn(2, 2, 6, 7)
    lens = {"seqused_q": lengths(3, 6), "seqused_k": lengths(4, 5), "leftpad_k": lengths(1, 2)}
    out = tilewise.attention(
        q, k, v, layout="thd", bias=bias, cu_seqlens_q=lengths(*cu_q), cu_seqlens_k=lengths(*cu_k), **lens
    )
    call = Call(bias=bias.double(), **lens)
    expected, _ = packed(call, q.double(), k.double(), v.double(), cu_q, cu_k)
    assert_close(out, expected, 2e-5)


# --- views, outputs, special values ---


@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_packed_qkv_is_read_in_place(layout):
    qkv = torch.randn(2, 9, 3, 4, 16) if layout == "bshd" else torch.randn(18, 3, 4, 16)
    q, k, v = qkv.unbind(-3)
    assert not q.is_contiguous()
    extra = {} if layout == "bshd" else {"cu_seqlens_q": lengths(0, 9, 18), "cu_seqlens_k": lengths(0, 9, 18)}
    viewed = tilewise.attention(q, k, v, layout=layout, mask="causal", **extra)
    copied = tilewise.attention(q.contiguous(), k.contiguous(), v.contiguous(), layout=layout, mask="causal", **extra)
    assert torch.equal(viewed, copied)


def test_transposed_and_broadcast_inputs():
    q, k, v = torch.randn(2, 4, 7, 16), torch.randn(1, 7, 1, 16), torch.randn(1, 7, 1, 16)
    k, v = k.expand(2, 7, 4, 16), v.expand(2, 7, 4, 16)
    out = tilewise.attention(q.transpose(1, 2), k, v)
    expected, _ = dense(Call(), q.transpose(1, 2).double(), k.double(), v.double())
    assert_close(out, expected, 2e-5)


def test_out_is_written():
    (q, k, v), _ = draw("causal")
    expected = tilewise.attention(q, k, v)
    out = torch.full((2, 7, 4, 32), torch.nan)[..., :16]
    assert tilewise.attention(q, k, v, out=out) is out
    assert torch.equal(out, expected)
    result, lse = tilewise.attention(q, k, v, out=out, return_lse=True)
    assert result is out
    assert lse.shape == (2, 4, 7)


def test_unused_keys_may_hold_nan():
    (q, k, v), options = draw("seqused")
    poisoned_k, poisoned_v = k.clone(), v.clone()
    poisoned_k[0, 4:] = torch.nan
    poisoned_v[0, 4:] = torch.nan
    assert torch.equal(tilewise.attention(q, poisoned_k, poisoned_v, **options), tilewise.attention(q, k, v, **options))


def test_gradient_of_a_sum_is_broadcast():
    (q, k, v), _ = draw("plain")
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    tilewise.attention(*leaves).sum().backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in leaves]
    dense(Call(), *exact)[0].sum().backward()
    for leaf, expected in zip(leaves, exact):
        assert_close(leaf.grad, expected.grad, 4e-5)


def test_gradient_of_lse_alone():
    (q, k, v), _ = draw("plain")
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    tilewise.attention(*leaves, return_lse=True)[1].sum().backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in leaves]
    dense(Call(), *exact)[1].sum().backward()
    assert_close(leaves[0].grad, exact[0].grad, 4e-5, "dq")
    assert_close(leaves[1].grad, exact[1].grad, 4e-5, "dk")
    assert torch.equal(leaves[2].grad, torch.zeros_like(v))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (3,), (4,), (1, 4)])
def test_only_what_requires_a_gradient_gets_one(wanted):
    (q, k, v), _ = draw("plain")
    tensors = [q, k, v, torch.randn(4, 1, 11), torch.randn(4)]
    everything = [tensor.clone().requires_grad_() for tensor in tensors]
    some = [tensor.clone().requires_grad_(index in wanted) for index, tensor in enumerate(tensors)]
    for leaves in (everything, some):
        tilewise.attention(*leaves[:3], bias=leaves[3], sink=leaves[4]).square().sum().backward()
    for index, (leaf, reference) in enumerate(zip(some, everything)):
        if index in wanted:
            assert_close(leaf.grad, reference.grad, 1e-6)
        else:
            assert leaf.grad is None


# --- dropout ---

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "dropout_vectors.json").read_text())


def _kept(seed, batch_size, heads, rows, keys, dropout_p):
    """The library's own dropout mask, bool [batch, head, row, key]: uniform weights on an identity v."""
    q = torch.zeros(batch_size, rows, heads, 8)
    k = torch.zeros(batch_size, keys, 1, 8)
    v = torch.eye(keys).expand(batch_size, keys, keys)[:, :, None, :]
    return tilewise.attention(q, k, v, dropout_p=dropout_p, seed=seed).permute(0, 2, 1, 3) > 0


def test_philox_vectors():
    for vector in VECTORS["philox4x32_10"]:
        counter, key = np.array(vector["counter"], np.uint64), np.array(vector["key"], np.uint64)
        assert philox4x32_10(counter, key).tolist() == vector["output"]


def test_dropout_draws_are_the_fixed_vectors():
    seen = 0
    for vector in VECTORS["dropout_draw"]:
        if vector["query"] >= 64 or vector["key"] >= 256 or vector["batch_head"] >= 8:
            continue
        seed = torch.tensor([np.uint64(vector[name]).astype(np.int64) for name in ("seed", "offset")])
        heads, row, key, draw_ = vector["batch_head"] + 1, vector["query"], vector["key"], vector["draw"]
        if 0 < draw_ < 65535:
            at, above = ((draw_ + step) / 65536 for step in (0, 1))  # dropped when draw < 65536 * dropout_p
            assert _kept(seed, 1, heads, row + 1, key + 1, at)[0, -1, row, key] or at == 0
            if above < 1:
                assert not _kept(seed, 1, heads, row + 1, key + 1, above)[0, -1, row, key]
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 + 5, 0x123456789ABCDEF])
def test_dropout_mask(seed):
    kept = _kept(seed, 2, 3, 5, 70, 0.25)
    for b in range(2):
        for h in range(3):
            expected = dropout_keep(seed % 2**64, 0, b * 3 + h, 5, 70, 16384)
            assert np.array_equal(kept[b, h].numpy(), expected)


def test_dropout_statistics():
    kept = _kept(42, 2, 4, 128, 256, 0.1).double()
    count = kept.numel()
    assert abs(kept.mean().item() - 0.9) < 5 * (0.09 / count) ** 0.5
    neighbours = torch.corrcoef(torch.stack([kept[..., 1:].flatten(), kept[..., :-1].flatten()]))[0, 1]
    assert abs(neighbours.item()) < 5 / count**0.5


def test_dropout_seeds():
    (q, k, v), _ = draw("dropout")
    run = lambda **o: tilewise.attention(q, k, v, dropout_p=0.5, **o)  # noqa: E731
    pair = torch.tensor([5, 0])
    assert torch.equal(run(seed=5), run(seed=pair))
    assert torch.equal(run(seed=np.int64(5)), run(seed=5))
    assert not torch.equal(run(seed=5), run(seed=6))
    assert not torch.equal(run(seed=5), run(seed=torch.tensor([5, 1])))
    torch.manual_seed(0)
    first, second = run(), run()
    torch.manual_seed(0)
    assert torch.equal(run(), first)
    assert not torch.equal(first, second)


# --- merging partial results ---


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("with_sink", [False, True])
def test_merge(layout, with_sink):
    (q, k, v), _ = draw("plain")
    sink = torch.randn(4) if with_sink else None
    q, k, v = (to_layout(tensor, layout) for tensor in (q, k, v))
    axis = {"bshd": 1, "sbhd": 0, "bhsd": 2}[layout]
    parts = [
        tilewise.attention(q, k.narrow(axis, a, n), v.narrow(axis, a, n), layout=layout, return_lse=True)
        for a, n in ((0, 4), (4, 0), (4, 7))
    ]
    out, lse = tilewise.merge([part[0] for part in parts], [part[1] for part in parts], sink, layout=layout)
    expected, expected_lse = tilewise.attention(q, k, v, layout=layout, sink=sink, return_lse=True)
    assert_close(out, expected, 1e-5)
    assert_close(lse, expected_lse, 1e-5, "softmax_lse")


def test_merge_packed():
    q, k, v = torch.randn(6, 2, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    cu = {"cu_seqlens_q": lengths(0, 6), "layout": "thd", "return_lse": True}
    first = tilewise.attention(q, k[:5], v[:5], cu_seqlens_k=lengths(0, 5), **cu)
    second = tilewise.attention(q, k[5:], v[5:], cu_seqlens_k=lengths(0, 4), **cu)
    whole = tilewise.attention(q, k, v, cu_seqlens_k=lengths(0, 9), **cu)
    for part, expected in zip(tilewise.merge(*zip(first, second), layout="thd"), whole):
        assert_close(part, expected, 1e-5)


# --- promises about numbers ---


def test_results_do_not_depend_on_threads():
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 200, 4, 32, requires_grad=True) for _ in range(3))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = tilewise.attention(q, k, v, mask="causal", deterministic=True)
            results.append((out, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results):
        assert torch.equal(one, two)


def test_batch_invariant():
    torch.manual_seed(2)
    q, k, v = (torch.randn(5, 33, 4, 32) for _ in range(3))
    together = tilewise.attention(q, k, v, mask="causal", batch_invariant=True)
    alone = tilewise.attention(q[3:4], k[3:4], v[3:4], mask="causal", batch_invariant=True)
    assert torch.equal(together[3:4], alone)
