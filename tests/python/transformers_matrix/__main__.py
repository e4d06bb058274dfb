"""Runs the matrix: every model type of transformers' registry, each in a process of its own.

usage: cd tests/python && python -m transformers_matrix [--jobs N] [--write FILE] [TYPE...]
Exit status 1 where a type computes something else than under "eager".
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from transformers_matrix import table
from transformers_matrix.checks import Verdict, examine, kind_of, model_types

SECONDS_EACH = 120
MEMORY_EACH = 16 << 30
# Imported once, before the processes part: most types lean on them.
SHARED = ("bart", "bert", "clip", "deepseek_v3", "llama", "mamba2", "mixtral", "qwen2_vl", "siglip", "t5", "vit")


def start(model_type: str) -> tuple[int, int]:
    """A process that examines one type: its id and the pipe that its verdict comes through."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    os.close(reading)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_EACH, MEMORY_EACH))
    signal.alarm(SECONDS_EACH)
    with os.fdopen(writing, "w") as pipe:
        json.dump(asdict(examine(model_type)), pipe)
    os._exit(0)


def finish(model_type: str, process: int, text: str) -> Verdict:
    """The verdict of a process that closed its pipe; one that ended early was not built."""
    _, status = os.waitpid(process, 0)
    if text:
        return Verdict(**json.loads(text))
    ended = os.waitstatus_to_exitcode(status)
    reason = f"took more than {SECONDS_EACH} s" if ended == -signal.SIGALRM else f"its process ended with {ended}"
    return Verdict(model_type, kind_of(model_type) or "base", "", "not built", reason)


def run(names: list[str], jobs: int) -> list[Verdict]:
    """Verdicts of these types, in order. `jobs` processes at a time."""
    waiting, verdicts = list(reversed(names)), {}
    running: dict[int, tuple[str, int, list[bytes]]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            process, pipe = start(name)
            running[pipe] = (name, process, [])
        for pipe in select.select(list(running), [], [])[0]:
            name, process, chunks = running[pipe]
            if chunk := os.read(pipe, 1 << 16):
                chunks.append(chunk)
                continue
            os.close(pipe)
            del running[pipe]
            verdict = finish(name, process, b"".join(chunks).decode())
            verdicts[name] = verdict
            print(f"{verdict.result:<10}{name:<36}{verdict.detail[:160]}", flush=True)
    return [verdicts[name] for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(prog="transformers_matrix", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the tables in this Markdown file")
    parser.add_argument("types", nargs="*", help="model types; all of the registry's where none is named")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    importlib.import_module("transformers.generation")
    for name in SHARED:
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    importlib.import_module("tilewise.transformers")
    began = time.monotonic()
    verdicts = run(options.types or model_types(), options.jobs)
    counts = Counter(verdict.result for verdict in verdicts)
    summary = ", ".join(f"{counts[result]} {result}" for result in ("pass", "refused", "not built", "FAILED"))
    print(f"{len(verdicts)} types: {summary} ({time.monotonic() - began:.0f} s)")
    if options.write:
        table.write(options.write, verdicts)
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
