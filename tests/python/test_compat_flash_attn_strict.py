# What flash_attn's kernels do not take and the interface means plainly: honoured, against formulas in float64, and
# refused under TILEWISE_FLASH_ATTN_STRICT=1 (whose words test_compat_flash_attn_modules.py and _kvcache.py check).
"""Limits that are not the interface's."""

import itertools

import pytest
import torch
from flash_attn_module_cases import attention, band, rotated

import tilewise.compat.flash_attn as flash_attn
import tilewise.compat.flash_attn_3 as flash_attn_3
from tilewise.compat.flash_attn.flash_attn_interface import flash_attn_gpu


def _tensors(*shapes, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    ("dtype", "dim", "dim_v"),
    [(torch.float32, 32, 32), (torch.float64, 32, 32), (torch.float32, 264, 264), (torch.bfloat16, 320, 320),
     (torch.bfloat16, 32, 64), (torch.float32, 48, 16)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("module", [flash_attn, flash_attn_3])
def test_dtypes_and_head_dims(dtype, dim, dim_v, packed, module):
    q, k, v = _tensors((2, 7, 4, dim), (2, 9, 2, dim), (2, 9, 2, dim_v), dtype=dtype)
    if packed:
        starts = torch.tensor([0, 7, 14], dtype=torch.int32), torch.tensor([0, 9, 18], dtype=torch.int32)
        rows = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        out = module.flash_attn_varlen_func(*rows, *starts, 7, 9, causal=True).view(2, 7, 4, dim_v)
    else:
        out = module.flash_attn_func(q, k, v, causal=True)
    want = attention(q, k, v, band(7, 9, True))
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2**-6}[dtype]
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    dout = torch.randn_like(out)
    actual = torch.autograd.grad(out, (q, k, v), dout)
    expected = torch.autograd.grad(want, (q, k, v), dout.double())
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a.double(), b.double(), rtol=8 * tolerance, atol=8 * tolerance)


def test_dropout_under_a_softcap():
    """As dropout of the capped weights: over many draws the mean is the result without dropout."""
    q, k, v = (tensor.detach() for tensor in _tensors((1, 4, 2, 16), (1, 6, 2, 16), (1, 6, 2, 16)))
    torch.manual_seed(0)
    mean = sum(flash_attn.flash_attn_func(q, k, v, dropout_p=0.3, softcap=1.0) for _ in range(2000)) / 2000
    torch.testing.assert_close(mean, flash_attn.flash_attn_func(q, k, v, softcap=1.0), rtol=0, atol=0.15)
    assert not torch.equal(flash_attn.flash_attn_func(q, k, v, dropout_p=0.3, softcap=1.0), mean)


def test_no_sequences():
    empty = [torch.empty(0, 5, 2, 16, requires_grad=True) for _ in range(3)]
    out = flash_attn.flash_attn_func(*empty)
    assert out.shape == (0, 5, 2, 16)
    assert all(gradient.shape == (0, 5, 2, 16) for gradient in torch.autograd.grad(out.sum(), empty))
    assert flash_attn.flash_attn_with_kvcache(*(tensor.detach() for tensor in empty)).shape == (0, 5, 2, 16)


# --- caches ---

LENGTHS = [23, 12]


def _paged(page_size, dtype, interleaved_storage):
    """Pages of keys and values of two sequences in any order, and a table; the unused rows are NaN."""
    torch.manual_seed(0)
    pages = -(-28 // page_size)
    count = 2 * pages + 1
    if interleaved_storage:
        k, v = torch.randn(count, 2, page_size, 2, 16).to(dtype).unbind(1)
    else:
        k, v = (torch.randn(count, page_size, 2, 16).to(dtype) for _ in range(2))
    table = torch.randperm(count)[: 2 * pages].view(2, pages).to(torch.int32)
    for b, length in enumerate(LENGTHS):
        for place in range(length, pages * page_size):
            for cache in (k, v):
                cache[table[b, place // page_size], place % page_size] = torch.nan
    return k, v, table


PAGES = list(itertools.product([1, 3, 16, 100], [None, [5, 0]], [None, "halves", "interleaved"], [False, True]))


@pytest.mark.parametrize(("page_size", "leftpad", "rotary", "interleaved_storage"), PAGES, ids=str)
@pytest.mark.parametrize("new", [0, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_pages_of_any_size_with_left_padding(page_size, leftpad, rotary, interleaved_storage, new, causal):
    if rotary is not None and not new:
        pytest.skip("tables without new keys are refused")
    dtype = torch.float32
    k_cache, v_cache, table = _paged(page_size, dtype, interleaved_storage)
    q = torch.randn(2, 2, 4, 16)
    k, v = (torch.randn(2, new, 2, 16) if new else None for _ in range(2))
    angles = torch.arange(30.0)[:, None] * 10000 ** (-torch.arange(0, 6, 2) / 6)  # 6 columns, not 16
    tables = (None, None) if rotary is None else (angles.cos(), angles.sin())
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    pad = None if leftpad is None else torch.tensor(leftpad, dtype=torch.int32)
    before = [cache[table.long()].flatten(1, 2).clone() for cache in (k_cache, v_cache)]
    out, lse = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, *tables, lengths, cache_leftpad=pad, block_table=table, causal=causal,
        rotary_interleaved=rotary == "interleaved", num_splits=200, return_softmax_lse=True,
    )  # fmt: skip
    after = [cache[table.long()].flatten(1, 2) for cache in (k_cache, v_cache)]
    for b, length in enumerate(LENGTHS):
        first = 0 if leftpad is None else leftpad[b]
        keys, values = (side[b, first:length].double() for side in before)
        queries = q[b].double()
        if k is not None:
            at = torch.arange(length, length + new)
            fresh = k[b]
            if rotary is not None:
                turn = rotary == "interleaved"
                queries = rotated(queries, at if causal else at[:1].expand(2), 6, turn)
                fresh = rotated(fresh, at, 6, turn)
            torch.testing.assert_close(
                after[0][b, length : length + new].double(), fresh.double(), rtol=1e-5, atol=1e-5
            )
            assert torch.equal(after[1][b, length : length + new], v[b])
            keys, values = torch.cat([keys, fresh.double()]), torch.cat([values, v[b].double()])
        want = attention(queries[None], keys[None], values[None], band(2, len(keys), causal))[0]
        torch.testing.assert_close(out[b].double(), want, rtol=1e-5, atol=1e-5)
    assert lse.isfinite().all()
    rest = torch.arange(before[0].shape[1]) >= torch.tensor(LENGTHS)[:, None] + new
    assert all(side[rest].isnan().all() for side in after)  # nothing else is written


@pytest.mark.parametrize("leftpad", [None, [5, 0]])
def test_packed_queries_over_small_pages(leftpad):
    k_cache, v_cache, table = _paged(5, torch.float32, False)
    q = torch.randn(7, 4, 16)
    starts = torch.tensor([0, 4, 7], dtype=torch.int32)
    starts_k = torch.tensor([0, 23, 35], dtype=torch.int32)
    pad = None if leftpad is None else torch.tensor(leftpad, dtype=torch.int32)
    slopes = torch.rand(4)
    out, lse, *_ = flash_attn_gpu.varlen_fwd(
        q, k_cache, v_cache, None, starts, starts_k, None, pad, table, slopes, 4, 23, 0.0, None, False, True, -1, -1,
        0.0, False, None, 5,
    )  # fmt: skip
    assert lse.shape == (4, 7)
    for b, (first, last) in enumerate(((0, 4), (4, 7))):
        begin = 0 if leftpad is None else leftpad[b]
        keys, values = (
            cache[table[b].long()].flatten(0, 1)[None, begin : LENGTHS[b]].double() for cache in (k_cache, v_cache)
        )
        rows, columns = (
            torch.arange(last - first)[:, None] + keys.shape[1] - (last - first),
            torch.arange(keys.shape[1]),
        )
        bias = -slopes.double()[:, None, None] * (rows - columns).abs()
        want = attention(q[None, first:last], keys, values, band(last - first, keys.shape[1], True), bias)[0]
        torch.testing.assert_close(out[first:last].double(), want, rtol=1e-5, atol=1e-5)


def test_pages_that_cannot_be_rows():
    pages = torch.randn(4, 4, 2, 16).as_strided((4, 3, 2, 16), (33 * 3, 32, 16, 1))
    table, lengths = torch.zeros(1, 2, dtype=torch.int32), torch.tensor([4], dtype=torch.int32)
    call = {"cache_seqlens": lengths, "cache_leftpad": lengths - 3, "block_table": table}
    q = torch.randn(1, 1, 2, 16)
    with pytest.raises(NotImplementedError, match=r"cache_leftpad: must come with pages .* \(got strides 99 and 32\)"):
        flash_attn.flash_attn_with_kvcache(q, pages, pages, **call)
    good = torch.randn(4, 2, 3, 2, 16)
    with pytest.raises(NotImplementedError, match="pages of keys and of values that lie equally far apart"):
        flash_attn.flash_attn_with_kvcache(q, good[:, 0], good[:, 0].contiguous(), **call)


def test_tables_shorter_than_the_cache():
    """They serve as far as they reach, and a step beyond is refused before anything is written."""
    torch.manual_seed(0)
    cache = [torch.randn(1, 64, 2, 16) for _ in range(2)]
    q, k, v = torch.randn(1, 1, 2, 16), torch.randn(1, 1, 2, 16), torch.randn(1, 1, 2, 16)
    angles = torch.rand(64, 8)
    tables = angles.cos(), angles.sin()
    whole, short = (
        flash_attn.flash_attn_with_kvcache(
            q, *(side.clone() for side in cache), k, v, *(table[:rows] for table in tables), 9, causal=True
        )
        for rows in (64, 10)
    )
    assert torch.equal(whole, short)
    before = [side.clone() for side in cache]
    for lengths in (10, torch.tensor([10], dtype=torch.int32)):
        with pytest.raises(RuntimeError, match=r"cos/sin seqlen must be .* \(got 10 and 64; positions reach 10 \+ 1\)"):
            flash_attn.flash_attn_with_kvcache(q, *cache, k, v, *(table[:10] for table in tables), lengths)
    assert all(map(torch.equal, before, cache))


def test_the_variable(monkeypatch):
    tensors = [torch.ones(1, 2, 1, 8) for _ in range(3)]
    for value in ("", "0"):
        monkeypatch.setenv("TILEWISE_FLASH_ATTN_STRICT", value)
        assert flash_attn.flash_attn_func(*tensors).eq(1).all()
    monkeypatch.setenv("TILEWISE_FLASH_ATTN_STRICT", "yes")
    with pytest.raises(ValueError, match=r"TILEWISE_FLASH_ATTN_STRICT: must be 0 or 1 \(got 'yes'\)"):
        flash_attn.flash_attn_func(*tensors)
