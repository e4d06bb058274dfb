# The first calls to make on a new GPU: one line each, and a failure does not stop the others. Not collected by pytest.
"""Prints what a few calls give: error against float64, or the exception's first lines."""

import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from gpu_support import dense64, qkv

import tilewise

FORWARD = {
    "plain 64": (((2, 128, 4, 64), None), {}),
    "plain 128": (((2, 256, 4, 128), None), {}),
    "causal 128": (((1, 300, 4, 128), None), {"mask": "causal"}),
    "odd head_dim": (((1, 70, 2, 33), None), {}),
    "decode, split": (((2, 1, 8, 128), (2, 5000, 2, 128)), {"mask": "causal"}),
    "head_dim 256": (((1, 200, 2, 256), None), {"mask": "causal"}),
}


def _error(actual, exact) -> str:
    error = (actual.double() - exact).abs().max().item()
    return f"{error:.2e}{'' if error < 0.05 else '  WRONG'}"


def _try(name: str, call) -> bool:
    start = time.perf_counter()
    try:
        result = call()
        torch.cuda.synchronize()
        fine = "WRONG" not in result and "nan" not in result
    except Exception as error:
        result, fine = f"{type(error).__name__}: {str(error)[:1500]}", False
        if not isinstance(error, (RuntimeError, NotImplementedError, ValueError, TypeError)):
            result += "\n" + traceback.format_exc(limit=4)
    print(f"{name:24} {'ok   ' if fine else 'WRONG'} {time.perf_counter() - start:6.2f} s  {result}", flush=True)
    return fine


def _forward(shapes, options) -> str:
    q, k, v = qkv(*shapes)
    out, lse = tilewise.attention(q, k, v, return_lse=True, **options)
    exact, exact_lse = dense64(q, k, v, causal="mask" in options)
    return f"out {_error(out, exact)}, softmax_lse {_error(lse, exact_lse)}"


def _backward(shapes, options) -> str:
    leaves = [tensor.requires_grad_() for tensor in qkv(*shapes)]
    out = tilewise.attention(*leaves, **options)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, leaves, dout)
    exact_leaves = [tensor.detach().double().requires_grad_() for tensor in leaves]
    exact = dense64(*exact_leaves, causal="mask" in options)[0]
    expected = torch.autograd.grad(exact, exact_leaves, dout.double())
    return ", ".join(f"{name} {_error(g, e)}" for name, g, e in zip(("dq", "dk", "dv"), gradients, expected))


def main() -> int:
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU")
        return 1
    q, k, v = qkv((2, 128, 4, 64))
    print(tilewise.explain(q, k, v))
    fine = [_try(f"forward, {name}", lambda case=case: _forward(*case)) for name, case in FORWARD.items()]
    fine += [_try(f"backward, {name}", lambda case=case: _backward(*case)) for name, case in FORWARD.items()]
    print(f"{sum(fine)} of {len(fine)} calls are right")
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
