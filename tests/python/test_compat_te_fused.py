# fused_attn_fwd and fused_attn_bwd against the module and its autograd, which test_compat_te_module.py holds to the
# formulas; what they return beside, and what they refuse.
"""tilewise.compat.transformer_engine's functions."""

import pytest

torch = pytest.importorskip("torch")

from te_reference import KINDS, lengths_to_cu  # noqa: E402

import tilewise  # noqa: E402
from tilewise.compat.transformer_engine import DotProductAttention, fused_attn_bwd, fused_attn_fwd  # noqa: E402

LAYOUTS = {"bshd": "bshd_bshd_bshd", "sbhd": "sbhd_sbhd_sbhd", "thd": "thd_thd_thd"}
CU = [lengths_to_cu(used) for used in ((5, 3), (7, 4))]


def _tensors(qkv_format):
    """q, k, v and the gradient of out; two sequences of up to 5 queries and 7 keys."""
    shapes = {"bshd": ((2, 5), (2, 7)), "sbhd": ((5, 2), (7, 2)), "thd": ((8,), (11,))}[qkv_format]
    return [torch.randn(*shapes[i], heads, 16) for i, heads in ((0, 4), (1, 2), (1, 2), (0, 4))]


def _by_module(qkv_format, tensors, kind, made, given):
    """(out, gradients of q, k, v and the tensors in `given`)."""
    q, k, v, dout = tensors
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    given = dict(given)
    offset = given.pop("softmax_offset", None)
    dpa = DotProductAttention(4, 16, 2, qkv_format=qkv_format, attn_mask_type=kind, **made)
    if offset is not None:
        del dpa.softmax_offset
        dpa.softmax_offset = offset.clone().requires_grad_()
    if "attn_bias" in given:
        bias = given.pop("attn_bias").clone().requires_grad_()
        given["core_attention_bias"] = bias
        leaves.append(bias)
    if offset is not None:
        leaves.append(dpa.softmax_offset)
    given["core_attention_bias_type"] = given.pop("attn_bias_type", "no_bias")
    out = dpa(*leaves[:3], cu_seqlens_q=CU[0], cu_seqlens_kv=CU[1], **given)
    return out, torch.autograd.grad(out, leaves, dout.flatten(-2))


CASES = {
    **{kind: (kind, {}, {}) for kind in KINDS if kind != "arbitrary"},
    "window": ("padding_causal", {"window_size": (2, 0)}, {}),
    "diagonal": ("no_mask", {"window_size": (2, 1), "bottom_right_diagonal": True}, {}),
    "top_left": ("padding", {"window_size": (2, 1), "bottom_right_diagonal": False}, {}),
    "scale": ("padding", {"softmax_scale": 0.6}, {}),
    "alibi": ("padding_causal_bottom_right", {}, {"attn_bias_type": "alibi"}),
    "post_bias": ("padding", {}, {"attn_bias_type": "post_scale_bias", "attn_bias": torch.randn(1, 4, 5, 7)}),
    "pre_bias": ("causal", {}, {"attn_bias_type": "pre_scale_bias", "attn_bias": torch.randn(1, 4, 5, 7)}),
    "off_by_one": ("padding", {"softmax_type": "off-by-one"}, {}),
    "learnable": ("padding", {"softmax_type": "learnable"}, {"softmax_offset": torch.randn(1, 4, 1, 1)}),
    "both": ("padding_causal", {"softmax_type": "learnable"}, {
        "softmax_offset": torch.randn(1, 4, 1, 1), "attn_bias_type": "pre_scale_bias",
        "attn_bias": torch.randn(1, 4, 5, 7),
    }),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "qkv_format"),  # packed sequences are a padding kind
    [
        (name, qkv_format)
        for name in CASES
        for qkv_format in LAYOUTS
        if qkv_format != "thd" or "padding" in CASES[name][0]
    ],
)
def test_the_modules_results(name, qkv_format):
    kind, made, given = CASES[name]
    torch.manual_seed(0)
    tensors = _tensors(qkv_format)
    expected, expected_gradients = _by_module(qkv_format, tensors, kind, made, given)
    options = {**made, "attn_bias_type": given.get("attn_bias_type", "no_bias")}
    scale = {"attn_scale": options.pop("softmax_scale")} if "softmax_scale" in options else {}
    shared = {"qkv_layout": LAYOUTS[qkv_format], "attn_mask_type": kind, **options, **scale}
    q, k, v, dout = tensors
    inputs = {name: given[name] for name in ("attn_bias", "softmax_offset") if name in given}
    out, aux = fused_attn_fwd(True, 5, 7, *CU, q, k, v, torch.float32, None, **inputs, **shared)
    assert torch.equal(out.flatten(-2), expected)
    assert aux[0].shape == ((8, 4, 1) if qkv_format == "thd" else (2, 4, 5, 1))
    assert aux[1].dtype == torch.int64
    assert len(aux) == 2 + len(inputs)
    gradients = fused_attn_bwd(5, 7, *CU, q, k, v, out, dout, torch.float32, None, aux, None, **shared)
    assert len(gradients) == 5
    given_gradients = [gradient for gradient in gradients if gradient is not None]
    assert len(given_gradients) == len(expected_gradients)
    for got, want in zip(given_gradients, expected_gradients):
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_without_training_there_is_one_result():
    q, k, v, _ = _tensors("bshd")
    out, aux = fused_attn_fwd(False, 5, 7, *CU, q.requires_grad_(), k, v, qkv_layout="bshd_bs2hd")
    assert aux is None
    assert not out.requires_grad


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["torchs", "own"])
def test_dropout(generator):
    q, k, v, dout = _tensors("bshd")
    options = {"qkv_layout": "bshd_bshd_bshd", "attn_mask_type": "no_mask", "dropout": 0.4}
    (generator or torch.default_generator).manual_seed(3)
    out, aux = fused_attn_fwd(True, 5, 7, *CU, q, k, v, rng_gen=generator, **options)
    (generator or torch.default_generator).manual_seed(3)
    again, _ = fused_attn_fwd(True, 5, 7, *CU, q, k, v, rng_gen=generator, **options)
    assert torch.equal(out, again)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    expected = tilewise.attention(*leaves, dropout_p=0.4, seed=aux[1])
    assert torch.equal(out, expected)
    gradients = fused_attn_bwd(5, 7, *CU, q, k, v, out, dout, aux_ctx_tensors=aux, **options)
    for got, want in zip(gradients, torch.autograd.grad(expected, leaves, dout)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layout", ["sb3hd", "sbh3d", "bs3hd", "bsh3d", "t3hd", "th3d"])
def test_layouts_of_packed_tensors_name_their_format(layout):
    qkv_format = layout.replace("3", "")
    axis = -3 if layout.endswith("3hd") else -2
    lead = {"sbhd": (7, 2), "bshd": (2, 7), "thd": (14,)}[qkv_format]
    packed = torch.randn(*lead, 3, 4, 16) if axis == -3 else torch.randn(*lead, 4, 3, 16)
    q, k, v = packed.unbind(axis)
    cu = lengths_to_cu([7, 7])
    out, _ = fused_attn_fwd(False, 7, 7, cu, cu, q, k, v, qkv_layout=layout)
    copies = (tensor.contiguous() for tensor in (q, k, v))
    expected, _ = fused_attn_fwd(False, 7, 7, cu, cu, *copies, qkv_layout="_".join([qkv_format] * 3))
    assert torch.equal(out, expected)


REFUSED = {
    "layout": ({"qkv_layout": "bhsd"}, NotImplementedError, r"qkv_layout: must have one of sbhd, bshd and thd"),
    "two formats": ({"qkv_layout": "sbhd_bshd_bshd"}, NotImplementedError, "qkv_layout: must have one of"),
    "pages": ({"page_table_k": CU[0]}, NotImplementedError, "page_table_k: paged caches: use tilewise"),
    "fp8": ({"s_quantizer": object()}, NotImplementedError, "s_quantizer: not supported"),
    "logit": ({"return_max_logit": True}, NotImplementedError, "return_max_logit: not supported"),
    "arbitrary": ({"attn_mask_type": "arbitrary"}, NotImplementedError, "attn_mask_type: arbitrary is"),
    "no bias": ({"attn_bias_type": "pre_scale_bias"}, ValueError, "attn_bias: must be given with attn_bias_type="),
    "bias": ({"attn_bias": torch.zeros(1, 4, 5, 7)}, ValueError, "attn_bias: must not be given with attn_bias_type=no"),
    "offset": ({"softmax_offset": torch.zeros(4)}, ValueError, "softmax_offset: must not be given with softmax"),
    "no offset": ({"softmax_type": "learnable"}, ValueError, "softmax_offset: must be given with softmax_type=le"),
    "dropout": ({"dropout": 1.0}, ValueError, "dropout: must be"),
    "scale": ({"attn_scale": float("inf")}, ValueError, "attn_scale: must be finite"),
    "unknown": ({"softmax_scale": 1.0}, TypeError, "unexpected keyword argument 'softmax_scale'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    options, kind, message = REFUSED[name]
    q, k, v, _ = _tensors("bshd")
    with pytest.raises(kind, match=message):
        fused_attn_fwd(True, 5, 7, *CU, q, k, v, **{"qkv_layout": "bshd_bshd_bshd", **options})


def test_backward_needs_what_the_forward_gave():
    q, k, v, dout = _tensors("bshd")
    out, aux = fused_attn_fwd(True, 5, 7, *CU, q, k, v, qkv_layout="bshd_bshd_bshd")
    for wrong, got in ((None, "NoneType"), (aux[:1], "1")):
        with pytest.raises(ValueError, match=rf"aux_ctx_tensors: must be fused_attn_fwd's 2 tensors \(got {got}\)"):
            fused_attn_bwd(5, 7, *CU, q, k, v, out, dout, aux_ctx_tensors=wrong, qkv_layout="bshd_bshd_bshd")
    with pytest.raises(ValueError, match="o: shape must be"):
        fused_attn_bwd(5, 7, *CU, q, k, v, out[:1], dout, aux_ctx_tensors=aux, qkv_layout="bshd_bshd_bshd")
