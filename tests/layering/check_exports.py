"""Checks that a shared library exports the public interface, all of it, what is marked for the module and the command
of the same build, and nothing else.

The interface is what the headers declare without defining it: functions of the namespace and of classes, and C
functions; and whatever belongs to a class that is exported as a whole. What is not part of it bears TILEWISE_INTERNAL.
Exit status 1 on a difference.

Usage: check_exports.py NM LIBRARY FOLDER [SOURCES], where FOLDER holds the headers and SOURCES the library's own.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

SCOPE = re.compile(r"(?:template\s*<[^{}]*>\s*)?(?:namespace|class|struct)\s+(TILEWISE_\w+\s+)?([\w:]+)[^()]*")
NO_DECLARATION = re.compile(
    r"(?:using|typedef|friend|template|enum|namespace|static_assert)\b|.*=\s*(?:default|delete)$", re.DOTALL
)


def statements(text: str) -> tuple[list[tuple[str, str]], set[str]]:
    """(enclosing scopes joined by ::, text) of every statement that ends in a semicolon outside function bodies, and
    the classes that are marked as a whole."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[\[.*?\]\]|extern \"C\" \{|\b(?:public|private|protected):", "", text)
    found, scopes, begin, parentheses, skipped = [], [], 0, 0, 0
    classes: set[str] = set()
    for place, character in enumerate(text):
        if character in "()":
            parentheses += 1 if character == "(" else -1
        if parentheses or character not in "{};":
            continue
        head = text[begin:place].strip()
        if skipped:  # within a body
            skipped += {"{": 1, "}": -1}.get(character, 0)
        elif character == "{":
            if scope := SCOPE.fullmatch(head):
                scopes.append(scope.group(2))
                if scope.group(1):
                    classes.add("::".join(scopes))
            else:
                skipped = 1
        elif character == "}":
            del scopes[-1:]
        else:
            found.append(("::".join(scopes), head))
        begin = place + 1
    return found, classes


def declared(folder: Path, mark: str) -> tuple[Counter[str], set[str]]:
    """How many functions of each qualified name the headers declare, of those that have `mark` within, and the classes
    that they export whole."""
    functions: Counter[str] = Counter()
    classes: set[str] = set()
    for header in sorted(folder.rglob("*.h*")):
        found, marked = statements(header.read_text(encoding="utf-8"))
        classes |= marked
        for scope, statement in found:
            name = re.match(r"[^(]*?(\w+|operator==)\s*\(", statement)
            if name and mark in statement and scope not in marked and not NO_DECLARATION.match(statement):
                functions[f"{scope}::{name.group(1)}".removeprefix("::")] += 1
    return functions, classes


def exported(nm: str, library: str) -> set[str]:
    """Demangled, so that a constructor's two symbols are one."""
    command = [nm, "-D", "--defined-only", "--demangle", library]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split(maxsplit=2)[2].replace("[abi:cxx11]", "") for line in listing.splitlines()}


def main() -> int:
    nm, library, folder, *sources = sys.argv[1:]
    functions, classes = declared(Path(folder), "")
    for folder in sources:
        internal, whole_classes = declared(Path(folder), "TILEWISE_INTERNAL")
        functions += internal
        classes |= whole_classes
    whole = re.compile(
        rf"(?:(?:typeinfo|typeinfo name|vtable) for )?(?:{'|'.join(classes) or '(?!)'})(?:<[^()]*>)?(?:::.*)?"
    )
    symbols = [symbol for symbol in exported(nm, library) if not whole.fullmatch(symbol)]
    names = Counter(symbol.partition("(")[0] for symbol in symbols)
    for name in sorted(names.keys() | functions.keys()):
        if names[name] != functions[name]:
            print(f"{name}: declared {functions[name]} times, exported {names[name]} times")
    if names == functions:
        print(f"{library}: exports the {functions.total()} functions that the headers declare, and {sorted(classes)}")
    return 0 if names == functions and functions else 1


if __name__ == "__main__":
    sys.exit(main())
