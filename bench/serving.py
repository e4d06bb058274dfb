"""Tokens per second of transformers' continuous batching, with Tilewise's attention and with its own "sdpa".

Requests of equal prompts' lengths are added at once and answered greedily; both implementations run as transformers
sets them up by default, in turn, on the same weights. With --write-docs its section of docs/benchmarks is kept.
See bench/README.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks_page import publish
from command_line import (
    DEVICES,
    DOCS,
    EXIT_FAILURE,
    EXIT_OK,
    REPOSITORY,
    check_device,
    published_command,
    read_results,
    results_file,
    write_results,
)

from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.machine import describe_gpu, describe_machine, versions
from tilewise.bench.markdown import Json, table

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

IMPLEMENTATIONS = ("tilewise", "sdpa")
PAGE_SIZE = 256  # transformers' default
# Random weights in the shapes of known models; "smollm2" is the demonstration's, with its weights.
SHAPES: Mapping[str, Mapping[str, int]] = {
    "random-135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152,
    },
    "random-1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256,
    },
}  # fmt: skip
MODELS = ("smollm2", *SHAPES)


def case(text: str) -> tuple[int, int, int]:
    """argparse type: "8x256+32", which is 8 requests of 256 tokens and 32 new ones each."""
    try:
        requests, _, lengths = text.partition("x")
        prompt, _, new = lengths.partition("+")
        found = int(requests), int(prompt), int(new)
    except ValueError:
        found = (0, 0, 0)
    if min(found) < 1 or found[2] < 2:
        raise argparse.ArgumentTypeError(f"must be REQUESTSxPROMPT+NEW, as in 8x256+32, NEW >= 2 (got {text!r})")
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=one_of(DEVICES), default="cpu", help="cuda: AMD's GPUs too (default: cpu)")
    parser.add_argument(
        "--model", type=one_of(MODELS), default="smollm2", help="default: smollm2 (`make demo` brings it)"
    )
    parser.add_argument("--dtypes", type=list_of(one_of(("f32", "bf16", "f16"))), help="default: f32,bf16; cuda: bf16")
    parser.add_argument(
        "--cases", type=list_of(case), default=[(1, 256, 32), (8, 256, 32), (32, 128, 32)], metavar="NxP+M",
        help="requests, tokens of a prompt, new tokens (default: 1x256+32,8x256+32,32x128+32)",
    )  # fmt: skip
    parser.add_argument("--threads", type=integer(1), default=1, help="of the CPU (default: 1)")
    parser.add_argument("--rounds", type=integer(1), default=2, help="of each; the best counts (default: 2)")
    parser.add_argument(
        "--busy", action="store_true", help="on the CPU: count processor time by threads, as other programs run too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go (default: in bench/results)")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="measure nothing: report an earlier run")
    parser.add_argument("--write-docs", action="store_true", help="keep it in docs/benchmarks, and make the page anew")
    options = parser.parse_args()
    if options.from_json is None:
        check_device(parser, options)
    if options.busy and options.device != "cpu":
        parser.error("argument --busy: must go with --device cpu (got --device cuda)")
    if options.dtypes is None:
        options.dtypes = ["f32", "bf16"] if options.device == "cpu" else ["bf16"]
    return options


def load(name: str, dtype: Any, device: str) -> tuple[Any, list[int]]:
    """A model, and token ids to cut prompts from: a text's where it can read."""
    import torch
    import transformers

    if name == "smollm2":
        sys.path.insert(0, str(REPOSITORY / "examples" / "demo"))
        from smollm2 import load_model, load_tokenizer

        text = (REPOSITORY / "docs" / "semantics.md").read_text(encoding="utf-8")
        return load_model(dtype, device), load_tokenizer()(text)["input_ids"]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPES[name], max_position_embeddings=8192)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    ids = torch.randint(3, config.vocab_size, (1 << 14,), generator=torch.Generator().manual_seed(1))
    return model, ids.tolist()


def prompts_of(ids: list[int], requests: int, length: int) -> list[list[int]]:
    """Prompts that begin differently, so that none shares pages with another."""
    starts = [(7 * request) % max(len(ids) - length, 1) for request in range(requests)]
    return [ids[start : start + length] for start in starts]


def answer(
    model: Any, prompts: list[list[int]], new_tokens: int, clock: Callable[[], float]
) -> tuple[float, list[list[int]]]:
    """(seconds from the first request to the last answer, each request's tokens), of a manager that is warm."""
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    length = len(prompts[0])
    pages = len(prompts) * ((length + new_tokens) // PAGE_SIZE + 2)
    generation = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    cache = ContinuousBatchingConfig(
        page_size=PAGE_SIZE, num_blocks=pages, max_batch_tokens=2048, auto_switch_to_flash=False
    )
    done: dict[str, list[int]] = {}
    with model.continuous_batching_context_manager(
        generation_config=generation,
        continuous_batching_config=cache,
        workload_hints=WorkloadHints(length, new_tokens, len(prompts)),
    ) as manager:
        begin = clock()
        names = manager.add_requests(inputs=prompts, max_new_tokens=new_tokens)
        while len(done) < len(names):
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise RuntimeError("the manager ended before all requests were answered")
            if result is not None and result.error is not None:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                done[result.request_id] = result.generated_tokens
        seconds = clock() - begin
    return seconds, [done[name] for name in names]


def measure(options: argparse.Namespace) -> Json:
    """Every case in every dtype, with a line of progress on standard error for each."""
    import torch
    import transformers

    import tilewise.transformers  # noqa: F401  registers "tilewise"

    torch.set_num_threads(options.threads)
    clock = (lambda: time.process_time() / options.threads) if options.busy else time.perf_counter
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    rows: list[Json] = []
    for dtype in options.dtypes:
        model, ids = load(options.model, dtypes[dtype], options.device)
        for requests, length, new in options.cases:
            prompts = prompts_of(ids, requests, length)
            found: dict[str, Json] = {}
            for _ in range(options.rounds):
                for implementation in IMPLEMENTATIONS:
                    model.set_attn_implementation(implementation)
                    first, _ = answer(model, prompts, 1, clock)
                    seconds, tokens = answer(model, prompts, new, clock)
                    gc.collect()
                    best = found.setdefault(implementation, {"first_s": first, "all_s": seconds, "tokens": tokens})
                    best.update(first_s=min(first, best["first_s"]), all_s=min(seconds, best["all_s"]))
            same = sum(a == b for a, b in zip(*(found[name].pop("tokens") for name in IMPLEMENTATIONS)))
            row = {"dtype": dtype, "requests": requests, "prompt": length, "new": new, "same": same, **found}
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    gpu = options.device != "cpu"
    machine = describe_gpu(options.device) if gpu else describe_machine()
    return {
        "machine": machine.name,
        "hardware": machine.gpu if gpu else f"{machine.processor}; {machine.instruction_sets}",  # type: ignore[union-attr]
        "versions": versions(f"transformers {transformers.__version__}"),
        "command": published_command("serving.py", sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "model": options.model,
        "threads": 0 if gpu else options.threads,
        "busy": options.busy,
        "rows": rows,
    }


def rates(of_each: list[float]) -> list[str]:
    """Both implementations' tokens per second, and their ratio."""
    return [*(f"{rate:.1f}" for rate in of_each), f"{of_each[0] / of_each[1]:.2f}"]


def text(results: Json) -> str:
    """The report as Markdown."""
    lines = []
    for row in results["rows"]:
        times = [row[name] for name in IMPLEMENTATIONS]
        speeds = [row["requests"] * row["new"] / each["all_s"] for each in times]
        cells = [f"{row['requests']} x {row['prompt']} + {row['new']}", row["dtype"], *rates(speeds)]
        decoding = [each["all_s"] - each["first_s"] for each in times]
        if all(2 * part >= each["all_s"] for part, each in zip(decoding, times)):
            cells += rates([row["requests"] * (row["new"] - 1) / part for part in decoding])
        else:  # a difference of two times that are nearly equal says nothing
            cells += ["-", "-", "-"]
        lines.append([*cells, f"{row['same']} of {row['requests']}"])
    header = ["requests x prompt + new", "dtype", "tilewise, tokens/s", "sdpa", "ratio"]
    header += ["decoding: tilewise", "sdpa", "ratio", "same tokens"]
    threads = f"; threads: {results['threads']}" if results["threads"] else ""
    clock = "; seconds of processor time by threads, since other programs ran too" if results["busy"] else ""
    facts = [
        f"- {results['hardware']}{threads}{clock}",
        f"- versions: {results['versions']}; model: {results['model']}",
        f"- command: `{results['command']}` ({results['date']})",
    ]
    return "\n".join(facts) + "\n\n" + table(header, lines)


def main() -> int:
    options = parse_arguments()
    if options.from_json is not None:
        results = read_results(options.from_json)
    else:
        try:
            results = measure(options)
        except RuntimeError as error:
            print(f"serving.py: {error}", file=sys.stderr)
            return EXIT_FAILURE
        write_results(options.json or results_file("serving", results["machine"]), results)
    print(text(results))
    if options.write_docs:
        machine = f"{results['machine']}, {results['model']}"
        publish("serving", machine, text(results), folder=DOCS)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
