# The definition of every operation and option, docs/semantics.md, as the package carries it: this module's docstring.
# `python -m tilewise.semantics` prints it.
"""What every operation and option means: docs/semantics.md, which takes this line's place."""

from pathlib import Path

import tilewise
from tilewise._public import lists_public_names


def _read() -> str:
    """The text, from whichever of the package's folders has it: an editable install has several."""
    for folder in tilewise.__path__:
        path = Path(folder) / "semantics.md"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"semantics.md: must be in the package's folder (looked in {list(tilewise.__path__)})")


__doc__ = _read()
__all__: list[str] = []
__dir__ = lists_public_names(__all__)

if __name__ == "__main__":
    print(__doc__, end="")
