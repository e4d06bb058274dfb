"""Tables of a document, and the rows of a run in plain JSON values that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

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
