# What the backends inside serving engines (tilewise.vllm, tilewise.sglang) say alike.
"""Sentences about an engine's release, and the refusal of what a newer one passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilewise

__all__ = ["refuse_meanings", "release_sentence"]


def release_sentence(engine: str, version: str, known: Mapping[str, str]) -> str:
    """What is known of this release of an engine: `known` has a few words for each, by "major.minor" or whole."""
    words = known.get(version, known.get(".".join(version.split(".")[:2])))
    if words is not None:
        return f"tilewise {tilewise.__version__} in {engine} {version}, {words}"
    return (
        f"tilewise {tilewise.__version__} knows {engine} {', '.join(known)}, and not {version}: what it does not know "
        "is refused by name"
    )


def refuse_meanings(engine: str, whose: str, given: Mapping[str, Any], neutral: Mapping[str, Any] = {}) -> None:
    """Raises NotImplementedError for the first of `given` that means something.

    A keyword that a newer release passes is accepted as long as it says nothing: None, False or its value in
    `neutral`.
    """
    for name, value in given.items():
        if value is None or value is False or (name in neutral and value == neutral[name]):
            continue
        got = type(value).__name__ if hasattr(value, "shape") else repr(value)
        raise NotImplementedError(
            f"{name}: is not supported by tilewise's attention in {engine}, passed by {whose} (got {got})"
        )
