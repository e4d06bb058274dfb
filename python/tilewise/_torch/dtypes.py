# torch's dtypes by the core's names.
"""Which dtypes of torch the core knows, and which of them DLPack cannot carry in every version."""

from __future__ import annotations

import torch

_SMALL = {  # newer torch has more of them
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e8m0fnu": "fp8_e8m0",
    "float4_e2m1fn_x2": "fp4_e2m1",
}
# Borrowed as bytes: older DLPack has no names for them.
BYTE_DTYPES: dict[torch.dtype, str] = {
    getattr(torch, theirs): ours for theirs, ours in _SMALL.items() if hasattr(torch, theirs)
}
CORE_DTYPES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float64: "f64",
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    **BYTE_DTYPES,
}
# Of narrow ones that torch has not, bytes.
TORCH_DTYPES: dict[str, torch.dtype] = {
    **dict.fromkeys(_SMALL.values(), torch.uint8),
    **{ours: theirs for theirs, ours in CORE_DTYPES.items()},
}
