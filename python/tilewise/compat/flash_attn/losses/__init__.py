# flash_attn.losses.
"""Losses: `cross_entropy`."""
