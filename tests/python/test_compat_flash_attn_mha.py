# tilewise.compat.flash_attn.modules.mha against projections and attention in float64: options, gradients, parameters'
# names, padding, packed sequences, generation with caches.
"""MHA."""

import copy
import itertools
import math

import pytest
import torch
from flash_attn_module_cases import attention, band, rotated

from tilewise.compat.flash_attn.modules import mha
from tilewise.compat.flash_attn.utils.generation import InferenceParams

DIM, HEADS = 32, 4


def _linear(x, layer):
    bias = 0.0 if layer.bias is None else layer.bias.double()
    return x.double() @ layer.weight.double().T + bias


def _by_formula(module, x, visible, positions=None, x_kv=None, alibi=None):
    """The layer's output by definition; positions rotate queries and keys."""
    heads, kv_heads, dim = module.num_heads, module.num_heads_kv, module.head_dim
    if module.cross_attn:
        q, kv = _linear(x, module.Wq), _linear(x if x_kv is None else x_kv, module.Wkv)
    else:
        q, kv = _linear(x, module.Wqkv).split([heads * dim, 2 * kv_heads * dim], -1)
    q = q.unflatten(-1, (heads, dim))
    k, v = kv.unflatten(-1, (2, kv_heads, dim)).unbind(-3)
    if positions is not None:
        rotary = module.rotary_emb
        options = {"dim": rotary.dim, "interleaved": rotary.interleaved, "base": rotary.base}
        options |= {"scale_base": rotary.scale_base, "length": x.shape[-2]}
        q, k = rotated(q, positions, **options), rotated(k, positions, keys=True, **options)
    bias = None
    if alibi is not None:
        offset = k.shape[1] - q.shape[1]
        distance = (torch.arange(q.shape[1])[:, None] + offset - torch.arange(k.shape[1])).abs()
        bias = -torch.tensor(alibi, dtype=torch.float64)[:, None, None] * distance
    return _linear(attention(q, k, v, visible, bias, module.inner_attn.softmax_scale).flatten(-2), module.out_proj)


def _same(module, out, want, *inputs):
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=2e-6)
    dout = torch.randn_like(out)
    leaves = [*inputs, *module.parameters()]
    actual = torch.autograd.grad(out, leaves, dout, allow_unused=True)
    expected = torch.autograd.grad(want, leaves, dout.double(), allow_unused=True)
    for a, b in zip(actual, expected):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


CASES = list(itertools.product([False, True], [4, 2, 1], [None, "halves", "interleaved", "xpos"], [False, True]))


@pytest.mark.parametrize(("flash", "kv_heads", "rotary", "causal"), CASES, ids=str)
def test_self_attention(flash, kv_heads, rotary, causal):
    torch.manual_seed(0)
    options = {
        None: {},
        "halves": {"rotary_emb_dim": 8},
        "interleaved": {"rotary_emb_dim": 6, "rotary_emb_interleaved": True, "rotary_emb_base": 100.0},
        "xpos": {"rotary_emb_dim": 8, "rotary_emb_scale_base": 32},
    }[rotary]
    module = mha.MHA(DIM, HEADS, kv_heads, causal=causal, use_flash_attn=flash, softmax_scale=0.3, **options)
    assert list(module.state_dict()) == ["Wqkv.weight", "Wqkv.bias", "out_proj.weight", "out_proj.bias"]
    x = torch.randn(2, 9, DIM, requires_grad=True)
    positions = None if rotary is None else torch.arange(9).expand(2, 9)
    _same(module, module(x), _by_formula(module, x, band(9, 9, causal), positions), x)


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_cross_attention(flash, causal):
    torch.manual_seed(0)
    module = mha.MHA(DIM, HEADS, 2, cross_attn=True, causal=causal, use_flash_attn=flash, qkv_proj_bias=False)
    assert list(module.state_dict()) == ["Wq.weight", "Wkv.weight", "out_proj.weight", "out_proj.bias"]
    x, x_kv = torch.randn(2, 5, DIM, requires_grad=True), torch.randn(2, 9, DIM, requires_grad=True)
    _same(module, module(x, x_kv), _by_formula(module, x, band(5, 9, causal), x_kv=x_kv), x, x_kv)
    subset = slice(1, 3)
    some = _by_formula(module, x[:, subset], band(2, 5, causal), x_kv=x)
    torch.testing.assert_close(module(x, mixer_subset=subset).double(), some, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_padding(flash, kv_heads, causal):
    torch.manual_seed(0)
    module = mha.MHA(DIM, HEADS, kv_heads, causal=causal, use_flash_attn=flash)
    lengths = torch.tensor([7, 4])
    padding = torch.arange(7) < lengths[:, None]
    x = torch.randn(2, 7, DIM, requires_grad=True)
    out = module(x, key_padding_mask=padding)
    if kv_heads == HEADS:
        visible = band(7, 7, causal) & padding[:, None, None]
        _same(module, out, _by_formula(module, x, visible), x)
        return
    # Behind the tokens of a sequence nothing is meant; a causal mask ends at its last token.
    for b, length in enumerate(lengths.tolist()):
        seen = band(7, length, causal)
        seen = torch.nn.functional.pad(seen, (0, 7 - length))
        want = _by_formula(module, x[b : b + 1], seen)
        torch.testing.assert_close(out[b : b + 1].double(), want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("rotary", [0, 8])
@pytest.mark.parametrize("options", [{}, {"window_size": (3, 0)}, {"use_alibi": True}], ids=str)
def test_packed_sequences(kv_heads, rotary, options):
    """Each sequence by itself, rotated from its own start."""
    torch.manual_seed(0)
    module = mha.MHA(DIM, HEADS, kv_heads, causal=True, use_flash_attn=True, rotary_emb_dim=rotary, **options)
    starts = torch.tensor([0, 3, 10], dtype=torch.int32)
    x = torch.randn(10, DIM, requires_grad=True)
    out = module(x, cu_seqlens=starts, max_seqlen=7)
    alibi = mha.get_alibi_slopes(HEADS) if "use_alibi" in options else None
    parts = []
    for first, last in ((0, 3), (3, 10)):
        length = last - first
        positions = torch.arange(length)[None] if rotary else None
        visible = band(length, length, True, options.get("window_size", (-1, -1)))
        parts.append(_by_formula(module, x[None, first:last], visible, positions, alibi=alibi)[0])
    _same(module, out, torch.cat(parts), x)


def test_depthwise_convolution():
    torch.manual_seed(0)
    x = torch.randn(2, 6, DIM, requires_grad=True)
    for kv_heads, names in ((4, ["dwconv_qkv"]), (2, ["dwconv_q", "dwconv_kv"])):
        module = mha.MHA(DIM, HEADS, kv_heads, causal=True, dwconv=True)
        assert [name for name, _ in module.named_children() if name.startswith("dwconv")] == names
        assert module.state_dict()[f"{names[-1]}.weight"].shape[1:] == (1, 3)
        out = module(x)
        # Token t sees tokens t - 2 to t of its own channel, then attention over the past: no later token at all.
        (gradient,) = torch.autograd.grad(out[:, 2].sum(), x, retain_graph=True)
        assert gradient[:, :3].any()
        assert not gradient[:, 3:].any()
        channels = torch.cat([getattr(module, name).weight for name in names])[:, 0].double()
        biases = torch.cat([getattr(module, name).bias for name in names]).double()
        rows = torch.nn.functional.pad(_linear(x, module.Wqkv), (0, 0, 2, 0)).unfold(1, 3, 1)
        convolved = (rows * channels).sum(-1) + biases
        q, kv = convolved.split([DIM, 2 * kv_heads * 8], -1)
        k, v = kv.unflatten(-1, (2, kv_heads, 8)).unbind(-3)
        context = attention(q.unflatten(-1, (HEADS, 8)), k, v, band(6, 6, True)).flatten(-2)
        torch.testing.assert_close(out.double(), _linear(context, module.out_proj), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("rotary", ["none", "halves", "odd", "xpos"])
@pytest.mark.parametrize("lengths", [False, True])
def test_generation(flash, kv_heads, rotary, lengths):
    """Token by token through a cache as in one call over all tokens."""
    if lengths and not flash:
        pytest.skip("caches of several lengths are flash_attn_with_kvcache's")
    torch.manual_seed(0)
    options = {
        "none": {},
        "halves": {"rotary_emb_dim": 8},
        "odd": {"rotary_emb_dim": 6, "rotary_emb_interleaved": True},
        "xpos": {"rotary_emb_dim": 8, "rotary_emb_scale_base": 32},
    }[rotary]
    module = mha.MHA(DIM, HEADS, kv_heads, causal=True, use_flash_attn=flash, layer_idx=3, **options)
    x = torch.randn(2, 8, DIM)
    with torch.no_grad():
        # Tables of xPos are those of max_seqlen, here as there.
        whole = module(x, inference_params=InferenceParams(8, 2))
        if rotary != "xpos":
            torch.testing.assert_close(whole, module(x))
        state = InferenceParams(8, 2)
        parts = []
        for first, last in ((0, 4), (4, 5), (5, 8)):
            state.seqlen_offset = first
            if lengths and first > 0:
                state.lengths_per_sample = torch.tensor([first, first], dtype=torch.int32)
            parts.append(module(x[:, first:last], inference_params=state))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
    assert list(state.key_value_memory_dict) == [3]
    assert state.key_value_memory_dict[3].shape == module.allocate_inference_cache(2, 8).shape == (2, 8, 2, kv_heads, 8)


def test_generation_keeps_to_a_window():
    torch.manual_seed(0)
    module = mha.MHA(DIM, HEADS, causal=True, use_flash_attn=True, layer_idx=0, window_size=(2, 0))
    x = torch.randn(1, 7, DIM)
    with torch.no_grad():
        whole, state = module(x), InferenceParams(8, 1)
        steps = []
        for t in range(7):
            state.seqlen_offset = t
            steps.append(module(x[:, t : t + 1], inference_params=state))
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)
    state.seqlen_offset = 8
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        module(x[:, :1], inference_params=state)


def test_what_else_the_module_does():
    torch.manual_seed(0)
    x = torch.randn(2, 5, DIM, requires_grad=True)
    module = mha.MHA(DIM, HEADS, use_flash_attn=True, return_residual=True, checkpointing=True, fused_bias_fc=True)
    out, same = module(x)
    assert same is x
    plain = copy.deepcopy(module)
    plain.checkpointing = plain.return_residual = False
    _same(module, out, plain(x).double(), x)
    torch.manual_seed(1)
    dropping = mha.MHA(DIM, HEADS, use_flash_attn=True, dropout=0.5)
    assert not torch.equal(dropping(x), dropping(x))
    dropping.eval()
    assert torch.equal(dropping(x), dropping(x))
    half = mha.MHA(DIM, HEADS, use_flash_attn=True, dtype=torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16


def test_compiles():
    torch.manual_seed(0)
    module = mha.MHA(DIM, HEADS, 2, causal=True, use_flash_attn=True, rotary_emb_dim=8)
    x = torch.randn(2, 6, DIM, requires_grad=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    results = [torch.autograd.grad(f(x).square().sum(), (x, *module.parameters())) for f in (module, compiled)]
    torch._dynamo.reset()
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_slopes():
    assert mha.get_alibi_slopes(4) == [0.25, 0.0625, 0.015625, 0.00390625]
    assert mha.get_alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    six = mha.get_alibi_slopes(6)
    assert six[:4] == mha.get_alibi_slopes(4)
    assert six[4:] == mha.get_alibi_slopes(8)[::2][:2]
    assert len(mha.get_alibi_slopes(17)) == 17
    assert math.isclose(mha.get_alibi_slopes(1)[0], 2.0**-8)


def test_refusals():
    x = torch.randn(2, 4, DIM)
    starts = torch.tensor([0, 4, 8], dtype=torch.int32)
    refused = {
        "num_heads: must be a multiple of num_heads_kv": lambda: mha.MHA(DIM, 4, 3),
        "embed_dim: must be a multiple of num_heads": lambda: mha.MHA(DIM, 5),
        "rotary_emb_dim: must be 0 with cross_attn": lambda: mha.MHA(DIM, 4, cross_attn=True, rotary_emb_dim=8),
        "use_alibi: must come with use_flash_attn=True": lambda: mha.MHA(DIM, 4, use_alibi=True),
        "window_size: must be": lambda: mha.MHA(DIM, 4, window_size=(3, 0)),
        "cu_seqlens: must come with use_flash_attn": lambda: mha.MHA(DIM, 4)(x[0], cu_seqlens=starts, max_seqlen=4),
        "max_seqlen: must be given": lambda: mha.MHA(DIM, 4, use_flash_attn=True)(x[0], cu_seqlens=starts),
        "x_kv: must be None without cross_attn": lambda: mha.MHA(DIM, 4)(x, x),
        "layer_idx: must be given": lambda: mha.MHA(DIM, 4)(x, inference_params=InferenceParams(8, 2)),
        "its cache has 2 sequences of 3": lambda: mha.MHA(DIM, 4, layer_idx=0)(
            x, inference_params=InferenceParams(3, 2)
        ),
    }
    for words, call in refused.items():
        with pytest.raises(AssertionError, match=words):
            call()
    padding = torch.ones(2, 4, dtype=torch.bool)
    windowed = mha.MHA(DIM, 4, 2, use_flash_attn=True, window_size=(2, 0))
    with pytest.raises(NotImplementedError, match=r"window_size: must be .* in Tilewise's flash_attn"):
        windowed(x, key_padding_mask=padding)
