# Every kind of bad input: the exception's type, and a message with the argument, the expectation
# and the actual value. Each runs on torch tensors and on NumPy arrays alike.
"""Errors of the Python functions."""

import math

import numpy as np
import pytest
import torch
from cases import lengths

import tilewise

NAN, INF = math.nan, math.inf


def _q(*shape, dtype=torch.float32):
    return torch.zeros(shape or (2, 6, 4, 8), dtype=dtype)


def _kv(*shape, dtype=torch.float32):
    return torch.zeros(shape or (2, 9, 2, 8), dtype=dtype)


def _packed(**changes):
    options = {"layout": "thd", "cu_seqlens_q": lengths(0, 2, 6), "cu_seqlens_k": lengths(0, 4, 9), **changes}
    return {name: value for name, value in options.items() if value is not None}


PACKED = (_q(6, 4, 8), _kv(9, 2, 8), _kv(9, 2, 8))
DENSE = (_q(), _kv(), _kv())

# name: (q, k, v), options, exception, pattern of the message
BAD = {
    "q_rank": ((_q(6, 4, 8), _kv(), _kv()), {}, ValueError, r"q: rank must be 4.*got 3"),
    "k_rank": ((_q(), _kv(2, 9, 16), _kv()), {}, ValueError, r"k: rank must be 4.*got 3"),
    "v_rank": ((_q(), _kv(), _kv(1, 2, 9, 2, 8)), {}, ValueError, r"v: rank must be 4.*got 5"),
    "rank_0": ((torch.zeros(()), _kv(), _kv()), {}, ValueError, r"q: rank must be 4.*got 0"),
    "rank_7": ((torch.zeros([1] * 7), _kv(), _kv()), {}, ValueError, r"q: rank must be 0 to 6 \(got 7\)"),
    "batch": (
        (_q(), _kv(3, 9, 2, 8), _kv()),
        {},
        ValueError,
        r"k: shape must be .*= \[2, 9, 2, 8\] \(got \[3, 9, 2, 8\]",
    ),
    "v_length": (
        (_q(), _kv(), _kv(2, 8, 2, 8)),
        {},
        ValueError,
        r"v: shape must be .*\[2, 9, 2, 8\] \(got \[2, 8, 2, 8\]",
    ),
    "head_dim": ((_q(), _kv(2, 9, 2, 16), _kv()), {}, ValueError, r"k: shape must be .*\(got \[2, 9, 2, 16\]"),
    "v_heads": ((_q(), _kv(), _kv(2, 9, 4, 8)), {}, ValueError, r"v: shape must be .*\(got \[2, 9, 4, 8\]"),
    "head_ratio": (
        (_q(), _kv(2, 9, 3, 8), _kv(2, 9, 3, 8)),
        {},
        ValueError,
        r"num_heads_q.*multiple of num_heads_k.*\b4\b.*\b3\b",
    ),
    "no_heads": ((_q(2, 6, 0, 8), _kv(2, 9, 0, 8), _kv(2, 9, 0, 8)), {}, ValueError, r"num_heads.*got 0"),
    "head_dim_0": ((_q(2, 6, 4, 0), _kv(2, 9, 2, 0), _kv()), {}, ValueError, r"head_dim must be.*got 0"),
    "head_dim_577": (
        (_q(1, 1, 1, 577), _kv(1, 1, 1, 577), _kv(1, 1, 1, 8)),
        {},
        ValueError,
        r"head_dim must be <= 576 \(got 577\)",
    ),
    "head_dim_v_513": (
        (_q(1, 1, 1, 8), _kv(1, 1, 1, 8), _kv(1, 1, 1, 513)),
        {},
        ValueError,
        r"head_dim_v must be <= 512 \(got 513\)",
    ),
    "q_integers": ([tensor.int() for tensor in DENSE], {}, TypeError, r"q: dtype must be.*got i32"),
    "k_dtype": ((_q(), _kv(dtype=torch.float16), _kv()), {}, TypeError, r"k: dtype must be f32 \(got f16\)"),
    "v_dtype": ((_q(), _kv(), _kv(dtype=torch.float16)), {}, TypeError, r"v: dtype must be f32 \(got f16\)"),
    "unknown_dtype": (
        (_q(), _kv(dtype=torch.complex64), _kv()),
        {},
        TypeError,
        r"k: dtype must be f32 \(got complex64\)",
    ),
    "q_stride": (
        (_q(2, 6, 8, 4).transpose(2, 3), _kv(), _kv()),
        {},
        ValueError,
        r"q: the last dimension must be contiguous, stride 1 \(got stride 4\)",
    ),
    "k_stride": (
        (_q(), _kv(2, 9, 2, 16)[..., ::2], _kv()),
        {},
        ValueError,
        r"k: the last dimension must be contiguous, stride 1 \(got stride 2\)",
    ),
    "window_left": (DENSE, {"window": (-2, 0)}, ValueError, r"window_left: must be.*got -2"),
    "window_right": (DENSE, {"window": (0, -5)}, ValueError, r"window_right: must be.*got -5"),
    "window_type": (DENSE, {"window": (1.5, 0)}, TypeError, r"window\[0\]: must be an integer \(got float\)"),
    "window_single": (DENSE, {"window": 4}, TypeError, r"window: must be a pair.*got int"),
    "window_length": (DENSE, {"window": (1, 2, 3)}, ValueError, r"window: must be a pair.*got 3 values"),
    "window_huge": (DENSE, {"window": (2**70, 0)}, ValueError, r"window\[0\]: must fit in 64 bits"),
    "causal_right": (DENSE, {"mask": "causal", "window": (-1, 3)}, ValueError, r"window_right: .*causal.*got 3"),
    "scale_nan": (DENSE, {"softmax_scale": NAN}, ValueError, r"softmax_scale: must be finite.*\(got nan\)"),
    "scale_infinite": (DENSE, {"softmax_scale": -INF}, ValueError, r"softmax_scale: must be finite.*\(got -inf\)"),
    "scale_text": (DENSE, {"softmax_scale": "big"}, TypeError, r"softmax_scale: must be a number \(got str\)"),
    "softcap": (DENSE, {"softcap": -1.0}, ValueError, r"softcap: must be.*got -1"),
    "softcap_nan": (DENSE, {"softcap": NAN}, ValueError, r"softcap: must be.*got nan"),
    "softcap_type": (DENSE, {"softcap": None}, TypeError, r"softcap: must be a number \(got NoneType\)"),
    "dropout_one": (DENSE, {"dropout_p": 1.0, "seed": 1}, ValueError, r"dropout_p: must be.*got 1"),
    "dropout_negative": (DENSE, {"dropout_p": -0.1, "seed": 1}, ValueError, r"dropout_p: must be.*got -0.1"),
    "dropout_nan": (DENSE, {"dropout_p": NAN, "seed": 1}, ValueError, r"dropout_p: must be.*got nan"),
    "seed_type": (
        DENSE,
        {"dropout_p": 0.1, "seed": "lucky"},
        TypeError,
        r"seed: must be an integer or an int64 tensor \[2\].*got str",
    ),
    "seed_size": (
        DENSE,
        {"dropout_p": 0.1, "seed": 2**64},
        ValueError,
        r"seed: must be .*less than 2\*\*64 \(got 18446744073709551616\)",
    ),
    "seed_dtype": (
        DENSE,
        {"dropout_p": 0.1, "seed": lengths(1, 2)},
        TypeError,
        r"seed_and_offset: dtype must be i64 \(got i32\)",
    ),
    "seed_shape": (
        DENSE,
        {"dropout_p": 0.1, "seed": torch.tensor([1, 2, 3])},
        ValueError,
        r"seed_and_offset: shape must be.*got \[3\]",
    ),
    "mask": (
        DENSE,
        {"mask": "diagonal"},
        ValueError,
        r"mask: must be one of None, 'causal', 'causal_top_left' \(got 'diagonal'\)",
    ),
    "mask_type": (DENSE, {"mask": True}, TypeError, r"mask: must be one of .*got bool"),
    "mask_array": (
        DENSE,
        {"mask": torch.ones(6, 9, dtype=torch.bool)},
        TypeError,
        r"mask: must be one of .*got (Tensor|ndarray)",
    ),
    "alignment": (
        DENSE,
        {"alignment": "left"},
        ValueError,
        r"alignment: must be one of 'bottom_right', 'top_left'; did you mean 'top_left'\? \(got 'left'\)",
    ),
    "layout": (
        DENSE,
        {"layout": "hsbd"},
        ValueError,
        r"layout: must be one of 'bshd', 'sbhd', 'bhsd', 'thd' \(got 'hsbd'\)",
    ),
    "layout_type": (DENSE, {"layout": 3}, TypeError, r"layout: must be one of .*got int"),
    "layout_array": (DENSE, {"layout": np.ones(3)}, TypeError, r"layout: must be one of .*got ndarray"),
    "flag_type": (DENSE, {"deterministic": 1.5}, TypeError, r"deterministic: must be True or False \(got float\)"),
    "return_lse": (DENSE, {"return_lse": "yes"}, TypeError, r"return_lse: must be True or False \(got str\)"),
    "bias_shape": (
        DENSE,
        {"bias": torch.zeros(6, 8)},
        ValueError,
        r"bias: dimension 1 must be 1 or seqlen_k = 9 \(got 8",
    ),
    "bias_rank": (DENSE, {"bias": torch.zeros(1, 1, 1, 1, 1)}, ValueError, r"bias: rank must be <= 4.*got 5"),
    "bias_dtype": (DENSE, {"bias": torch.zeros(6, 9, dtype=torch.float16)}, TypeError, r"bias: dtype must be.*got f16"),
    "alibi_shape": (
        DENSE,
        {"alibi_slopes": torch.zeros(3)},
        ValueError,
        r"alibi_slopes: shape must be .*= \[4\] \(got \[3\]",
    ),
    "alibi_dtype": (
        DENSE,
        {"alibi_slopes": torch.zeros(4, dtype=torch.float16)},
        TypeError,
        r"alibi_slopes: dtype must be f32 \(got f16\)",
    ),
    "sink_shape": (DENSE, {"sink": torch.zeros(2)}, ValueError, r"sink: shape must be .*= \[4\] \(got \[2\]"),
    "sink_dtype": (
        DENSE,
        {"sink": torch.zeros(4, dtype=torch.float64)},
        TypeError,
        r"sink: dtype must be f32 \(got f64\)",
    ),
    "seqused_dtype": (
        DENSE,
        {"seqused_k": torch.tensor([1, 2])},
        TypeError,
        r"seqused_k: dtype must be i32 \(got i64\)",
    ),
    "seqused_shape": (
        DENSE,
        {"seqused_q": lengths(1, 2, 3)},
        ValueError,
        r"seqused_q: shape must be .*= \[2\] \(got \[3\]",
    ),
    "seqused_range": (DENSE, {"seqused_k": lengths(3, 10)}, ValueError, r"seqused_k\[1\]: must be 0 to 9.*got 10"),
    "seqused_negative": (DENSE, {"seqused_q": lengths(-1, 2)}, ValueError, r"seqused_q\[0\]: must be 0 to 6.*got -1"),
    "leftpad_range": (DENSE, {"leftpad_k": lengths(0, 12)}, ValueError, r"leftpad_k\[1\]: must be 0 to 9.*got 12"),
    "leftpad_and_used": (
        DENSE,
        {"leftpad_k": lengths(0, 5), "seqused_k": lengths(9, 5)},
        ValueError,
        r"(seqused_k|leftpad_k).*\[1\].*got (5|10)",
    ),
    "cu_without_thd": (DENSE, {"cu_seqlens_q": lengths(0, 2)}, ValueError, r"cu_seqlens_q: requires layout=thd"),
    "max_without_thd": (DENSE, {"max_seqlen_k": 9}, ValueError, r"max_seqlen_k: requires layout=thd"),
    "thd_without_cu": (PACKED, _packed(cu_seqlens_q=None), ValueError, r"cu_seqlens_q: must be given with layout=thd"),
    "thd_without_cu_k": (
        PACKED,
        _packed(cu_seqlens_k=None),
        ValueError,
        r"cu_seqlens_k: must be given with layout=thd",
    ),
    "thd_rank": (DENSE, _packed(), ValueError, r"q: rank must be 3.*got 4"),
    "cu_start": (PACKED, _packed(cu_seqlens_q=lengths(1, 2, 6)), ValueError, r"cu_seqlens_q\[0\]: must be 0 \(got 1\)"),
    "cu_decreasing": (
        PACKED,
        _packed(cu_seqlens_k=lengths(0, 5, 4)),
        ValueError,
        r"cu_seqlens_k\[2\]: must be >= cu_seqlens_k\[1\] = 5 \(got 4\)",
    ),
    "cu_past_total": (
        PACKED,
        _packed(cu_seqlens_q=lengths(0, 2, 7)),
        ValueError,
        r"cu_seqlens_q\[2\]: must be <= 6.*got 7",
    ),
    "cu_dtype": (
        PACKED,
        _packed(cu_seqlens_q=torch.tensor([0, 2, 6])),
        TypeError,
        r"cu_seqlens_q: dtype must be i32 \(got i64\)",
    ),
    "cu_shape": (
        PACKED,
        _packed(cu_seqlens_k=lengths(0, 9)),
        ValueError,
        r"cu_seqlens_k: shape must be .*= \[3\] \(got \[2\]",
    ),
    "cu_empty": (PACKED, _packed(cu_seqlens_q=lengths()), ValueError, r"cu_seqlens_q: must have .*got 0"),
    "max_too_small": (
        PACKED,
        _packed(max_seqlen_q=3),
        ValueError,
        r"max_seqlen_q: must be >= every sequence's length \(got 3",
    ),
    "max_type": (PACKED, _packed(max_seqlen_q=3.5), TypeError, r"max_seqlen_q: must be an integer \(got float\)"),
    "implementation": (DENSE, {"implementation": "magic"}, ValueError, r"implementation.*magic"),
    "implementation_refuses": (
        DENSE,
        {"implementation": "cpu.amx_bf16"},
        NotImplementedError,
        r"no implementation accepts attention_forward .*[\s\S]*cpu.amx_bf16: does not support f32",
    ),
    "implementation_type": (
        DENSE,
        {"implementation": 7},
        TypeError,
        r"implementation: must be a name or None \(got int\)",
    ),
    "out_shape": (
        DENSE,
        {"out": torch.zeros(2, 6, 4, 9)},
        ValueError,
        r"out: shape must be .*= \[2, 6, 4, 8\] \(got \[2, 6, 4, 9\]",
    ),
    "out_dtype": (
        DENSE,
        {"out": torch.zeros(2, 6, 4, 8, dtype=torch.float16)},
        TypeError,
        r"out: dtype must be f32 \(got f16\)",
    ),
}


def _to_numpy(value):
    return value.numpy() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", ["torch", "torch_grad", "numpy"])
def test_bad_call(name, kind):
    tensors, options, exception, pattern = BAD[name]
    if kind == "numpy":
        tensors = [_to_numpy(tensor) for tensor in tensors]
        options = {key: _to_numpy(value) for key, value in options.items()}
    elif kind == "torch_grad":
        if "out" in options or not tensors[0].is_floating_point():
            pytest.skip("refused for requiring gradients, or cannot require them")
        tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    with pytest.raises(exception, match=pattern) as info:
        tilewise.attention(*tensors, **options)
    assert type(info.value) is exception


def test_absurd_sizes():
    huge = torch.zeros(1).expand(2**31, 2**31, 1, 1)
    with pytest.raises((ValueError, RuntimeError), match=r"[a-z_]+: must "):
        tilewise.attention(huge, huge, huge)
    many, more = (torch.zeros(1).expand(2**power, 1, 1, 1) for power in (40, 41))
    with pytest.raises(ValueError, match=r"k: shape must be"):
        tilewise.attention(many, more, more)
    with pytest.raises(ValueError, match=r"k: shape must be"):
        tilewise.attention(many.numpy(), more.numpy(), more.numpy())


def test_out_refuses_gradients_and_broadcasts():
    q, k, v = DENSE
    with pytest.raises(ValueError, match="out: cannot be given with inputs that require gradients"):
        tilewise.attention(q.clone().requires_grad_(), k, v, out=torch.empty(2, 6, 4, 8))
    with pytest.raises(ValueError, match=r"out: an output must not be broadcast \(got stride 0 in dimension 1"):
        tilewise.attention(q, k, v, out=torch.zeros(2, 1, 4, 8).expand(2, 6, 4, 8))


def test_alibi_slopes_have_no_gradient():
    with pytest.raises(NotImplementedError, match="alibi_slopes: has no gradient"):
        tilewise.attention(*DENSE, alibi_slopes=torch.zeros(4, requires_grad=True))


@pytest.mark.parametrize("value", [[[1.0]], "text", 3, None, object()], ids=lambda value: type(value).__name__)
def test_not_an_array(value):
    q, k, v = DENSE
    with pytest.raises(TypeError, match=r"q: must be an array that supports DLPack"):
        tilewise.attention(value, k, v)
    with pytest.raises(TypeError, match=r"k: must be a torch tensor like q"):
        tilewise.attention(q, value, v)
    with pytest.raises(TypeError, match=r"v: must be an array that supports DLPack"):
        tilewise.attention(q.numpy(), k.numpy(), value)


@pytest.mark.parametrize("name", ["k", "v", "bias", "sink", "alibi_slopes", "cu_seqlens_q", "seqused_k", "leftpad_k"])
def test_numpy_beside_torch(name):
    arguments = dict(zip("qkv", DENSE)) | {name: np.zeros((2, 9, 2, 8), np.float32)}
    with pytest.raises(TypeError, match=rf"{name}: must be a torch tensor like q \(got numpy.ndarray\)"):
        tilewise.attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


def test_devices_must_agree():
    q, k, v = DENSE
    with pytest.raises(TypeError, match=r"k: must be on (cpu|meta)"):
        tilewise.attention(q, k.to("meta"), v)
    lengths, seed = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    options = {"bias": torch.zeros(6, 9), "alibi_slopes": torch.zeros(4), "seqused_k": lengths, "seed": seed}
    for name, tensor in options.items():
        with pytest.raises(TypeError, match=rf"{name}: must be on"):
            tilewise.attention(q, k, v, dropout_p=0.5, **{name: tensor.to("meta")})
    with pytest.raises(TypeError, match=r"q: must be a torch tensor as k is \(got ndarray\)"):
        tilewise.attention(q.numpy(), k, v)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("", "operation"),
        ("attention_sideways seqlen_q=4", "attention_sideways"),
        ("attention_forward seqlen_q=four head_dim=8", "four"),
        ("attention_forward seqlen_q=4 head_dim=8 flavour=sour", "flavour"),
        ("attention_forward seqlen_q=4 head_dim=8 seqlen_q=5", "seqlen_q"),
        ("attention_forward seqlen_q=4 head_dim=640", r"head_dim must be <= 576 \(got 640\)"),
        ("attention_forward seqlen_q=99999999999999999999 head_dim=8", "99999999999999999999"),
        ("attention_forward seqlen_q=4 head_dim=8 mask=causal window_right=2", "window_right"),
        ("attention_forward seqlen_q=4 head_dim=8 dtype=f8", "f8"),
        ("attention_forward seqlen_q=4 head_dim=8 \0", "."),
    ],
)
def test_problem_text(text, pattern):
    with pytest.raises(ValueError, match=pattern):
        tilewise.explain(text)


@pytest.mark.parametrize("convert", [lambda tensor: tensor, lambda tensor: tensor.numpy()], ids=["torch", "numpy"])
def test_merge(convert):
    out, lse = convert(torch.zeros(2, 6, 4, 8)), convert(torch.zeros(2, 4, 6))
    cases = [
        (([], []), {}, ValueError, r"lses: must have as many arrays as outs.*got 0 and 0"),
        (([out], []), {}, ValueError, r"lses: must have as many arrays as outs.*got 1 and 0"),
        (
            (3, [lse]),
            {},
            TypeError,
            r"outs: must be a list or tuple of arrays, or one array \[parts, ...\] \(got int\)",
        ),
        ((out, [lse]), {}, TypeError, r"lses: must be one array \[parts, ...\] as outs is \(got list\)"),
        (([out], lse), {}, TypeError, r"lses: must be a list or tuple"),
        ((out, lse), {}, ValueError, r"outs: rank must be 5, \[parts, ...\] of layout bshd \(got 4\); parts that"),
        (([out[None]], [lse[None]]), {}, ValueError, r"outs\[0\]: rank must be 4 \(got 5\); a stacked array goes"),
        ((out[None], lse), {}, ValueError, r"lses: shape must be \[parts, batch_size, num_heads_q, seqlen_q\]"),
        ((out[:0][None], lse[:0][None]), {"out": out}, ValueError, r"outs: shape must be"),
        ((out[None][:0], lse[None][:0]), {}, ValueError, r"outs: must hold at least one partial result"),
        (([out], [lse]), {"return_lse": 1}, TypeError, r"return_lse: must be True or False"),
        (([out], [lse]), {"implementation": 1}, TypeError, r"implementation: must be a name"),
        (([out], [lse]), {"implementation": "cpu.avx2"}, ValueError, r"an implementation of merge: .*\(got 'cpu.avx2'"),
        (([out], [lse]), {"out": out}, ValueError, r"out: must not overlap outs\[0\]"),
        (([out], [lse]), {"out": out[:, :5]}, ValueError, r"outs\[0\]: shape must be"),
        (([out], [lse]), {"out": 3}, TypeError, r"out: must be"),
        (([out, 3], [lse, lse]), {}, TypeError, r"outs\[1\]: must be"),
        (([out, out], [lse, convert(torch.zeros(2, 4, 5))]), {}, ValueError, r"lses\[1\]: shape must be"),
        (([out, convert(torch.zeros(2, 6, 4, 9))], [lse, lse]), {}, ValueError, r"outs\[1\]: shape must be"),
        (([out, convert(torch.zeros(2, 6, 4, 8).half())], [lse, lse]), {}, TypeError, r"outs\[1\]: dtype must be"),
        (([out], [lse]), {"sink": convert(torch.zeros(3))}, ValueError, r"sink: shape must be"),
        (([out], [lse]), {"layout": "dhsb"}, ValueError, r"layout: must be one of"),
    ]
    for arguments, options, exception, pattern in cases:
        with pytest.raises(exception, match=pattern):
            tilewise.merge(*arguments, **options)


def test_merge_of_inputs_that_require_gradients_writes_nowhere():
    out, lse = torch.zeros(2, 6, 4, 8, requires_grad=True), torch.zeros(2, 4, 6)
    with pytest.raises(ValueError, match="out: cannot be given with inputs that require gradients"):
        tilewise.merge([out], [lse], out=torch.empty_like(out))
    with torch.no_grad():
        tilewise.merge([out], [lse], out=torch.empty_like(out))
