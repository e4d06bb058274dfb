"""Tables and sections of a document, and the rows of a run in plain JSON values that they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

Json = dict[str, Any]


def label(row: Json) -> str:
    """A case in one line, what --filter matches: "forward bf16 d128 s4096 causal t1". The GPU's rows hold theirs."""
    if "label" in row:
        return str(row["label"])
    seqlen = f"s{row['seqlen_q']}" if row["seqlen_q"] == row["seqlen_k"] else f"s{row['seqlen_q']}/{row['seqlen_k']}"
    return f"{row['operation']} {row['dtype']} d{row['head_dim']} {seqlen} {mask_name(row)} t{row['threads']}"


def mask_name(row: Json) -> str:
    """As the tables call it."""
    return "full" if row["mask"] == "none" else str(row["mask"])


def group_by_label(rows: Iterable[Json]) -> dict[str, dict[str, Json]]:
    """{"tilewise": row, "torch": row} of every case, in their order."""
    groups: dict[str, dict[str, Json]] = {}
    for row in rows:
        groups.setdefault(label(row), {})[row["library"]] = row
    return groups


def distinct(rows: Sequence[Json], key: str) -> list[Any]:
    """The values of one field, in their order."""
    return list(dict.fromkeys(row[key] for row in rows))


def ratio_of(rows: Iterable[Json], rival: str = "torch") -> Optional[float]:
    """How many times faster Tilewise is than `rival` in one case; None where not both were right."""
    times = {row["library"]: row["median_us"] for row in rows if row["status"] == "ok"}
    return times[rival] / times["tilewise"] if {rival, "tilewise"} <= set(times) else None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up in plain text too; cells that aren't names go right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    right = [all(row[column][:1].isdigit() or row[column] == "-" for row in rows) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(cells, widths, right))
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right)) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


class Table(NamedTuple):
    """A published table: the heading above it, the last line of text before it, and rows by the names of columns."""

    heading: str
    title: str
    rows: list[dict[str, str]]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read_tables(text: str) -> list[Table]:
    """Every table of a document, in order. Of columns that share a name the first one counts."""
    tables: list[Table] = []
    heading = title = ""
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            if not names:
                names = _cells(line)
                tables.append(Table(heading, title, []))
            elif not re.fullmatch(r"[|:\- ]+", line):
                tables[-1].rows.append(dict(zip(reversed(names), reversed(_cells(line)))))
            continue
        names = []
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.strip():
            title = line.strip()
    return tables


def replace_section(docs: Path, key: str, body: str, end_of_sections: str) -> None:
    """Puts `body` in the place of the section between the marks of `key`, or before the line `end_of_sections`.

    Raises ValueError where `docs` has neither.
    """
    begin, end = f"<!-- begin {key} -->", f"<!-- end {key} -->"
    section = f"{begin}\n{body}\n{end}"
    document = docs.read_text(encoding="utf-8")
    if begin in document:
        before, _, rest = document.partition(begin)
        _, _, after = rest.partition(end)
        document = before + section + after
    else:
        before, marker, after = document.partition(end_of_sections)
        if not marker:
            raise ValueError(f"{docs}: must contain the line {end_of_sections!r}")
        document = f"{before}{section}\n\n{marker}{after}"
    docs.write_text(document, encoding="utf-8")
