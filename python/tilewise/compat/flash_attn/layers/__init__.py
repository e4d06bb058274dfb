# flash_attn.layers, of which the rotary embedding is here.
"""Layers: `rotary`."""
