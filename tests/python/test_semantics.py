"""The package carries the definition of its operations: docs/semantics.md, as docstrings."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import tilewise

DEFINITION = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text(encoding="utf-8")


def test_the_module_is_the_definition():
    assert tilewise.semantics.__doc__ == DEFINITION
    done = subprocess.run([sys.executable, "-m", "tilewise.semantics"], capture_output=True, text=True, timeout=60)
    assert done.stdout == DEFINITION, done.stderr


def test_attention_says_what_its_arguments_mean():
    text = inspect.getdoc(tilewise.attention)
    assert text is not None
    assert text.startswith("Softmax attention: ")
    assert text.endswith(DEFINITION.rstrip())
    for name in inspect.signature(tilewise.attention).parameters:
        assert f"{name}:" in text or f"{name}," in text, name
    assert "\nArgs:\n    q: " in text, "indented as it was"


def test_the_package_says_where_to_look():
    assert "tilewise.semantics" in (tilewise.__doc__ or "")


def test_optimised_python_needs_no_docstrings():
    program = "import tilewise; print(tilewise.attention.__doc__)"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "None\n", done.stderr
