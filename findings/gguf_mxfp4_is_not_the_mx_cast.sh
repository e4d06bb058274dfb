#!/usr/bin/env bash
# MXFP4 of the gguf package 0.19.0 and fp4 of the MX format as ml_dtypes 0.6.0 and checkpoints have it: one name, three
# differences that no reader of bytes is told of.
#
# - A byte's halves are elements j and j + 16 of a block, not neighbours. Whoever hands GGUF's bytes to a kernel for
#   gpt-oss's checkpoint multiplies permuted weights, and every norm of a row still agrees.
# - What lies halfway between two numbers goes to the one nearer zero (argmin takes the first): 0.75, 1.75, 2.5 and 3.5 to
#   0.5, 1.5, 2 and 3, where round-to-even gives 1, 2, 2 and 4. Weights lose size on average.
# - A NaN, or an infinity, empties its block of 32: the largest size is NaN, so the scale becomes 0 and all else rounds
#   to 0. Nothing raises. The MX format has a scale for that, NaN (255), under which gguf reads zeros as 0.
# Seen on 2026-12-01: "6 and 2 at 0 and 16 share byte 0x47; 0.75 1.75 2.5 3.5 become 0.5 1.5 2 3, even 1 2 2 4; ones beside
# a NaN become 0; zeros under NaN read 0".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0 ml_dtypes==0.6.0 numpy==2.4.6
seen=$("$work/venv/bin/python" - <<'PY'
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType, quants

FORMAT = GGMLQuantizationType.MXFP4


def there_and_back(block):
    return quants.dequantize(quants.quantize(block[None], FORMAT), FORMAT)[0]


block = np.zeros(32, np.float32)
block[[0, 16]] = 6, 2
pair = int(quants.quantize(block[None], FORMAT)[0, 1])

halfway = np.array([0.75, 1.75, 2.5, 3.5], np.float32)
block[:] = 0
block[:5] = 6, *halfway
words = lambda numbers: " ".join(f"{number:g}" for number in numbers)
toward_zero, even = there_and_back(block)[1:5], halfway.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)

block[:] = 1
block[3] = np.nan
with np.errstate(all="ignore"):
    left = set(there_and_back(block).tolist())

stored = np.zeros((1, 17), np.uint8)
stored[0, 0] = 255
under_nan = quants.dequantize(stored, FORMAT)[0]
print(f"6 and 2 at 0 and 16 share byte {pair:#x}; {words(halfway)} become {words(toward_zero)}, even {words(even)}; "
      f"ones beside a NaN become {words(left)}; zeros under NaN read {words(set(under_nan.tolist()))}")
PY
)
echo "gguf 0.19.0: $seen"
expected="6 and 2 at 0 and 16 share byte 0x47; 0.75 1.75 2.5 3.5 become 0.5 1.5 2 3, even 1 2 2 4; ones beside a NaN become 0; zeros under NaN read 0"
[[ $seen == "$expected" ]] || { echo "this has changed" >&2; exit 1; }
