"""Whether vLLM gives the tokens of its own attention and experts on Tilewise's: compare.py [MODEL...].

Each model is a tiny random one, in float32 and twice in a process of its own: prompts of mixed lengths, in chunks, with
prefixes that the cache has already. One whose weights are quantised is held against the numbers that they stand for,
which vLLM computes unquantised: on many CPUs it has no kernels for the others. Run with the Python of .venv-vllm
(`scripts/bootstrap.sh vllm`), and with the package of the build tree on PYTHONPATH, as `make nightly` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# What Tilewise computes of each model.
ASKED = {
    "llama": "attention",
    "gemma2": "attention",
    "bloom": "attention",
    "gpt_oss": "attention,experts",
    "qwen3_moe": "attention,experts",
    "gpt_oss_mxfp4": "attention,experts",
    "qwen3_moe_fp8": "attention,experts,linear",
    "deepseek_v3_fp8": "experts,linear",
    "llama_fp8": "linear",
    "llama_fp8_rows": "linear",
    "llama_mxfp4": "linear",
}
FORMATS = {
    "gpt_oss_mxfp4": "mxfp4",
    "qwen3_moe_fp8": "fp8_128x128",
    "deepseek_v3_fp8": "fp8_128x128",
    "llama_fp8": "fp8_row",
    "llama_fp8_rows": "fp8_row",
    "llama_mxfp4": "mxfp4",
}
OPERATIONS = {"attention": ("append_kv", "kv_cache_attention"), "experts": ("moe",), "linear": ("linear",)}


def run(model: str, asked: str, folder: Path) -> tuple[list[list[int]], str]:
    """The tokens of each prompt, and what the process said."""
    out = folder / f"{model}-{asked or 'default'}.json"
    # One thread, bound to nothing: the engine would leave a processor of few to itself, and bind what it starts.
    environment = {
        **os.environ,
        "TILEWISE_VLLM": asked,
        "TILEWISE_LOG": "dispatch",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "tokens.py"), model, str(out), *([] if asked else ["widened"])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise SystemExit(f"{model}: the engine failed with TILEWISE_VLLM={asked!r}\n{said[-4000:]}")
    return json.loads(out.read_text()), said


def compare(model: str, folder: Path) -> str:
    """A line about a model; SystemExit where anything differs from what was asked for."""
    asked = ASKED[model]
    expected, silence = run(model, "", folder)
    tokens, said = run(model, asked, folder)
    lines = [line for line in said.splitlines() if line.startswith("tilewise: ")]
    for word in asked.split(","):
        for operation in OPERATIONS[word]:
            if not any(line.startswith(f"tilewise: {operation} ") for line in lines):
                raise SystemExit(f"{model}: {operation} was never called with TILEWISE_VLLM={asked}\n{said[-4000:]}")
    if model in FORMATS:
        for operation in OPERATIONS["experts"] + OPERATIONS["linear"]:
            start, wanted = f"tilewise: {operation} ", f"w_format={FORMATS[model]} "
            if not all(wanted in f"{line} " for line in lines if line.startswith(start)):
                raise SystemExit(f"{model}: calls of {operation} were not {wanted}\n{said[-4000:]}")
    ours = tuple(f"tilewise: {operation} " for operations in OPERATIONS.values() for operation in operations)
    if any(line.startswith(ours) for line in silence.splitlines()):
        raise SystemExit(f"{model}: something was computed that nobody asked for")
    if len({tuple(answer) for answer in expected}) < len(expected) // 2:
        raise SystemExit(f"{model}: its prompts have too few different answers to tell anything")
    differing = [index for index, (ours, theirs) in enumerate(zip(tokens, expected)) if ours != theirs]
    if differing or len(tokens) != len(expected):
        raise SystemExit(f"{model}: tokens of prompts {differing} differ ({len(tokens)} of {len(expected)} answered)")
    return f"{model}: {len(tokens)} prompts, {sum(map(len, tokens))} tokens, equal with TILEWISE_VLLM={asked}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for model in sys.argv[1:] or ASKED:
            print(compare(model, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
