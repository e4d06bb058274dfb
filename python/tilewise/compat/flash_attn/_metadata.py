# The metadata of distributions named flash-attn and flash-attn-3, which libraries ask for before they import them.
"""importlib.metadata for the drop-ins."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from typing import Any, Optional

VERSION = "2.8.4"  # of flash_attn's interface
VERSION_3 = "3.0.0"  # of FlashAttention-3's
_OF_TRANSFORMERS = (
    "_package_distribution_mapping",
    "is_flash_attn_2_available",
    "is_flash_attn_3_available",
    "is_flash_attn_greater_or_equal",
)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Distribution(importlib.metadata.Distribution):
    """One of the drop-ins."""

    def __init__(self, name: str, version: str, modules: tuple[str, ...]) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "top_level.txt": "".join(f"{module}\n" for module in modules),
        }
        self._name = name

    def is_asked_for(self, name: Optional[str]) -> bool:
        """Whether a search for this name, or for all with None, finds it."""
        return name is None or _normalized(name) == self._name

    def read_text(self, filename: str) -> Optional[str]:
        """The two files of a distribution that are asked for by name."""
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Nothing of it is a file of its own."""
        return os.path.join(os.path.dirname(__file__), path)


FLASH_ATTN = Distribution("flash-attn", VERSION, ("flash_attn",))
FLASH_ATTN_3 = Distribution("flash-attn-3", VERSION_3, ("flash_attn_3", "flash_attn_interface"))


def forget_absence() -> None:
    """Makes transformers ask again where it has remembered that there is no flash_attn."""
    utilities = sys.modules.get("transformers.utils.import_utils")
    for name in _OF_TRANSFORMERS:
        forget = getattr(getattr(utilities, name, None), "cache_clear", None)
        if forget is not None:
            forget()
