# `make golden` and `make golden-update`. No test: a test holds results to the reference and to limits, this says what
# moved since somebody last looked.
"""Compares what this build gives with tests/golden/expected, or writes it there.

usage: golden.py [--update] [--only model|results|kernels]
Exit status: 0 nothing moved (or with --update: written), 1 something did, 2 usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compare
import kernels

ROOT = Path(__file__).parents[2]
COMMAND = Path(os.environ.get("TILEWISE_CLI", ROOT / "build" / "tilewise"))


def check(name: str, found: compare.Entries, on_hand: Callable[[str], bool], differs: compare.Difference) -> list[str]:
    """What moved of one file, after a line about it."""
    known = compare.read(name)
    passed_over = sorted(key for key in known if key not in found and not on_hand(key))
    lines = compare.moved(known, found, on_hand, differs)
    words = f"{name}: {len(found)} entries, {len(lines)} moved"
    print(words + (f", {len(passed_over)} passed over (not on hand here)" if passed_over else ""))
    return [f"{name}: {line}" for line in lines]


def everywhere(key: str) -> bool:
    """Of a part whose entries need nothing in particular."""
    return True


def run(part: str, update: bool) -> list[str]:
    """Makes the entries of one part, then compares or writes them."""
    on_hand: Callable[[str], bool] = everywhere
    if part == kernels.NAME:
        missing = kernels.missing_compilers(COMMAND)
        for prefix, reason in missing.items():
            print(f"golden: no kernels for {prefix}*: {reason}")
        found = kernels.find(COMMAND, missing)
        on_hand, differs = (lambda key: kernels.on_hand(key, missing)), kernels.differs
    elif part == "results":
        import results

        found = results.find()
        on_hand, differs = (lambda key: results.on_hand(key, found)), results.differs
    else:
        import model

        found, differs = model.find(), model.differs
    if update:
        compare.write(part, compare.merged(compare.read(part), found, on_hand))
        return []
    return check(part, found, on_hand, differs)


def main() -> int:
    """Runs the parts."""
    parts = ("model", "results", "kernels")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write instead of comparing")
    parser.add_argument("--only", choices=parts, action="append", help="these parts (default: all)")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("TILEWISE_")]:
        del os.environ[name]
    os.environ["TILEWISE_CACHE_DIR"] = str(ROOT / "build" / "kernels")  # the tests' own
    os.environ["VIRTUAL_ENV"] = sys.prefix  # where the command finds NVRTC
    lines: list[str] = []
    for part in options.only or parts:
        begin = time.monotonic()
        lines += run(part, options.update)
        print(f"golden: {part} took {time.monotonic() - begin:.0f} s", flush=True)
    if options.update:
        print("golden: written to tests/golden/expected; git diff shows what moved")
    elif lines:
        print("\nMoved:", *lines, "\nIf that is meant: make golden-update, and look at its diff.", sep="\n  ")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
