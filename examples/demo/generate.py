"""Generates text with SmolLM2-135M-Instruct twice, with Tilewise's attention and with torch's.

Greedy, fp32, from the same prompt with the same number of threads. Prints both texts, the speeds
of the best round and whether the tokens are identical; the exit status is 1 if they are not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars in a log

import torch
from smollm2 import MODEL_FILE, load_model, load_tokenizer
from transformers.generation.streamers import BaseStreamer

import tilewise
import tilewise.transformers


@dataclass
class Clock(BaseStreamer):
    """Notes the time of every new token; generate() calls put() with the prompt first."""

    times: list[float] = field(default_factory=list)

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with each token as it is chosen."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called after the last token."""


@dataclass
class Generated:
    """New tokens and the speed of making them, in tokens per second."""

    tokens: list[int]
    prompt_speed: float
    decode_speed: float

    def better_of(self, other: Generated) -> Generated:
        """The higher speeds of two rounds, which must have made the same tokens."""
        if self.tokens != other.tokens:
            sys.exit("demo: two rounds with the same attention made different tokens")
        speeds = max(self.prompt_speed, other.prompt_speed), max(self.decode_speed, other.decode_speed)
        return Generated(self.tokens, *speeds)


def generate(model: Any, prompt: torch.Tensor, new_tokens: int) -> Generated:
    """Greedy generation of exactly `new_tokens` tokens after prompt, int64 [1, length]."""
    clock = Clock()
    settings: dict[str, Any] = {"do_sample": False, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
    with torch.no_grad():
        begin = time.perf_counter()
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), streamer=clock, **settings)
    first, last = clock.times[1], clock.times[-1]
    return Generated(
        tokens=output[0, prompt.shape[1] :].tolist(),
        prompt_speed=prompt.shape[1] / (first - begin),
        decode_speed=(new_tokens - 1) / (last - first),
    )


def parse_options() -> argparse.Namespace:
    """Reads the command line; a bad value ends the program with status 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new-tokens", type=int, default=96, help="tokens to generate (default: 96)")
    parser.add_argument("--rounds", type=int, default=2, help="generations of each kind, in turn (default: 2)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both (default: torch's)")
    parser.add_argument("--prompt", type=Path, default=Path(__file__).with_name("prompt.md"), help="a text file")
    options = parser.parse_args()
    for name, least in (("new_tokens", 2), ("rounds", 1), ("threads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: must be >= {least} (got {getattr(options, name)})")
    if not options.prompt.is_file():
        parser.error(f"--prompt: must be a file (got {options.prompt})")
    return options


def compare(results: dict[str, Generated]) -> int:
    """Prints the speeds and whether the tokens are identical; returns the exit status."""
    print(f"{'':10}  prompt tokens/s  decode tokens/s")
    for implementation, result in results.items():
        print(f"{implementation:10}  {result.prompt_speed:15.1f}  {result.decode_speed:15.1f}")
    ours, theirs = results["tilewise"].tokens, results["sdpa"].tokens
    if ours == theirs:
        print(f"\nThe {len(ours)} tokens are identical.")
        return 0
    place = next(i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b)
    print(f"\nThe tokens differ, first at {place}: tilewise {ours[place]}, sdpa {theirs[place]}.")
    return 1


def main() -> int:
    """Generates with both and compares."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer()
    chat = [{"role": "user", "content": options.prompt.read_text(encoding="utf-8")}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    prompt = prompt["input_ids"]
    print(f"{MODEL_FILE}: fp32, greedy, {prompt.shape[1]} prompt tokens, {options.new_tokens} new ones,")
    print(f"{options.threads} threads, tilewise {tilewise.__version__}, torch {torch.__version__}\n", flush=True)
    model = load_model()

    results: dict[str, Generated] = {}
    for _ in range(options.rounds):
        for implementation in ("sdpa", "tilewise"):
            model.set_attn_implementation(implementation)
            generate(model, prompt[:, :16], 2)  # the first call of anything pays for its start
            result = generate(model, prompt, options.new_tokens)
            results[implementation] = result.better_of(results.get(implementation, result))
    for implementation, result in results.items():
        print(f"--- attn_implementation={implementation!r}\n{tokenizer.decode(result.tokens).strip()}\n")
    return compare(results)


if __name__ == "__main__":
    sys.exit(main())
