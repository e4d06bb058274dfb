# tilewise.compat.flash_attn under flash_attn's own name: install(), programs that stay as they are, transformers.
# Each test is a process of its own, since what is installed stays.
"""install() and python -m tilewise.compat.flash_attn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tilewise


def _python(code, *options):
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=120)


def test_install():
    code = """
import tilewise.compat.flash_attn as drop_in
drop_in.install(); drop_in.install()
import importlib, flash_attn, flash_attn_2_cuda, torch
from flash_attn import flash_attn_func
from flash_attn.bert_padding import unpad_input
from flash_attn.flash_attn_interface import _flash_attn_forward, flash_attn_gpu
from flash_attn.layers.rotary import apply_rotary_emb
assert flash_attn is drop_in and flash_attn_2_cuda is flash_attn_gpu
assert flash_attn_func is drop_in.flash_attn_func
assert _flash_attn_forward is torch.ops.flash_attn._flash_attn_forward
for name in ("flash_attn.models.gpt", "flash_attn._call", "flash_attn_3._C"):
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(error)
try:
    from flash_attn import flash_attn_unpadded_func
except ImportError as error:
    print(error)
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
    missing = done.stdout.splitlines()
    assert [line.split(":")[0] for line in missing[:3]] == [
        "No module named 'flash_attn.models'",
        "No module named 'flash_attn._call'",
        "No module named 'flash_attn_3._C'",
    ]
    assert all("Tilewise stands in for flash_attn" in line for line in missing[:3])
    assert "from 'tilewise.compat.flash_attn'" in missing[3]


def test_install_beside_another(tmp_path):
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '1.0'\n")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import tilewise.compat.flash_attn as drop_in
import torch
from tilewise.compat.flash_attn.flash_attn_interface import _flash_attn_forward
q = torch.ones(1, 1, 1, 8, dtype=torch.bfloat16)
assert _flash_attn_forward(q, q, q, 0.0, 1.0, False, -1, -1, 0.0, None, False)[0].shape == q.shape
assert not hasattr(torch.ops.flash_attn, "_flash_attn_forward")
try:
    drop_in.install()
except ImportError as error:
    print(error)
import flash_attn
assert flash_attn.__version__ == "1.0"
drop_in.install(force=True)
import flash_attn
assert flash_attn is drop_in and hasattr(torch.ops.flash_attn, "_flash_attn_forward")
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
    assert f"flash_attn: there is one already, from {package}" in done.stdout
    assert "install(force=True)" in done.stdout


def test_metadata():
    code = """
import importlib.metadata, torch
import tilewise.compat.flash_attn as drop_in
torch.cuda.is_available = lambda: True
drop_in.install()
print(importlib.metadata.version("flash_attn"), importlib.metadata.packages_distributions()["flash_attn"])
"""
    if sys.version_info < (3, 10):
        pytest.skip("importlib.metadata.packages_distributions came with Python 3.10")
    done = _python(code)
    assert done.stdout == "2.8.4 ['flash-attn']\n", done.stderr
    done = _python(code.replace("torch.cuda.is_available = lambda: True", ""))
    assert done.stdout == "2.8.4 ['flash-attn']\n", done.stderr


def _main(*arguments, cwd=None):
    command = [sys.executable, "-m", "tilewise.compat.flash_attn", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(tilewise.__file__).absolute().parents[1])}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=environment)


def test_unchanged_script(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, flash_attn, beside\nprint(flash_attn.__name__, sys.argv[1:], beside.NAME, __name__)\n"
    )
    for arguments, cwd in (((str(script),), None), (("-m", "script"), tmp_path)):
        done = _main(*arguments, "--flag", "1", cwd=cwd)
        assert done.stdout == "tilewise.compat.flash_attn ['--flag', '1'] beside __main__\n", done.stderr
    assert _main().returncode == 2


# --- transformers ---


def _generated(code):
    return _python(
        f"""
import torch, transformers
{code}
torch.manual_seed(0)
tokens = torch.randint(3, 97, (2, 12))
mask = torch.ones_like(tokens); mask[0, :5] = 0
for name, more in (("Llama", {{}}), ("Mistral", {{"sliding_window": 6}}), ("Qwen2", {{}})):
    config = getattr(transformers, name + "Config")(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, **more)
    for dtype in (torch.bfloat16, torch.float16):
        results = []
        for implementation in ("eager", "flash_attention_2"):
            torch.manual_seed(1)
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype).eval()
            model.set_attn_implementation(implementation)
            with torch.no_grad():
                logits = model(tokens, attention_mask=mask).logits.float()[mask.bool()]
                single = model(tokens[1:]).logits.float()
                out = model.generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
            results.append((logits, single, out))
        (a, b, c), (d, e, f) = results
        assert (a - d).abs().max() < 0.03 * a.abs().max() and (b - e).abs().max() < 0.03 * b.abs().max(), (name, dtype)
        print(name, dtype, (c == f).float().mean().item() > 0.9)
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flash_attention_2")
wide, narrow = (model.to(dtype)(tokens).logits for dtype in (torch.float32, torch.bfloat16))
print("fp32", (wide - narrow).abs().max() < 0.03 * wide.abs().max())
"""
    )


def test_transformers_on_a_cpu():
    """Generation with flash_attention_2 as with eager attention, on padded prompts, sliding windows and GQA."""
    pytest.importorskip("transformers")
    done = _generated("import tilewise.compat.flash_attn as f; f.install(transformers=True)")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("True") == 7, done.stdout


def test_transformers_without_the_patch():
    pytest.importorskip("transformers")
    if torch.cuda.is_available():
        pytest.skip("with a GPU transformers takes the name by itself")
    done = _generated("import tilewise.compat.flash_attn as f; f.install()")
    assert "ImportError: FlashAttention2 has been toggled on" in done.stderr
