#!/usr/bin/env bash
# torch 2.13.0's eager flex_attention looks at a BlockMask's mask_mod alone: the blocks that it lists do not count.
#
# A BlockMask from BlockMask.from_kv_blocks that lists the first block of keys for every query, and has no mask_mod, is
# attention over that block where flex_attention is compiled, and attention over all keys where it is called as it is.
# So a sparse pattern that is given by its blocks passes an eager test that compares it with dense attention, and fails
# one that compares it with itself compiled. Seen on 2026-11-29, on a CPU:
# "compiled: the listed block; eager: all keys".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
seen=$(cd "$work" && "$work/venv/bin/python" - 2>"$work/log" <<'PY'
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, 256, 64) for _ in range(3))
counts = torch.ones(1, 1, 2, dtype=torch.int32)
columns = torch.zeros(1, 1, 2, 2, dtype=torch.int32)
block_mask = BlockMask.from_kv_blocks(counts, columns, BLOCK_SIZE=128)
expected = {"the listed block": flex_attention(q, k[:, :, :128], v[:, :, :128]), "all keys": flex_attention(q, k, v)}


def over(out):
    return next(name for name, other in expected.items() if torch.allclose(out, other, atol=1e-4))


compiled = over(torch.compile(flex_attention)(q, k, v, block_mask=block_mask))
print(f"compiled: {compiled}; eager: {over(flex_attention(q, k, v, block_mask=block_mask))}")
PY
) || { cat "$work/log" >&2; exit 1; }
echo "torch 2.13.0: $seen"
[[ $seen == "compiled: the listed block; eager: all keys" ]] || { echo "this has changed" >&2; exit 1; }
