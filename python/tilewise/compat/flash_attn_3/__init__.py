# The functions of FlashAttention-3's flash_attn_interface over Tilewise.
"""FlashAttention-3's flash_attn_func, flash_attn_varlen_func and flash_attn_with_kvcache, on CPUs and GPUs.

docs/migrating.md says which arguments have an effect.
"""

from tilewise._public import lists_public_names
from tilewise.compat.flash_attn_3._attention import flash_attn_func, flash_attn_varlen_func
from tilewise.compat.flash_attn_3._kvcache import flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
__dir__ = lists_public_names(__all__)
