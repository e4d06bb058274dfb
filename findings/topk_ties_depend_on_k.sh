#!/usr/bin/env bash
# torch.topk over equal values on a CPU, torch 2.13.0: which of them it takes depends on k and on the number of columns.
#
# A router's logits in bf16 have few values, so that experts tie. Of 128 equal numbers the top 2 are 0 and 1, but the
# top 4 are 84 to 87: up to 64 k <= columns a partial sort keeps the first ones, else a selection takes those from the
# middle. So the top 2 are no part of the top 4, and the same token goes to other experts once a model asks for one more
# of them. Of 4,096 tokens with 128 normal logits in bf16, the sets of 8 experts differ from those that a tie gives to
# the lower expert in 128, three of a hundred; in fp32 in none. Seen on 2026-11-29:
# "top 2 [0, 1], top 4 [84, 85, 86, 87]; bf16 128 of 4096, f32 0 of 4096".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
seen=$("$work/venv/bin/python" - <<'PY'
import numpy as np
import torch

equal = torch.zeros(1, 128)
two, four = (sorted(torch.topk(equal, k).indices[0].tolist()) for k in (2, 4))
logits = torch.from_numpy(np.random.default_rng(0).standard_normal((4096, 128), dtype=np.float32))
counts = []
for rows in (logits.bfloat16(), logits):
    theirs = torch.topk(rows, 8).indices.sort(1).values
    lowest = torch.sort(rows, dim=1, descending=True, stable=True).indices[:, :8].sort(1).values
    counts.append(int((theirs != lowest).any(1).sum()))
print(f"top 2 {two}, top 4 {four}; bf16 {counts[0]} of 4096, f32 {counts[1]} of 4096")
PY
)
echo "torch 2.13.0: $seen"
[[ $seen == "top 2 [0, 1], top 4 [84, 85, 86, 87]; bf16 128 of 4096, f32 0 of 4096" ]] || { echo "this has changed" >&2; exit 1; }
