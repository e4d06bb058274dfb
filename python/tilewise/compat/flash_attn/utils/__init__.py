# flash_attn.utils.
"""Helpers: `benchmark`, `distributed`, `generation`, `pretrained` and `torch`."""
