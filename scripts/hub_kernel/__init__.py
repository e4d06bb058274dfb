# A whole kernel for Hugging Face's `kernels` library: scripts/hub_kernel.py puts it into the folder that is loaded.
"""flash_attn's functions on Tilewise, whose package must be installed: on CPUs, and on NVIDIA's and AMD's GPUs."""

try:
    from tilewise.compat.flash_attn import (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
        flash_attn_with_kvcache,
    )
except ModuleNotFoundError as error:
    if error.name != "tilewise":
        raise
    raise ModuleNotFoundError(
        "tilewise: must be installed, since this kernel hands every call to it (got no package of that name)",
        name="tilewise",
    ) from error

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
