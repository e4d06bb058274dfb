# Tiny models served by continuous batching, and what their attention did meanwhile.
"""What the tests of continuous batching share, on the CPU and on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import ContinuousBatchingConfig, GenerationConfig

import tilewise

VOCABULARY = 97
WINDOW = 6
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**TINY),
    "qwen2": lambda: transformers.Qwen2Config(**TINY),
    "qwen3": lambda: transformers.Qwen3Config(**TINY),
    "qwen2_sliding": lambda: transformers.Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "mistral_sliding": lambda: transformers.MistralConfig(**TINY, sliding_window=WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(**TINY, sliding_window=WINDOW, query_pre_attn_scalar=16),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=128),
    "mixtral": lambda: transformers.MixtralConfig(**TINY, num_local_experts=2, num_experts_per_tok=1),
    # What sdpa cannot do: softcap and sinks.
    "gemma2": lambda: transformers.Gemma2Config(
        **TINY, sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=12
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **TINY, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=1
    ),
}
FULL = ("llama", "qwen2", "qwen3")
SLIDING = ("qwen2_sliding", "mistral_sliding")
OTHERS = ("gemma3", "gpt2", "mixtral")


def make_model(name: str, implementation: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The same random weights for every implementation, spread wide enough for sharp attention."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=implementation)
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim > 1 or "sinks" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.to(device, dtype).eval()


def make_prompts(lengths: tuple[int, ...] = (5, 17, 1, 41, 9), shared: int = 0) -> list[list[int]]:
    """Prompts of these lengths, the first `shared` tokens of which are the same."""
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(3, VOCABULARY, (shared,), generator=generator).tolist()
    return [prefix + torch.randint(3, VOCABULARY, (n - shared,), generator=generator).tolist() for n in lengths]


def serve(model: Any, prompts: list[list[int]], new_tokens: int = 9, copies: int = 1, **config: Any) -> list[list[int]]:
    """Each prompt's greedy tokens from generate_batch, in pages of 4 and with at most 24 tokens a step.

    transformers refuses copies of greedy requests, but not of those that draw among one token.
    """
    settings = {"page_size": 4, "num_blocks": 96, "max_batch_tokens": 24, **config}
    greedy: dict[str, Any] = {"do_sample": True, "top_k": 1, "num_return_sequences": copies}
    generation = GenerationConfig(
        max_new_tokens=new_tokens, eos_token_id=-1, pad_token_id=0, **(greedy if copies > 1 else {"do_sample": False})
    )
    results = model.generate_batch(
        prompts, generation_config=generation, continuous_batching_config=ContinuousBatchingConfig(**settings)
    )
    errors = [result.error for result in results.values() if result.error is not None]
    assert not errors and len(results) == len(prompts) * copies, errors
    return [result.generated_tokens for result in results.values()]


def regret(name: str, prompts: list[list[int]], tokens: list[list[int]], dtype: torch.dtype, device: str) -> float:
    """How far a chosen token's logit lies below the best, at most, in fp32 on weights of that dtype and in units of
    the logits' deviation: near ties fall either way in bf16 and fp16."""
    exact = make_model(name, "eager", dtype, device).float()
    worst = 0.0
    for prompt, new in zip(prompts, tokens):
        with torch.no_grad():
            logits = exact(torch.tensor([prompt + new], device=device)).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(new, device=device)[:, None])[:, 0]
        worst = max(worst, float(((logits.amax(1) - chosen) / logits.std(1)).max()))
    return worst


class WatchedStep(TorchDispatchMode):
    """Counts the operators that read or write the cache, and those that make the host wait for the device."""

    def __init__(self, cache: torch.Tensor, seen: Counter[str]) -> None:
        super().__init__()
        self.cache = cache.untyped_storage().data_ptr()
        self.seen = seen

    def _touches(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == self.cache

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        result = function(*args, **(kwargs or {}))
        if any(map(self._touches, (*args, *(kwargs or {}).values()))) and not self._touches(result):
            self.seen[name] += 1  # and not a view
        if name in ("_local_scalar_dense", "nonzero", "item"):
            self.seen[f"waits: {name}"] += 1
        return result


@contextmanager
def watched_steps(monkeypatch: Any) -> Iterator[Counter[str]]:
    """What WatchedStep counts in all steps, and how often keys were gathered out of the cache."""
    from transformers.generation.continuous_batching.cache import ATTN_TYPE_TO_ALLOCATOR
    from transformers.generation.continuous_batching.model_runner import ModelRunner

    seen: Counter[str] = Counter()
    compute = ModelRunner.compute_batch

    def compute_batch(self: Any, *args: Any) -> None:
        seen["steps"] += 1
        with WatchedStep(self.cache.cache_tensor, seen):
            compute(self, *args)

    def counted(update: Any) -> Any:
        def counted_update(*args: Any, **kwargs: Any) -> Any:
            seen["updates"] += 1
            return update(*args, **kwargs)

        return counted_update

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "compute_batch", compute_batch)
        for allocator in set(ATTN_TYPE_TO_ALLOCATOR.values()):
            patch.setattr(allocator, "update", counted(allocator.update))
        yield seen


def watched_calls(monkeypatch: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, keywords) of every call of Tilewise's that follows."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: Any, **keywords: Any) -> Any:
            calls.append((name, keywords))
            return real(*tensors, **keywords)

        return call

    for name in ("attention", "kv_cache_attention", "append_kv"):
        monkeypatch.setattr(tilewise, name, watched(name, getattr(tilewise, name)))
    return calls
