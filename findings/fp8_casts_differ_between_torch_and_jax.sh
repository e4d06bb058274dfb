#!/usr/bin/env bash
# Casts of fp32 numbers to 8 bits, torch 2.13.0 beside JAX 0.10.2 and ml_dtypes 0.6.0, on a CPU.
#
# What is too large for float8_e4m3fn becomes 448 in torch, infinity included, and NaN in JAX and ml_dtypes. For the
# sister format float8_e4m3fnuz (largest 240) torch does not saturate: NaN in all three. So a checkpoint cast for one
# accelerator clips in silence and loses the same weights to NaN for another one, by the same line of torch.
# A cast to float8_e8m0fnu, the scale of mx formats, drops the sign in torch and makes 2^-127 of 0; JAX and ml_dtypes
# say NaN to both, since the format has neither sign nor 0. Seen on 2026-11-30:
# "e4m3fn torch [448.0, 448.0] jax [nan, nan] ml_dtypes [nan, nan];
#  e4m3fnuz torch [nan, nan] jax [nan, nan] ml_dtypes [nan, nan];
#  e8m0fnu of -3 and 0 torch [4.0, 5.9e-39] jax [nan, nan] ml_dtypes [nan, nan]".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2 \
  ml_dtypes==0.6.0
seen=$("$work/venv/bin/python" -W ignore - <<'PY'
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch


def cast(numbers, name):
    numbers = np.float32(numbers)
    rows = {
        "torch": torch.from_numpy(numbers).to(getattr(torch, name)).float().tolist(),
        "jax": jnp.asarray(numbers).astype(getattr(jnp, name)).astype(jnp.float32).tolist(),
        "ml_dtypes": numbers.astype(getattr(ml_dtypes, name)).astype(np.float32).tolist(),
    }
    return " ".join(f"{who} [{', '.join(f'{x:.2g}' if 0 < x < 1 else str(x) for x in row)}]" for who, row in rows.items())


large = [500.0, np.inf]
print(f"e4m3fn {cast(large, 'float8_e4m3fn')}; e4m3fnuz {cast(large, 'float8_e4m3fnuz')}; "
      f"e8m0fnu of -3 and 0 {cast([-3.0, 0.0], 'float8_e8m0fnu')}")
PY
)
echo "torch 2.13.0, jax 0.10.2, ml_dtypes 0.6.0: $seen"
nans="jax [nan, nan] ml_dtypes [nan, nan]"
[[ $seen == "e4m3fn torch [448.0, 448.0] $nans; e4m3fnuz torch [nan, nan] $nans; e8m0fnu of -3 and 0 torch [4.0, 5.9e-39] $nans" ]]
