"""Whether `vllm serve` on Tilewise's attention loses nothing: fifty clients stream at once, and one leaves early.

Run as compare.py is. The server has its processes, its port on the loopback and its log to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import transformers
from tiny_models import VOCABULARY, make_prompts, save_model
from tokenizers import Tokenizer, models, pre_tokenizers

CLIENTS = 50
NEW_TOKENS = 16
MODEL = "tiny"
START_SECONDS = 900  # on a machine that has much else to do


def save_tokenizer(folder: str) -> None:
    """A word for each token: what streams is then what was chosen."""
    words = {f"w{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)


@contextlib.contextmanager
def server(folder: str, log: Path) -> Iterator[str]:
    """Its address, once it answers. Ends all of its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model": folder, "served-model-name": MODEL, "host": "127.0.0.1", "port": port, "dtype": "float32",
        "max-model-len": 512, "block-size": 32, "max-num-seqs": 8, "max-num-batched-tokens": 64,
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, "TILEWISE_VLLM": "attention", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                   "VLLM_NO_USAGE_STATS": "1"}  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until_ready(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(process: Any, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(1)
    raise SystemExit(
        f"the server did not answer in {START_SECONDS} s (exit {process.poll()})\n{log.read_text()[-4000:]}"
    )


async def complete(session: Any, address: str, prompt: list[int], stream: bool, leave_after: int = 0) -> str:
    """The text that answers a prompt; a client that leaves does so after that many pieces of it."""
    question = {"model": MODEL, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True,
                "skip_special_tokens": False, "stream": stream}  # fmt: skip
    if leave_after:
        question["max_tokens"] = 400
    async with session.post(f"{address}/v1/completions", json=question) as answer:
        answer.raise_for_status()
        if not stream:
            return str((await answer.json())["choices"][0]["text"])
        pieces = []
        async for line in answer.content:
            data = line.decode().removeprefix("data: ").strip()
            if not data or data == "[DONE]":
                continue
            pieces.append(json.loads(data)["choices"][0]["text"])
            if leave_after and len(pieces) == leave_after:
                break
        return "".join(pieces)


async def pages_in_use(session: Any, address: str) -> float:
    async with session.get(f"{address}/metrics") as answer:
        found = re.search(r"^vllm:kv_cache_usage_perc\{[^}]*\} (\S+)$", await answer.text(), re.MULTILINE)
    if found is None:
        raise SystemExit("the server's metrics have no vllm:kv_cache_usage_perc")
    return float(found[1])


async def ask(address: str) -> None:
    prompts = [prompt["prompt_token_ids"] for prompt in make_prompts()]
    prompts = (prompts + prompts)[:CLIENTS]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1200)) as session:
        alone = [await complete(session, address, prompt, False) for prompt in prompts[:10]]
        leaving = asyncio.create_task(complete(session, address, prompts[0], True, leave_after=3))
        answers = await asyncio.gather(*(complete(session, address, prompt, True) for prompt in prompts))
        await leaving
        lengths = {len(answer.split()) for answer in answers}
        if lengths != {NEW_TOKENS}:
            raise SystemExit(f"answers must have {NEW_TOKENS} tokens each (got {sorted(lengths)})")
        differing = [index for index, answer in enumerate(alone) if answers[index] != answer]
        if differing:
            raise SystemExit(f"answers {differing} differ from those of requests that were alone")
        for _ in range(100):
            used = await pages_in_use(session, address)
            if used == 0:
                return
            await asyncio.sleep(0.2)
        raise SystemExit(f"pages are in use though every client is gone or answered (got {used:.3%})")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_model("llama", folder)
        save_tokenizer(folder)
        log = Path(folder) / "server.log"
        with server(folder, log) as address:
            asyncio.run(ask(address))
        if "Tilewise computes attention; " not in log.read_text():
            raise SystemExit(
                f"the server's log does not say that Tilewise computes attention\n{log.read_text()[-4000:]}"
            )
    print(f"{CLIENTS} clients streamed {NEW_TOKENS} tokens each, one left, and no page is in use")


if __name__ == "__main__":
    main()
