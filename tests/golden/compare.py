# Files of golden outputs: one entry a line, so that a change of one is one line of a diff.
"""Reads, compares and writes entries: {key: {field: value}}."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]
Entries = Mapping[str, Entry]
# (key, field, before, now): what differs between the two values, in words; empty where nothing that counts does.
Difference = Callable[[str, str, Any, Any], str]

FOLDER = Path(__file__).with_name("expected")


def read(name: str) -> dict[str, Entry]:
    """The entries of a file; none where it is not there yet."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(name: str, entries: Entries) -> None:
    """Writes entries by the order of their keys, a line each."""
    lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(entries.items()))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def exactly(key: str, field: str, before: Any, now: Any) -> str:
    """Of two values that must be the same."""
    return "" if before == now else f"{field} {before} -> {now}"


def moved(known: Entries, found: Entries, on_hand: Callable[[str], bool], differs: Difference) -> list[str]:
    """A line for each entry that moved. Entries of `known` that can't be on hand here are passed over."""
    lines = []
    for key in sorted({*known, *found}):
        if key not in found:
            if on_hand(key):
                lines.append(f"{key}: gone")
        elif key not in known:
            lines.append(f"{key}: new")
        else:
            before, now = known[key], found[key]
            changes = (differs(key, name, before.get(name), now.get(name)) for name in {**before, **now})
            if words := "; ".join(change for change in changes if change):
                lines.append(f"{key}: {words}")
    return lines


def merged(known: Entries, found: Entries, on_hand: Callable[[str], bool]) -> dict[str, Entry]:
    """What an update writes: what was found, and what could not be on hand as it was."""
    return {key: entry for key, entry in known.items() if not on_hand(key)} | dict(found)
