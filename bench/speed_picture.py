"""Draws docs/benchmarks_speed.svg, the one picture of the README, of what benchmarks have published.

It is written as text, so that equal data makes equal bytes on every machine: a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from publication import Section

WIDTH, ROW, LEFT, RIGHT, TOP = 720, 26, 270, 560, 64
OURS, TEXT, LINE = "#2a6fbb", "#333333", "#999999"
HEADS = "64, 128, 256"  # the row that takes all head dims together
CPUS = {
    "Zen 5": "AMD EPYC (Zen 5)",
    "Intel": "Intel Xeon (AMX)",
}  # what a section's heading has; what it is called here


class Bar(NamedTuple):
    """A geometric mean of ratios."""

    machine: str
    operation: str
    beside: str
    ratio: float


def gpu_bars(section: Section) -> Iterator[Bar]:
    """Beside each library, over all shapes of the grid."""
    tables = [table for table in section.tables if table.title.startswith("Their time divided")]
    rows = [row for table in tables for row in table.dicts() if row["head_dim"] == HEADS]
    for row in sorted(rows, key=lambda row: (row["pass"] != "forward", row["beside"] != "cuDNN")):
        yield Bar(section.heading, row["pass"], row["beside"], float(row["geometric mean"]))


def cpu_bars(section: Section, name: str) -> Iterator[Bar]:
    """Beside torch, in bf16, over all numbers of threads."""
    tables = [table for table in section.tables if table.title.startswith("Time of torch divided")]
    for row in (row for table in tables for row in table.dicts()):
        if row["dtype"] == "bf16" and "," in row["threads"]:
            yield Bar(name, row["pass"], "torch", float(row["geometric mean"]))


def bars(sections: list[Section]) -> list[Bar]:
    """GPUs first, then the CPUs of CPUS."""
    found = [bar for section in sections if section.kind == "attention_gpu" for bar in gpu_bars(section)]
    for word, name in CPUS.items():
        for section in sections:
            if section.kind == "attention_cpu" and word in section.heading:
                found += cpu_bars(section, name)
    return found


def text_at(x: float, y: float, text: str, more: str = "") -> str:
    """A line of text; `more` are attributes."""
    return f'<text x="{x:g}" y="{y:g}" fill="{TEXT}"{more}>{escape(text)}</text>'


def draw(sections: list[Section]) -> str:
    """The picture as SVG: a bar for each ratio, and a line where the other library is."""
    rows = bars(sections)
    height = TOP + ROW * len(rows) + 20
    scale = (RIGHT - LEFT) / max(bar.ratio for bar in rows)
    one = LEFT + scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        text_at(16, 28, "Attention in bf16: how many times as fast as the library beside it", ' font-weight="bold"'),
        text_at(
            16,
            48,
            "geometric means over head dims and lengths, full and causal; the dashed line is the other library",
            ' font-size="12"',
        ),
    ]
    before = ""
    for number, bar in enumerate(rows):
        y = TOP + ROW * number
        name = f"{bar.machine}, {bar.operation}"
        if name != before:
            lines.append(text_at(16, y + 17, name))
        before = name
        lines.append(f'<rect x="{LEFT}" y="{y + 4}" width="{scale * bar.ratio:.1f}" height="{ROW - 8}" fill="{OURS}"/>')
        lines.append(text_at(round(LEFT + scale * bar.ratio) + 8, y + 17, f"{bar.ratio:.2f} × {bar.beside}"))
    bottom = height - 14
    lines.append(
        f'<line x1="{one:.1f}" y1="{TOP}" x2="{one:.1f}" y2="{bottom}" stroke="{LINE}" stroke-width="2"'
        ' stroke-dasharray="4 3"/>'
    )
    return "\n".join([*lines, "</svg>", ""])
