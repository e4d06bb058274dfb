# flash_attn.utils.torch: decorators of autograd functions that know autocast on a GPU.
"""custom_fwd and custom_bwd."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import amp

__all__ = ["custom_bwd", "custom_fwd"]

custom_fwd: Any = partial(amp.custom_fwd, device_type="cuda")
custom_bwd: Any = partial(amp.custom_bwd, device_type="cuda")
