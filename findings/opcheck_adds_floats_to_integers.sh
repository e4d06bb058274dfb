#!/usr/bin/env bash
# torch.library.opcheck of a right operator that returns integers before floating-point numbers, torch 2.13.0.
#
# A router returns the ids of experts and what they weigh, as torch.topk does the other way round. opcheck's test of
# autograd adds the sums of all outputs in place, to the first one's: a sum of integers, which takes no floats. So it
# ends in a RuntimeError about dtypes that the operator has nothing to do with; with the same two outputs in the other
# order it passes. Seen on 2026-11-29: "weights first: SUCCESS; ids first: result type Float can't be cast to the desired
# output type Long".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
seen=$("$work/venv/bin/python" -W ignore - <<'PY'
import torch
from torch import Tensor


def define(name: str, ids_first: bool):
    """top-2 of each row with a gradient, its two outputs in one order or the other."""

    def turned(values, ids):
        return (ids, values) if ids_first else (values, ids)

    def forward(logits: Tensor) -> tuple[Tensor, Tensor]:
        values, ids = torch.topk(logits, 2)
        return turned(values.clone(), ids.clone())

    operator = torch.library.custom_op(f"finding::{name}", forward, mutates_args=())
    operator.register_fake(
        lambda logits: turned(logits.new_empty(logits.shape[0], 2), logits.new_empty(logits.shape[0], 2, dtype=torch.int64))
    )

    def setup(ctx, inputs, output):
        ctx.save_for_backward(output[not ids_first])
        ctx.shape = inputs[0].shape

    def backward(ctx, *derivatives):
        (ids,) = ctx.saved_tensors
        dvalues = derivatives[ids_first]
        return dvalues.new_zeros(ctx.shape).scatter(1, ids, dvalues)

    operator.register_autograd(backward, setup_context=setup)
    return operator


words = []
for name, ids_first in (("weights", False), ("ids", True)):
    operator = define(f"{name}_first", ids_first)
    logits = torch.randn(6, 4, requires_grad=True)
    operator(logits)[ids_first].sum().backward()
    assert logits.grad.sum() == 12, "the operator itself works"
    try:
        results = torch.library.opcheck(operator, (torch.randn(6, 4, requires_grad=True),))
        words.append(f"{name} first: {' '.join(sorted(set(results.values())))}")
    except Exception as error:
        words.append(f"{name} first: {str(error).partition('failed with ')[2].partition(' (scroll')[0]}")
print("; ".join(words))
PY
)
echo "torch 2.13.0: $seen"
[[ $seen == "weights first: SUCCESS; ids first: result type Float can't be cast to the desired output type Long" ]] || { echo "this has changed" >&2; exit 1; }
