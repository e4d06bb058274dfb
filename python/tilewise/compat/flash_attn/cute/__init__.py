# flash_attn.cute, FlashAttention-4's interface, where that is not installed itself.
"""flash_attn_func and flash_attn_varlen_func with FlashAttention-4's arguments."""

from tilewise.compat.flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
