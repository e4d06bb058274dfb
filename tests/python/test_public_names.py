# dir() is what people complete in a shell: it has what a module is for, and not what it happens to import.
"""dir() of the package and of its public modules."""

import importlib
import subprocess
import sys

import pytest

import tilewise

MODULES = {
    "tilewise": {"attention", "kv_cache_attention", "nn", "compat", "semantics", "__version__"},
    "tilewise.semantics": set(),
    "tilewise.expression": {"TraceError", "Traced", "trace"},
    "tilewise.nn": {"FlashAttention"},
    "tilewise.compat": {"flash_attn", "flex_attention", "grouped_mm", "sdpa", "transformer_engine"},
    "tilewise.compat.flash_attn": {"flash_attn_func", "install", "__version__"},
    "tilewise.compat.flash_attn_3": {"flash_attn_func"},
    "tilewise.compat.flex_attention": {"BlockMask", "create_block_mask", "flex_attention", "routed"},
    "tilewise.compat.grouped_mm": {"grouped_mm", "routed", "scaled_grouped_mm"},
    "tilewise.compat.sdpa": {"routed", "scaled_dot_product_attention"},
    "tilewise.compat.transformer_engine": {"DotProductAttention"},
    "tilewise.transformers": {"register"},
    "tilewise.sglang": {"register"},
    "tilewise.vllm": {"register"},
}


@pytest.mark.parametrize("name", MODULES)
def test_names_are_public(name):
    for needed in ("torch", "transformers"):
        if needed in name or (needed == "torch" and name.startswith(("tilewise.nn", "tilewise.compat."))):
            pytest.importorskip(needed)
    module = importlib.import_module(name)
    listed = dir(module)
    assert MODULES[name] <= {*listed}
    for each in listed:
        assert not each.startswith("_") or each == "__version__"
        assert hasattr(module, each)
    assert {*getattr(module, "__all__", ())} <= {*listed}


def test_asking_imports_nothing():
    program = "import sys, tilewise; dir(tilewise), dir(tilewise.compat); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
    assert "importlib" not in dir(tilewise)
