# FlashAttention-3's package over Tilewise.
"""FlashAttention-3's functions on CPUs and GPUs, those of its flash_attn_interface.

docs/migrating.md says which arguments have an effect.
"""

from tilewise._public import lists_public_names
from tilewise.compat.flash_attn._metadata import VERSION_3
from tilewise.compat.flash_attn_3.flash_attn_interface import (
    flash_attn_combine,
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
)

__version__ = VERSION_3  # of the interface; tilewise.__version__ is the library's

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]
__dir__ = lists_public_names(__all__)
