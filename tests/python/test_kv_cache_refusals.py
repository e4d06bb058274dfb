"""What kv_cache_attention() and append_kv() refuse: the exception, its message, and that no byte has changed.

Each mistake is made in torch tensors and in NumPy arrays.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import lengths

import tilewise

FP8 = torch.float8_e4m3fn
TABLE = torch.tensor([[3, 6, -1], [1, -7, 99]], dtype=torch.int32)


def _call(cache=torch.float32, contiguous=False):
    """Two sequences of one new key each: 8 pages of 4 places, or 12 places a sequence."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    shape = (2, 12, 2, 8) if contiguous else (8, 4, 2, 8)
    call = {
        "q": normal(2, 1, 4, 8),
        "k_cache": normal(*shape).to(cache),
        "v_cache": normal(*shape).to(cache),
        "k": normal(2, 1, 2, 8),
        "v": normal(2, 1, 2, 8),
        "cache_seqlens": lengths(5, 0),
    }
    return call if contiguous else {**call, "block_table": TABLE.clone()}


def _rotary(rows=16, dim=8, **options):
    return {"rotary_cos": torch.ones(rows, dim // 2), "rotary_sin": torch.zeros(rows, dim // 2), **options}


def _caches(dtype):
    return {name: torch.zeros(8, 4, 2, 8).to(dtype) for name in ("k_cache", "v_cache")}


def _table(at, page):
    table = TABLE.clone()
    table.view(-1)[at] = page
    return {"block_table": table}


def _sharing(call, name, other):
    """`name` on the first elements of `other`."""
    return {name: call[other].view(-1)[: call[name].numel()].view(call[name].shape)}


TOKEN_SCALES = {"k_scale": torch.ones(8, 4, 2), "v_scale": torch.ones(8, 4, 2)}
KINDS = {"mla": {"v_cache": None, "v": None}, "slots": {"cache_seqlens": None, "block_table": None}}

# name: (form of the good call, what changes in it, exception, pattern of the message)
BAD = {
    "page": ({}, _table(1, 8), ValueError, r"block_table\[0\]\[1\]: must be 0 to 7, a page \(got 8\)"),
    "negative_page": ({}, _table(3, -1), ValueError, r"block_table\[1\]\[0\]: must be 0 to 7, a page \(got -1\)"),
    "table_i64": ({}, {"block_table": TABLE.long()}, TypeError, r"block_table: dtype must be i32 \(got i64\)"),
    "table_rows": ({}, {"block_table": TABLE[:1]}, ValueError, r"block_table: shape must be .*\(got \[1, 3\]"),
    "table_short": (
        {},
        {"block_table": TABLE[:, :1].contiguous()},
        ValueError,
        r"cache_seqlens\[0\]: must be <= 4, the places that a row of block_table has \(got 5\)",
    ),
    "beyond": ({}, {"cache_seqlens": lengths(13, 0)}, ValueError, r"cache_seqlens\[0\]: must be <= 12.*\(got 13\)"),
    "past_the_end": (
        {},
        {"cache_seqlens": lengths(5, 12)},
        ValueError,
        r"cache_seqlens\[1\]: cache_seqlens \+ seqlen_k_new must be <= 12.*\(got 12 \+ 1\)",
    ),
    "past_the_end_by_number": (
        {"contiguous": True},
        {"cache_seqlens": 12},
        ValueError,
        r"cache_seqlens: cache_seqlens \+ seqlen_k_new must be <= 12, the capacity of the cache \(got 12 \+ 1\)",
    ),
    "lengths_i64": ({}, {"cache_seqlens": torch.tensor([5, 0])}, TypeError, r"cache_seqlens: dtype must be i32"),
    "length_float": ({}, {"cache_seqlens": 5.0}, TypeError, r"cache_seqlens: must be an integer \(got float\)"),
    "no_lengths": ({}, {"cache_seqlens": None}, ValueError, r"cache_seqlens: must be given with new keys, k"),
    "rotary_rows": ({}, _rotary(5), ValueError, r"rotary_cos: must have >= 6 rows.*sequence 0 \(got 5\)"),
    "rotary_wide": ({}, _rotary(dim=10), ValueError, r"rotary_offset: .*<= head_dim = 8.*\(got 0 \+ 10\)"),
    "rotary_offset": ({}, _rotary(rotary_offset=2), ValueError, r"rotary_offset: .*<= head_dim = 8.*\(got 2 \+ 8\)"),
    "rotary_dtype": (
        {},
        {name: table.bfloat16() for name, table in _rotary().items()},
        TypeError,
        r"rotary_cos: dtype must be f32 \(got bf16\)",
    ),
    "rotary_alone": ({}, {"rotary_cos": torch.ones(16, 4)}, ValueError, r"rotary_sin: must be given with the other"),
    "rotary_position": (
        {},
        _rotary(rotary_seqlens=lengths(0, -1)),
        ValueError,
        r"rotary_seqlens\[1\]: must be >= 0 \(got -1\)",
    ),
    "index_and_table": ({}, {"cache_batch_idx": lengths(0, 1)}, ValueError, r"cache_batch_idx: excludes block_table"),
    "padding_and_table": ({}, {"cache_leftpad": lengths(0, 0)}, ValueError, r"cache_leftpad: excludes block_table"),
    "one_cache_twice": (
        {"contiguous": True},
        {"cache_batch_idx": lengths(1, 1)},
        ValueError,
        r"cache_batch_idx\[1\]: must differ from the others' while keys are appended \(got 1, as sequence 0 has\)",
    ),
    "index": (
        {"contiguous": True},
        {"cache_batch_idx": lengths(0, 2)},
        ValueError,
        r"cache_batch_idx\[1\]: must be -1 \(no cache\) or 0 to 1.*\(got 2\)",
    ),
    "padding": (
        {"contiguous": True},
        {"cache_leftpad": lengths(7, 0)},
        ValueError,
        r"cache_leftpad\[0\]: must be 0 to 6.*\(got 7\)",
    ),
    "no_scales": ({"cache": FP8}, {}, ValueError, r"k_scale: must be given with caches in fp8_e4m3 \(got none\)"),
    "one_scale": ({"cache": FP8}, {"k_scale": 1.0}, ValueError, r"v_scale: must be of k_scale's kind, tensor"),
    "scale_of_nothing": ({}, {"k_scale": 1.0, "v_scale": 1.0}, ValueError, r"k_scale: requires caches in fp8_e4m3"),
    "scale_zero": ({"cache": FP8}, {"k_scale": 0, "v_scale": 1}, ValueError, r"k_scale: must be positive.*\(got 0\)"),
    "past_the_end_with_scales": (
        {"cache": FP8},
        {**TOKEN_SCALES, "cache_seqlens": lengths(5, 12)},
        ValueError,
        r"cache_seqlens\[1\]: .*\(got 12 \+ 1\)",
    ),
    "cache_u8": ({}, _caches(torch.uint8), TypeError, r"k_cache: dtype must be that of q and k, f32.*\(got u8\)"),
    "cache_i32": ({}, _caches(torch.int32), TypeError, r"k_cache: dtype must be that of q and k, f32.*\(got i32\)"),
    "cache_i8": ({}, _caches(torch.int8), TypeError, r"k_cache: dtype must be that of q and k, f32.*\(got i8\)"),
    "cache_f16": ({}, _caches(torch.float16), TypeError, r"k_cache: dtype must be that of q and k, f32.*\(got f16\)"),
    "caches_differ": ({}, {"v_cache": torch.zeros(8, 4, 2, 8).half()}, TypeError, r"v_cache: dtype must be f32"),
    "keys_f16": ({}, {"v": torch.zeros(2, 1, 2, 8).half()}, TypeError, r"v: dtype must be f32 \(got f16\)"),
    "k_alone": ({}, {"v": None}, ValueError, r"v: must be given with k \(got k alone\)"),
    "cache_heads": ({}, {"k_cache": torch.zeros(8, 4, 3, 8)}, ValueError, "[kv]_cache: shape must be"),
    "cache_dim": ({}, {"k_cache": torch.zeros(8, 4, 2, 9)}, ValueError, r"k_cache: shape must be .*8\] \(got"),
    "same_caches": ({}, lambda call: {"v_cache": call["k_cache"]}, ValueError, r"k_cache: must not overlap v_cache"),
    "cache_on_k": ({}, lambda call: _sharing(call, "k", "k_cache"), ValueError, "k_cache: must not overlap k in"),
    "cache_on_v": ({}, lambda call: _sharing(call, "v", "v_cache"), ValueError, "v_cache: must not overlap v in"),
}  # fmt: skip
BAD_ATTENTION = {
    "v_within_keys": ({}, {"v_cache": None, "head_dim_v": 8}, ValueError, "v: excludes a call without v_cache"),
    "v_alone": ({}, {"k": None}, ValueError, r"v: requires k \(got v alone\)"),
    "rotary_without_keys": ({}, {**_rotary(), "k": None, "v": None}, ValueError, r"rotary_cos: requires new keys, k"),
    "no_head_dim_v": ({}, KINDS["mla"], ValueError, r"head_dim_v: must be given without a v_cache \(got none\)"),
    "head_dim_v": (
        {},
        {**KINDS["mla"], "head_dim_v": 9},
        ValueError,
        r"head_dim_v: must be <= head_dim = 8 without a v_cache \(got 9\)",
    ),
    "v_scale": ({"cache": FP8}, {**KINDS["mla"], "head_dim_v": 4, "k_scale": 1, "v_scale": 1}, ValueError, "v_scale: "),
    "splits": ({}, {"num_splits": -1}, ValueError, r"num_splits: must be >= 0 \(got -1\)"),
    "splits_float": ({}, {"num_splits": 1.5}, TypeError, r"num_splits: must be an integer \(got float\)"),
    "mask": ({}, {"mask": "causal_top_left"}, ValueError, "mask: must be one of None, 'causal'"),
    "window": ({}, {"mask": "causal", "window": (-1, 3)}, ValueError, r"window_right: must be <= 0.*\(got 3\)"),
    "q_f64": ({}, {"q": torch.zeros(2, 1, 4, 8).double()}, TypeError, r"q: dtype must be f32, bf16 or f16 \(got f64\)"),
    "out_shape": ({}, {"out": torch.zeros(2, 1, 4, 4)}, ValueError, r"out: shape must be .*\(got \[2, 1, 4, 4\]\)"),
    "out_is_q": ({}, lambda call: {"out": call["q"]}, ValueError, r"out: must not overlap q in memory"),
    "out_in_cache": (
        {},
        lambda call: {"out": call["v_cache"].view(-1)[:64].view(2, 1, 4, 8)},
        ValueError,
        r"out: must not overlap v_cache in memory",
    ),
    "cache_on_q": ({}, lambda call: _sharing(call, "q", "k_cache"), ValueError, "k_cache: must not overlap q in"),
    "packed": (
        {},
        lambda call: {name: call[name].flatten(0, 1) for name in "qkv"} | {"cu_seqlens_q": lengths(0, 1, 3)},
        ValueError,
        r"cu_seqlens_q\[2\]: must be <= 2, the rows of its tensor \(got 3\)",
    ),
    "slots": ({}, {"slots": lengths(0, 1)}, TypeError, r"unexpected keyword argument 'slots'"),
}  # fmt: skip
BAD_APPEND = {
    "v_within_keys": ({}, {"v_cache": None}, ValueError, "v: excludes a call without v_cache"),
    "slot": (KINDS["slots"], {"slots": torch.tensor([[31], [32]])}, ValueError, r"slots: .* 0 to 31.*\(got 32 for new"),
    "slot_i32": (KINDS["slots"], {"slots": lengths(-2, 3)[:, None]}, ValueError, r"slots: must be -1.*\(got -2"),
    "slots_i16": (KINDS["slots"], {"slots": torch.zeros(2, 1).short()}, TypeError, r"slots: dtype must be .*\(got i"),
    "slots_shape": (KINDS["slots"], {"slots": lengths(0, 1)}, ValueError, r"slots: shape must be .*\(got \[2\]\)"),
    "slots_and_lengths": (
        {"block_table": None},
        {"slots": torch.tensor([[0], [1]])},
        ValueError,
        r"cache_seqlens: excludes slots \(got both\)",
    ),
    "slots_and_table": (
        {"cache_seqlens": None},
        {"slots": torch.tensor([[0], [1]])},
        ValueError,
        r"block_table: excludes slots \(got both\)",
    ),
    "slots_rotated": (KINDS["slots"], {**_rotary(), "slots": torch.tensor([[0], [1]])}, ValueError, "rotary_seqlens"),
    "mask": ({}, {"mask": "causal"}, TypeError, r"unexpected keyword argument 'mask'"),
}  # fmt: skip
CASES = [
    pytest.param(call, *case, id=f"{call}-{name}")
    for call, cases in (("attend", BAD | BAD_ATTENTION), ("append", BAD | BAD_APPEND))
    for name, case in cases.items()
]


def _to_numpy(tensor):
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.dtype in (FP8, torch.bfloat16):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        kinds = {FP8: (torch.uint8, ml_dtypes.float8_e4m3fn), torch.bfloat16: (torch.int16, ml_dtypes.bfloat16)}
        same_size, kind = kinds[tensor.dtype]
        return tensor.view(same_size).numpy().view(kind)
    return tensor.numpy()


def _bytes(arrays):
    """What the arrays hold; those that share memory do so in both lists alike."""
    return [bytes(np.ascontiguousarray(_to_numpy(array)).view(np.uint8)) for array in arrays if hasattr(array, "shape")]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize(("function", "form", "change", "exception", "message"), CASES)
def test_refused_before_anything_is_written(kind, function, form, change, exception, message):
    call = _call(**{name: value for name, value in form.items() if name in ("cache", "contiguous")})
    call |= {name: value for name, value in form.items() if name not in ("cache", "contiguous")}
    call |= change(call) if callable(change) else change
    if function == "append":
        call.pop("q")
    call = {name: value for name, value in call.items() if value is not None or name in ("v_cache", "k", "v")}
    if kind == "numpy":
        call = {name: _to_numpy(value) for name, value in call.items()}
    before = _bytes(call.values())
    with pytest.raises(exception, match=message) as raised:
        (tilewise.append_kv if function == "append" else tilewise.kv_cache_attention)(**call)
    assert _bytes(call.values()) == before
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz])
def test_other_fp8_is_refused_by_its_name(dtype):
    call = _call() | _caches(dtype) | {"k_scale": 1.0, "v_scale": 1.0}
    name = "fp8_e5m2" if dtype == torch.float8_e5m2 else str(dtype).removeprefix("torch.")  # ours has that name
    with pytest.raises(TypeError, match=rf"k_cache: dtype must be that of q and k, f32, or fp8_e4m3 \(got {name}\)"):
        tilewise.kv_cache_attention(**call)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "k", "v", "out", "sink", "alibi_slopes", "rotary_cos"])
def test_gradients_are_refused(name):
    heads = {"sink": torch.zeros(4), "alibi_slopes": torch.ones(4)}
    call = {**_call(), **_rotary(), **heads, "out": torch.zeros(2, 1, 4, 8)}
    before = _bytes(call.values())
    tensor = call[name].requires_grad_()
    with pytest.raises(NotImplementedError, match=f"{name}: must not require gradients, since the KV cache"):
        tilewise.kv_cache_attention(**call)
    tensor.requires_grad_(False)
    assert _bytes(call.values()) == before


def test_gradients_of_scales_are_refused():
    for shape in ((), (2,), (2, 2), (8, 4, 2)):
        scales = {"k_scale": torch.ones(shape), "v_scale": torch.ones(shape, requires_grad=True)}
        with pytest.raises(NotImplementedError, match="v_scale: must not require gradients"):
            tilewise.kv_cache_attention(**_call(FP8), **scales)


def test_a_cache_that_is_only_read_may_be_shared():
    """Without new keys nothing is written: v may be k, and pages may be the same memory."""
    call = _call() | {"k": None, "v": None}
    alike = tilewise.kv_cache_attention(**(call | {"v_cache": call["k_cache"]}))
    assert torch.equal(alike, tilewise.kv_cache_attention(**(call | {"v_cache": call["k_cache"].clone()})))
    page = torch.randn(1, 4, 2, 8)
    shared, apart = ({"k_cache": t, "v_cache": t} for t in (page.expand(8, 4, 2, 8), page.repeat(8, 1, 1, 1)))
    assert torch.equal(tilewise.kv_cache_attention(**call | shared), tilewise.kv_cache_attention(**call | apart))
