# Runs a program that imports flash_attn as it is.
"""python -m tilewise.compat.flash_attn [--force] [--transformers] (SCRIPT | -m MODULE) [ARGUMENT ...]."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from tilewise.compat.flash_attn import install


def main() -> None:
    """Installs the drop-in and runs the script or module as __main__."""
    parser = argparse.ArgumentParser(
        prog="python -m tilewise.compat.flash_attn",
        description="Run a program in which `import flash_attn` is Tilewise's.",
    )
    parser.add_argument("--force", action="store_true", help="take the place of a flash_attn that is installed")
    parser.add_argument(
        "--transformers", action="store_true", help='let transformers take "flash_attention_2" on a CPU too'
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module rather than a script")
    parser.add_argument("program", help="the script, or with -m the module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own")
    given = parser.parse_args()
    try:
        install(force=given.force, transformers=given.transformers)
    except ImportError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    sys.argv = [given.program, *given.arguments]
    if given.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(given.program))
        runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main()
