# flash_attn.ops.triton: what is written in Triton there is torch's own operations here, on CPUs too.
"""Operations in torch's own: `cross_entropy`, `layer_norm`, `mlp` and `rotary`."""
