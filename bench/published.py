"""Holds a run of attention_cpu.py against what docs/benchmarks has of the same processor.

    python bench/published.py RESULTS.json [--report FILE]

Compares times of torch divided by times of Tilewise, case by case, so that a slower clock or a busy neighbour of both
counts for nothing. The report is Markdown. Exit status: 0 no pass and dtype is slower than --least of what was
published, in the geometric mean over its cases, or nothing was published of this processor; 1 one is.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from command_line import read_results
from cpu_report import ratios_by_label
from publication import Section, read

from tilewise.bench.markdown import table
from tilewise.bench.timing import geometric_mean

LEAST = 0.8  # geometric means of two runs on one machine differ by some percent, by more where others run
WORST = 5


class Comparison(NamedTuple):
    """A case's ratios."""

    label: str
    published: float
    now: float

    @property
    def change(self) -> float:
        """Below 1: slower than published."""
        return self.now / self.published


def family_and_model(processor: str) -> str:
    """What tells one kind of processor from another."""
    found = re.search(r"family \d+, model \d+", processor)
    return found.group() if found else processor


def section_about(sections: Sequence[Section], processor: str) -> Optional[Section]:
    """The section of attention_cpu.py on that kind of processor, if there is one."""
    for section in sections:
        facts = [fact for fact in section.facts if fact.startswith("processor:")]
        if section.kind == "attention_cpu" and family_and_model(processor) in map(family_and_model, facts):
            return section
    return None


def published_ratios(section: Section) -> dict[str, float]:
    """Of every case of a section's tables of speeds, by its label."""
    ratios: dict[str, float] = {}
    for each in section.tables:
        title = re.match(r"(forward|backward), (\w+), GFLOP/s", each.title)
        if title is None:
            continue
        for row in each.dicts():
            for column in row:
                if threads := re.fullmatch(r"Tilewise, (\d+) thr\.", column):
                    case = f"d{row['head_dim']} s{row['seqlen']} {row['mask']} t{threads[1]}"
                    speeds = float(row[column]), float(row[f"torch, {threads[1]} thr."])
                    ratios[f"{title[1]} {title[2]} {case}"] = speeds[0] / speeds[1]
    return ratios


def compare(results: Mapping[str, Any], sections: Sequence[Section]) -> tuple[str, list[Comparison]]:
    """The heading of the section that a run is held against, and every case that both have."""
    section = section_about(sections, results["machine"]["processor"])
    if section is None:
        return "", []
    known, now = published_ratios(section), ratios_by_label(results["rows"])
    return section.heading, [Comparison(label, known[label], now[label]) for label in known if label in now]


def means(cases: list[Comparison]) -> dict[str, tuple[int, float, float]]:
    """{"forward bf16": (cases, published, now)}, geometric means."""
    groups: dict[str, list[Comparison]] = {}
    for case in cases:
        groups.setdefault(" ".join(case.label.split()[:2]), []).append(case)
    return {
        name: (len(group), geometric_mean([c.published for c in group]), geometric_mean([c.now for c in group]))
        for name, group in groups.items()
    }


def report(results: Mapping[str, Any], sections: Sequence[Section], least: float) -> tuple[str, bool]:
    """The report, and whether some pass and dtype became slower than may be."""
    heading, cases = compare(results, sections)
    processor = results["machine"]["processor"]
    if not cases:
        return f"Nothing is published of {processor}: nothing to hold this run against.", False
    groups = means(cases)
    rows = [
        [name, str(count), f"{before:.2f}", f"{now:.2f}", f"{now / before:.2f}"]
        for name, (count, before, now) in groups.items()
    ]
    worst = sorted(cases, key=lambda case: case.change)[:WORST]
    slower = [name for name, (_, before, now) in groups.items() if now < least * before]
    verdict = f"Slower than {least:g} of what was published: {', '.join(slower)}." if slower else "No pass is slower."
    parts = [
        f"Times of torch by times of Tilewise on {processor}, beside the section {heading!r} of docs/benchmarks.",
        table(["pass", "cases", "published", "now", "now by published"], rows),
        "The cases that fell most:",
        table(
            ["case", "published", "now", "now by published"],
            [[case.label, f"{case.published:.2f}", f"{case.now:.2f}", f"{case.change:.2f}"] for case in worst],
        ),
        verdict,
    ]
    return "\n\n".join(parts), bool(slower)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what attention_cpu.py wrote")
    parser.add_argument("--report", type=Path, help="write it there too")
    parser.add_argument("--least", type=float, default=LEAST, help=f"share of what was published (default: {LEAST})")
    options = parser.parse_args()
    text, slower = report(read_results(options.results), read(), options.least)
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n", encoding="utf-8")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
