# Messages for whoever brings the words, the arrays or the habits of another library.
"""What a call in another library's words is told."""

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from checking import Exporter

import tilewise
from tilewise._keywords import ADVICE, advised_arguments, keywords_of

Q, K = torch.zeros(2, 6, 4, 8), torch.zeros(2, 9, 2, 8)


def _both_kinds(function):
    """The test with torch tensors and with NumPy arrays."""
    return pytest.mark.parametrize("qkv", [(Q, K, K), (Q.numpy(), K.numpy(), K.numpy())], ids=["torch", "numpy"])(
        function
    )


def _refused(pattern, *arguments, exception=TypeError, function=tilewise.attention, **options):
    with pytest.raises(exception, match=pattern):
        function(*arguments, **options)


# --- keywords ---

KEYWORDS = {
    "is_causal": 'mask="causal"',
    "causal": 'mask="causal"',
    "attn_mask": "bias=",
    "attention_mask": "bias=",
    "attn_bias": "bias=",
    "key_padding_mask": "seqused_k=, leftpad_k=",
    "scale": "softmax_scale=",
    "sm_scale": "softmax_scale=",
    "softmax_sclae": "softmax_scale=",
    "dropout": "dropout_p=",
    "p": "dropout_p=",
    "window_size": r"window=\(left, right\)",
    "sliding_window": r"window=\(sliding_window - 1, 0\)",
    "enable_gqa": "leave it out",
    "return_softmax_lse": "return_lse=",
    "return_attn_probs": "return_lse=True",
    "soft_cap": "softcap=",
    "sinks": "sink=",
    "cu_seq_lens_q": "cu_seqlens_q=",
    "Layout": "layout=",
    "backend": "implementation=",
    "no_such_option": "it takes .*mask, alignment, window",
}


@pytest.mark.parametrize("name", KEYWORDS)
@pytest.mark.parametrize("function", [tilewise.attention, tilewise.explain, tilewise.warmup])
@_both_kinds
def test_keywords_of_others(qkv, function, name):
    pattern = rf"^{function.__name__}\(\) got an unexpected keyword argument '{name}'; .*{KEYWORDS[name]}"
    _refused(pattern, *qkv, function=function, **{name: True})
    _refused(pattern, *qkv, function=function, mask="causal", **{name: None})


def test_advice_names_arguments_that_there_are():
    functions = (tilewise.attention, tilewise.kv_cache_attention, tilewise.append_kv, tilewise.route)
    known = [set(keywords_of(function)) for function in functions]
    for name, advice in ADVICE.items():
        assert any(name not in taken and advised_arguments(advice) <= taken for taken in known), name


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("causal", 'use mask="causal"'),
        ("window_size", r"use window=\(left, right\)"),
        ("return_softmax_lse", "use return_lse="),
        ("k_descale", "use k_scale="),
        ("v_descale", "use v_scale="),
        ("page_table", "block_table"),
        ("cache_seqlen", "did you mean cache_seqlens="),
    ],
)
def test_keywords_of_flash_attn_with_kvcache(name, advice):
    call = {"function": tilewise.kv_cache_attention, "cache_seqlens": 3, name: None}
    _refused(rf"^kv_cache_attention\(\) got an unexpected keyword argument '{name}'; .*{advice}", Q, K, K, **call)


def test_slots_by_another_name():
    _refused("'slot_mapping'; use slots=", K, K, K, K, function=tilewise.append_kv, slot_mapping=None)


def test_merge_takes_fewer():
    out, lse = torch.zeros(2, 6, 4, 8), torch.zeros(2, 4, 6)
    got = r"^merge\(\) got an unexpected keyword argument "
    _refused(got + "'sinks'; use sink=", [out], [lse], function=tilewise.merge, sinks=None)
    takes = "outs, lses, sink, layout, return_lse, out, implementation"
    _refused(got + f"'is_causal'; it takes {takes}", [out], [lse], function=tilewise.merge, is_causal=1)
    _refused(got + "'layuot'; did you mean layout=", [out], [lse], function=tilewise.merge, layuot="bshd")
    assert list(inspect.signature(tilewise.merge).parameters) == takes.split(", ")


def test_a_traced_call_says_the_same():
    call = torch.compile(lambda q, k, v: tilewise.attention(q, k, v, is_causal=True), backend="eager")
    with pytest.raises(Exception, match='use mask="causal"'):
        call(Q, K, K)


@pytest.mark.parametrize("options", [{"mask": "casual"}, {"layout": "bsdh"}, {"masc": "causal"}], ids=str)
def test_a_mistyped_word_is_named_though_a_compiler_looks_on(options):
    (name, value), *_ = options.items()
    torch._dynamo.reset()
    call = torch.compile(lambda q, k, v: tilewise.attention(q, k, v, **options), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=rf"{name}: must be one of|unexpected keyword argument .*{name}") as info:
        call(Q, K, K)
    assert value in str(info.value) or name == "masc"
    assert "nb_func" not in str(info.value)


# --- values of other types ---


@_both_kinds
def test_masks(qkv):
    _refused(r"mask: must be .*; an array is given as bias=.* \(got (Tensor|ndarray)\)", *qkv, mask=qkv[0])
    _refused(r"mask: must be .*bias=.* \(got list\)", *qkv, mask=[[True]])
    _refused(r'mask: must be .*; "causal" stands for True.* \(got bool\)', *qkv, mask=True)
    _refused(r'mask: must be .*; "causal" stands for True.* \(got bool\)', *qkv, mask=np.True_)
    _refused(r"mask: must be one of None, 'causal', 'causal_top_left' \(got int\)", *qkv, mask=1)
    meant = r"mask: must be one of .*; did you mean 'causal'\? \(got 'casual'\)"
    _refused(meant, *qkv, exception=ValueError, mask="casual")


@_both_kinds
def test_mistyped_values(qkv):
    for name, value, meant in (
        ("layout", "bsdh", "bshd"),
        ("layout", "BHSD", "bhsd"),
        ("alignment", "topleft", "top_left"),
        ("mask", "causal-top-left", "causal_top_left"),
    ):
        pattern = rf"^{name}: must be one of .*; did you mean '{meant}'\? \(got '{value}'\)$"
        _refused(pattern, *qkv, exception=ValueError, **{name: value})
    _refused(r"layout: must be one of [^;]* \(got 'colour'\)", *qkv, exception=ValueError, layout="colour")
    meant = r"implementation: must name an implementation.*; did you mean reference\? \(got 'refrence'\)"
    _refused(meant, *qkv, exception=ValueError, implementation="refrence")
    backward = {"function": tilewise.attention_backward, "gradients": ["dbais"]}
    lse = qkv[0][..., 0]
    _refused(r"gradients\[0\]: .*; did you mean 'dbias'\?", qkv[0], *qkv, qkv[0], lse, exception=ValueError, **backward)


def test_a_variable_that_nobody_reads_is_logged_once():
    program = (
        "import numpy, tilewise\n"
        "for seqlen in (3, 4):\n"
        "    q = numpy.zeros((1, seqlen, 1, 8), numpy.float32)\n"
        "    tilewise.attention(q, q, q)\n"
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith("TILEWISE_")}
    for log, expected in (("dispatch", 3), ("", 0)):
        variables = {"TILEWISE_CACHEDIR": "/tmp", "TILEWISE_LOG": log}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=bare | variables)
        assert done.returncode == 0, done.stderr
        assert len(done.stderr.splitlines()) == expected, done.stderr
        told = "tilewise: TILEWISE_CACHEDIR: must be a variable that Tilewise reads; did you mean "
        assert done.stderr.startswith(told) == (log == "dispatch")


@_both_kinds
def test_bools_of_numpy_are_bools(qkv):
    out, _ = tilewise.attention(*qkv, return_lse=np.True_)
    assert type(tilewise.attention(*qkv, return_lse=np.False_)) is type(out)
    assert tilewise.attention(*qkv, deterministic=np.True_, batch_invariant=np.bool_(False)).shape == out.shape
    assert "batch_invariant=1" in tilewise.explain(*qkv, batch_invariant=np.True_).problem
    assert tilewise.warmup(*qkv, return_lse=np.True_) is None


@pytest.mark.parametrize("name", ["deterministic", "batch_invariant", "return_lse"])
@pytest.mark.parametrize("value", [0, 1, None, "yes", np.int64(1), np.array([True])], ids=repr)
@_both_kinds
def test_flags(qkv, name, value):
    _refused(rf"{name}: must be True or False \(got ", *qkv, **{name: value})


@pytest.mark.parametrize("name", ["softmax_scale", "softcap", "dropout_p"])
@pytest.mark.parametrize(
    "value",
    ["1", [1.0], 1j, np.complex64(1), True, False, np.True_, np.ones(3), torch.ones(3), torch.tensor(True)],
    ids=repr,
)
@_both_kinds
def test_numbers(qkv, name, value):
    _refused(rf"{name}: must be a number \(got ", *qkv, seed=1, **{name: value})


@_both_kinds
def test_numbers_of_other_libraries(qkv):
    expected = tilewise.attention(*qkv, softmax_scale=0.5, softcap=2.0)
    for half, two in ((np.float32(0.5), np.int64(2)), (torch.tensor(0.5), torch.tensor(2)), (0.5, 2)):
        assert (tilewise.attention(*qkv, softmax_scale=half, softcap=two) == expected).all()


@_both_kinds
def test_integers(qkv):
    for value in (True, np.True_, torch.tensor(True), 1.0, "1"):
        _refused(r"window\[0\]: must be an integer \(got ", *qkv, window=(value, 0))
        _refused(r"window\[1\]: must be an integer \(got ", *qkv, window=[0, value])
        _refused(r"max_seqlen_q: must be an integer \(got ", *qkv, max_seqlen_q=value)
        if not isinstance(value, torch.Tensor):
            _refused(r"seed: must be an integer or .* \(got ", *qkv, dropout_p=0.5, seed=value)
    for value in (3, "ab", np.array([1, 2]), {1: 2}):
        _refused(r"window: must be a pair \(left, right\) of integers \(got ", *qkv, window=value)
    _refused(r"window: must be a pair .*, -1 for unbounded \(got None\)", *qkv, window=(3, None))


# --- arrays ---


def _bfloat16(byte_order):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return Q.numpy().astype(np.dtype(ml_dtypes.bfloat16).newbyteorder(byte_order))


def _float8():
    return Q.numpy().astype(pytest.importorskip("ml_dtypes").float8_e5m2fnuz)


class Tracer(Exporter):
    """Speaks as an array of JAX does while it is traced."""

    dtype = np.dtype(np.float32)

    def __dlpack__(self, **options):
        raise RuntimeError("Abstract tracer value encountered where concrete value is expected\nand so on")


ARRAYS = {
    "big_endian": (lambda: Q.numpy().astype(">f4"), r"numpy.ndarray of dtype float32, big-endian \(>f4\)"),
    "big_endian_bf16": (lambda: _bfloat16(">"), "numpy.ndarray of dtype bfloat16, big-endian"),
    "object": (lambda: Q.numpy().astype(object), "numpy.ndarray of dtype object"),
    "text": (lambda: Q.numpy().astype("U4"), "numpy.ndarray of dtype <U4"),
    "complex": (lambda: Q.numpy().astype(np.complex64), "complex64"),
    "float8": (_float8, "numpy.ndarray of dtype float8_e5m2fnuz"),
    "int16": (lambda: Q.numpy().astype(np.int16), "i16"),
    "uint16": (lambda: Q.numpy().astype(np.uint16), "u16"),
    "exported_float8": (lambda: Exporter(Q.to(torch.float8_e5m2)), "fp8_e5m2"),
    "masked": (lambda: np.ma.masked_array(Q.numpy()), "numpy.ma.*MaskedArray"),
    "list": (lambda: Q.tolist(), "list"),
    "tracer": (
        lambda: Tracer(Q),
        "test_messages.Tracer of dtype float32; __dlpack__ raises RuntimeError: Abstract tracer value [^\n]*$",
    ),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_cannot_be_read(kind):
    make, pattern = ARRAYS[kind]
    array, q, k = make(), Q.numpy(), K.numpy()
    _refused(rf"q: .*\(got {pattern}", array, k, k)
    _refused(rf"k: .*\(got {pattern}", q, array, k)
    _refused(rf"bias: .*\(got {pattern}", q, k, k, bias=array)
    _refused(rf"q: .*\(got {pattern}", array, k, k, function=tilewise.explain)


def _nested(layout):
    return torch.nested.nested_tensor([torch.zeros(3, 4, 8), torch.zeros(5, 4, 8)], layout=layout)


@pytest.mark.filterwarnings("ignore:.*(nested tensors|quantiz|Sparse|torch.quantize)")
@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: Q.to_sparse(), "a tensor of layout torch.sparse_coo"),
        (lambda: Q[0, 0].to_sparse_csr(), "a tensor of layout torch.sparse_csr"),
        (lambda: Q.to_mkldnn(), "a tensor of layout torch._mkldnn"),
        (lambda: _nested(torch.strided), "a nested tensor of layout torch.strided"),
        (lambda: torch.quantize_per_tensor(Q, 1.0, 0, torch.quint8), "a quantized tensor"),
    ],
    ids=["sparse", "csr", "mkldnn", "nested", "quantized"],
)
def test_tensors_that_are_not_dense(make, pattern):
    tensor = make()
    got = rf"must be a dense tensor( like q)? \(got {pattern}\)"
    _refused("q: " + got, tensor, K, K)
    _refused("k: " + got, Q, tensor, K)
    _refused("q: " + got, tensor, K, K, window=(3, -1))
    _refused("bias: " + got, Q, K, K, bias=tensor)
    if tensor.is_floating_point():
        _refused("q: " + got, tensor.requires_grad_(), K, K)
        tensor = tensor.detach()
    _refused(r"outs\[1\]: " + got, [Q, tensor], [Q[:, 0], Q[:, 0]], function=tilewise.merge)
    _refused(rf"q: must be .*{pattern}", tensor, K, K, function=tilewise.explain)


LENGTHS, LSE = torch.zeros(2), torch.zeros(2, 4, 6)
# What each argument takes on the CPU; the arguments of a call of each function, with one of another dtype among them.
TAKEN = {
    "q": ("f32, bf16, f16, f64 or fp8_e4m3", lambda x: (tilewise.attention, (x(Q), K, K), {})),
    "k": ("f32", lambda x: (tilewise.attention, (Q, x(K), K), {})),
    "bias": ("bool or that of q, f32", lambda x: (tilewise.attention, (Q, K, K), {"bias": x(Q[0, 0])})),
    "sink": ("f32", lambda x: (tilewise.attention, (Q, K, K), {"sink": x(LENGTHS)})),
    "seqused_k": ("i32", lambda x: (tilewise.attention, (Q, K, K), {"seqused_k": x(LENGTHS)})),
    "q in attention_backward": (
        "f32, bf16, f16 or f64 in attention_backward",
        lambda x: (tilewise.attention_backward, (x(Q), x(Q), x(K), x(K), x(Q), LSE), {}),
    ),
    "q of a cache": ("f32, bf16 or f16", lambda x: (tilewise.kv_cache_attention, (x(Q), K, K), {})),
    "k_cache": ("that of q and k, f32, or fp8_e4m3", lambda x: (tilewise.kv_cache_attention, (Q, x(K), K), {})),
    "k of append_kv": ("f32, bf16 or f16", lambda x: (tilewise.append_kv, (K, K, x(K), K), {"cache_seqlens": 0})),
    r"outs\[0\]": ("f32, bf16, f16 or f64", lambda x: (tilewise.merge, ([x(Q), x(Q)], [LSE, LSE]), {})),
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "int16", "uint16", "float8_e5m2"])
@pytest.mark.parametrize("argument", TAKEN)
def test_dtypes_that_are_not_taken(argument, dtype):
    taken, make = TAKEN[argument]
    function, tensors, options = make(lambda tensor: tensor.to(getattr(torch, dtype)))
    got = dtype.replace("uint", "u").replace("int", "i").replace("float8_e5m2", "fp8_e5m2")
    pattern = rf"^{argument.split(' ')[0]}: dtype must be {taken} \(got {got}\)$"
    _refused(pattern, *tensors, function=function, **options)
    if dtype == "float8_e5m2":  # NumPy has none
        return

    def array(value):
        if isinstance(value, list):
            return [array(one) for one in value]
        return value.numpy() if isinstance(value, torch.Tensor) else value

    options = {name: array(value) for name, value in options.items()}
    _refused(pattern, *map(array, tensors), function=function, **options)


def test_arrays_of_other_libraries_that_are_not_taken():
    """Results are made before a call is looked at, which must not show."""
    integers, rows = Exporter(Q.int()), Exporter(K)
    pattern = r"^q: dtype must be f32, bf16 or f16 \(got i32\)$"
    _refused(pattern, integers, rows, rows, function=tilewise.kv_cache_attention)
    lse = Exporter(LSE)
    pattern = r"^outs\[0\]: dtype must be f32, bf16, f16 or f64 \(got i32\)$"
    _refused(pattern, [integers, integers], [lse, lse], function=tilewise.merge)


@_both_kinds
def test_strided_rows(qkv):
    def strided(array):
        return array.swapaxes(2, 3)

    q, k, v = qkv
    advice = r"; {0}\.contiguous\(\) in torch or numpy\.ascontiguousarray\({0}\) makes it so$"
    pattern = r"^{0}: the last dimension must be contiguous, stride 1 \(got stride \d+\)" + advice
    _refused(pattern.format("q"), strided(q), strided(q), strided(q), exception=ValueError)
    _refused(pattern.format("v"), q, k, k[..., ::2], exception=ValueError)
    # A copy of what is written would not be the caller's.
    out = strided(q.reshape(2, 6, 8, 4) + 0)
    _refused(r"^out: the last dimension must be contiguous.*\)$", q, k, v, exception=ValueError, out=out)


@pytest.mark.parametrize("place", range(3))
def test_symbolic_tracing(place):
    def traced(x):
        arguments = [Q, K, K]
        arguments[place] = x
        return tilewise.attention(*arguments)

    with pytest.raises(TypeError, match=rf"{'qkv'[place]}: must be .*Proxy; it stands for a tensor while torch.fx"):
        torch.fx.symbolic_trace(traced)


# --- layouts ---


@_both_kinds
def test_layouts_that_fit_better(qkv):
    def shaped(*shapes):
        make = torch.zeros if isinstance(qkv[0], torch.Tensor) else lambda *shape: np.zeros(shape, np.float32)
        return [make(*shape) for shape in shapes]

    sdpa = shaped((2, 8, 100, 64), (2, 2, 77, 64), (2, 2, 77, 64))
    assert tilewise.attention(*sdpa, layout="bhsd").shape == (2, 8, 100, 64)
    for options in ({}, {"mask": "causal"}, {"window": (3, -1)}, {"return_lse": True}):
        _refused(r"got 100 and 77\); q, k and v fit layout=bhsd$", *sdpa, exception=ValueError, **options)
    _refused(r"q, k and v fit layout=bhsd$", *sdpa, exception=ValueError, function=tilewise.explain)
    packed = shaped((100, 2, 8, 64), (77, 2, 2, 64), (77, 2, 2, 64))
    _refused(r"q: rank must be 3.*; q, k and v fit layout=sbhd$", *packed, exception=ValueError, layout="thd")
    # Where batch sizes alone differ, they are what is wrong, and not the order of dimensions.
    for other_batch in (shaped((2, 9, 4, 8), (3, 9, 2, 8), (3, 9, 2, 8)), packed):
        _refused(r"k: shape must be .* \(got \[[\d, ]+\]\)$", *other_batch, exception=ValueError)
    hopeless = shaped((2, 9, 7, 64), (2, 5, 3, 64), (2, 5, 3, 64))
    _refused(r"got 7 and 3\)$", *hopeless, exception=ValueError)
