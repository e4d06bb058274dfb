"""One engine of bench/engine.py: vLLM with one model's shape on one attention, in a process of its own.

Reads what to run from standard input as JSON and writes rows to the file that it names. Runs in the environment that
has vLLM, in whose process everything is, so that torch's profiler sees a step.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

# vLLM calls these operators around a layer's attention and experts, eagerly.
PARTS = {
    "attention": ("vllm::unified_attention", "vllm::unified_kv_cache_update", "vllm::unified_mla"),
    "experts": ("vllm::moe_forward",),
}


def start(wanted: Json, folder: str) -> Any:
    """vLLM's engine on random weights of a configuration."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", **wanted["environment"]
    )
    import transformers
    from vllm import LLM

    config = getattr(transformers, wanted["config_class"])(**wanted["config"])
    config.architectures = [wanted["architecture"]]
    config.save_pretrained(folder)
    return LLM(
        model=folder, load_format="dummy", skip_tokenizer_init=True, dtype=wanted["dtype"], enable_prefix_caching=False,
        max_model_len=wanted["max_model_len"], max_num_seqs=wanted["max_num_seqs"], enforce_eager=wanted["eager"],
        seed=0, **wanted["engine"],
    )  # fmt: skip


def answer(engine: Any, prompts: list[Json], new: int) -> float:
    """Seconds from the first request to the last token."""
    from vllm import SamplingParams

    settings = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    answers = engine.generate(prompts, settings, use_tqdm=False)
    seconds = time.perf_counter() - begin
    lengths = {len(answer.outputs[0].token_ids) for answer in answers}
    if lengths != {new}:
        raise RuntimeError(f"answers must have {new} tokens each (got {sorted(lengths)})")
    return seconds


def profiled(engine: Any, prompts: list[Json], steps: int, device: str) -> Json:
    """Of the time of a few steps behind a prompt, the shares of attention and of experts: their kernels' on a GPU.

    On a CPU attention's own seconds, too, of the prompt and of the quickest step.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    times: list[Json] = []
    calls: list[list[float]] = []
    for new in (1, 1 + steps):  # the prompt's own is taken away
        with profile(activities=activities) as profiler:
            wall = answer(engine, prompts, new)
        times.append(times_of(profiler.key_averages(), wall, device))
        calls.append(attention_calls(profiler.events()))
    found = {name: times[1][name] - times[0][name] for name in times[0]}
    row: Json = {"shares": {name: found[name] / found["all"] for name in PARTS if found["all"] > 0}}
    if device == "cpu":
        row["attention_s"] = {"prompt": sum(calls[0]), "step": quickest_step(calls[1], len(calls[0]), steps)}
    return row


def attention_calls(events: Iterable[Any]) -> list[float]:
    """Seconds of each call of attention, in order."""
    found = [event for event in events if event.name.startswith(PARTS["attention"])]
    return [event.cpu_time_total / 1e6 for event in sorted(found, key=lambda event: event.time_range.start)]


def quickest_step(calls: list[float], before: int, steps: int) -> float:
    """Of attention's calls, of which `before` are the prompt's; each step has as many, one or more a layer."""
    each, rest = divmod(len(calls) - before, steps)
    if each < 1 or rest:
        raise RuntimeError(f"{steps} steps must have as many calls of attention each (got {len(calls) - before})")
    own = calls[before:]
    return min(sum(own[step * each : (step + 1) * each]) for step in range(steps))


def times_of(events: Iterable[Any], wall: float, device: str) -> Json:
    """Seconds of each of PARTS, and of all: a GPU's kernels, or on a CPU what the clock says."""
    name = "device_time_total" if device == "cuda" else "cpu_time_total"
    found: Json = dict.fromkeys(PARTS, 0.0)
    found["all"] = wall
    kernels = 0.0
    for event in events:
        kernels += getattr(event, "self_device_time_total", 0.0) / 1e6
        for part, prefixes in PARTS.items():
            if event.key.startswith(prefixes):
                found[part] += getattr(event, name) / 1e6
    if device == "cuda":
        found["all"] = kernels
    return found


def measure(engine: Any, wanted: Json) -> list[Json]:
    """A row for each case; what each is timed by is the best of some rounds."""
    import random

    draw = random.Random(0)
    rows = []
    for batch, length in wanted["cases"]:
        prompts = [{"prompt_token_ids": [draw.randrange(3, wanted["config"]["vocab_size"]) for _ in range(length)]}
                   for _ in range(batch)]  # fmt: skip
        row: Json = {"batch": batch, "prompt": length, "new": wanted["new"]}
        answer(engine, prompts, 2)  # kernels are compiled, and memory is touched
        if wanted["profiled_steps"]:
            row |= profiled(engine, prompts, wanted["profiled_steps"], wanted["device"])
        if wanted["rounds"]:
            row["first_s"] = min(answer(engine, prompts, 1) for _ in range(wanted["rounds"]))
            row["all_s"] = min(answer(engine, prompts, wanted["new"]) for _ in range(wanted["rounds"]))
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def main() -> None:
    wanted = json.load(sys.stdin)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        engine = start(wanted, folder)
        started = time.perf_counter() - began
        import torch
        import transformers
        import vllm

        gpu = wanted["device"] == "cuda"
        results = {
            "start_s": started,
            "device": torch.cuda.get_device_name() if gpu else "cpu",
            "versions": f"vllm {vllm.__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
            "rows": measure(engine, wanted),
        }
    with open(wanted["out"], "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
