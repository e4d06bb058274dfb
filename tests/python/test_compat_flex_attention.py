# tilewise.compat.flex_attention against torch's eager flex_attention: results, log-sum-exps and gradients, what is
# refused, torch.compile and vmap around it, and what routed() routes and leaves alone.
"""The drop-in for torch's flex_attention."""

import inspect

import pytest

torch = pytest.importorskip("torch")
torchs = pytest.importorskip("torch.nn.attention.flex_attention")
if not hasattr(torchs, "AuxRequest"):
    pytest.skip(f"torch {torch.__version__} has no AuxRequest", allow_module_level=True)

from closeness import assert_all_as_close, results_of  # noqa: E402
from flex_attention_cases import CASES, SLOPES, alibi, by_torch, causal, documents, draw, options_of  # noqa: E402

from tilewise.compat import flex_attention as module  # noqa: E402
from tilewise.compat.flex_attention import (  # noqa: E402
    AuxRequest,
    LeftToTorch,
    create_block_mask,
    flex_attention,
    routed,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:return_lse is deprecated"),
]


def wavy(score, b, h, q_idx, kv_idx):
    return torch.sin(score)


def wavy_mask(b, h, q_idx, kv_idx):
    return torch.sin(q_idx * 0.7 + kv_idx * (h + 1)) > 0.1 * b


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, dtype):
    case = CASES[name]
    tensors, options = draw(case.heads_k, dtype), options_of(case)
    got = results_of(lambda *t: flex_attention(*t, **options), tensors)
    assert got[0].dtype == dtype
    exact = results_of(lambda *t: by_torch(*t, **options), [tensor.double() for tensor in tensors])
    if dtype == torch.float64:
        torch.testing.assert_close(got, exact, rtol=1e-9, atol=1e-9)
    else:
        assert_all_as_close(got, results_of(lambda *t: by_torch(*t, **options), tensors), exact)


@pytest.mark.parametrize("name", ["flex_attention", "create_block_mask"])
def test_signatures_are_torchs(name):
    ours = inspect.signature(getattr(module, name)).parameters
    for parameter in inspect.signature(getattr(torchs, name)).parameters.values():
        assert ours[parameter.name].kind == parameter.kind
        assert ours[parameter.name].default == parameter.default
    theirs = [*inspect.signature(getattr(torchs, name)).parameters]
    assert [own for own in ours if own in theirs] == theirs
    assert {*torchs.__all__} <= {*module.__all__}


def test_log_sum_exp_and_its_gradient():
    case = CASES["hiding"]
    options = options_of(case) | {"scale": 0.3}
    ours, theirs = ([tensor.requires_grad_() for tensor in draw(2)] for _ in range(2))
    out, aux = flex_attention(*ours, **options, return_aux=AuxRequest(lse=True))
    expected, other = by_torch(*theirs, **options, return_aux=AuxRequest(lse=True))
    assert aux.max_scores is None
    torch.testing.assert_close((out, aux.lse), (expected, other.lse), rtol=1e-9, atol=1e-9)
    (out.sum() + (aux.lse * 2).sum()).backward()
    (expected.sum() + (other.lse * 2).sum()).backward()
    for own, other in zip(ours, theirs):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-9)
    pair = flex_attention(*ours, **options, return_lse=True)
    torch.testing.assert_close(pair, (out, aux.lse), rtol=0, atol=0)
    assert flex_attention(*ours, **options, return_aux=AuxRequest())[1] == (None, None)


def test_rows_that_see_nothing():
    q, k, v = draw()
    block_mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx > kv_idx, None, None, 40, 56, "cpu")
    out, lse = flex_attention(q, k, v, block_mask=block_mask, return_lse=True)
    assert not out[:, :, 0].any() and (lse[:, :, 0] == -torch.inf).all()
    assert out[:, :, 1:].all() and lse[:, :, 1:].isfinite().all()


def test_keys_of_one_batch():
    options = options_of(CASES["documents"])
    tensors = draw(batch_k=1)
    torch.testing.assert_close(flex_attention(*tensors, **options), by_torch(*tensors, **options))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["heads_first", "rows_first"])
def test_result_is_stored_as_torchs(order):
    q, k, v = (torch.randn([(2, 4, 7, 16)[axis] for axis in order]).permute(order) for _ in range(3))
    stored = flex_attention(q, k, v, score_mod=alibi)
    assert stored.stride() == by_torch(q, k, v, score_mod=alibi).stride()


def test_functions_that_others_made():
    """Partials, arguments with defaults, functions within functions, captured numbers of torch."""
    q, k, v = draw()
    threshold = torch.tensor(7)

    def biased(score, b, h, q_idx, kv_idx, factor=2.0):
        return score * factor + torch.where(q_idx < threshold, q_idx.to(torch.float32), 0.0)

    def score_mod(score, b, h, q_idx, kv_idx):
        zeros = torch.zeros_like(score, dtype=torch.bool, device=score.device)
        return torch.where(zeros, -1.0, biased(score, b, h, q_idx.to(kv_idx.device), kv_idx))

    for function in (biased, score_mod):
        got, expected = (way(q, k, v, score_mod=function) for way in (flex_attention, by_torch))
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


# --- refusals ---

Q, K, V = draw(dtype=torch.float32)
MASK = create_block_mask(causal, None, None, 40, 56, "cpu", BLOCK_SIZE=16)
REFUSED = {
    "array": ((Q, K.numpy(), V), {}, TypeError, r"key: must be a torch tensor \(got ndarray\)"),
    "dimensions": ((Q[0], K, V), {}, NotImplementedError, r"query: must have 4 dimensions \(got 3\)"),
    "dtypes": ((Q, K.double(), V), {}, TypeError, "key: dtype must be"),
    "heads": ((Q, K[:, :2], V[:, :2]), {}, ValueError, r"key: must have query's 4 heads .* \(got 2\)"),
    "gqa": ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}, ValueError, r"divides query's 4 \(got 3\)"),
    "gqa by number": ((Q, K, V), {"enable_gqa": 1}, TypeError, r"enable_gqa: must be True or False \(got int\)"),
    "batch": ((Q, K[:1], V[:1]), {}, ValueError, r"key: must have query's batch size 2 without a block_mask \(got 1\)"),
    "batch of the mask": ((Q, K[:1], V[:1]), {"block_mask": MASK}, ValueError, r"\(got 1 beside 1\)"),
    "lengths": ((Q[:, :, 1:], K, V), {"block_mask": MASK}, ValueError, r"block_mask: must be of .*\(39, 56\) \(got"),
    "mask": ((Q, K, V), {"block_mask": causal}, TypeError, r"torch's BlockMask or None \(got function\)"),
    "sliced": ((Q, K, V), {"block_mask": MASK[:1]}, RuntimeError, "block_mask: was made by slicing another"),
    "scale": ((Q, K, V), {"scale": float("inf")}, ValueError, "scale: must be finite"),
    "wide heads": ((torch.zeros(1, 1, 2, 640),) * 3, {}, ValueError, r"query: head_dim must be <= 576 \(got 640\)"),
    "no function": ((Q, K, V), {"score_mod": "score"}, TypeError, r"score_mod: must be a function \(got str\)"),
    "mask for score": ((Q, K, V), {"score_mod": causal}, TypeError, r"score_mod: must be a function of a score_mod's"),
    "arguments": ((Q, K, V), {"score_mod": abs}, TypeError, "score_mod: must take score, b, h, q_idx and kv_idx"),
    "untraceable": ((Q, K, V), {"score_mod": wavy}, ValueError, r"no expression does .*line \d+: return torch.sin"),
    "max scores": ((Q, K, V), {"return_aux": AuxRequest(max_scores=True)}, NotImplementedError, "return_aux: max_sc"),
    "both": ((Q, K, V), {"return_aux": AuxRequest(), "return_lse": True}, ValueError, "return_lse: must be False"),
    "options": ((Q, K, V), {"kernel_options": 3}, TypeError, r"kernel_options: must be a dict or None \(got int\)"),
    "option": ((Q, K, V), {"kernel_options": {"BLOCK": 3}}, ValueError, r"FlexKernelOptions \(got 'BLOCK'\)"),
    "backend": ((Q, K, V), {"kernel_options": {"BACKEND": "CUDA"}}, ValueError, r"BACKEND must be .* \(got 'CUDA'\)"),
    "backends": (
        (Q, K, V),
        {"kernel_options": {"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True}},
        RuntimeError,
        "must not have both",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    tensors, options, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        flex_attention(*tensors, **options)


def by_formula(q, k, v, score_mod):
    """As the formula says, since torch gives captured tensors no gradient on a CPU."""
    k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) for tensor in (k, v))
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in (*q.shape[:3], k.shape[2])), indexing="ij")
    return score_mod(q @ k.mT / q.shape[-1] ** 0.5, b, h, i, j).softmax(-1) @ v


def test_captured_tensors_have_gradients():
    """Tensors of one number among them, and those within another function."""

    def gradients(way):
        slopes, scale, places = (
            SLOPES.clone().requires_grad_(),
            torch.tensor(2.0, requires_grad=True),
            torch.linspace(-1.0, 1.0, 16).requires_grad_(),
        )

        def scaled(score):
            return score * scale

        def score_mod(score, b, h, q_idx, kv_idx):
            near = torch.clamp(q_idx - kv_idx + 8, 0, 15)
            return scaled(score) - torch.tanh(slopes[h]) * slopes[h] + places[near]

        q = Q.clone().requires_grad_()
        (way(q, K, V, score_mod=score_mod) * torch.linspace(-1.0, 1.0, V.shape[-1])).sum().backward()
        return q.grad, slopes.grad, scale.grad, places.grad

    for got, expected in zip(gradients(flex_attention), gradients(by_formula)):
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


def test_kernel_options_change_nothing():
    options = {"fwd_BLOCK_M": 32, "bwd_BLOCK_N1": 16, "BACKEND": "TRITON", "PRESCALE_QK": True, "num_warps": 4}
    assert torch.equal(flex_attention(Q, K, V, kernel_options=options), flex_attention(Q, K, V))


# --- torch around it ---


@pytest.mark.parametrize("way", ["drop-in", "routed"])
@pytest.mark.parametrize("name", ["plain", "relative by documents"])
def test_compiled(name, way):
    torch._dynamo.reset()
    case = CASES[name]
    tensors, options = draw(case.heads_k, torch.float32), options_of(case)

    def call(*tensors):
        function = flex_attention if way == "drop-in" else torchs.flex_attention
        return function(*tensors, **options) * 2

    compiled = torch.compile(call, backend="aot_eager", fullgraph=name == "plain")
    expected = results_of(lambda *t: flex_attention(*t, **options) * 2, tensors)
    with routed():
        got = results_of(compiled, tensors)
    torch.testing.assert_close(got, expected)


def test_a_graph_without_breaks_is_refused_with_functions():
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(Q, K, V), flex_attention(Q, K, V))
    with pytest.raises(Exception, match="it traces functions of scores itself"):
        compiled(Q, K, V, score_mod=alibi)


def test_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        out = flex_attention(Q, K.bfloat16(), V, score_mod=alibi)
    assert torch.equal(out, flex_attention(Q.bfloat16(), K.bfloat16(), V.bfloat16(), score_mod=alibi))


def test_vmap():
    """torch's own function has no rule for it at all."""
    tensors = [torch.randn(3, *tensor.shape) for tensor in (Q, K, V)]
    got = torch.vmap(flex_attention)(*tensors)
    torch.testing.assert_close(got, torch.stack([flex_attention(*three) for three in zip(*tensors)]))
    with pytest.raises(NotImplementedError, match=r"score_mod: must not be given under torch\.func's"):
        torch.vmap(lambda *t: flex_attention(*t, score_mod=alibi))(*tensors)


# --- routed() ---


def test_routed():
    original = torchs.flex_attention
    block_mask = torchs.create_block_mask(documents, 2, None, 40, 56, "cpu", BLOCK_SIZE=16)
    expected = flex_attention(Q, K, V, score_mod=alibi, block_mask=block_mask)
    with routed() as calls:
        got = torchs.flex_attention(Q, K, V, score_mod=alibi, block_mask=block_mask)
        left = torchs.flex_attention(Q, K, V, score_mod=wavy)
        same = torchs.create_block_mask(documents, 2, None, 40, 56, "cpu", BLOCK_SIZE=16)
    assert torch.equal(got, expected)
    torch.testing.assert_close(left, by_torch(Q, K, V, score_mod=wavy))
    assert torch.equal(same.to_dense(), block_mask.to_dense())
    assert (calls.routed, calls.left) == (1, 1)
    (reason,) = calls.reasons
    assert "no expression does what 'sin' does" in reason and "return torch.sin(score)" in reason
    assert torchs.flex_attention is original


def test_strict():
    with routed(strict=True) as calls, pytest.raises(LeftToTorch, match="would be left to torch: score_mod: no expr"):
        torchs.flex_attention(Q, K, V, score_mod=wavy)
    assert (calls.routed, calls.left) == (0, 0)
    with routed(), pytest.raises(ValueError, match="Hq=4 and Hkv=2"):  # as torch refuses
        torchs.flex_attention(Q, K[:, :2], V[:, :2])


def test_routed_takes_inputs_that_require_gradients_on_a_cpu():
    q = Q.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        torchs.flex_attention(q, K, V)
    with routed(strict=True):
        torchs.flex_attention(q, K, V, score_mod=alibi).sum().backward()
    assert q.grad.any()
