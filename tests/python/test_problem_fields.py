"""Python's options against the one list of each operation's fields: a new field needs an argument, or a reason here."""

from __future__ import annotations

import inspect

import pytest

import tilewise
from tilewise import _core

# What the arrays themselves say: shapes, dtypes, devices, strides, and which of them are given.
ATTENTION_ARRAYS = {
    "device", "dtype", "batch_size", "seqlen_q", "seqlen_k", "total_q", "total_k", "num_heads_q", "num_heads_k",
    "head_dim", "head_dim_v", "dlse", "unaligned", "bias_unaligned",
}  # fmt: skip
# Fields under another name: (the function that takes it, its argument).
ATTENTION_ARGUMENTS = {
    "clear_rest": (tilewise.attention, "out"),  # of results that are allocated here
    "window_left": (tilewise.attention, "window"),
    "window_right": (tilewise.attention, "window"),
    "seed_tensor": (tilewise.attention, "seed"),
    "softmax_lse": (tilewise.attention, "return_lse"),
    "out_dtype": (tilewise.attention, "out"),
    "tables": (tilewise.attention, "score_mod"),  # what it captures
    "dtables": (tilewise.attention, "score_mod"),  # and of that what requires gradients
    **dict.fromkeys(("top_k", "key_indices_per_head"), (tilewise.attention, "key_indices")),
    **dict.fromkeys(("dq", "dk", "dv", "dbias", "dsink"), (tilewise.attention_backward, "gradients")),
}
KV_CACHE_ARRAYS = {
    "device", "dtype", "cache_dtype", "layout", "batch_size", "seqlen_q", "total_q", "append",
    "num_heads_q", "num_heads_k", "head_dim", "mla", "capacity", "batch_size_cache",
    "page_size", "rotary_dim", "unaligned",
}  # fmt: skip
KV_CACHE_ARGUMENTS = {
    "window_left": (tilewise.kv_cache_attention, "window"),
    "window_right": (tilewise.kv_cache_attention, "window"),
    "softmax_lse": (tilewise.kv_cache_attention, "return_lse"),
    "rotary": (tilewise.kv_cache_attention, "rotary_cos"),
    "scales": (tilewise.kv_cache_attention, "k_scale"),
    "tables": (tilewise.kv_cache_attention, "score_mod"),
    **dict.fromkeys(("top_k", "key_indices_per_head"), (tilewise.kv_cache_attention, "key_indices")),
}
MERGE_ARRAYS = {
    "device", "dtype", "parts_dtype", "parts", "batch_size", "seqlen_q", "total_q", "num_heads_q", "head_dim_v",
    "stacked", "unaligned",
}  # fmt: skip
MERGE_ARGUMENTS = {"softmax_lse": (tilewise.merge, "return_lse")}
ROUTE_ARRAYS = {"device", "dtype", "tokens", "num_experts"}
MERGE_AUTOGRAD = {"dlse", "douts", "dlses", "dsink"}  # autograd asks for them


@pytest.mark.parametrize(
    ("function", "arrays", "arguments"),
    [
        (tilewise.attention, ATTENTION_ARRAYS, ATTENTION_ARGUMENTS),
        (tilewise.kv_cache_attention, KV_CACHE_ARRAYS, KV_CACHE_ARGUMENTS),
        (tilewise.merge, MERGE_ARRAYS | MERGE_AUTOGRAD, MERGE_ARGUMENTS),
        (tilewise.route, ROUTE_ARRAYS, {}),
    ],
    ids=["attention", "kv_cache", "merge", "route"],
)
def test_every_field_has_an_argument(function, arrays, arguments):
    fields = set(_core.problem_fields()[function.__name__.removesuffix("_attention")])
    own = set(inspect.signature(function).parameters)
    assert arrays <= fields
    assert set(arguments) <= fields
    for field in fields - arrays - set(arguments):
        assert field in own, f"{function.__name__}() takes no {field}="
    for taker, argument in arguments.values():
        assert argument in inspect.signature(taker).parameters


@pytest.mark.parametrize(
    ("function", "options", "others"),
    [
        (tilewise.attention, _core.AttentionOptions, {"alignment"}),
        (tilewise.kv_cache_attention, _core.KvCacheOptions, {"k_cache", "v_cache"}),
    ],
    ids=["attention", "kv_cache"],
)
def test_the_core_takes_every_option(function, options, others):
    taken = set(inspect.signature(function).parameters)
    others = others | {"q", "k", "v", "mask", "window", "return_lse", "out", "implementation"}
    assert taken - others <= set(options.keywords())


def test_operations():
    assert sorted(_core.problem_fields()) == ["attention", "kv_cache", "linear", "merge", "moe", "quantize", "route"]
