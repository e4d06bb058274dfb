# tilewise.compat.flash_attn.utils: sampling and decoding, checkpoints, timing.
"""flash_attn's helpers."""

import json
import types

import pytest
import torch
from torch import nn

from tilewise.compat.flash_attn.modules.block import Block
from tilewise.compat.flash_attn.modules.embedding import GPT2Embeddings
from tilewise.compat.flash_attn.modules.mha import MHA
from tilewise.compat.flash_attn.utils import benchmark, generation, pretrained
from tilewise.compat.flash_attn.utils import torch as of_torch


def test_top_k_and_top_p():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.15, 0.05]]).log()
    for top_k, kept in ((1, [[3], [0]]), (2, [[2, 3], [0, 2]]), (4, [[0, 1, 2, 3]] * 2)):
        filtered = logits.clone()
        generation.modify_logits_for_top_k_filtering(filtered, top_k)
        assert [row.isfinite().nonzero().flatten().tolist() for row in filtered] == kept
    for top_p, kept in (
        (0.35, [[3], [0]]),
        (0.65, [[2, 3], [0]]),
        (0.8, [[1, 2, 3], [0, 2]]),
        (0.0, [[0, 1, 2, 3]] * 2),
    ):
        filtered = logits.clone()
        generation.modify_logits_for_top_p_filtering(filtered, top_p)
        assert [row.isfinite().nonzero().flatten().tolist() for row in filtered] == kept


def test_sampling():
    torch.manual_seed(0)
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().repeat(4000, 1)
    assert generation.sample(logits).eq(3).all()

    def shares(**options):
        before = logits.clone()
        drawn = generation.sample(logits, **options)
        assert torch.equal(before, logits)  # the caller's logits stay
        return drawn.bincount(minlength=4) / len(logits)

    torch.testing.assert_close(shares(top_k=0), torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.03, rtol=0)
    torch.testing.assert_close(shares(top_k=2), torch.tensor([0, 0, 3 / 7, 4 / 7]), atol=0.03, rtol=0)
    torch.testing.assert_close(shares(top_k=0, top_p=0.65), torch.tensor([0, 0, 3 / 7, 4 / 7]), atol=0.03, rtol=0)
    cold = torch.tensor([0.1, 0.2, 0.3, 0.4]).square()
    torch.testing.assert_close(shares(top_k=4, temperature=0.5), cold / cold.sum(), atol=0.03, rtol=0)


class _Model(nn.Module, generation.GenerationMixin):
    """Two layers of flash_attn's own parts, greedy decoding with and without caches."""

    def __init__(self):
        super().__init__()
        self.embeddings = GPT2Embeddings(16, 23, 32)

        def layer(index):
            return Block(
                16, mixer_cls=lambda dim: MHA(
                    dim, 2, causal=True, layer_idx=index, rotary_emb_dim=8, use_flash_attn=True
                ),
            )  # fmt: skip

        self.layers = nn.ModuleList(layer(index) for index in range(2))
        self.head = nn.Linear(16, 23)

    def forward(self, input_ids, position_ids=None, inference_params=None, num_last_tokens=0):
        x, residual = self.embeddings(input_ids, position_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, mixer_kwargs={"inference_params": inference_params})
        return types.SimpleNamespace(logits=self.head((x + residual)[:, -num_last_tokens:]))


def test_decoding():
    torch.manual_seed(0)
    model, prompt = _Model().eval(), torch.randint(23, (2, 4))
    with torch.no_grad():
        expected = prompt
        for _ in range(6):
            expected = torch.cat([expected, model(expected, num_last_tokens=1).logits[:, -1:].argmax(-1)], 1)
    decoded = generation.decode(prompt, model, 10)
    assert torch.equal(decoded.sequences, expected)
    assert len(decoded.scores) == 6
    assert torch.equal(model.generate(prompt, 10), expected)
    everything = model.generate(prompt, 10, return_dict_in_generate=True)
    assert everything.scores is None
    assert len(model.generate(prompt, 10, return_dict_in_generate=True, output_scores=True).scores) == 6
    # A teacher's tokens are taken as long as there are some; an end that all sequences have reached ends it.
    teacher = torch.randint(23, (2, 7))
    taught = generation.decode(prompt, model, 10, teacher_outputs=teacher).sequences
    assert torch.equal(taught[:, 4:7], teacher[:, 4:7])
    same = prompt[:1].repeat(2, 1)
    first = generation.decode(same, model, 10).sequences[0, 4].item()
    assert generation.decode(same, model, 10, eos_token_id=first).sequences.shape[1] == 5
    assert generation.decode(prompt, model, 5, vocab_size=9).scores[0].shape == (2, 9)
    with pytest.raises(NotImplementedError, match=r"cg: must be False in Tilewise's flash_attn \(got True\)"):
        generation.decode(prompt, model, 10, cg=True)
    with pytest.raises(NotImplementedError, match="must have allocate_inference_cache"):
        model.allocate_inference_cache(1, 4)


def test_inference_params_and_caches():
    state = generation.InferenceParams(8, 2, seqlen_offset=5, lengths_per_sample=torch.ones(2))
    state.key_value_memory_dict[0] = "kept"
    state.reset(16, 4)
    assert (state.max_seqlen, state.max_batch_size, state.seqlen_offset) == (16, 4, 0)
    assert not state.lengths_per_sample.any()
    assert state.key_value_memory_dict == {0: "kept"}
    caches = generation.allocate_inference_cache(2, 5, 3, 8, 2, "cpu", torch.float32)
    assert list(caches) == [0, 1]
    assert caches[0].shape == (2, 5, 2, 3, 8)
    assert list(generation.allocate_inference_cache(1, 1, 1, 1, [4, 7], "cpu")) == [4, 7]


@pytest.mark.parametrize("form", ["torch", "safetensors", "shards"])
def test_checkpoints(form, tmp_path):
    pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    weights = {"a": torch.randn(2, 3), "b": torch.arange(4.0)}
    if form == "torch":
        torch.save(weights, tmp_path / "pytorch_model.bin")
    elif form == "safetensors":
        safetensors.save_file(weights, tmp_path / "model.safetensors")
    else:
        places = {name: f"model-{name}.safetensors" for name in weights}
        for name, place in places.items():
            safetensors.save_file({name: weights[name]}, tmp_path / place)
        index = {"metadata": {}, "weight_map": places}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = pretrained.state_dict_from_pretrained(str(tmp_path))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    half = pretrained.state_dict_from_pretrained(str(tmp_path), dtype=torch.float16)
    assert all(tensor.dtype == torch.float16 for tensor in half.values())
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="model_name: must be a folder or a model with weights"):
        pretrained.state_dict_from_pretrained(str(tmp_path / "empty"))


def test_timing(capsys):
    x = torch.randn(4, 4, requires_grad=True)
    calls = []

    def function(x, factor=1.0):
        calls.append(factor)
        return (x * factor).sum(0), None

    results = benchmark.benchmark_all(function, x, repeats=2, desc="name", factor=3.0)
    assert [len(result) for result in results] == [2, 2, 2]
    assert set(calls) == {3.0}
    assert x.grad.eq(x.grad[0]).all()
    assert capsys.readouterr().out.count("name - ") == 3
    benchmark.benchmark_forward(function, x, repeats=1, verbose=False)
    assert capsys.readouterr().out == ""
    with pytest.raises(RuntimeError, match="grad: must have the output's shape"):
        benchmark.benchmark_backward(function, x, grad=torch.ones(3), verbose=False)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="needs a GPU"):
            benchmark.benchmark_memory(function, x)


def test_decorators_of_autograd_functions():
    class Double(torch.autograd.Function):
        @staticmethod
        @of_torch.custom_fwd
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @of_torch.custom_bwd
        def backward(ctx, dout):
            return 2 * dout

    x = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(Double.apply(x).sum(), x)[0].eq(2).all()
