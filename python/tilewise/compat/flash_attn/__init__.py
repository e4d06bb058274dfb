# The package that stands in for flash_attn: `from tilewise.compat.flash_attn import flash_attn_func`, or install() and
# `import flash_attn` as before.
"""flash_attn 2.8's interface over Tilewise, on CPUs and on NVIDIA's and AMD's GPUs.

docs/migrating.md says what is the same and what differs.
"""

from tilewise._public import lists_public_names
from tilewise.compat.flash_attn._install import install
from tilewise.compat.flash_attn._metadata import VERSION
from tilewise.compat.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = VERSION  # of the interface; tilewise.__version__ is the library's

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
]
__dir__ = lists_public_names([*__all__, "__version__"])
