# Calls of FlashAttention-3's functions over all pairs of their arguments, and what the float64 formulas make of them.
# Written apart from the drop-in: only formulas.py is used.
"""Shared by the tests of tilewise.compat.flash_attn_3 on the CPU (here) and on GPUs (tests/gpu)."""

from typing import Any, NamedTuple, Optional

import torch
from closeness import assert_as_close
from formulas import Call, dense, packed
from pairwise import pairwise

FP8 = torch.float8_e4m3fn
AXES: dict[str, list[Any]] = {
    "form": ["func", "varlen"],
    "dtype": [torch.float16, torch.bfloat16, FP8],
    "lengths": [(1, 37), (17, 17), (40, 9), (23, 70)],
    "heads": [(4, 4), (4, 2), (3, 1)],
    "dims": [(32, 32), (64, 64), (32, 48), (96, 64)],
    "softmax_scale": [None, 0.3],
    "causal": [False, True],
    "window_size": [(-1, -1), (3, 2), (4, 0), (100, 100), torch.tensor([5, 1])],
    "softcap": [0.0, 1.5],
    "descales": [(), ("q", "k", "v"), ("k",), ("q", "v")],
    "used": [False, True],
    "deterministic": [False, True],
    "no_effect": [{}, {"num_splits": 3, "pack_gqa": True, "sm_margin": 8}],
    "heads_first": [False, True],
}


class Case(NamedTuple):
    form: str
    dtype: torch.dtype
    lengths: tuple[int, int]
    heads: tuple[int, int]
    dims: tuple[int, int]
    softmax_scale: Optional[float]
    causal: bool
    window_size: Any
    softcap: float
    descales: tuple[str, ...]  # which are given; of other dtypes than fp8 without effect
    used: bool
    deterministic: bool
    no_effect: dict[str, Any]
    heads_first: bool

    def __str__(self) -> str:
        short = self._replace(window_size=[int(side) for side in self.window_size], no_effect=bool(self.no_effect))
        return "-".join(str(value).replace("torch.", "") for value in short)


CASES = [Case(**values) for values in pairwise(AXES, lambda values: values["form"] == "varlen" or not values["used"])]


class Problem(NamedTuple):
    """q, k and v, and of packed ones where the two sequences lie and how many of their rows count."""

    tensors: list[torch.Tensor]
    starts: list[list[int]]
    used: list[Optional[list[int]]]
    descales: dict[str, torch.Tensor]


def problem(case: Case) -> Problem:
    torch.manual_seed(len(str(case)))
    (sq, sk), (heads, heads_k), (dim, dim_v) = case.lengths, case.heads, case.dims
    rows, starts, used = [(2, sq), (2, sk)], [], [None, None]
    if case.form == "varlen":
        starts = [[0, n, n + (n + 1) // 2] for n in (sq, sk)]
        rows = [(ends[-1],) for ends in starts]
        if case.used:
            used = [[max(n - 2, 0), (n + 1) // 2] for n in (sq, sk)]
    tensors = []
    for shape in ((*rows[0], heads, dim), (*rows[1], heads_k, dim), (*rows[1], heads_k, dim_v)):
        if case.heads_first:
            tensor = torch.randn(*shape[:-3], shape[-2], shape[-3], shape[-1]).transpose(-2, -3)
        else:
            tensor = torch.randn(shape)
        tensors.append(tensor.to(case.dtype).requires_grad_(case.dtype != FP8))
    descales = {f"{name}_descale": torch.rand(2, heads_k) + 0.5 for name in case.descales}
    return Problem(tensors, starts, used, descales)


def call(functions: Any, case: Case, given: Problem, device: str, **others: Any) -> Any:
    """The case's function of `functions`, FlashAttention-3 or what stands in for it, on `device`."""

    def of_int(values: Optional[list[int]]) -> Any:
        return None if values is None else torch.tensor(values, dtype=torch.int32, device=device)

    tensors = [tensor.to(device) for tensor in given.tensors]
    name, lengths = "flash_attn_func", {}
    if case.form == "varlen":
        name = "flash_attn_varlen_func"
        lengths = {"seqused_q": of_int(given.used[0]), "seqused_k": of_int(given.used[1])}
        tensors += [*map(of_int, given.starts), *case.lengths]
    return getattr(functions, name)(
        *tensors,
        **lengths,
        softmax_scale=case.softmax_scale,
        causal=case.causal,
        window_size=case.window_size,
        softcap=case.softcap,
        deterministic=case.deterministic,
        **{descale: value.to(device) for descale, value in given.descales.items()},
        **case.no_effect,
        **others,
    )


def _scaled(case: Case, given: Problem) -> list[torch.Tensor]:
    """q, k and v in float64, with their scales, as leaves."""
    scaled = []
    for name, tensor in zip("qkv", given.tensors):
        exact = tensor.detach().double()
        scale = given.descales.get(f"{name}_descale")
        if case.dtype == FP8 and scale is not None:
            heads = scale.double().repeat_interleave(exact.shape[-2] // scale.shape[1], dim=1)
            if case.form == "varlen":
                ends = given.starts[0 if name == "q" else 1]
                exact = torch.cat([exact[ends[b] : ends[b + 1]] * heads[b, :, None] for b in range(2)])
            else:
                exact = exact * heads[:, None, :, None]
        scaled.append(exact)
    return scaled


def _by_formula(case: Case, given: Problem, leaves: list[torch.Tensor]) -> Any:
    left, right = (int(side) for side in case.window_size)
    options = Call(
        mask="causal" if case.causal else None,
        window=(left, right),
        softmax_scale=case.softmax_scale,
        softcap=case.softcap,
        seqused_q=given.used[0],
        seqused_k=given.used[1],
    )
    return packed(options, *leaves, *given.starts) if case.form == "varlen" else dense(options, *leaves)


def check(functions: Any, case: Case, device: str = "cpu", fp8_error: float = 0.0) -> None:
    """Compares out, softmax_lse and gradients with the formulas. `fp8_error`: as a part of the greatest result, what an
    implementation that rounds weights to e4m3 is allowed besides."""
    given = problem(case)
    out, lse = call(functions, case, given, device, return_attn_probs=True)
    half = torch.bfloat16 if case.dtype == FP8 else case.dtype
    exact_leaves = [leaf.requires_grad_() for leaf in _scaled(case, given)]
    same_leaves = [leaf.detach().to(half).requires_grad_() for leaf in exact_leaves]
    exact, exact_lse = _by_formula(case, given, exact_leaves)
    same, _ = _by_formula(case, given, same_leaves)
    assert out.dtype == half
    if case.dtype == FP8 and fp8_error > 0:
        atol = fp8_error * float(exact.detach().abs().max())
        torch.testing.assert_close(out.cpu().double(), exact.detach(), rtol=0, atol=atol)
    else:
        assert_as_close(out, same, exact)
    tolerance = 1e-2 if case.dtype == FP8 else 1e-3
    torch.testing.assert_close(lse.detach().cpu().double(), exact_lse.detach(), rtol=tolerance, atol=tolerance)
    assert torch.equal(call(functions, case, given, device), out)
    if case.dtype == FP8:
        return
    dout = torch.randn(out.shape).to(half)
    gradients = torch.autograd.grad(out, given.tensors, dout.to(device))
    wanted = torch.autograd.grad(exact, exact_leaves, dout.double())
    rough = torch.autograd.grad(same, same_leaves, dout)
    for name, gradient, other, want in zip("qkv", gradients, rough, wanted):
        assert_as_close(gradient, other, want, 3.0, f"d{name}")
