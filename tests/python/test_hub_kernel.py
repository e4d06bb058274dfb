"""The folder that Hugging Face's `kernels` loads: by its path, by a repository's name, and in transformers' models.

kernels lies in .venv/hub, out of sight of the other tests: transformers asks which one is there.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
HUB = ROOT / ".venv" / "hub"

LOADS = """
import sys
from pathlib import Path

import torch
import kernels

import tilewise

by_path = kernels.get_local_kernel(Path(sys.argv[1]))
by_name = kernels.get_kernel("somebody/tilewise", version=1)
torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 9, 4, 32)
expected = tilewise.attention(q, k, v, mask="causal")
for kernel in (by_path, by_name):
    torch.testing.assert_close(kernel.flash_attn_func(q, k, v, causal=True), expected)
    starts = torch.tensor([0, 9, 18], dtype=torch.int32)
    packed = kernel.flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), starts, starts, 9, 9, causal=True)
    torch.testing.assert_close(packed, expected.flatten(0, 1))
    step = kernel.flash_attn_with_kvcache(q[:, -1:], k, v, cache_seqlens=9, causal=True)
    torch.testing.assert_close(step, expected[:, -1:])
"""

# kernels 0.17.2 is the newest, and transformers asks for 0.18.2: it is told that it is.
IN_A_MODEL = """
import importlib.metadata

known = importlib.metadata.version
importlib.metadata.version = lambda name: "0.18.2" if name == "kernels" else known(name)

import torch
import transformers

import tilewise.compat.flash_attn.flash_attn_interface as interface

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, attn_implementation="eager",
)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
ids = torch.randint(99, (2, 13))
with torch.no_grad():
    expected = model(ids).logits
    model.set_attn_implementation("somebody/tilewise", allow_all_kernels=True)
    actual = model(ids).logits
torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
assert model.config._attn_implementation == "somebody/tilewise"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("hub") / "tilewise"
    subprocess.run([sys.executable, ROOT / "scripts" / "hub_kernel.py", written], check=True, timeout=60)
    return written


def run(program: str, folder: Path, *arguments: str) -> None:
    if importlib.util.find_spec("kernels") is None and not HUB.is_dir():
        pytest.skip("kernels is not here: scripts/bootstrap.sh dev installs it into .venv/hub")
    paths = [os.environ.get("PYTHONPATH", ""), str(HUB)]
    environment = {**os.environ, "LOCAL_KERNELS": f"somebody/tilewise={folder}", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_kernels_loads_the_folder(folder: Path) -> None:
    run(LOADS, folder, str(folder))


def test_transformers_runs_it_in_a_model(folder: Path) -> None:
    pytest.importorskip("transformers", minversion="5.23")
    run(IN_A_MODEL, folder)


def test_without_the_package_it_says_what_is_missing(folder: Path) -> None:
    module = folder / "build" / "torch-universal" / "__init__.py"
    done = subprocess.run([sys.executable, "-I", "-S", module], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "tilewise: must be installed, since this kernel hands every call to it" in done.stderr
