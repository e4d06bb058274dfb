"""Writes the folder that Hugging Face's `kernels` library loads as a kernel of its hub: hub_kernel.py FOLDER.

FOLDER/build/torch-universal is for every torch and every device, since the kernels themselves come from the installed
package. Publish FOLDER as a repository of the hub, or name it in LOCAL_KERNELS: docs/hub_kernel.md.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = 1  # of the functions' signatures; transformers asks for 1 where nothing else is named


def project_version() -> str:
    """The version, which stands in CMakeLists.txt."""
    found = re.search(r"project\(tilewise VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    if found is None:
        raise SystemExit("CMakeLists.txt: must have project(tilewise VERSION ...) (got no such line)")
    return found[1]


def write(folder: Path) -> None:
    """Replaces what is in `folder`/build."""
    variant = folder / "build" / "torch-universal"
    shutil.rmtree(folder / "build", ignore_errors=True)
    variant.mkdir(parents=True)
    shutil.copyfile(ROOT / "scripts" / "hub_kernel" / "__init__.py", variant / "__init__.py")
    version = project_version()
    metadata = {
        "name": "tilewise",
        "id": f"_tilewise_{version.replace('.', '_')}",  # also the name that the loaded module gets
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: hub_kernel.py FOLDER (got {len(sys.argv) - 1} arguments)")
    write(Path(sys.argv[1]))
