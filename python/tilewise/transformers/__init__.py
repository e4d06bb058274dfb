"""The "tilewise" implementations of attention and of experts for Hugging Face transformers.

Importing this package registers them: `AutoModel.from_pretrained(..., attn_implementation="tilewise")`, and
`experts_implementation="tilewise"` for mixtures of experts.
A model computes what it computes under "eager", or is refused with the reason when it is built.
"""

from __future__ import annotations

import inspect

import transformers

if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"tilewise.transformers: needs transformers 5 or newer (got {transformers.__version__})")

from transformers import masking_utils
from transformers.modeling_utils import AttentionInterface

from tilewise._public import lists_public_names
from tilewise.transformers import experts, packed, serving, stored, support
from tilewise.transformers.forward import attention_forward
from tilewise.transformers.masks import LazyMask, attention_mask
from tilewise.transformers.support import NAME

__all__ = ["LazyMask", "attention_forward", "attention_mask", "register"]
__dir__ = lists_public_names(__all__)


def register() -> None:
    """Makes attn_implementation="tilewise" and experts_implementation="tilewise" known to transformers.

    Importing this package calls it; calling again is harmless. Raises ImportError for transformers before 5.
    """
    if "q_offset" not in inspect.signature(masking_utils.sdpa_mask).parameters:
        raise ImportError(
            f"tilewise.transformers: needs transformers 5 whose masks take q_offset (got {transformers.__version__})"
        )
    AttentionInterface.register(NAME, attention_forward)
    masking_utils.AttentionMaskInterface.register(NAME, attention_mask)
    support.install()
    packed.install()
    serving.install()
    experts.install()
    if stored.is_supported():
        from tilewise.transformers import fp8, mxfp4

        fp8.install()
        mxfp4.install()


register()
