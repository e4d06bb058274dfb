"""Argument types and the printed command, shared by the benchmarks' scripts."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import Any

# Options that hold paths or names of this machine: no part of a published command.
_LOCAL = re.compile(r"--(ceilings|output|json|plot|machine|write-docs)\b")


def published_command(script: str, arguments: Sequence[str]) -> str:
    """The command as documentation shows it: without options that hold paths or names of this machine."""
    kept: list[str] = []
    skip_value = False
    for argument in arguments:
        if not skip_value and not _LOCAL.match(argument):
            kept.append(argument)
        skip_value = bool(_LOCAL.match(argument)) and "=" not in argument and argument != "--write-docs"
    return shlex.join(["python", f"bench/{script}", *kept])


def int_list(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"must be comma-separated integers >= 1 (got {text!r})")
    return [int(part) for part in parts]


def subset_of(names: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        parts = text.split(",")
        if not set(parts) <= set(names):
            raise argparse.ArgumentTypeError(f"must be some of {','.join(names)} (got {text!r})")
        return parts

    return parse


def regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression (got {text!r}: {error})") from error
