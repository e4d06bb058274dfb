"""Serves several prompts at once with SmolLM2-135M-Instruct, with Tilewise's attention and with torch's.

Continuous batching of transformers, greedy, fp32: requests join and leave a batch as they come and end. Prints the
answers, the new tokens per second of the best round and whether all tokens are identical; the exit status is 1 if
they are not.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars in a log

import torch
from smollm2 import MODEL_FILE, load_model, load_tokenizer
from transformers import ContinuousBatchingConfig, GenerationConfig

import tilewise
import tilewise.transformers

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue? Answer in one sentence.",
    "Write a haiku about a telescope.",
    "List three animals that live in the sea.",
    "Translate 'good morning' into Italian.",
    "What is seven times eight?",
    "Name a famous painting and who painted it.",
    "Explain to a child what a library is.",
)


@dataclass
class Served:
    """New tokens of each request, and how many of all were made in a second."""

    tokens: list[list[int]]
    speed: float


def serve(model: Any, prompts: list[list[int]], new_tokens: int) -> Served:
    """Greedy generation of up to `new_tokens` tokens after each prompt."""
    settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=model.config.eos_token_id)
    pages = sum((len(prompt) + new_tokens) // 64 + 2 for prompt in prompts)
    cache = ContinuousBatchingConfig(page_size=64, num_blocks=pages, max_batch_tokens=512)
    answers = model.generate_batch(
        prompts, generation_config=settings, continuous_batching_config=cache, record_timestamps=True
    ).values()
    errors = [answer.error for answer in answers if answer.error is not None]
    if errors:
        sys.exit(f"demo: {errors[0]}")
    tokens = [answer.generated_tokens for answer in answers]
    begin = min(answer.created_time for answer in answers)
    end = max(answer.timestamps[-1] for answer in answers)
    return Served(tokens, sum(map(len, tokens)) / (end - begin))


def parse_options() -> argparse.Namespace:
    """Reads the command line; a bad value ends the program with status 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens of each answer at most (default: 32)")
    parser.add_argument("--rounds", type=int, default=2, help="generations of each kind, in turn (default: 2)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both (default: torch's)")
    options = parser.parse_args()
    for name, least in (("new_tokens", 2), ("rounds", 1), ("threads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: must be >= {least} (got {getattr(options, name)})")
    return options


def main() -> int:
    """Serves with both and compares."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer()
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
    print(f"{MODEL_FILE}: fp32, greedy, {len(prompts)} requests at once, up to {options.new_tokens} new tokens each,")
    print(f"{options.threads} threads, tilewise {tilewise.__version__}, torch {torch.__version__}\n", flush=True)
    model = load_model()

    results: dict[str, Served] = {}
    for _ in range(options.rounds):
        for implementation in ("sdpa", "tilewise"):
            model.set_attn_implementation(implementation)
            result = serve(model, prompts, options.new_tokens)
            speed = max(result.speed, results.get(implementation, result).speed)
            results[implementation] = Served(result.tokens, speed)
    for question, tokens in zip(QUESTIONS, results["tilewise"].tokens):
        print(f"> {question}\n{tokenizer.decode(tokens, skip_special_tokens=True).strip()}\n")
    for implementation, result in results.items():
        print(f"{implementation:10}  {result.speed:8.1f} new tokens/s")
    same = results["tilewise"].tokens == results["sdpa"].tokens
    print(f"\nThe tokens of all {len(prompts)} requests are identical." if same else "\nThe tokens differ.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
