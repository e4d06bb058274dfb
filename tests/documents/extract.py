"""Prints a document's only fenced block of one language, so that CMake can compile it.

usage: extract.py FILE.md LANGUAGE
"""

import re
import sys
from pathlib import Path


def blocks(text: str, language: str) -> list[str]:
    """The contents of all fenced blocks of `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def main() -> int:
    found = blocks(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2])
    if len(found) != 1:
        print(f"{sys.argv[1]}: must hold one {sys.argv[2]} block (got {len(found)})", file=sys.stderr)
        return 1
    print(found[0], end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
