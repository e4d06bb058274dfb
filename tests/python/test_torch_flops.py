# FlopCounterMode over our operators, held against torch's own formulas for attention, and against arithmetic where
# torch has no such operator.
"""FLOP formulas."""

import pytest
import torch
from cases import lengths
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import tilewise
from tilewise._torch import operators


def _counted(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def _qkv(layout="bshd", requires_grad=True, head_dim_v=16):
    shapes = [(2, 24, 4, 16), (2, 40, 2, 16), (2, 40, 2, head_dim_v)]
    order = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}[layout]
    return [torch.randn(shape).permute(order).contiguous().requires_grad_(requires_grad) for shape in shapes]


OPTIONS = {
    "plain": {},
    "causal": {"mask": "causal"},
    "lse": {"return_lse": True},
    "window": {"window": (3, 3)},  # the operator for few options
    "bias": {"bias": torch.randn(24, 40)},  # that for all
    "lengths": {"seqused_k": lengths(3, 8)},
}


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("name", OPTIONS)
def test_as_torch_counts(name, layout):
    """Masks, windows and lengths hide nothing from the count, as is_causal does not."""
    shapes = [tensor.shape for tensor in _qkv("bhsd")]
    expected = sdpa_flop_count(*shapes) + sdpa_backward_flop_count(shapes[0], *shapes)
    assert expected == 7 * 2 * (2 * 4 * 24 * 40 * 16)

    def run():
        out = tilewise.attention(*_qkv(layout), layout=layout, **OPTIONS[name])
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    assert _counted(run) == expected


def test_forward_alone_and_widths():
    q, k, v = _qkv(requires_grad=False, head_dim_v=8)
    forward = 2 * (2 * 4 * 24 * 40) * (16 + 8)
    assert _counted(lambda: tilewise.attention(q, k, v)) == forward
    assert _counted(lambda: tilewise.attention(q, k, v, out=torch.empty(2, 24, 4, 8))) == forward
    meta = [tensor.to("meta") for tensor in (q, k, v)]
    assert _counted(lambda: tilewise.attention(*meta, mask="causal")) == forward


def test_backward_counts_its_widths():
    q, k, v = _qkv(head_dim_v=8)
    out = tilewise.attention(q, k, v)
    assert _counted(lambda: out.sum().backward()) == 2 * (2 * 4 * 24 * 40) * (3 * 16 + 2 * 8)


PACKED = {"layout": "thd", "cu_seqlens_q": lengths(0, 5, 5, 12), "cu_seqlens_k": lengths(0, 7, 9, 20)}


@pytest.mark.parametrize("options", [{}, {"mask": "causal"}, {"alibi_slopes": torch.zeros(4)}])
def test_packed(options):
    """Sequence by sequence, as torch counts jagged tensors."""
    q, k, v = (torch.randn(n, h, 16, requires_grad=True) for n, h in ((12, 4), (20, 2), (20, 2)))
    scores = 5 * 7 + 0 * 2 + 7 * 11
    assert _counted(lambda: tilewise.attention(q, k, v, **PACKED, **options).sum().backward()) == (
        7 * 2 * 4 * scores * 16
    )


def test_packed_on_meta_counts_the_longest():
    q, k, v = (torch.empty(n, 4, 16, device="meta") for n in (12, 20, 20))
    options = {name: value.to("meta") if name != "layout" else value for name, value in PACKED.items()}
    counted = _counted(lambda: tilewise.attention(q, k, v, **options, max_seqlen_q=7, max_seqlen_k=11))
    assert counted == 2 * 2 * 4 * (3 * 7 * 11) * 16


def test_the_operator_for_backward_into_given_memory():
    q, k, v = (torch.randn(2, 8, 4, 16) for _ in range(3))
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    counted = _counted(lambda: operators.backward_out(q, None, q, k, v, out, lse, torch.empty_like(q), None, None))
    assert counted == 5 * 2 * (2 * 4 * 8 * 8 * 16)


def _step(**changes):
    options = {"cache_seqlens": lengths(5, 9), **changes}
    q = options.pop("q", torch.randn(2, 3, 4, 16))
    new = options.pop("new", [torch.randn(2, 3, 2, 16) for _ in range(2)])
    cache = options.pop("cache", [torch.zeros(2, 32, 2, 16) for _ in range(2)])
    return lambda: tilewise.kv_cache_attention(q, *cache, *new, **options)


PAGES = {"cache": [torch.zeros(4, 8, 2, 16) for _ in range(2)], "block_table": lengths(0, 1, 2, 3).view(2, 2)}
STEPS = {
    "plain": ({}, 3 * (8 + 12)),
    "causal": ({"mask": "causal"}, 3 * (8 + 12)),
    "pages": (PAGES, 3 * (8 + 12)),
    "options": ({"softcap": 3.0}, 3 * (8 + 12)),
    "number": ({"cache_seqlens": 4, "mask": "causal"}, 3 * 2 * 7),
    "no new keys": ({"new": [None, None]}, 3 * (5 + 9)),
    "whole cache": ({"new": [None, None], "cache_seqlens": None}, 3 * (32 + 32)),
    "left padding": ({"cache_leftpad": lengths(2, 0)}, 3 * (6 + 12)),
    "no cache": ({"cache_batch_idx": lengths(-1, 1)}, 3 * 12),
    "packed": (
        {"q": torch.randn(5, 4, 16), "new": [torch.randn(5, 2, 16) for _ in range(2)],
         "cu_seqlens_q": lengths(0, 1, 5)},
        1 * 6 + 4 * 13,
    ),
    "out": ({"out": torch.empty(2, 3, 4, 16)}, 3 * (8 + 12)),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_kv_cache_step(name):
    changes, scores = STEPS[name]
    assert _counted(_step(**changes)) == 2 * 2 * 4 * scores * 16


def test_values_within_the_keys():
    cache = torch.zeros(2, 32, 1, 24)
    counted = _counted(
        lambda: tilewise.kv_cache_attention(
            torch.randn(2, 3, 4, 24), cache, None, cache_seqlens=lengths(5, 9), head_dim_v=16
        )
    )
    assert counted == 2 * 4 * 3 * 14 * (24 + 16)
