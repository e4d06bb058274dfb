# The command's code objects, launched through the driver alone by an example in its own process.
"""launch.json tells all that a launch takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("TILEWISE_CLI", ROOT / os.environ.get("BUILD", "build-gpu") / "tilewise"))


def architecture() -> str:
    """This GPU's, as --target spells it."""
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(0).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(0)
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


SHAPE = "dtype=f16 batch_size=2 seqlen_q=300 seqlen_k=200 num_heads_q=4 num_heads_k=2 head_dim=64"


@pytest.mark.parametrize(
    "problem",
    [
        f"attention_forward {SHAPE}",
        "attention_forward dtype=f16 seqlen_q=1 seqlen_k=8192 num_heads_q=8 num_heads_k=2 head_dim=128",  # split
        f"attention_backward {SHAPE}",
        f"attention_backward {SHAPE} head_dim_v=32",
        # Few keys: queries are split, and dk and dv added up from their parts.
        "attention_backward dtype=f16 seqlen_q=2048 seqlen_k=100 num_heads_q=4 num_heads_k=2 head_dim=128",
    ],
)
def test_code_objects_run_without_tilewise(tmp_path, problem):
    if not COMMAND.is_file():
        pytest.skip(f"{COMMAND} is not built; TILEWISE_CLI names another")
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    command = [COMMAND, "compile", "--target", architecture(), "--out", tmp_path, "--problem", problem]
    subprocess.run(command, check=True, timeout=120, env=environment)
    example = ROOT / "examples" / "bare_driver" / "launch.py"
    done = subprocess.run([sys.executable, example, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest error" in done.stdout
