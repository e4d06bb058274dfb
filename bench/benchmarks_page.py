"""Makes docs/benchmarks.md of the data in docs/benchmarks: page.md.in has its text, and says where which figures stand.

    python bench/benchmarks_page.py                           makes the page
    python bench/benchmarks_page.py KIND HEADING < report.md  first keeps a report that no script publishes by itself

What page.md.in may say:

    {{each KIND}} ... {{end}}                       once for each section of that kind; within, @ is its name
    {{heading NAME}} {{picture NAME}}               of the section NAME
    {{facts NAME | WORDS}}                          its facts, or those that begin with one of the words
    {{table NAME | TITLE | WHERE | COLUMNS}}        its table whose title begins so; WHERE and COLUMNS may be left out
    {{cell NAME | TITLE | WHERE | COLUMN}}          the one cell there
    {{least NAME | TITLE | WHERE | COLUMN}}         the least number of that column; likewise {{most ...}}
    {{losses}}                                      every published case in which another library is quicker

WHERE is COLUMN=VALUE or VALUE; COLUMN=VALUE: rows that fit all of it. COLUMNS stand between semicolons.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import publication
import speed_picture
from publication import DATA, Section, Table

from tilewise.bench.markdown import table as markdown_table

HEAD = "<!-- Made by bench/benchmarks_page.py of docs/benchmarks/page.md.in and the data beside it: change those. -->\n"


def page_of(folder: Path) -> Path:
    """The page stands beside the folder of its data and is called like it."""
    return folder.with_suffix(".md")


def picture_of(folder: Path) -> Path:
    """The README's picture stands there too."""
    return folder.with_name(f"{folder.name}_speed.svg")


class Page:
    """What directives are answered from."""

    def __init__(self, sections: list[Section]) -> None:
        self.sections = {section.name: section for section in sections}
        self.verbs: dict[str, Callable[..., str]] = {
            "heading": lambda name: self.section(name).heading,
            "facts": self.facts,
            "picture": self.picture,
            "table": self.table,
            "cell": self.cell,
            "least": lambda *words: format(min(self.numbers(*words)), "g"),
            "most": lambda *words: format(max(self.numbers(*words)), "g"),
            "losses": self.losses,
        }

    def render(self, template: str) -> str:
        """The page: first what is repeated, then every directive."""
        text = re.sub(r"\{\{each (\w+)\}\}\n(.*?)\{\{end\}\}\n", self._repeated, template, flags=re.DOTALL)
        return re.sub(r"\{\{(\w+) ?([^}]*)\}\}", self._answer, text)

    def _repeated(self, match: re.Match[str]) -> str:
        names = [section.name for section in self.sections.values() if section.kind == match[1]]
        if not names:
            raise SystemExit(f"page.md.in: each: must name a kind of section (got {match[1]!r})")
        return "".join(match[2].replace("@", name) for name in names)

    def _answer(self, match: re.Match[str]) -> str:
        if match[1] not in self.verbs:
            raise SystemExit(f"page.md.in: must use one of {', '.join(self.verbs)} (got {match[1]!r})")
        words = [word.strip() for word in match[2].split("|")] if match[2] else []
        return self.verbs[match[1]](*words)

    def section(self, name: str) -> Section:
        """The section of that name; there must be one."""
        if name not in self.sections:
            raise SystemExit(f"page.md.in: must name a section of docs/benchmarks (got {name!r})")
        return self.sections[name]

    def find(self, name: str, title: str) -> Table:
        """The table of a section with that title, or whose title begins so; there must be one."""
        tables = self.section(name).tables
        same = [table for table in tables if table.title == title]
        found = same or [table for table in tables if table.title.startswith(title)]
        if len(found) != 1:
            raise SystemExit(f"page.md.in: {name}: must have one table {title!r} (got {len(found)})")
        return found[0]

    def chosen(self, name: str, title: str, where: str) -> list[dict[str, str]]:
        """Rows that fit; there must be some."""
        conditions = [condition.split("=", 1) for condition in where.split(";")] if where else []
        wanted = {column.strip(): [value.strip() for value in values.split(" or ")] for column, values in conditions}
        rows = self.find(name, title).dicts()
        if unknown := set(wanted) - set(rows[0]):
            raise SystemExit(f"page.md.in: {name}: {title}: has no column {', '.join(sorted(unknown))}")
        rows = [row for row in rows if all(row[column] in values for column, values in wanted.items())]
        if not rows:
            raise SystemExit(f"page.md.in: {name}: {title}: has no row with {where}")
        return rows

    def facts(self, name: str, words: str = "") -> str:
        """A list, of all facts or of those that begin with one of the words."""
        first = tuple(word.strip() for word in words.split(";"))
        return "\n".join(f"- {fact}" for fact in self.section(name).facts if fact.startswith(first))

    def picture(self, name: str) -> str:
        """The plot of the section's run, where it has one."""
        section = self.section(name)
        return f"![Speed on {section.heading}]({section.picture})" if section.picture else ""

    def table(self, name: str, title: str, where: str = "", columns: str = "") -> str:
        """Markdown, whole or of some rows and columns."""
        if not where and not columns:
            table = self.find(name, title)
            return markdown_table(table.columns, table.rows)
        rows = self.chosen(name, title, where)
        names = [column.strip() for column in columns.split(";")] if columns else list(dict.fromkeys(rows[0]))
        if unknown := set(names) - set(rows[0]):
            raise SystemExit(f"page.md.in: {name}: {title}: has no column {', '.join(sorted(unknown))}")
        return markdown_table(names, [[row[column] for column in names] for row in rows])

    def cell(self, name: str, title: str, where: str, column: str) -> str:
        """One cell."""
        rows = self.chosen(name, title, where)
        if len(rows) != 1 or column not in rows[0]:
            raise SystemExit(
                f"page.md.in: {name}: {title}: {where}: must be one cell of {column!r} (got {len(rows)} rows)"
            )
        return rows[0][column]

    def numbers(self, name: str, title: str, where: str, column: str) -> list[float]:
        """Those of a column, without cells that have none."""
        return [float(row[column]) for row in self.chosen(name, title, where) if row[column] not in ("", "-")]

    def losses(self) -> str:
        """A line for each ratio below 1 beside another library."""
        lines = []
        for section in self.sections.values():
            for table in section.tables:
                for row in table.rows:
                    lines += [f"- {section.heading}, {loss}" for loss in lost(table, row)]
        return "\n".join(lines)


CASE_COLUMNS = ("head_dim", "seqlen", "mask", "option", "pass", "batch", "layer", "tokens", "rows x n x k", "weights")


def lost(table: Table, row: list[str]) -> list[str]:
    """What a row says of another library that is quicker: its time by Tilewise's, below 1."""
    found = []
    for place, (column, value) in enumerate(zip(table.columns, row)):
        if (column == "ratio" or column.startswith("beside ")) and re.fullmatch(r"0\.\d+", value):
            other = column.removeprefix("beside ") if column != "ratio" else table.columns[place - 2]
            names = [name for name in table.columns if name in CASE_COLUMNS]
            case = ", ".join(f"{name} {row[table.columns.index(name)]}" for name in names)
            found.append(f"{table.title.partition(', GFLOP/s')[0]}, {case}: {other} takes {value} of Tilewise's time")
    return found


def make(folder: Path = DATA) -> str:
    """The page's text."""
    template = (folder / "page.md.in").read_text(encoding="utf-8")
    title, _, rest = Page(publication.read(folder)).render(template).partition("\n")
    return f"{title}\n\n{HEAD}{rest}"


def write(folder: Path = DATA) -> Path:
    """Writes the page, and the README's picture where the data has what it shows."""
    page, sections = page_of(folder), publication.read(folder)
    page.write_text(make(folder), encoding="utf-8")
    if speed_picture.bars(sections):
        picture_of(folder).write_text(speed_picture.draw(sections), encoding="utf-8")
    return page


def publish(kind: str, heading: str, report: str, picture: str = "", folder: Path = DATA) -> Path:
    """Keeps a report's section and makes the page anew. Notes that its file had before stay in it."""
    section = publication.section_of(kind, heading, report, picture)
    known = {each.name: each for each in publication.read(folder)}
    if section.name in known:
        section.notes += [note for note in known[section.name].notes if note not in section.notes]
    file = publication.write(section, folder)
    write(folder)
    return file


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", help="what the section's file is called by, such as registers")
    parser.add_argument("heading", nargs="?", default="", help="of the section: the machine's name")
    options = parser.parse_args(arguments)
    if options.kind:
        print(f"written: {publish(options.kind, options.heading, sys.stdin.read())}")
    print(f"written: {write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
