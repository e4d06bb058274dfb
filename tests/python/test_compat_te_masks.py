# Transformer Engine's masks by the drop-in against the definition of each: every kind with every window, diagonal and
# pair of lengths, cell by cell, since values that are unit vectors make of the result the weights themselves.
"""The mask table of tilewise.compat.transformer_engine."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from te_reference import KINDS, attend, lengths_to_cu, to_format, visible  # noqa: E402

from tilewise.compat.transformer_engine import DotProductAttention, masks  # noqa: E402
from tilewise.compat.transformer_engine.masks import resolve  # noqa: E402

SIZES = [(5, 5), (4, 7), (7, 4), (1, 6)]
USED = {(5, 5): [(5, 5), (3, 4)], (4, 7): [(2, 7), (4, 1)], (7, 4): [(7, 0), (5, 2)], (1, 6): [(1, 4), (0, 6)]}


def _windows(kind):
    sides = [0] if "causal" in kind else [0, 2]
    return [None, *((left, right) for left in (0, 2, 9) for right in sides)]


def _cell_calls(kind):
    """(window, bottom_right_diagonal, sizes) of every combination."""
    return [(w, d, s) for w in _windows(kind) for d in (None, False, True) for s in SIZES]


@pytest.mark.parametrize("qkv_format", ["bshd", "sbhd"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_of_the_mask_table(kind, qkv_format):
    torch.manual_seed(0)
    for window, diagonal, sizes in _cell_calls(kind):
        cells = torch.stack([visible(kind, window, diagonal, sizes, used) for used in USED[sizes]])[:, None]
        q, k = (torch.randn(2, n, 2, 8) for n in sizes)
        v = torch.eye(sizes[1])[None, :, None].expand(2, -1, 2, -1)  # out is the weights themselves
        given = {}
        if "padding" in kind:
            given["cu_seqlens_q"], given["cu_seqlens_kv"] = (lengths_to_cu(n) for n in zip(*USED[sizes]))
        if kind == "arbitrary":
            hidden = torch.rand(2, 1, *sizes) < 0.3
            given["attention_mask"], cells = hidden, cells & ~hidden
        dpa = DotProductAttention(
            2,
            (8, sizes[1]),
            qkv_format=qkv_format,
            attn_mask_type=kind,
            window_size=window,
            bottom_right_diagonal=diagonal,
        )
        weights = to_format(dpa(*(to_format(x, qkv_format) for x in (q, k, v)), **given), qkv_format).unflatten(
            2, (2, -1)
        )
        exact = attend(q.double(), k.double(), v.double(), cells).unflatten(2, (2, -1))
        text = f"{kind} window={window} bottom_right_diagonal={diagonal} sizes={sizes}"
        assert ((weights != 0) == cells.transpose(1, 2).expand_as(weights)).all(), text
        assert (weights.double() - exact).abs().max() < 1e-5, text


@pytest.mark.parametrize("padded", [False, True], ids=["dense", "between"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "padding" in kind])
def test_every_cell_of_packed_sequences(kind, padded):
    torch.manual_seed(0)
    used = [(5, 5), (4, 7), (7, 4), (0, 3), (3, 0), (1, 6)]
    gaps = [2, 0, 1, 1, 0, 3] if padded else [0] * 6
    starts = [lengths_to_cu([n + gap for n, gap in zip(side, gaps)]) for side in zip(*used)]
    cu_q, cu_kv = (lengths_to_cu(side) for side in zip(*used))
    q, k = (torch.randn(int(start[-1]), 2, 8) for start in starts)
    v = torch.randn(k.shape[0], 2, 8)
    given = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv, "max_seqlen_q": 7, "max_seqlen_kv": 7}
    if padded:
        given.update(cu_seqlens_q_padded=starts[0], cu_seqlens_kv_padded=starts[1], pad_between_seqs=True)
    for window in _windows(kind):
        for diagonal in (None, False, True):
            dpa = DotProductAttention(
                2, 8, qkv_format="thd", attn_mask_type=kind, window_size=window, bottom_right_diagonal=diagonal
            )
            out = dpa(q, k, v, **given)
            for b, sizes in enumerate(used):
                at_q, at_k = (slice(int(start[b]), int(start[b]) + n) for start, n in zip(starts, sizes))
                cells = visible(kind, window, diagonal, sizes, sizes)
                exact = attend(*(x[None].double() for x in (q[at_q], k[at_k], v[at_k])), cells)[0]
                text = f"{kind} window={window} diagonal={diagonal} sequence {b}"
                assert torch.allclose(out[at_q].double(), exact, rtol=0.0, atol=1e-5), text
                assert not out[at_q.stop : int(starts[0][b + 1])].any()


@pytest.mark.parametrize("spelling", ["padding,causal", "causal,padding", "padding_causal", "causal_padding"])
def test_spellings(spelling):
    assert resolve(spelling, None, None) == resolve("padding_causal", None, None)


# kind: (window_size as given, what becomes of it; None: refused)
WINDOWS = {
    "causal": {(-1, 0): (-1, 0), (-1, -1): (-1, 0), (3, 0): (3, 0), (3, 2): (3, 0), (3, -1): (3, 0), (-1, 2): None},
    "no_mask": {(-1, -1): (-1, -1), (-1, 0): (-1, -1), (3, 2): (3, 2), (0, 0): (0, 0), (3, -1): None, (-1, 2): None},
}


@pytest.mark.parametrize(("kind", "window"), [(kind, window) for kind in WINDOWS for window in WINDOWS[kind]])
def test_windows_are_set_right_or_refused(kind, window):
    expected = WINDOWS[kind][window]
    masks._resolved.cache_clear()  # warnings come once
    if expected is None:
        with pytest.raises(ValueError, match=rf"window_size: must be .* with attn_mask_type={kind} \(got"):
            resolve(kind, window, None)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mask = resolve(kind, list(window), None)
    assert (mask.left, mask.right) == expected
    assert bool(caught) == (expected != window)


BAD = {
    "kind": (("causal_top_left", None, None), ValueError, r"attn_mask_type: must be one of 'no_mask', .* \(got"),
    "no kind": ((None, None, None), ValueError, "attn_mask_type: must be one of"),
    "window": (("no_mask", 3, None), TypeError, r"window_size: must be a pair"),
    "three sides": (("no_mask", (1, 2, 3), None), ValueError, r"window_size: must be a pair .* \(got 3 values\)"),
    "diagonal": (("no_mask", None, 1), TypeError, r"bottom_right_diagonal: must be True or False \(got int\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_masks(name):
    arguments, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        resolve(*arguments)
