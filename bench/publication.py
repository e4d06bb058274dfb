"""What benchmarks have published: a file of data for each section, in docs/benchmarks.

A section is what one script measured on one machine, as its report has it: facts, tables whose cells are text as it was
printed, and notes. benchmarks_page.py chooses what of them docs/benchmarks.md shows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


@dataclass
class Table:
    """Cells by row, and the line of text above them. Names of columns may repeat."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def dicts(self) -> list[dict[str, str]]:
        """Rows by the names of columns; of columns that share a name the first one counts."""
        first = {name: self.columns.index(name) for name in dict.fromkeys(self.columns)}
        return [{name: row[place] for name, place in first.items()} for row in self.rows]


@dataclass
class Section:
    """A report: `kind` names the script, `name` is kind and machine, as its file is called."""

    kind: str
    name: str
    heading: str
    facts: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    picture: str = ""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def slug(text: str) -> str:
    """As names of files have it."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def section_of(kind: str, heading: str, report: str, picture: str = "") -> Section:
    """The section that a report in Markdown makes: lists in front of all tables are facts, other text is notes."""
    section = Section(kind, "_".join(filter(None, (kind, slug(heading)))), heading, picture=picture)
    title, table = "", None
    for block in re.split(r"\n\s*\n", report.strip()):
        lines = block.splitlines()
        before = " ".join(line.strip() for line in lines if not line.startswith("|"))
        rows = [line for line in lines if line.startswith("|")]
        if before and title:
            section.notes.append(title)
        title = before or title
        if rows:
            table = Table(title.rstrip(":"), _cells(rows[0]))
            table.rows = [_cells(row) for row in rows[1:] if not re.fullmatch(r"[|:\- ]+", row)]
            section.tables.append(table)
            title = ""
        elif not section.tables and all(line.startswith(("- ", "  ")) for line in lines):
            section.facts += before.removeprefix("- ").split(" - ")
            title = ""
    if title:
        section.notes.append(title)
    return section


def write(section: Section, folder: Path = DATA) -> Path:
    """Keeps the section, a row of a table on each line, so that changes of a figure are changes of a line."""
    tables = [
        f'  {{"title": {_text(table.title)},\n   "columns": {_text(table.columns)},\n   "rows": [\n'
        + ",\n".join(f"    {_text(row)}" for row in table.rows)
        + "\n   ]}"
        for table in section.tables
    ]
    lists = {"facts": section.facts, "notes": section.notes}
    parts = [f' "{name}": {_text(getattr(section, name))}' for name in ("kind", "heading", "picture")]
    parts += [f' "{name}": [' + ",".join(f"\n  {_text(line)}" for line in lines) + "]" for name, lines in lists.items()]
    parts.append(' "tables": [\n' + ",\n".join(tables) + "\n ]")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{section.name}.json"
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    return file


def _text(value: str | list[str]) -> str:
    return json.dumps(value, ensure_ascii=False)


def read(folder: Path = DATA) -> list[Section]:
    """Every section, in the order of their files."""
    sections = []
    for file in sorted(folder.glob("*.json")):
        values = json.loads(file.read_text(encoding="utf-8"))
        tables = [Table(**table) for table in values.pop("tables")]
        sections.append(Section(name=file.stem, tables=tables, **values))
    return sections
