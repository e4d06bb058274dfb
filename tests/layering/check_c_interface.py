"""Checks that the C interface is what the list of it says: a program that was linked with it goes on working.

The list has the soname, each function's prototype, each field of a struct in its order and each value of an enum, one a
line, "KIND NAME: TEXT". What it has must not change while the soname stays; what is new is added to it, fields at the
end of a struct that begins with its size. Exit status 1 on a difference. With --write the list is written instead.

Usage: check_c_interface.py NM READELF LIBRARY FOLDER LIST [--write], where FOLDER holds the headers.
"""

import re
import subprocess
import sys
from pathlib import Path

FUNCTION = re.compile(r"TILEWISE_EXPORT\s+([^;{}]*?\b(tilewise_\w+)\s*\([^;]*\))\s*;")
STRUCT = re.compile(r"typedef struct (\w+)\s*\{([^}]*)\}")
ENUM = re.compile(r"typedef enum (\w+)\s*\{([^}]*)\}")


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def interface(folder: Path) -> dict[str, str]:
    """What the C headers declare: "KIND NAME" and its text."""
    found: dict[str, str] = {}
    for header in sorted(folder.rglob("*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        for prototype, name in FUNCTION.findall(text):
            found[f"function {name}"] = words(prototype)
        for name, body in STRUCT.findall(text):
            fields = [words(field) for field in body.split(";") if field.strip()]
            found |= {f"field {name} {place}": field for place, field in enumerate(fields)}
        for name, body in ENUM.findall(text):
            for value in filter(None, map(words, body.split(","))):
                found[f"value {name} {value.partition(' ')[0]}"] = value
    return found


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def soname(readelf: str, library: str) -> str:
    match = re.search(r"\(SONAME\).*\[(.*)\]", output(readelf, "-d", "-W", library))
    return match.group(1) if match else ""


def main() -> int:
    nm, readelf, library, folder, path = sys.argv[1:6]
    now = {f"soname {soname(readelf, library)}": ""} | interface(Path(folder))
    if sys.argv[6:] == ["--write"]:
        Path(path).write_text("".join(f"{name}: {text}\n" if text else f"{name}\n" for name, text in now.items()))
        return 0
    lines = [line.partition(": ") for line in Path(path).read_text().splitlines()]
    frozen = {name: text for name, _, text in lines}
    faults = [
        f"{name}: must stay {text!r} while the soname does (got {now.get(name, 'nothing')!r})"
        for name, text in frozen.items()
        if now.get(name) != text
    ]
    faults += [f"{name}: new, and not in {path}: {text}" for name, text in now.items() if name not in frozen]
    symbols = {line.split()[2] for line in output(nm, "-D", "--defined-only", library).splitlines()}
    exported = {symbol for symbol in symbols if symbol.startswith("tilewise_")}
    functions = {name.removeprefix("function ") for name in now if name.startswith("function ")}
    faults += [f"{name}: declared, and not exported" for name in sorted(functions - exported)]
    faults += [f"{name}: exported, and declared by no header" for name in sorted(exported - functions)]
    print("\n".join(faults) or f"{library}: {len(functions)} functions and {len(now)} lines, as listed")
    return 1 if faults or not functions else 0


if __name__ == "__main__":
    sys.exit(main())
