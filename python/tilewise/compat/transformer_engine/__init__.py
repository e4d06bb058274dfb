# Transformer Engine's attention over Tilewise: the module, and the two functions underneath it.
"""Transformer Engine's attention: DotProductAttention, fused_attn_fwd and fused_attn_bwd, with its own vocabulary.

They run on CPUs too, and in f32. What only Transformer Engine's own backends know is refused by name: FP8, context
parallelism, its KV cache, return_max_logit, score_mod and Gated DeltaNet.
"""

from tilewise._public import lists_public_names
from tilewise.compat.transformer_engine.fused import fused_attn_bwd as fused_attn_bwd
from tilewise.compat.transformer_engine.fused import fused_attn_fwd as fused_attn_fwd
from tilewise.compat.transformer_engine.module import DotProductAttention as DotProductAttention

__all__ = ["DotProductAttention", "fused_attn_bwd", "fused_attn_fwd"]
__dir__ = lists_public_names(__all__)
