"""Tokens per second, and time per output token, of vLLM on Tilewise's attention and experts and on its own.

Requests of equal prompts' lengths begin at once and are answered greedily, on random weights in the shapes of known
models. Each attention has an engine in a process of its own, of the Python that --python names. With --write-docs its
section of docs/benchmarks is kept. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks_page import publish
from command_line import (
    DEVICES,
    DOCS,
    EXIT_FAILURE,
    EXIT_OK,
    REPOSITORY,
    add_report,
    check_report,
    fill_in,
    published_command,
    read_results,
    results_file,
    write_results,
)

from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.machine import describe_machine
from tilewise.bench.markdown import Json, table

CHILD = REPOSITORY / "bench" / "engine_run.py"
DTYPES = {"f32": ("float32", 4), "bf16": ("bfloat16", 2), "f16": ("float16", 2)}
TILEWISE = "tilewise"
PROFILED_STEPS = 8


class Shape(NamedTuple):
    """A model's, as transformers' configuration has it."""

    config_class: str
    architecture: str
    config: Mapping[str, int]


_LLAMA, _MOE = ("LlamaConfig", "LlamaForCausalLM"), ("Qwen3MoeConfig", "Qwen3MoeForCausalLM")
SHAPES: Mapping[str, Shape] = {
    "smollm2": Shape(*_LLAMA, {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
    }),
    "llama-1b": Shape(*_LLAMA, {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    }),
    "llama-8b": Shape(*_LLAMA, {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    }),
    "qwen3-30b-a3b": Shape(*_MOE, {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    }),
}  # fmt: skip
# What is asked for, by device: vLLM's own first.
ATTENTIONS: Mapping[str, Mapping[str, Json]] = {
    "cpu": {
        "vllm": {"environment": {}, "engine": {}},
        TILEWISE: {"environment": {"TILEWISE_VLLM": "attention,experts"}, "engine": {}},
    },
    "cuda": {
        "flash_attn": {"environment": {}, "engine": {"attention_backend": "FLASH_ATTN"}},
        "flashinfer": {"environment": {}, "engine": {"attention_backend": "FLASHINFER"}},
        "triton": {"environment": {}, "engine": {"attention_backend": "TRITON_ATTN"}},
        TILEWISE: {"environment": {}, "engine": {"attention_backend": "CUSTOM"}},
    },
}
DEFAULTS: Mapping[str, Json] = {
    "cpu": {"models": ["smollm2", "llama-1b"], "dtype": "bf16", "batches": [1, 8], "prompts": [128, 1024, 4096],
            "cache_gib": 4},
    "cuda": {"models": ["llama-8b", "qwen3-30b-a3b"], "dtype": "bf16", "batches": [1, 8, 64, 256],
             "prompts": [128, 1024, 8192, 32768], "cache_gib": 60},
}  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=one_of(DEVICES), default="cpu", help="default: cpu")
    default = REPOSITORY / ".venv-vllm" / "bin" / "python"
    parser.add_argument(
        "--python", type=Path, default=default, metavar="PROGRAM",
        help="of the environment that has vLLM (default: what `scripts/bootstrap.sh vllm` makes)",
    )  # fmt: skip
    parser.add_argument("--models", type=list_of(one_of(tuple(SHAPES))), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--layers", type=integer(1), help="of each model, in place of its own number")
    parser.add_argument("--dtype", type=one_of(tuple(DTYPES)), help="default: bf16")
    parser.add_argument("--batches", type=list_of(integer(1)), help="requests at once (default: 1,8; cuda: to 256)")
    parser.add_argument("--prompts", type=list_of(integer(1)), help="tokens (default: 128 to 4096; cuda: to 32768)")
    parser.add_argument("--new", type=integer(2), default=32, help="tokens of an answer (default: 32)")
    parser.add_argument("--threads", type=integer(1), default=1, help="of the CPU (default: 1)")
    parser.add_argument("--rounds", type=integer(1), default=2, help="of each; the best counts (default: 2)")
    parser.add_argument("--turns", type=integer(1), default=1, help="that engines take; medians count (default: 1)")
    parser.add_argument("--cache-gib", type=integer(1), help="of keys and values; larger cases are left out")
    parser.add_argument("--attentions", type=list_of(str), help="by name (default: all that the device has)")
    parser.add_argument(
        "--filled", action="store_true", help="a cache of random numbers stands for prompts, which take no time"
    )
    parser.add_argument(
        "--uncompiled", action="store_true", help="cuda: graphs of decoding without torch.compile, which starts sooner"
    )
    parser.add_argument("--no-shares", action="store_true", help="skip the profiler's shares of a step")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time per output token (needs matplotlib)")
    add_report(parser, "the processor or GPU")
    options = parser.parse_args()
    check_report(parser, options)
    fill_in(options, DEFAULTS[options.device])
    if options.from_json is None and not options.python.exists():
        parser.error(f"argument --python: must be a program (got {str(options.python)!r}: scripts/bootstrap.sh vllm)")
    if options.uncompiled and options.device == "cpu":
        parser.error("argument --uncompiled: must be with --device cuda (got cpu)")
    known = tuple(ATTENTIONS[options.device])
    options.attentions = options.attentions or list(known)
    for name in options.attentions:
        if name not in known:
            parser.error(f"argument --attentions: must be of {', '.join(known)} (got {name!r})")
    available = len(os.sched_getaffinity(0))
    if options.threads > available:
        parser.error(f"argument --threads: must be at most {available}, the processors here (got {options.threads})")
    return options


def cache_gib(config: Mapping[str, int], dtype: str, batch: int, tokens: int) -> float:
    """Of the keys and values of that many requests."""
    row = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * DTYPES[dtype][1]
    return batch * tokens * row / 2**30


def threads_environment(threads: int) -> dict[str, str]:
    """vLLM's CPU worker on that many processors of this process's own."""
    processors = sorted(os.sched_getaffinity(0))[:threads]
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)), "TILEWISE_NUM_THREADS": str(threads)}


def gpu_engine(options: argparse.Namespace) -> Json:
    """What vLLM is told on a GPU, whatever the attention."""
    engine: Json = {"kv_cache_memory_bytes": options.cache_gib << 30}
    if options.uncompiled:
        engine["compilation_config"] = {
            "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sorted(set(options.batches)),
        }  # fmt: skip
    return engine


def filled_engine() -> Json:
    """What vLLM is told for a cache of random numbers."""
    return {
        "kv_transfer_config": {
            "kv_connector": "DecodeBenchConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"fill_mean": 0.0, "fill_std": 0.3, "startup_fill": True},
        }
    }  # fmt: skip


def wanted_of(options: argparse.Namespace, model: str, attention: str, profile: bool) -> Json:
    """What engine_run.py is told. A CPU's engine is timed and profiled in one process, a GPU's in two."""
    shape = SHAPES[model]
    longest = max(options.prompts) + max(options.new, 1 + PROFILED_STEPS)
    config: Json = {**shape.config, "max_position_embeddings": longest, "bos_token_id": 1, "eos_token_id": 2}
    if options.layers is not None:
        config["num_hidden_layers"] = options.layers
    cases = [(batch, prompt) for batch in options.batches for prompt in options.prompts
             if cache_gib(config, options.dtype, batch, prompt + options.new) <= options.cache_gib]  # fmt: skip
    asked = ATTENTIONS[options.device][attention]
    environment, engine = dict(asked["environment"]), dict(asked["engine"])
    if options.device == "cpu":
        environment |= {"VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib), **threads_environment(options.threads)}
    else:
        engine |= gpu_engine(options)
    if options.filled:
        engine |= filled_engine()
    timed = options.device == "cpu" or not profile
    return {
        "config_class": shape.config_class, "architecture": shape.architecture, "config": config,
        "dtype": DTYPES[options.dtype][0], "max_model_len": longest, "max_num_seqs": max(options.batches),
        # Graphs hide operators from the profiler, and a CPU compiles for longer than a short run takes.
        "eager": profile or options.device == "cpu", "cases": cases, "new": options.new,
        "rounds": options.rounds if timed else 0,
        "profiled_steps": PROFILED_STEPS if profile else 0, "device": options.device, "environment": environment,
        "engine": engine,
    }  # fmt: skip


def run_engine(options: argparse.Namespace, wanted: Json) -> Json:
    """What engine_run.py found. Raises RuntimeError with its last words."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        done = subprocess.run(
            [str(options.python), str(CHILD)], input=json.dumps({**wanted, "out": str(out)}), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        if done.returncode != 0 or not out.exists():
            raise RuntimeError("; ".join(done.stderr.strip().splitlines()[-1:]) or f"exit status {done.returncode}")
        found: Json = json.loads(out.read_text(encoding="utf-8"))
        return found


def turn(options: argparse.Namespace, model: str, attention: str) -> Json:
    """An engine's rows, timed and profiled."""
    print(f"{model}, {attention}", file=sys.stderr, flush=True)
    both = options.device == "cpu" and not options.no_shares
    found = run_engine(options, wanted_of(options, model, attention, both))
    if options.device != "cpu" and not options.no_shares:
        profiled = run_engine(options, wanted_of(options, model, attention, True))["rows"]
        found["rows"] = [{**row, "shares": other["shares"]} for row, other in zip(found["rows"], profiled)]
    return found


def try_turn(options: argparse.Namespace, model: str, attention: str, notes: list[str]) -> list[Json]:
    """turn(), or none and a note."""
    try:
        return [turn(options, model, attention)]
    except RuntimeError as error:
        if attention == TILEWISE:
            raise
        notes.append(f"{model} on {attention} did not run: {error}")
        return []


def medians(found: Sequence[Json]) -> Json:
    """Of some turns' numbers, however deep they lie; what is no number is that of the first."""
    first = found[0]
    if isinstance(first, dict):
        return {name: medians([other[name] for other in found]) for name in first}
    return statistics.median(found) if isinstance(first, float) else first  # type: ignore[return-value]


def measure(options: argparse.Namespace) -> Json:
    """Every model on every attention, which take turns. What cannot be started is a note, unless it is Tilewise's."""
    results: Json = {"rows": [], "notes": [], "start_s": {}, "device": options.device, "dtype": options.dtype}
    for model in options.models:
        turns: dict[str, list[Json]] = {attention: [] for attention in options.attentions}
        for number in range(options.turns):
            for attention in [name for name in turns if number == 0 or turns[name]]:
                turns[attention] += try_turn(options, model, attention, results["notes"])
        for attention, found in turns.items():
            if not found:
                continue
            rows = [medians(rows) for rows in zip(*(one["rows"] for one in found))]
            results["rows"] += [{"model": model, "attention": attention, **row} for row in rows]
            results["start_s"][f"{model}, {attention}"] = statistics.median(one["start_s"] for one in found)
            results |= {"versions": found[0]["versions"], "hardware": found[0]["device"]}
        kept = wanted_of(options, model, TILEWISE, False)["cases"]
        left_out = len(options.batches) * len(options.prompts) - len(kept)
        if left_out:
            results["notes"].append(f"{left_out} cases of {model} need more than {options.cache_gib} GiB of cache")
    machine = describe_machine(options.machine)
    gpu = options.device != "cpu"
    return {
        **results,
        "machine": options.machine or (results["hardware"] if gpu else machine.name),
        "hardware": results["hardware"] if gpu else f"{machine.processor}; {machine.instruction_sets}",
        "command": published_command("engine.py", sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "threads": 0 if gpu else options.threads,
    }


def per_token_ms(row: Json) -> float:
    """Time per output token behind the first."""
    return float((row["all_s"] - row["first_s"]) / (row["new"] - 1) * 1e3)


def by_case(rows: Sequence[Json]) -> dict[tuple[str, int, int], dict[str, Json]]:
    """The rows of each case, by attention."""
    groups: dict[tuple[str, int, int], dict[str, Json]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["batch"], row["prompt"]), {})[row["attention"]] = row
    return groups


def ratio(found: Mapping[str, Json], time_of: Callable[[Json], float] = per_token_ms) -> str:
    """How many times as quick something is on Tilewise as on the quickest other: a token, unless time_of says what."""
    others = [time_of(row) for name, row in found.items() if name != TILEWISE]
    ours = time_of(found[TILEWISE]) if TILEWISE in found else 0.0
    return f"{min(others) / ours:.2f}" if others and ours > 0 else "-"


def own_times(found: Mapping[str, Json], attention: str) -> list[str]:
    """Of attention's own time, of a step and of a prompt: the cells of each, where a CPU's engine was profiled."""
    cells = []
    for part in ("step", "prompt"):
        if all("attention_s" in row for row in found.values()):
            quick = ratio(found, lambda row, part=part: row["attention_s"][part])  # type: ignore[misc]
            cells += [f"{found[attention]['attention_s'][part] * 1e3:.2f}", quick if attention == TILEWISE else "-"]
        else:
            cells += ["-", "-"]
    return cells


def text(results: Json) -> str:
    """The report as Markdown."""
    lines = []
    own = results["device"] == "cpu"
    for (model, batch, prompt), found in by_case(results["rows"]).items():
        for attention, row in found.items():
            part = row.get("shares", {})
            lines.append([
                model, f"{batch} x {prompt} + {row['new']}", attention, f"{batch * row['new'] / row['all_s']:.1f}",
                f"{row['first_s'] * 1e3:.0f}", f"{per_token_ms(row):.2f}",
                ratio(found) if attention == TILEWISE else "-",
                *(f"{part[name]:.0%}" if part.get(name) else "-" for name in ("attention", "experts")),
                *(own_times(found, attention) if own else ()),
            ])  # fmt: skip
    header = ["model", "requests x prompt + new", "attention", "tokens/s", "first token, ms", "per token, ms"]
    header += ["times as quick", "share of attention", "of experts"]
    if own:
        header += ["attention of a step, ms", "its times as quick", "of the prompt, ms", "the prompt's times as quick"]
    threads = f"; threads: {results['threads']}" if results["threads"] else ""
    starts = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in results["start_s"].items())
    facts = [
        f"- {results['hardware']}{threads}",
        f"- versions: {results['versions']}; random weights, {results['dtype']}; start: {starts}",
        f"- command: `{results['command']}` ({results['date']})",
    ]
    return "\n\n".join(["\n".join(facts), table(header, lines), *results["notes"]])


def plot(results: Json, file: Path) -> None:
    """Time per output token over the length of prompts, a panel for each model and number of requests."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((row["model"], row["batch"]) for row in results["rows"]))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), squeeze=False, sharex=True)
    for axis, (model, batch) in zip(axes[0], panels):
        rows = [row for row in results["rows"] if (row["model"], row["batch"]) == (model, batch)]
        for attention in dict.fromkeys(row["attention"] for row in rows):
            points = [(row["prompt"], per_token_ms(row)) for row in rows if row["attention"] == attention]
            axis.plot(*zip(*sorted(points)), marker="o", label=attention)
        axis.set(title=f"{model}, {batch} at once", xlabel="tokens of a prompt", xscale="log")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("ms per output token")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(file)


def main() -> int:
    options = parse_arguments()
    if options.from_json is not None:
        results = read_results(options.from_json)
    else:
        try:
            results = measure(options)
        except RuntimeError as error:
            print(f"engine.py: {error}", file=sys.stderr)
            return EXIT_FAILURE
        write_results(options.json or results_file("engine", results["machine"]), results)
    print(text(results))
    if options.plot is not None:
        plot(results, options.plot)
    if options.write_docs:
        publish("engine", results["machine"], text(results), folder=DOCS)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
