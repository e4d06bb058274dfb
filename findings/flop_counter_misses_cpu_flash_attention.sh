#!/usr/bin/env bash
# torch.utils.flop_counter.FlopCounterMode over scaled_dot_product_attention on a CPU, torch 2.13.0.
#
# The counter has formulas for the flash kernels of CUDA, for the efficient ones and cuDNN's, and none for
# aten::_scaled_dot_product_flash_attention_for_cpu, which is what a CPU picks by itself. It says nothing and counts 0:
# a model's count on a CPU lacks all of its attention, while the same call on the math backend counts
# 2 products * 2 * 2 * 4 * 128 * 128 * 32 = 16,777,216. Seen on 2026-11-28: "math 16777216, flash 0".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
seen=$("$work/venv/bin/python" - <<'PY'
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

q = torch.randn(2, 4, 128, 32)
counts = []
for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(backend), counter, torch.no_grad():
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    counts.append(counter.get_total_flops())
print(f"math {counts[0]}, flash {counts[1]}")
PY
)
echo "torch 2.13.0: $seen"
[[ $seen == "math 16777216, flash 0" ]] || { echo "this has changed" >&2; exit 1; }
