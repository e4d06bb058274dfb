"""The matrix's tables in docs/transformers.md: written by a full run, read by the tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import transformers

if TYPE_CHECKING:
    from transformers_matrix.checks import Verdict

BEGIN = "<!-- The matrix writes from here on. -->"
TITLES = {"pass": "Pass", "refused": "Refused", "not built": "Not built", "FAILED": "Failed"}


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def render(verdicts: list[Verdict]) -> str:
    """Markdown: a summary, then one table for each result."""
    counts = Counter(verdict.result for verdict in verdicts)
    lines = [
        BEGIN,
        "",
        f"transformers {transformers.__version__}: {len(verdicts)} model types, "
        + ", ".join(f"{counts[result]} {title.lower()}" for result, title in TITLES.items() if counts[result])
        + ".",
    ]
    for result, title in TITLES.items():
        chosen = [verdict for verdict in verdicts if verdict.result == result]
        if chosen:
            heading = {"pass": "checked", "refused": "message"}.get(result, "reason")
            lines += ["", f"## {title}", "", f"| type | kind | class | {heading} |", "|---|---|---|---|"]
            lines += [f"| {v.model_type} | {v.kind} | {v.model} | {cell(v.detail)} |" for v in chosen]
    return "\n".join(lines) + "\n"


def write(path: Path, verdicts: list[Verdict]) -> None:
    """Replaces what follows BEGIN."""
    text = path.read_text()
    path.write_text(text[: text.index(BEGIN)] + render(verdicts))


def read(path: Path) -> dict[str, str]:
    """The result of each type in the file."""
    results: dict[str, str] = {}
    result = ""
    names = {title: name for name, title in TITLES.items()}
    for line in path.read_text().partition(BEGIN)[2].splitlines():
        if line.startswith("## "):
            result = names[line[3:]]
        elif line.startswith("| ") and not line.startswith("| type "):
            results[line.split(" | ")[0].removeprefix("| ")] = result
    return results
