# The model of `make demo`: greedy tokens and the logits of the first of them. Tokens must be the same, logits nearly
# so: the model's products are torch's, which sums in another order on another machine.
"""Golden outputs of a language model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from compare import Entries, Entry, exactly

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "demo"))

NAME = "model"
NEW_TOKENS = 48
HIGHEST, EVERY = 8, 4096  # logits that are kept: the highest, and one of every so many
MOST_DIFFERENCE = 2e-3  # of logits up to some 25, in fp32
PROMPTS = {
    "letter": (ROOT / "examples" / "demo" / "prompt.md").read_text(encoding="utf-8"),
    "question": "Why is the sky blue? Answer in one sentence.",
}


def entry_of(model: Any, tokenizer: Any, text: str) -> Entry:
    """Tokens and logits after one prompt."""
    chat = [{"role": "user", "content": text}]
    words = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    prompt = words["input_ids"]
    settings: dict[str, Any] = {"do_sample": False, "min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
    with torch.no_grad():
        logits = model(prompt).logits[0, -1]
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)[0, prompt.shape[1] :]
    kept = sorted({*logits.topk(HIGHEST).indices.tolist(), *range(0, logits.numel(), EVERY)})
    return {
        "prompt_tokens": prompt.shape[1],
        "tokens": tokens.tolist(),
        "logits": {str(token): round(logits[token].item(), 4) for token in kept},
    }


def find() -> Entries:
    """An entry for each prompt."""
    from smollm2 import load_model, load_tokenizer

    import tilewise.transformers  # noqa: F401  registers "tilewise"

    tokenizer, model = load_tokenizer(), load_model()
    model.set_attn_implementation("tilewise")
    entries = {name: entry_of(model, tokenizer, text) for name, text in PROMPTS.items()}
    print(f"golden: {NEW_TOKENS} tokens after each of {len(entries)} prompts", flush=True)
    return entries


def differs(key: str, field: str, before: Any, now: Any) -> str:
    """Tokens from the first that differs on; logits by the largest difference."""
    if before == now or before is None or now is None:
        return exactly(key, field, before, now)
    if field == "tokens":
        place = next((i for i, (a, b) in enumerate(zip(before, now)) if a != b), min(len(before), len(now)))
        return f"tokens from the {place + 1}th on: {before[place : place + 3]} -> {now[place : place + 3]}"
    if field == "logits":
        if before.keys() != now.keys():
            return f"the highest logits are others: {sorted(before.keys() ^ now.keys())}"
        most = max(abs(before[token] - now[token]) for token in before)
        return f"logits differ by {most:.2g}" if most > MOST_DIFFERENCE else ""
    return exactly(key, field, before, now)
