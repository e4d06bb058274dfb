# flash_attn.ops.
"""Operations in torch's own: `activations`, `fused_dense`, `layer_norm`, `rms_norm` and `triton`."""
