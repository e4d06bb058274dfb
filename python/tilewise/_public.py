# What dir() says of the package's modules: what they are for, without what they import.
"""dir() of public modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def lists_public_names(names: Iterable[str]) -> Callable[[], list[str]]:
    """A module's __dir__, which names these alone."""
    listed = sorted(names)

    def module_dir() -> list[str]:
        return list(listed)

    return module_dir
