"""The tables that guides to fused attention show: forward by length and by head size, memory, and BERT-base's training.

Beside Tilewise stand standard attention, which is torch's math path, and torch's flash attention. With --write-docs its
section of docs/benchmarks is kept. See bench/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks_page import publish
from command_line import (
    DOCS,
    EXIT_OK,
    add_device,
    add_report,
    check_device,
    check_report,
    published_command,
    read_results,
    results_file,
    write_results,
)

from tilewise.bench.argument_types import integer, list_of, one_of
from tilewise.bench.device_timing import Clock, clock_of, measure
from tilewise.bench.machine import describe_gpu, versions
from tilewise.bench.markdown import Json, table

TABLES = ("seqlen", "head_dim", "memory", "bert")
LIBRARIES = ("standard", "flash", "tilewise")
# As transformers calls the same three.
IMPLEMENTATIONS = {"standard": "eager", "flash": "sdpa", "tilewise": "tilewise"}
BERTS: Mapping[str, Mapping[str, int]] = {
    "base": {},  # transformers' default
    "tiny": {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 2},
}  # fmt: skip
MEMORY_SEQLEN = MIDDLE_SEQLEN = 1024


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_device(parser)
    parser.add_argument("--tables", type=list_of(one_of(TABLES)), default=list(TABLES), help="default: all")
    parser.add_argument("--batch", type=integer(1), default=16, help="of the first two tables (default: 16)")
    parser.add_argument("--heads", type=integer(1), default=16, help="of attention alone (default: 16)")
    lengths = [512, 1024, 2048, 4096, 8192]
    parser.add_argument("--seqlens", type=list_of(integer(1)), default=lengths, help="default: 512 to 8192")
    parser.add_argument("--head-dims", type=list_of(integer(8)), default=[32, 64, 128, 256], help="default: 32 to 256")
    parser.add_argument("--batches", type=list_of(integer(1)), default=[1, 2, 4, 8, 16, 32], help="of memory's table")
    parser.add_argument("--bert-seqlens", type=list_of(integer(1)), default=[128, 256, 512, 1024], help="of training")
    parser.add_argument("--bert-batch", type=integer(1), default=32, help="samples of a step (default: 32)")
    parser.add_argument(
        "--bert", type=one_of(tuple(BERTS)), default="base", help='default: base; "tiny" tries the script'
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each library in each case (default: 0.5)")
    add_report(parser, "the GPU's name")
    options = parser.parse_args()
    check_report(parser, options)
    if options.from_json is None:
        check_device(parser, options)
    return options


def attention_calls(q: Any, k: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """Full attention of each library over [batch, heads, seqlen, head_dim]."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import tilewise

    def torch_path(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        return call

    return {
        "standard": torch_path(SDPBackend.MATH),
        "flash": torch_path(SDPBackend.FLASH_ATTENTION),
        "tilewise": lambda: tilewise.attention(q, k, v, layout="bhsd"),
    }


def make_inputs(device: str, batch: int, heads: int, seqlen: int, head_dim: int) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.randn(3, batch, heads, seqlen, head_dim, device=device, dtype=torch.bfloat16)


def why_not(call: Callable[[], Any]) -> str | None:
    """What a call that does not run says in a table; None of one that does. Standard attention leaves memory early."""
    try:
        call()
    except RuntimeError as error:  # torch's lack of memory is one
        return "no memory" if "out of memory" in str(error).lower() else "refused"
    return None


def without_failing(calls: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """The calls that run here, and what of the others is said. Raises RuntimeError where Tilewise's does not run."""
    reasons = {name: why_not(call) for name, call in calls.items()}
    if reasons.get("tilewise"):
        raise RuntimeError(f"tilewise: must run in every case (got {reasons['tilewise']!r})")
    return (
        {name: call for name, call in calls.items() if reasons[name] is None},
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def forward_row(options: argparse.Namespace, clock: Clock, seqlen: int, head_dim: int) -> Json:
    """Milliseconds of a forward pass of each library, and rates."""
    good, bad = without_failing(
        attention_calls(*make_inputs(options.device, options.batch, options.heads, seqlen, head_dim))
    )
    timings = measure(good, clock, options.seconds)
    operations = 4 * options.batch * options.heads * seqlen * seqlen * head_dim
    return {
        "seqlen": seqlen, "head_dim": head_dim, "bad": bad,
        "ms": {name: timing.median * 1e3 for name, timing in timings.items()},
        "tflops": {name: operations / timing.median / 1e12 for name, timing in timings.items()},
    }  # fmt: skip


def memory_row(options: argparse.Namespace, batch: int) -> Json:
    """MiB that a forward and a backward pass hold at most beside their inputs. torch counts it on GPUs alone."""
    import torch

    inputs = make_inputs(options.device, batch, options.heads, MEMORY_SEQLEN, 64).requires_grad_()
    peaks: dict[str, float] = {}
    bad: dict[str, str] = {}
    for name, call in attention_calls(*inputs.unbind()).items():
        if options.device == "cpu":
            call().sum().backward()
            continue
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        reason = why_not(lambda call=call: call().sum().backward())  # type: ignore[misc]
        if reason is None:
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
        else:
            bad[name] = reason
        inputs.grad = None
    return {"batch": batch, "mib": peaks, "bad": bad}


def bert_row(options: argparse.Namespace, clock: Clock, seqlen: int) -> Json:
    """Samples per second of training steps of BERT-base on random tokens, AdamW included."""
    import torch
    import transformers

    import tilewise.transformers  # noqa: F401  registers "tilewise"

    rates: dict[str, float] = {}
    bad: dict[str, str] = {}
    for name, implementation in IMPLEMENTATIONS.items():
        torch.manual_seed(0)
        config = transformers.BertConfig(
            max_position_embeddings=max(options.bert_seqlens), **BERTS[options.bert],
            attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, attn_implementation=implementation,
        )  # fmt: skip
        with torch.device(options.device):
            model = transformers.BertForMaskedLM(config).to(torch.bfloat16).train()
            ids = torch.randint(config.vocab_size, (options.bert_batch, seqlen))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(model: Any = model, ids: Any = ids, optimizer: Any = optimizer) -> None:
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        reason = why_not(step)
        if reason is None:
            rates[name] = options.bert_batch / measure({name: step}, clock, options.seconds)[name].median
        else:
            bad[name] = reason
    return {"seqlen": seqlen, "samples": rates, "bad": bad}


def run(options: argparse.Namespace) -> Json:
    clock = clock_of(options.device)
    rows: dict[str, list[Json]] = {name: [] for name in options.tables}

    def keep(name: str, row: Json) -> None:
        rows[name].append(row)
        print(name, row, file=sys.stderr, flush=True)

    for name in options.tables:
        if name == "seqlen":
            for seqlen in options.seqlens:
                keep(name, forward_row(options, clock, seqlen, 64))
        elif name == "head_dim":
            for head_dim in options.head_dims:
                keep(name, forward_row(options, clock, min(MIDDLE_SEQLEN, max(options.seqlens)), head_dim))
        elif name == "memory":
            for batch in options.batches:
                keep(name, memory_row(options, batch))
        else:
            for seqlen in options.bert_seqlens:
                keep(name, bert_row(options, clock, seqlen))
    machine = describe_gpu(options.device, options.machine)
    return {
        "machine": machine.name, "hardware": machine.gpu, "versions": versions(), "rows": rows,
        "command": published_command("guide_tables.py", sys.argv[1:]), "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "batch": options.batch, "bert": options.bert, "heads": options.heads, "bert_batch": options.bert_batch,
    }  # fmt: skip


def cells(row: Json, what: str, digits: int) -> list[str]:
    """A figure for each library, or why there is none."""
    return [f"{row[what][name]:.{digits}f}" if name in row[what] else row["bad"].get(name, "-") for name in LIBRARIES]


def times_as(row: Json, what: str, less_is_better: bool) -> list[str]:
    """Tilewise beside each of the others."""
    found = row[what]
    ratios = []
    for name in LIBRARIES[:-1]:
        if name in found and "tilewise" in found:
            ours, theirs = found["tilewise"], found[name]
            ratios.append(f"{theirs / ours if less_is_better else ours / theirs:.2f}")
        else:
            ratios.append("-")
    return ratios


def text(results: Json) -> str:
    """The report as Markdown."""
    batch, heads = results["batch"], results["heads"]
    titles = {
        "seqlen": ("seqlen", f"Forward pass, bf16, batch {batch}, {heads} heads, head_dim 64, milliseconds:"),
        "head_dim": ("head_dim", f"Forward pass, bf16, batch {batch}, {heads} heads, by head_dim, milliseconds:"),
        "memory": ("batch", f"Most memory of forward and backward, {heads} heads, head_dim 64, {MEMORY_SEQLEN} tokens, "
                   "MiB:"),
        "bert": ("seqlen", f"Training of BERT-{results['bert']}, bf16, {results['bert_batch']} samples a step, samples "
                 "per second:"),
    }  # fmt: skip
    parts = [f"- {results['hardware']}\n- versions: {results['versions']}\n"
             f"- command: `{results['command']}` ({results['date']})"]  # fmt: skip
    for name, rows in results["rows"].items():
        key, title = titles[name]
        what, digits = {"memory": ("mib", 0), "bert": ("samples", 1)}.get(name, ("ms", 3))
        header = [key, *LIBRARIES, "standard / tilewise", "flash / tilewise"]
        if name == "bert":
            header[-2:] = ["tilewise / standard", "tilewise / flash"]
        lines = [[str(row[key]), *cells(row, what, digits), *times_as(row, what, name != "bert")] for row in rows]
        parts += [title, table(header, lines)]
    return "\n\n".join(parts)


def main() -> int:
    options = parse_arguments()
    results = read_results(options.from_json) if options.from_json is not None else run(options)
    if options.from_json is None:
        write_results(options.json or results_file("guide_tables", results["machine"]), results)
    print(text(results))
    if options.write_docs:
        publish("guide_tables", results["machine"], text(results), folder=DOCS)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
