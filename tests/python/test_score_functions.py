# score_mod and mask_mod of attention(), against the same functions called on whole tensors of scores.
"""Functions of scores."""

import numpy as np
import pytest

import tilewise
from tilewise.expression import trace

torch = pytest.importorskip("torch")

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1, 2]])
TABLE = torch.linspace(-1, 1, 4 * 15, dtype=torch.float64).reshape(4, 15)


def alibi(score, b, h, q_idx, kv_idx):
    return score - SLOPES[h] * (q_idx - kv_idx)


def relative(score, b, h, q_idx, kv_idx):
    return score + TABLE[h, q_idx - kv_idx + 7]


def soft_capped(score, b, h, q_idx, kv_idx):
    return 2 * torch.tanh(score / 2) * (1 + b)


def square_causal(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score * score * 0.3 - h, -float("inf"))


def documents(b, h, q_idx, kv_idx):
    return DOCUMENTS[b, q_idx] == DOCUMENTS[b, kv_idx]


def dilated(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & ((q_idx - kv_idx) % 2 == 0) | (kv_idx < h)


CASES = [
    (alibi, None), (relative, documents), (soft_capped, dilated), (square_causal, None), (None, documents),
]  # fmt: skip


def expected(q, k, v, score_mod, mask_mod):
    """By the functions themselves, called once on all scores."""
    k, v = (tensor.repeat_interleave(2, dim=2) for tensor in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    places = [
        torch.arange(n).reshape([-1 if d == axis else 1 for d in range(4)]) for axis, n in enumerate(scores.shape)
    ]
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*places), scores, -torch.inf)
    sees = (scores > -torch.inf).any(-1, keepdim=True)
    weights = torch.where(sees, torch.softmax(torch.where(sees, scores, 0.0), -1), 0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def inputs(dtype=torch.float64, requires_grad=True):
    torch.manual_seed(1)
    return [torch.randn(2, 8, heads, 6, dtype=dtype, requires_grad=requires_grad) for heads in (4, 2, 2)]


@pytest.mark.parametrize(("score_mod", "mask_mod"), CASES)
def test_torch_forward_and_backward(score_mod, mask_mod):
    ours, theirs = inputs(), inputs()
    out = tilewise.attention(*ours, score_mod=score_mod, mask_mod=mask_mod)
    want = expected(*theirs, score_mod, mask_mod)
    torch.testing.assert_close(out, want, rtol=1e-9, atol=1e-9)
    dout = torch.randn_like(out)
    out.backward(dout)
    want.backward(dout)
    for own, other in zip(ours, theirs):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_captured_tensors(dtype):
    """Of tensors that many scores look up, of one that no gradient reaches, and of one that needs none."""

    def gradients(way, exact):
        torch.manual_seed(2)
        tables = [torch.randn(shape, dtype=torch.float32).requires_grad_() for shape in ((4, 15), (8, 2), (3,))]
        relative, places, unused = (table.to(torch.float64) if exact else table for table in tables)

        def score_mod(score, b, h, q_idx, kv_idx):
            near = relative[h, q_idx - kv_idx + 7]
            return score * (1 + places[kv_idx, b]) + torch.tanh(near) * SLOPES[h] + unused[0] * 0

        q, k, v = (tensor.detach().to(dtype).requires_grad_() for tensor in inputs(torch.float32))
        operands = [tensor.double() for tensor in (q, k, v)] if exact else [q, k, v]
        out = way(operands, score_mod)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
        (out.double() * weights).sum().backward()
        return [tensor.grad for tensor in (q, *tables)]

    got = gradients(lambda t, f: tilewise.attention(*t, score_mod=f, mask_mod=dilated), dtype == torch.float64)
    want = gradients(lambda t, f: expected(*t, f, dilated), True)
    tolerance = {torch.float64: 1e-6, torch.float32: 2e-5, torch.bfloat16: 5e-2}[dtype]
    for own, other in zip(got, want):
        torch.testing.assert_close(own, other, atol=tolerance, rtol=tolerance)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_eager_flex_attention_agrees():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = (tensor.transpose(1, 2) for tensor in inputs(torch.float32, requires_grad=False))
    mask = flex.create_block_mask(documents, 2, 4, 8, 8, device="cpu")
    want = flex.flex_attention(q, k, v, score_mod=alibi, block_mask=mask, enable_gqa=True)
    out = tilewise.attention(q, k, v, score_mod=alibi, mask_mod=documents, layout="bhsd")
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_arrays_and_every_way_to_say_a_function():
    tensors = inputs(torch.float32, requires_grad=False)
    arrays = [tensor.numpy() for tensor in tensors]
    want = tilewise.attention(*tensors, score_mod=alibi, mask_mod=dilated)
    text = "score - exp2(-1.0 - h) * (q_idx - kv_idx)"
    for score_mod, mask_mod in ((alibi, dilated), (trace(alibi), trace(dilated)), (text, trace(dilated).text)):
        out = tilewise.attention(*tensors, score_mod=score_mod, mask_mod=mask_mod)
        torch.testing.assert_close(out, want, rtol=1e-6, atol=1e-6)
    own = tilewise.attention(*arrays, score_mod=text, mask_mod=trace(dilated).text)
    assert isinstance(own, np.ndarray)
    np.testing.assert_allclose(own, want.numpy(), rtol=1e-6, atol=1e-6)


def test_backward_of_arrays():
    ours, theirs = inputs(requires_grad=False), inputs()
    out, lse = tilewise.attention(*ours, score_mod=relative, mask_mod=documents, return_lse=True)
    dout = torch.randn_like(out)
    gradients = tilewise.attention_backward(dout, *ours, out, lse, score_mod=relative, mask_mod=documents)
    expected(*theirs, relative, documents).backward(dout)
    for own, other in zip(gradients, theirs):
        torch.testing.assert_close(own, other.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["heads_first", "rows_first"])
def test_results_are_stored_as_their_inputs(order):
    stored = [torch.randn([(2, 4, 8, 6)[axis] for axis in order]).permute(order).requires_grad_() for _ in range(3)]
    out = tilewise.attention(*stored, score_mod=alibi, layout="bhsd")
    assert out.stride() == stored[0].stride()
    for gradient, tensor in zip(torch.autograd.grad(out.sum(), stored), stored):
        assert gradient.stride() == tensor.stride()


def test_explain_names_functions_and_their_tables():
    q, k, v = inputs(torch.float32, requires_grad=False)
    explanation = tilewise.explain(q, k, v, score_mod=alibi)
    assert "score_mod=score-table0[h]*(q_idx-kv_idx) tables=f32[4]" in explanation.problem
    assert next(row.implementation for row in explanation.rows if row.chosen).startswith("cpu.")


def test_refusals():
    q, k, v = inputs(torch.float32, requires_grad=False)
    with pytest.raises(TypeError, match="score_mod: must be a function of a score_mod's arguments"):
        tilewise.attention(q, k, v, score_mod=documents)
    with pytest.raises(ValueError, match="score_mod: must speak of score, b, h, q_idx, kv_idx"):
        tilewise.attention(q, k, v, score_mod="scores")
    with pytest.raises(ValueError, match="mask_mod: must be an expression"):
        tilewise.attention(q, k, v, mask_mod=" ")
    with pytest.raises(TypeError, match="mask_mod: must be a function or an expression's text"):
        tilewise.attention(q, k, v, mask_mod=3)
    slopes = SLOPES.clone().requires_grad_()
    out = tilewise.attention(q, k, v, score_mod=lambda s, b, h, q_idx, kv_idx: s * slopes[torch.where(s < 0, 1, 0)])
    with pytest.raises(ValueError, match="dtable0: table0 must not be looked up by what depends on score"):
        out.sum().backward()


def test_others_refuse_by_name():
    q, k, v = inputs(torch.bfloat16, requires_grad=False)
    with pytest.raises(NotImplementedError, match="score_mod"):
        tilewise.attention(q, k, v, score_mod="score*2", implementation="emulation.sm90")
