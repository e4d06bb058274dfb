"""Argument types of the benchmarks' commands: what a word means, and what is said of one that means nothing."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Optional, TypeVar

from tilewise._keywords import nearest_word

T = TypeVar("T")


def list_of(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Comma-separated values; what is named twice counts once."""

    def parse_list(text: str) -> list[T]:
        try:
            values = [parse(part.strip()) for part in text.split(",") if part.strip()]
        except ValueError as error:  # argparse would hide a ValueError's sentence
            raise argparse.ArgumentTypeError(str(error)) from error
        if not values:
            raise argparse.ArgumentTypeError(f"must name at least one value (got {text!r})")
        return list(dict.fromkeys(values))

    return parse_list


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """One of `names`."""

    def parse(text: str) -> str:
        if text not in names:
            near = nearest_word(text, names)
            meant = f"; did you mean {near}?" if near else ""
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)}{meant} (got {text!r})")
        return text

    return parse


def integer(lowest: int, highest: Optional[int] = None) -> Callable[[str], int]:
    """An integer from `lowest` to `highest`."""
    expected = f">= {lowest}" if highest is None else f"in [{lowest}, {highest}]"

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest or (highest is not None and int(text) > highest):
            raise argparse.ArgumentTypeError(f"must be an integer {expected} (got {text!r})")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """More than none and at most an hour."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= 3600.0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds in (0, 3600] (got {text!r})")
    return value


def regex(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression (got {text!r}: {error})") from error
