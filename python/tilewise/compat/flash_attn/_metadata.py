# The metadata of a distribution named flash-attn, which libraries ask for before they import it.
"""importlib.metadata for the drop-in."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional

VERSION = "2.8.4"  # of flash_attn's interface
_NAME = "flash-attn"


class _Distribution(importlib.metadata.Distribution):
    def read_text(self, filename: str) -> Optional[str]:
        """The two files of a distribution that are asked for by name."""
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {VERSION}\n",
            "top_level.txt": "flash_attn\n",
        }.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Nothing of it is a file of its own."""
        return os.path.join(os.path.dirname(__file__), path)


class _Finder:
    """A place of sys.meta_path that knows this distribution and no module."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        if name is None or re.sub(r"[-_.]+", "-", name).lower() == _NAME:
            yield _Distribution()

    def invalidate_caches(self) -> None:
        """There are none."""


def make_findable() -> None:
    """Lets importlib.metadata find flash-attn; what transformers has remembered of its absence is forgotten."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())  # before a distribution whose place the drop-in takes
    utilities = sys.modules.get("transformers.utils.import_utils")
    for name in ("_package_distribution_mapping", "is_flash_attn_2_available", "is_flash_attn_greater_or_equal"):
        forget = getattr(getattr(utilities, name, None), "cache_clear", None)
        if forget is not None:
            forget()
