# flash_attn.layers.
"""Layers: `rotary` and `patch_embed`."""
