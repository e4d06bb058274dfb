# What Doxygen is shown of the public headers. C's comments, which it would pass over, are marked as documentation; of
# C++ the namespace that all names stand in is taken away, so that the reference can list them header by header.
"""A filter for Doxygen: prints a header as it should be read.

usage: doxygen_filter.py HEADER
"""

import re
import sys
from pathlib import Path


def marked(text: str) -> str:
    """C: a comment behind code belongs to that code, any other one to what follows it."""
    text = re.sub(r"^/\* NOLINT.*?\*/\n", "\n", text, flags=re.MULTILINE | re.DOTALL)
    head, first, rest = text.partition("#ifndef")
    rest = re.sub(r"(?<=[;,{0-9])([ \t]+)/\* ", r"\1/**< ", rest)
    rest = re.sub(r"^([ \t]*)/\* ", r"\1/** ", rest, flags=re.MULTILINE)
    return head.replace("/* ", "/** @file\n * ", 1) + first + rest


def without_namespace(text: str) -> str:
    """C++: the names alone. The lines above `#pragma once` say what the header is for."""
    head, pragma, rest = text.partition("#pragma once")
    head = re.sub(r"^//", "///", head, flags=re.MULTILINE).replace("///", "/// @file\n///", 1)
    return head + pragma + re.sub(r"^namespace tilewise \{$|^\}  // namespace tilewise$", "", rest, flags=re.MULTILINE)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    print((marked if path.suffix == ".h" else without_namespace)(path.read_text(encoding="utf-8")), end="")
