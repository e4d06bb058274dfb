# torch's private names: all of them are looked up in one module, and one that a torch lacks is refused with a sentence.
"""What Tilewise uses of torch that torch does not promise."""

import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tilewise._torch import private

PACKAGE = Path(private.__file__).resolve().parent.parent
LOOK_UP = re.compile(r'name_of\("([^"]+)"(?:, "([^"]+)")?\)')
NAMES = sorted(
    {(module or "torch", path) for file in (PACKAGE / "_torch").glob("*.py")
     for path, module in LOOK_UP.findall(file.read_text())}
)  # fmt: skip
SENTENCE = r"tilewise: torch {} has no {}, which Tilewise needs; it knows torch 2\.6 to 2\.\d+: install"


def test_every_name_is_listed():
    assert len(NAMES) > 10
    for module, path in NAMES:
        assert private.name_of(path, module) is not None or path.endswith("_level")


@pytest.mark.parametrize(("module", "path"), NAMES, ids=[".".join(name) for name in NAMES])
def test_a_missing_name_is_refused(module, path, monkeypatch):
    *owners, name = path.split(".")
    with monkeypatch.context() as patch:
        patch.delattr(functools.reduce(getattr, owners, importlib.import_module(module)), name)
        with pytest.raises(ImportError) as raised:
            private.name_of(path, module)
    assert re.match(SENTENCE.format(re.escape(torch.__version__), re.escape(f"{module}.{path}")), str(raised.value))


def test_a_torch_without_a_name():
    """The name is taken away before the package's torch side is imported, as a newer torch may have it."""
    code = (
        "import torch, tilewise\n"
        "torch.__version__ = '9.1.0'\n"
        "del torch._C._are_functorch_transforms_active\n"
        "q = torch.ones(1, 2, 1, 8)\n"
        "tilewise.attention(q, q, q)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    name = r"torch\._C\._are_functorch_transforms_active"
    assert re.match("ImportError: " + SENTENCE.format(r"9\.1\.0", name), last), done.stderr[-2000:]


@pytest.mark.parametrize("name", private.JAGGED_NAMES)
def test_a_missing_name_of_jagged_tensors(name):
    class Other:
        pass

    with pytest.raises(ImportError, match=rf"has no torch\.nested\..*\.NestedTensor\.{name}, which Tilewise needs"):
        private.of_jagged(Other(), name)


def test_no_other_file_uses_private_names():
    """Attributes of torch or of its modules that begin with an underscore, anywhere in the package."""
    private_use = re.compile(r"(?<![\w.])torch(?!\.ops\b)(?:\.[a-z]+)*\._[A-Za-z]\w*")
    found = [
        f"{file.relative_to(PACKAGE)}: {line.strip()}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.name != "private.py"
        for line in file.read_text().splitlines()
        if private_use.search(line.split("#")[0]) and "name_of(" not in line
    ]
    assert found == []
