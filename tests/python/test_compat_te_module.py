# Transformer Engine's DotProductAttention by the drop-in: every option with gradients by the rule of closeness.py, what
# the module does around attention, and what it refuses.
"""tilewise.compat.transformer_engine.DotProductAttention."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from closeness import assert_all_as_close, results_of  # noqa: E402
from te_cases import CASES, PAIRS, by_formula, by_module, draw  # noqa: E402
from te_reference import lengths_to_cu  # noqa: E402

from tilewise.compat.transformer_engine import DotProductAttention, module  # noqa: E402
from tilewise.compat.transformer_engine.translate import usual_slopes  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("qkv_format", ["bshd", "sbhd"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, qkv_format, dtype):
    case = CASES[name]
    tensors = draw(case, dtype)
    if dtype == torch.float64:  # the bias is then in float64 too
        tensors = [tensor.double() for tensor in tensors]
    exact = results_of(by_formula(case), [tensor.double() for tensor in tensors])
    other = results_of(by_formula(case), tensors)
    got = results_of(by_module(case, qkv_format), tensors)
    assert got[0].dtype == dtype
    assert_all_as_close(got, other, exact)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_options(name):
    case, qkv_format, dtype = PAIRS[name]
    tensors = draw(case, dtype)
    exact = results_of(by_formula(case), [tensor.double() for tensor in tensors])
    other = results_of(by_formula(case), tensors)
    assert_all_as_close(results_of(by_module(case, qkv_format), tensors), other, exact)


def _drawn(*lead, heads=4, dim=16):
    return [torch.randn(*lead, heads, dim) for _ in range(3)]


@pytest.fixture
def calls(monkeypatch):
    """(tensors, options) of every call of attention that the module makes, by either way."""
    made = []

    def recording(own):
        def attend(*tensors, **options):
            made.append((tensors, options))
            return own(*tensors, **options)

        return attend

    for name in ("_attend", "attend"):
        monkeypatch.setattr(module, name, recording(getattr(module, name)))
    return made


def test_usual_slopes_of_uneven_heads():
    slopes = usual_slopes(6, torch.device("cpu"), torch.float32)
    expected = [2.0**-x for x in (2, 4, 6, 8, 1, 3)]
    assert torch.equal(slopes, torch.tensor(expected))


@pytest.mark.parametrize("qkv_format", ["bshd", "sbhd", "thd"])
@pytest.mark.parametrize("axis", [-3, -2])
def test_packed_inputs_are_views(qkv_format, axis, calls):
    lead = (14,) if qkv_format == "thd" else (2, 7)
    kind = "padding_causal" if qkv_format == "thd" else "causal"
    cu = {"cu_seqlens_q": lengths_to_cu([9, 5])} if qkv_format == "thd" else {}
    cu = {**cu, "cu_seqlens_kv": cu["cu_seqlens_q"]} if cu else cu
    dpa = DotProductAttention(4, 16, qkv_format=qkv_format, attn_mask_type=kind)
    shape = (*lead, 3, 4, 16) if axis == -3 else (*lead, 4, 3, 16)
    packed = torch.randn(shape)
    views = packed.unbind(axis)
    got = dpa(qkv_layer=packed, qkv_interleave_dim=axis, **cu)
    assert [tensor.data_ptr() for tensor in calls[0][0]] == [view.data_ptr() for view in views]
    assert torch.equal(got, dpa(*views, **cu))
    assert [tensor.data_ptr() for tensor in calls[1][0]] == [view.data_ptr() for view in views]
    kv = torch.stack(views[1:], axis)
    assert torch.equal(dpa(views[0], kv_layer=kv, qkv_interleave_dim=axis, **cu), got)


def test_arguments_of_the_call_override_the_modules():
    q, k, v = _drawn(2, 7)
    dpa = DotProductAttention(4, 16, attn_mask_type="no_mask")
    other = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="causal", window_size=(2, 0))
    expected = other(q, k, v)
    assert torch.equal(dpa(q, k, v, qkv_format="bshd", attn_mask_type="causal", window_size=(2, 0)), expected)
    assert not torch.equal(dpa(q, k, v, qkv_format="bshd"), expected)


def test_attributes_may_change():
    q, k, v = _drawn(2, 7)
    dpa = DotProductAttention(4, 16)
    for name, value in {"qkv_format": "bshd", "window_size": (2, 0), "attn_mask_type": "no_mask"}.items():
        before = dpa(q, k, v)
        if value == "no_mask":
            dpa.window_size = None
        setattr(dpa, name, value)
        given = {"qkv_format": dpa.qkv_format, "window_size": dpa.window_size, "attn_mask_type": dpa.attn_mask_type}
        assert torch.equal(dpa(q, k, v), DotProductAttention(4, 16, **given)(q, k, v))
        assert not torch.equal(dpa(q, k, v), before)


def test_arguments_of_no_effect():
    q, k, v = _drawn(2, 7)
    dpa = DotProductAttention(4, 16, qkv_format="bshd", layer_number=3, attention_type="cross", name="a")
    expected = dpa(q, k, v)
    cu = lengths_to_cu([3, 7])
    got = dpa(
        q, k, v, num_splits=4, fast_zero_fill=False, pad_between_seqs=False, max_seqlen_q=7, max_seqlen_kv=7,
        cu_seqlens_q=cu, cu_seqlens_kv=cu, fp8_output=False, inference_params=None, score_mod=None,
    )  # fmt: skip
    assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", ["causal", "padding_causal"])
def test_dropout_of_training_alone(kind):
    q, k, v = _drawn(2, 7)
    cu = lengths_to_cu([7, 4])
    dpa = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type=kind, attention_dropout=0.4)
    given = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu} if kind != "causal" else {}
    torch.manual_seed(7)
    first, second = dpa(q, k, v, **given), dpa(q, k, v, **given)
    torch.manual_seed(7)
    assert torch.equal(dpa(q, k, v, **given), first)
    assert not torch.equal(first, second)
    without = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type=kind)
    assert torch.equal(dpa.eval()(q, k, v, **given), without(q, k, v, **given))


def test_dropout_within_the_trackers_fork():
    forks = []

    class Tracker:
        @contextlib.contextmanager
        def fork(self):
            forks.append(torch.get_rng_state())
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(11)
                yield

    q, k, v = _drawn(2, 7)
    made = {"qkv_format": "bshd", "attention_dropout": 0.4}
    dpa = DotProductAttention(4, 16, get_rng_state_tracker=Tracker, **made)
    before = torch.get_rng_state()
    first = dpa(q, k, v)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(dpa(q, k, v), first)
    assert len(forks) == 2
    DotProductAttention(4, 16, get_rng_state_tracker=Tracker, sequence_parallel=True, **made)(q, k, v)
    dpa.eval()(q, k, v)
    assert len(forks) == 2


@pytest.mark.parametrize("softmax_type", ["vanilla", "learnable"])
def test_empty_sequences_have_gradients_of_zero(softmax_type):
    lengths = [(0, 3), (3, 0), (0, 0), (5, 4)]
    cu_q, cu_kv = (lengths_to_cu(side) for side in zip(*lengths))
    q, k, v = (torch.randn(int(cu[-1]), 4, 16, requires_grad=True) for cu in (cu_q, cu_kv, cu_kv))
    dpa = DotProductAttention(4, 16, qkv_format="thd", attn_mask_type="padding_causal", softmax_type=softmax_type)
    out = dpa(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv)
    assert not out[:3].any()  # those without keys
    out.sum().backward()  # a gradient whose strides are 0
    assert not q.grad[:3].any()
    assert not k.grad[:3].any()
    assert not v.grad[:3].any()
    for tensor in (q, k, v, *dpa.parameters()):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_computed_again_in_the_backward_pass(dropout, calls):
    dpa = DotProductAttention(4, 16, qkv_format="bshd", attention_dropout=dropout)
    tensors = _drawn(2, 7)

    def run(again):
        torch.manual_seed(5)
        return results_of(lambda *t: dpa(*t, checkpoint_core_attention=again), tensors)

    expected, count = run(False), len(calls)
    got = run(True)
    assert count == 1
    assert len(calls) == 3
    assert torch.equal(got[0], expected[0])
    assert all(map(torch.equal, got[1], expected[1]))


def test_deterministic_by_the_environment(monkeypatch, calls):
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")
    DotProductAttention(4, 16, qkv_format="bshd")(*_drawn(2, 7))
    assert [options["deterministic"] for _, options in calls] == [True]


def test_tensor_parallel_shares():
    dpa = DotProductAttention(8, 16, num_gqa_groups=4, tp_size=2, softmax_type="learnable", qkv_format="bshd")
    assert dpa.softmax_offset.shape == (4,)
    q, (k, v, _) = torch.randn(2, 7, 4, 16), _drawn(2, 7, heads=2)
    assert dpa(q, k, v).shape == (2, 7, 64)


def test_checkpoints():
    dpa = DotProductAttention(4, 16, softmax_type="learnable")
    assert list(dpa.state_dict()) == ["softmax_offset"]
    assert list(DotProductAttention(4, 16, softmax_type="off-by-one").state_dict()) == []
    holder = torch.nn.ModuleDict({"core_attention": dpa})
    state = {"core_attention.softmax_offset": torch.arange(4.0), "core_attention._extra_state": torch.empty(0)}
    holder.load_state_dict({**state, "core_attention.fused_attention._extra_state": torch.empty(0)})
    assert torch.equal(dpa.softmax_offset, torch.arange(4.0))


@pytest.mark.parametrize("kind", ["causal", "padding_causal_bottom_right"])
def test_compiled(kind):
    torch._dynamo.reset()
    dpa = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type=kind, softmax_type="learnable")
    cu = lengths_to_cu([7, 4])
    given = {"cu_seqlens_q": cu, "cu_seqlens_kv": cu} if kind != "causal" else {}
    tensors = _drawn(2, 7)
    expected = results_of(lambda *t: dpa(*t, **given), tensors)
    got = results_of(torch.compile(lambda *t: dpa(*t, **given), fullgraph=True, backend="aot_eager"), tensors)
    assert torch.equal(got[0], expected[0])
    assert all(map(torch.equal, got[1], expected[1]))


# --- refusals ---

Q = torch.zeros(2, 7, 4, 16)
CU = torch.tensor([0, 3, 8], dtype=torch.int32)
PADDED = {"attn_mask_type": "padding"}
PAIR = {"cu_seqlens_q": CU, "cu_seqlens_kv": CU}
FLAT = Q.flatten(0, 1)
PACKED = torch.zeros(2, 7, 3, 4, 16)
MADE = {
    "heads": ({"num_gqa_groups": 3}, ValueError, r"num_gqa_groups: must be a multiple of tp_size = 1 and divide .* 3"),
    "ranks": ({"tp_size": 3}, ValueError, r"num_attention_heads: must be a multiple of tp_size = 3 .* \(got 4\)"),
    "format": (
        {"qkv_format": "bhsd"},
        ValueError,
        r"qkv_format: must be one of 'sbhd', 'bshd', 'thd'; did you mean 'bshd'\? \(got 'bhsd'\)",
    ),
    "kind": ({"attn_mask_type": "full"}, ValueError, r"attn_mask_type: must be one of 'no_mask'"),
    "softmax": ({"softmax_type": "off_by_one"}, ValueError, r"softmax_type: must be one of 'vanilla', 'off-by-one'"),
    "logit": ({"return_max_logit": True}, NotImplementedError, "return_max_logit: must be False"),
    "type": ({"attention_type": "both"}, ValueError, "attention_type: must be one of 'self', 'cross'"),
    "scale": ({"softmax_scale": "1"}, TypeError, "softmax_scale: must be a number"),
    "unknown": ({"head_dim": 3}, TypeError, "unexpected keyword argument 'head_dim'"),
}  # fmt: skip
CALLED = {
    "no key": ((Q, None, Q), {}, ValueError, "key_layer: must be given without a packed"),
    "rank": ((FLAT, FLAT, FLAT), {}, ValueError, r"query_layer: rank must be 4 with qkv_format=bshd \(got 3\)"),
    "width": ((Q[..., :8], Q[..., :8], Q), {}, ValueError, r"query_layer: last dimension must be kv_channels = 16"),
    "value width": ((Q, Q, Q[..., :8]), {}, ValueError, r"value_layer: last dimension must be kv_channels = 16"),
    "heads": ((Q, Q[:, :, :2], Q[:, :, :2]), {}, ValueError, r"key_layer: must have num_gqa_groups = 4 heads"),
    "dtypes": ((Q, Q.double(), Q), {}, TypeError, "key_layer: dtype must be"),
    "batches": ((Q, Q[:1], Q[:1]), {}, ValueError, "key_layer: shape must be"),
    "array": ((Q, Q.numpy(), Q), {}, TypeError, r"key_layer: must be a torch tensor like query_layer"),
    "lengths": ((Q, Q, Q), PADDED, ValueError, "cu_seqlens_q: this or attention_mask must be given with"),
    "cu dtype": ((Q, Q, Q), {**PADDED, **PAIR, "cu_seqlens_q": CU.long()}, ValueError, "cu_seqlens_q: must be an"),
    "cu list": ((Q, Q, Q), {**PADDED, **PAIR, "cu_seqlens_kv": [0, 3]}, TypeError, "cu_seqlens_kv: must be an int32"),
    "cu batch": ((Q, Q, Q), {**PADDED, **PAIR, "cu_seqlens_q": CU[:2]}, ValueError, r"cu_seqlens_q: shape must be"),
    "mask shape": ((Q, Q, Q), {**PADDED, "attention_mask": torch.zeros(2, 7, dtype=torch.bool)}, ValueError,
                   r"attention_mask: must be bool \[batch_size, 1, 1, seqlen_q\] = \[2, 1, 1, 7\]"),
    "padding first": ((Q, Q, Q), {**PADDED, "attention_mask": (torch.arange(7) < 3).expand(2, 1, 1, 7)}, ValueError,
                      "attention_mask: padding must come after all tokens"),
    "arbitrary": ((Q, Q, Q), {"attn_mask_type": "arbitrary"}, TypeError, r"attention_mask: must be a bool tensor"),
    "thd kind": ((FLAT,) * 3, {"qkv_format": "thd", **PAIR}, ValueError, "attn_mask_type: must be a padding kind"),
    "thd cu": ((FLAT,) * 3, {"qkv_format": "thd", **PADDED}, TypeError, "cu_seqlens_q: must be an int32 tensor"),
    "longest": ((Q, Q, Q), {"max_seqlen_q": 9}, ValueError, r"max_seqlen_q: must be None or the length .* \(got 9\)"),
    "bias": ((Q, Q, Q), {"core_attention_bias": Q}, ValueError, "core_attention_bias: must not be given with"),
    "no bias": ((Q, Q, Q), {"core_attention_bias_type": "pre_scale_bias"}, ValueError, "core_attention_bias: must be"),
    "bias shape": ((Q, Q, Q), {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": Q[0, :3, :1, :7]},
                   ValueError, "core_attention_bias: dimension 0 must be 1 or num_heads_q = 4"),
    "slopes": ((Q, Q, Q), {"alibi_slopes": torch.ones(4)}, ValueError, "alibi_slopes: must not be given with"),
    "window": ((Q, Q, Q), {"window_size": (-1, 3)}, ValueError, r"window_size: must be \(-1, 0\) or \(>=0, 0\)"),
    "cache": ((Q, Q, Q), {"inference_params": object()}, NotImplementedError, "inference_params: tilewise.kv_cache_"),
    "fp8": ((Q, Q, Q), {"fp8_output": True}, NotImplementedError, "fp8_output: FP8 attention is not supported"),
    "score_mod": ((Q, Q, Q), {"score_mod": abs}, NotImplementedError, "score_mod: use core_attention_bias"),
    "delta": ((Q, Q, Q), {"g": Q}, NotImplementedError, "g: Gated DeltaNet is not supported"),
    "unknown": ((Q, Q, Q), {"window": 3}, TypeError, r"unexpected keyword argument 'window'; did you mean window_size"),
    "packed twice": ((Q, None, None), {"qkv_layer": PACKED}, ValueError, "qkv_layer: must replace"),
    "packed shape": ((Q, None, None), {"kv_layer": PACKED}, ValueError, "kv_layer: must have size 2"),
    "packed axis": ((), {"qkv_layer": PACKED, "qkv_interleave_dim": 2}, ValueError,
                    r"qkv_interleave_dim: must be -3 or -2 \(got 2\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_refused_modules(name):
    made, kind, message = MADE[name]
    with pytest.raises(kind, match=message):
        DotProductAttention(4, 16, **made)


@pytest.mark.parametrize("name", CALLED)
def test_refused_calls(name):
    tensors, options, kind, message = CALLED[name]
    with pytest.raises(kind, match=message):
        DotProductAttention(4, 16, qkv_format="bshd")(*tensors, **options)


def test_dropout_of_everything_is_refused():
    with pytest.raises(ValueError, match=r"attention_dropout: must be"):
        DotProductAttention(4, 16, qkv_format="bshd", attention_dropout=1.0)(Q, Q, Q)
