# Calls of flash_attn's functions over all pairs of their arguments, and what the float64 formulas make of them.
# Written apart from the drop-in: only formulas.py is used.
"""Shared by the tests of tilewise.compat.flash_attn on the CPU (here) and on GPUs (tests/gpu)."""

import itertools
import math
from typing import Any, NamedTuple, Optional

import torch
from closeness import assert_as_close
from formulas import Call, dense, packed
from pairwise import pairwise

AXES: dict[str, list[Any]] = {
    "form": ["func", "qkvpacked", "kvpacked", "varlen", "varlen_qkvpacked", "varlen_kvpacked"],
    "dtype": [torch.float16, torch.bfloat16],
    "lengths": [(1, 37), (17, 17), (40, 9), (23, 70)],
    "heads": [(4, 4), (4, 2), (3, 1)],
    "head_dim": [8, 23, 32, 64],
    "dropout_p": [0.0, 0.17],
    "softmax_scale": [None, 0.3],
    "causal": [False, True],
    "window_size": [(-1, -1), (3, 2), (4, 0), (-1, 3), (100, 100), torch.tensor([5, 1])],
    "softcap": [0.0, 1.5],
    "alibi": [None, "heads", "batch"],
    "deterministic": [False, True],
    "strides": ["rows", "heads_first", "transposed", "columns_first"],
    "batch": ["two", "no_queries", "no_keys", "one_key", "all_empty"],
    "dout": ["dense", "transposed", "columns_first", "expanded_rows", "expanded"],
    "wanted": ["all", "first", "last"],
}


class Case(NamedTuple):
    form: str
    dtype: torch.dtype
    lengths: tuple[int, int]
    heads: tuple[int, int]
    head_dim: int
    dropout_p: float
    softmax_scale: Optional[float]
    causal: bool
    window_size: Any
    softcap: float
    alibi: Optional[str]
    deterministic: bool
    strides: str
    batch: str  # of packed sequences: what the second of three lacks, or keys that each has one of
    dout: str
    wanted: str  # the tensors that require gradients

    @property
    def is_varlen(self) -> bool:
        return self.form.startswith("varlen")

    def __str__(self) -> str:
        window = [int(side) for side in self.window_size]
        return "-".join(str(value).replace("torch.", "") for value in self._replace(window_size=window))


def possible(values: dict[str, Any]) -> bool:
    """What flash_attn takes: no softcap with dropout, and qkv in one tensor has one length and one number of heads."""
    if not values["form"].startswith("varlen") and values["batch"] != "two":
        return False
    if "qkvpacked" in values["form"] and values["batch"] in ("no_queries", "no_keys"):
        return False
    # A lone key weighs 1, so that the gradient of q is 0; where dropout scales out, that leaves the rounding of out.
    if values["batch"] == "one_key" and values["dropout_p"] > 0:
        return False
    if values["softcap"] > 0 and values["dropout_p"] > 0:
        return False
    one = values["lengths"][0] == values["lengths"][1] and values["heads"][0] == values["heads"][1]
    return one or "qkvpacked" not in values["form"]


CASES = [Case(**values) for values in pairwise(AXES, possible)]


def _ends(lengths: list[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


class Problem(NamedTuple):
    """A case's tensors: leaves of the call as flash_attn takes them, and q, k, v as functions of those."""

    leaves: list[torch.Tensor]
    starts_q: Optional[list[int]]
    starts_k: Optional[list[int]]
    longest: tuple[int, int]
    slopes: Optional[torch.Tensor]

    def views(self) -> tuple[torch.Tensor, ...]:
        if len(self.leaves) == 3:
            return tuple(self.leaves)
        return (*self.leaves[:-1], *self.leaves[-1].unbind(-3))

    def wanted(self) -> list[int]:
        return [place for place, leaf in enumerate(self.leaves) if leaf.requires_grad]


def _stored(shape: tuple[int, ...], dtype: torch.dtype, strides: str, device: Any) -> torch.Tensor:
    """Random numbers, whose dimensions lie in memory in an order of their own."""
    order = list(range(len(shape)))
    if strides == "heads_first":  # as a transposed projection leaves them
        order[-3], order[-2] = order[-2], order[-3]
    elif strides == "transposed":
        order[0], order[1] = order[1], order[0]
    elif strides == "columns_first":  # the last dimension is not contiguous
        order[-2], order[-1] = order[-1], order[-2]
    return torch.randn([shape[axis] for axis in order]).to(dtype).to(device).permute(order)


def _dout(case: Case, out: torch.Tensor) -> torch.Tensor:
    """A gradient of out, as slices, transposed losses and sums leave it."""
    shape = tuple(out.shape)
    if case.dout == "expanded":
        return _stored((1,), out.dtype, "rows", out.device)[0].expand(shape)
    if case.dout == "expanded_rows":
        return _stored((*shape[-2:],), out.dtype, "rows", out.device).expand(shape)
    return _stored(shape, out.dtype, "rows" if case.dout == "dense" else case.dout, out.device)


def _lengths(case: Case) -> tuple[list[int], list[int]]:
    """Of three packed sequences."""
    sq, sk = case.lengths
    queries, keys = [sq, 0, (sq + 1) // 2], [sk, 0, (sk + 1) // 2]
    if case.batch == "no_queries":
        keys[1] = 5
    elif case.batch == "no_keys":
        queries[1] = 5
    elif case.batch == "one_key":
        keys = [1, 1, 1]
        queries = keys if "qkvpacked" in case.form else [sq, 3, 1]
    elif case.batch == "all_empty":
        queries, keys = [0, 0, 0], [0, 0, 0]
    return queries, keys


def problem(case: Case, device: str = "cpu") -> Problem:
    torch.manual_seed(len(str(case)))
    (sq, sk), (heads, heads_k), dim = case.lengths, case.heads, case.head_dim
    starts_q = starts_k = None
    rows_q, rows_k, longest = (2, sq), (2, sk), (sq, sk)
    if case.is_varlen:  # two rows belong to no sequence
        queries, keys = _lengths(case)
        starts_q, starts_k, longest = _ends(queries), _ends(keys), (max(queries), max(keys))
        rows_q, rows_k = (starts_q[-1] + 2,), (starts_k[-1] + 2,)
    if "qkv" in case.form:
        shapes = [(*rows_q, 3, heads, dim)]
    elif "kv" in case.form:
        shapes = [(*rows_q, heads, dim), (*rows_k, 2, heads_k, dim)]
    else:
        shapes = [(*rows_q, heads, dim), (*rows_k, heads_k, dim), (*rows_k, heads_k, dim)]
    leaves = [_stored(shape, case.dtype, case.strides, device) for shape in shapes]
    for leaf in {"all": leaves, "first": leaves[:1], "last": leaves[-1:]}[case.wanted]:
        leaf.requires_grad_()
    batch = 3 if case.is_varlen else 2
    shape = {None: None, "heads": (heads,), "batch": (batch, heads)}[case.alibi]
    slopes = None if shape is None else torch.rand(shape).to(device)
    return Problem(leaves, starts_q, starts_k, longest, slopes)


def call(functions: Any, case: Case, given: Problem, **others: Any) -> Any:
    """The case's function of `functions`, flash_attn or what stands in for it."""
    name = f"flash_attn_{case.form}" if case.form == "func" else f"flash_attn_{case.form}_func"
    starts: list[Any] = []
    if case.is_varlen:
        device = given.leaves[0].device
        both = [given.starts_q] if "qkv" in case.form else [given.starts_q, given.starts_k]
        starts = [torch.tensor(values, dtype=torch.int32, device=device) for values in both]
        starts += [max(given.longest[place], 1) for place in range(len(both))]
    return getattr(functions, name)(
        *given.leaves,
        *starts,
        dropout_p=case.dropout_p,
        softmax_scale=case.softmax_scale,
        causal=case.causal,
        window_size=case.window_size,
        softcap=case.softcap,
        alibi_slopes=given.slopes,
        deterministic=case.deterministic,
        **others,
    )


def _options(case: Case, given: Problem, dtype: torch.dtype, seed: tuple[int, int]) -> Call:
    left, right = (int(side) if int(side) < max(given.longest[1], 1) else -1 for side in case.window_size)
    return Call(
        mask="causal" if case.causal else None,
        window=(left, right),
        softmax_scale=case.softmax_scale,
        softcap=case.softcap,
        alibi_slopes=None if given.slopes is None else given.slopes.cpu().to(dtype),
        dropout_p=case.dropout_p,
        seed=seed[0] % 2**64,
        offset=seed[1] % 2**64,
    )


def by_formula(case: Case, given: Problem, dtype: torch.dtype, seed: tuple[int, int]) -> tuple[Any, Any, list[Any]]:
    """(out, lse in Tilewise's form, leaves) in another dtype, with a graph."""
    leaves = [leaf.detach().cpu().to(dtype).requires_grad_() for leaf in given.leaves]
    views = given._replace(leaves=leaves).views()
    options = _options(case, given, dtype, seed)
    if case.is_varlen:
        assert given.starts_q is not None
        return *packed(options, *views, given.starts_q, given.starts_k or given.starts_q), leaves  # type: ignore
    return *dense(options, *views), leaves  # type: ignore


def unseen_rows(given: Problem, place: int) -> list[slice]:
    """Rows of a packed leaf whose gradients are exactly 0: of no sequence, and of one without keys, or queries."""
    if given.starts_q is None or given.starts_k is None:
        return []
    own, others = given.starts_q, given.starts_k
    if place > 0:
        own, others = others, own
    empty = [b for b in range(len(own) - 1) if others[b] == others[b + 1]]
    return [slice(own[-1], None), *(slice(own[b], own[b + 1]) for b in empty)]


def row_constants(case: Case, given: Problem) -> Any:
    """slope * (i + seqlen_k - seqlen_q) of each row where flash_attn leaves it out of the log-sum-exp, else 0."""
    options = _options(case, given, torch.float64, (0, 0))
    if options.alibi_slopes is None or options.window[0] >= 0 or not (case.causal or options.window[1] == 0):
        return 0.0
    slopes = options.alibi_slopes
    if not case.is_varlen:
        rows = torch.arange(case.lengths[0]) + case.lengths[1] - case.lengths[0]
        return slopes[..., None] * rows
    starts_q, starts_k = given.starts_q, given.starts_k
    assert starts_q is not None and starts_k is not None
    parts = []
    for b in range(3):
        rows = torch.arange(starts_q[b + 1] - starts_q[b])
        d = (starts_k[b + 1] - starts_k[b]) - len(rows)
        parts.append((slopes if slopes.dim() == 1 else slopes[b])[:, None] * (rows + d))
    return torch.cat([*parts, torch.zeros(slopes.shape[-1], 2)], 1)


def check(functions: Any, case: Case, device: str = "cpu") -> None:
    """Compares out, softmax_lse and the gradients of the case's leaves with the formulas."""
    given = problem(case, device)
    torch.manual_seed(5)
    drawn = torch.randint(-(2**63), 2**63 - 1, (2,), device=device).tolist()
    torch.manual_seed(5)
    out, lse, weights = call(functions, case, given, return_attn_probs=True)
    assert (weights.numel() > 0) == (case.dropout_p > 0)
    exact_out, exact_lse, exact_leaves = by_formula(case, given, torch.float64, drawn)
    same_out, _, same_leaves = by_formula(case, given, case.dtype, drawn)
    assert_as_close(out, same_out, exact_out)
    _check_lse(case, given, lse, exact_lse)
    dout, wanted = _dout(case, out), given.wanted()
    gradients = torch.autograd.grad(out, [given.leaves[place] for place in wanted], dout)
    exact_dout = dout.cpu().double()
    exact = torch.autograd.grad(exact_out, [exact_leaves[place] for place in wanted], exact_dout)
    same = torch.autograd.grad(same_out, [same_leaves[place] for place in wanted], exact_dout.to(same_out.dtype))
    for place, gradient, want, rough in zip(wanted, gradients, exact, same):
        assert_as_close(gradient, rough, want, 3.0, f"gradient {place}")
        for rows in unseen_rows(given, place):
            assert not gradient[rows].any()
    torch.manual_seed(5)
    assert torch.equal(call(functions, case, given), out)  # the graph and the log-sum-exp change nothing


def _check_lse(case: Case, given: Problem, lse: torch.Tensor, exact: torch.Tensor) -> None:
    lse, exact = lse.detach().cpu().double(), exact.detach()
    if case.is_varlen:  # rows of no sequence hold anything
        assert given.starts_q is not None
        lse, exact = lse[:, : given.starts_q[-1]], exact[:, : given.starts_q[-1]]
    constants = row_constants(case, given)
    if isinstance(constants, torch.Tensor):
        exact = exact + constants[..., : exact.shape[-1]]
    empty = exact == -math.inf
    assert torch.equal(lse == math.inf, empty)
    torch.testing.assert_close(lse[~empty], exact[~empty], rtol=1e-4, atol=1e-3)
