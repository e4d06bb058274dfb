# transformers takes flash_attention_2 for something that needs a GPU. Where there is none, the checks that say so are
# replaced, and nothing else.
"""attn_implementation="flash_attention_2" of Hugging Face transformers on a CPU."""

from __future__ import annotations

import sys
from typing import Any

_CHECK = "is_flash_attn_2_available"


def _available(kernels_fallback_ok: bool = False) -> bool:
    """Stands in for transformers' is_flash_attn_2_available."""
    return True


def _on_cpu() -> bool:
    return True


def take_cpus() -> None:
    """Replaces is_flash_attn_2_available, in transformers.utils.import_utils and wherever it has been imported to, and
    of the compatibility matrix the checks of version 2 and its devices, which gain the CPU.

    Raises:
        ImportError: transformers is not installed, or is a version without that matrix.
    """
    try:
        from transformers import modeling_flash_attention_utils
        from transformers.utils import import_utils
    except ImportError as error:
        raise ImportError(f"install(transformers=True): needs transformers 5 ({error})") from error
    matrix = getattr(modeling_flash_attention_utils, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {})
    entry: dict[str, Any] = matrix.get(2, {})
    if not {"general_availability_check", "pkg_availability_check", "supported_devices"} <= entry.keys():
        version = getattr(sys.modules["transformers"], "__version__", "?")
        raise ImportError(
            f"install(transformers=True): needs transformers 5 with a compatibility matrix (got {version})"
        )
    original = getattr(import_utils, _CHECK)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "transformers" and vars(module).get(_CHECK) is original:
            setattr(module, _CHECK, _available)
    entry["general_availability_check"] = entry["pkg_availability_check"] = _available
    devices = entry["supported_devices"]
    if (_on_cpu, "cpu") not in devices:
        entry["supported_devices"] = (*devices, (_on_cpu, "cpu"))
