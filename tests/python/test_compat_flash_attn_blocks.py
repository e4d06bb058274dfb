# tilewise.compat.flash_attn.modules.block, mlp and embedding and layers.patch_embed against formulas: values,
# gradients, parameters' names.
"""Layers of transformers."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tilewise.compat.flash_attn.layers.patch_embed import PatchEmbed
from tilewise.compat.flash_attn.modules import block, embedding, mlp
from tilewise.compat.flash_attn.modules._stochastic_depth import StochasticDepth
from tilewise.compat.flash_attn.ops import rms_norm
from tilewise.compat.flash_attn.ops.triton.layer_norm import RMSNorm

DIM = 8


class _Mixer(nn.Module):
    """Something between tokens that is no attention."""

    def __init__(self, dim, pair=False):
        super().__init__()
        self.proj, self.pair = nn.Linear(dim, dim), pair

    def forward(self, x, mixer_subset=None, shift=0.0):
        out = self.proj(x.cumsum(1)) + shift
        out = out if mixer_subset is None else out[:, mixer_subset]
        return (out, x) if self.pair else out


def _same(outs, wants, leaves):
    douts = [torch.randn_like(out) for out in outs]
    for out, want in zip(outs, wants):
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    actual, expected = (torch.autograd.grad(side, leaves, douts) for side in (outs, wants))
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def _made(kind, **options):
    torch.manual_seed(0)
    pair = options.get("return_residual", False)
    return kind(
        DIM, mixer_cls=partial(_Mixer, pair=pair) if kind is block.Block else _Mixer,
        mlp_cls=partial(mlp.Mlp, hidden_features=12, return_residual=pair), **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "fused", "fp32", "first"),
    list(itertools.product([nn.LayerNorm, RMSNorm, rms_norm.RMSNorm], *[[False, True]] * 3)),
    ids=str,
)
def test_prenorm(norm, fused, fp32, first):
    module = _made(block.Block, norm_cls=norm, fused_dropout_add_ln=fused, residual_in_fp32=fp32)
    x = torch.randn(2, 5, DIM, requires_grad=True)
    residual = None if first else torch.randn(2, 5, DIM, requires_grad=True)
    out, total = module(x, residual, mixer_kwargs={"shift": 0.5})
    summed = x if first else x + residual
    after = module.mixer(module.norm1(summed), shift=0.5)
    want_total = after + summed
    want = module.mlp(module.norm2(want_total))
    leaves = [x, *([] if first else [residual]), *module.parameters()]
    _same([out, total], [want, want_total], leaves)
    some, rest = module(x, residual, mixer_subset=slice(0, 2), mixer_kwargs={"shift": 0.5})
    torch.testing.assert_close(some, out[:, :2])
    torch.testing.assert_close(rest, total[:, :2])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("return_residual", [False, True])
def test_postnorm(fused, return_residual):
    module = _made(block.Block, prenorm=False, fused_dropout_add_ln=fused, return_residual=return_residual)
    x = torch.randn(2, 5, DIM, requires_grad=True)
    out = module(x)
    after = module.norm1(module.mixer.proj(x.cumsum(1)) + x)
    want = module.norm2(module.mlp.fc2(F.gelu(module.mlp.fc1(after))) + after)
    _same([out], [want], [x, *module.parameters()])
    with pytest.raises(AssertionError, match="residual: must be None without prenorm"):
        module(x, x)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_parallel_block(fused, tied, first):
    module = _made(block.ParallelBlock, tied_norm=tied, fused_dropout_add_ln=fused)
    assert hasattr(module, "norm2") != tied
    x, y, residual = (torch.randn(2, 5, DIM, requires_grad=True) for _ in range(3))
    outs = module(x) if first else module(x, y, residual)
    total = x * 1.0 if first else x + y + residual
    norms = module.norm1(total), (module.norm1 if tied else module.norm2)(total)
    wants = module.mixer(norms[0]), module.mlp(norms[1]), total
    leaves = [x, *([] if first else [y, residual]), *module.parameters()]
    _same(outs, wants, leaves)


def test_16_bits_and_names():
    module = _made(block.Block, residual_in_fp32=True, fused_dropout_add_ln=True).bfloat16()
    out, total = module(torch.randn(1, 3, DIM).bfloat16())
    assert (out.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    names = ["mixer.proj", "norm1", "mlp.fc1", "mlp.fc2", "norm2"]
    assert list(module.state_dict()) == [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    whole = block.Block(128)  # with MHA and Mlp
    assert (whole.mixer.num_heads, whole.mlp.fc1.weight.shape) == (2, (512, 128))
    assert whole.allocate_inference_cache(1, 4).shape == (1, 4, 2, 2, 64)
    bare = block.Block(DIM, mixer_cls=_Mixer, mlp_cls=lambda dim: nn.Identity(), sequence_parallel=True,
                       mark_shared_params=True)  # fmt: skip
    assert not hasattr(bare, "norm2")
    assert bare.norm1.weight._sequence_parallel is bare.norm1.bias._shared_params is True
    out, total = bare(torch.ones(1, 2, DIM))
    assert out.shape == total.shape


@pytest.mark.parametrize("fused", [False, True])
def test_drop_path_and_dropout(fused):
    """A sample that is dropped leaves its residual as it is; evaluation drops nothing."""
    module = _made(block.Block, drop_path1=0.5, fused_dropout_add_ln=fused)
    x, residual = torch.randn(64, 3, DIM), torch.randn(64, 3, DIM)
    mixer = module.mixer
    module.mixer = nn.Identity()
    module.mlp = nn.Identity()
    _, total = module(x, residual)
    kept = (total - residual).abs().flatten(1).amax(1) > 1e-6
    torch.testing.assert_close(total[kept], (residual + 2 * x)[kept])
    assert 10 < kept.sum() < 54
    module.mixer = mixer
    torch.testing.assert_close(module.eval()(x, residual)[1], x + residual)
    dropping = _made(block.Block, resid_dropout1=0.5, fused_dropout_add_ln=fused)
    dropping.mlp = nn.Identity()
    zeros = (dropping(torch.ones(8, 9, DIM))[1] == 0).float().mean()
    assert 0.3 < zeros < 0.7


def test_stochastic_depth():
    torch.manual_seed(0)
    for mode, distinct in (("row", 2), ("batch", 1)):
        out = StochasticDepth(0.5, mode)(torch.ones(40, 3))
        assert len({tuple(row) for row in out.tolist()}) == distinct
    assert not StochasticDepth(1.0, "row")(torch.ones(4, 3)).any()
    with pytest.raises(ValueError, match=r"mode: must be one of batch, row \(got 'all'\)"):
        StochasticDepth(0.5, "all")


def test_refusals_of_blocks():
    with pytest.raises(AssertionError, match="residual_in_fp32: must come with prenorm=True"):
        block.Block(DIM, mixer_cls=_Mixer, prenorm=False, residual_in_fp32=True)
    with pytest.raises(AssertionError, match=r"norm_cls: must make LayerNorm or RMSNorm .* \(got GroupNorm\)"):
        block.Block(DIM, mixer_cls=_Mixer, norm_cls=lambda dim: nn.GroupNorm(1, dim), fused_dropout_add_ln=True)
    with pytest.raises(AssertionError, match="dropout_cls: must make Dropout"):
        block.ParallelBlock(DIM, mixer_cls=_Mixer, dropout_cls=nn.AlphaDropout, fused_dropout_add_ln=True)


# --- MLPs ---


@pytest.mark.parametrize("activation", [F.sigmoid, F.silu, F.gelu])
def test_gated_mlp(activation):
    torch.manual_seed(0)
    module = mlp.GatedMlp(6, 10, 4, activation=activation, multiple_of=8)
    assert module.fc1.weight.shape == (32, 6)
    x = torch.randn(3, 6, requires_grad=True)
    first, gate = module.fc1(x).chunk(2, -1)
    _same([module(x)], [module.fc2(first * activation(gate))], [x, *module.parameters()])
    assert list(module.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def test_sizes_of_mlps():
    assert mlp.Mlp(6, bias1=False).fc1.weight.shape == (24, 6)
    assert mlp.GatedMlp(96).fc1.weight.shape == (512, 96)
    module = mlp.Mlp(6, activation=torch.tanh, return_residual=True)
    x = torch.randn(2, 6)
    out, same = module(x)
    assert same is x
    torch.testing.assert_close(out, module.fc2(torch.tanh(module.fc1(x))))
    assert mlp.GatedMlp(6, return_residual=True)(x)[1] is x


# --- embeddings ---


def test_embeddings():
    torch.manual_seed(0)
    ids = torch.randint(11, (2, 5))
    gpt = embedding.GPT2Embeddings(DIM, 11, 7, word_embed_proj_dim=3)
    assert list(gpt.state_dict()) == ["word_embeddings.weight", "project_in.weight", "position_embeddings.weight"]
    words, places = gpt.word_embeddings.weight, gpt.position_embeddings.weight
    torch.testing.assert_close(gpt(ids), words[ids] @ gpt.project_in.weight.T + places[:5])
    torch.testing.assert_close(gpt(ids, ids % 7), words[ids] @ gpt.project_in.weight.T + places[ids % 7])
    bert = embedding.BertEmbeddings(DIM, 11, 7, 2, padding_idx=0)
    names = ["word_embeddings", "position_embeddings", "token_type_embeddings"]
    assert list(bert.state_dict()) == [f"{name}.weight" for name in names]
    words, places, types = (getattr(bert, name).weight for name in names)
    torch.testing.assert_close(bert(ids), words[ids] + places[:5] + types[0])
    torch.testing.assert_close(bert(ids, ids % 7, ids % 2), words[ids] + places[ids % 7] + types[ids % 2])
    assert list(embedding.BertEmbeddings(DIM, 11, 0, 0).state_dict()) == ["word_embeddings.weight"]
    assert list(embedding.GPT2Embeddings(DIM, 11, 0).state_dict()) == ["word_embeddings.weight"]
    alone = embedding.VocabParallelEmbedding(11, DIM, padding_idx=1)
    assert torch.equal(alone(ids), alone.weight[ids])
    assert embedding.ColumnParallelEmbedding(11, DIM)(ids).shape == (2, 5, DIM)


@pytest.mark.parametrize("fused", [False, True])
def test_patches(fused):
    torch.manual_seed(0)
    module = PatchEmbed((8, 12), (4, 3), in_chans=2, embed_dim=5, norm_layer=nn.LayerNorm, fused_bias_fc=fused)
    assert list(module.state_dict()) == ["proj.weight", "proj.bias", "norm.weight", "norm.bias"]
    assert (module.grid_size, module.num_patches) == ((2, 4), 8)
    x = torch.randn(3, 2, 8, 12)
    by_convolution = F.conv2d(x, module.proj.weight.view(5, 2, 4, 3), module.proj.bias, stride=(4, 3))
    torch.testing.assert_close(module(x), module.norm(by_convolution.flatten(2).mT), rtol=1e-5, atol=1e-5)
    assert PatchEmbed(8, 4, flatten=False)(torch.ones(1, 3, 8, 8)).shape == (1, 2, 2, 768)
    with pytest.raises(AssertionError, match=r"x: must be an image of \(8, 12\)"):
        module(x[..., :9])


def test_a_block_compiles():
    module = block.Block(128, fused_dropout_add_ln=True, norm_cls=RMSNorm)
    x = torch.randn(1, 4, 128, requires_grad=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    results = [torch.autograd.grad(sum(out.square().sum() for out in f(x)), x) for f in (module, compiled)]
    torch._dynamo.reset()
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
