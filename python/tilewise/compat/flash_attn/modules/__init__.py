# flash_attn.modules.
"""Modules: `block`, `embedding`, `mha` and `mlp`."""
