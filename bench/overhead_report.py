"""Turns what overhead_gpu.py measured into Markdown tables and a section of docs/benchmarks.

Works from the JSON alone, so that a run on another machine can be reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks_page import publish

from tilewise.bench.markdown import Json, table


def text(results: Json) -> str:
    """The whole report as Markdown, for the terminal and for the documentation."""
    machine = results["machine"]
    lines = [
        f"GPU: {machine['gpu']}; driver {machine['driver']}",
        f"host: {machine['host']}",
        f"versions: {machine['versions']}",
        f"command: `{results['command']}` ({results['date']})",
    ]
    return "\n\n".join(["\n".join(f"- {line}" for line in lines), *overhead_parts(results["overhead"])])


def write_section(docs: Path, results: Json) -> None:
    """Keeps the section of this GPU in the folder `docs`, in place of an earlier one."""
    publish("overhead_gpu", results["machine"]["name"], text(results), folder=docs)


def overhead_parts(overhead: Json) -> list[str]:
    """Tables of what overhead_gpu.py measured; a part that it could not measure is left out."""
    if problem := overhead.get("failed"):
        return [f"The cost of a call could not be measured: {problem}"]
    parts: list[str] = []
    if first := overhead.get("first_calls"):
        header = [
            "head_dim",
            "forward compiled, s",
            "backward compiled, s",
            "forward loaded, ms",
            "backward loaded, ms",
        ]
        lines = [
            [
                str(each["head_dim"]),
                *(f"{each['cold_s'][name]:.2f}" for name in ("forward", "backward")),
                *(f"{1e3 * each['cached_s'][name]:.1f}" for name in ("forward", "backward")),
            ]
            for each in first
        ]
        cpus = first[0]["cpus"]
        parts += [
            f"First call of a kernel on {cpus} processors, compiled, and loaded from the disk cache by a new process:"
        ]
        parts += [table(header, lines)]
    if cpp := overhead.get("cpp"):
        parts += ["Host time of one call on a tiny problem in C++, us:", cpp_table(cpp)]
    lines = [[what, f"{microseconds:.2f}"] for what, microseconds in overhead.get("calls_us", {}).items()]
    if lines:
        parts += ["Host time of one call on a tiny problem:", table(["call", "us"], lines)]
    return parts


def cpp_table(entries: Sequence[Json]) -> str:
    """A line for each problem and implementation, a column for each way to call it."""
    ways = list(dict.fromkeys(what for entry in entries for what in entry["ns"]))
    lines = []
    for entry in entries:
        times = [f"{entry['ns'][way] / 1e3:.2f}" if way in entry["ns"] else "-" for way in ways]
        lines.append([problem_name(entry["problem"]), entry["implementation"], *times])
    return table(["operation", "implementation", *ways], lines)


def problem_name(text: str) -> str:
    """The operation of a problem text, and whether it appends."""
    words = text.split()
    return f"{words[0]} that appends" if "append=1" in words else words[0]
