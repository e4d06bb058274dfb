# Calls of DotProductAttention with every option but the masks, which have a table of their own, and then all pairs of
# options, masks among them; shared with tests/gpu.
"""Options of Transformer Engine's attention: what the module is made with, what it is called with, and the formula."""

from typing import Any, Callable, NamedTuple, Optional

import torch
from pairwise import pairwise
from te_reference import KINDS, attend, diagonal_at_bottom_right, distances, lengths_to_cu, to_format, visible

from tilewise.compat.transformer_engine import DotProductAttention

HEADS, DIM = 4, 16
USED = [(6, 11), (3, 5)]  # queries and keys of the two sequences, where they are padded
SIZES = (7, 11)


class Case(NamedTuple):
    kind: str = "causal_bottom_right"
    groups: int = HEADS
    dim_v: int = DIM
    window: Optional[tuple[int, int]] = None
    diagonal: Optional[bool] = None
    made: dict[str, Any] = {}  # noqa: RUF012 (never written)
    bias: Optional[Callable[[], torch.Tensor]] = None  # numbers, in f32
    bias_type: str = "no_bias"
    slopes: Optional[Callable[[], torch.Tensor]] = None
    padding: str = "cu_seqlens"  # or "masks": how it is said


CASES = {
    "plain": Case(kind="no_mask"),
    "causal": Case(kind="causal"),
    "gqa": Case(groups=2),
    "mqa": Case(groups=1, kind="padding"),
    "value_dim": Case(dim_v=24),
    "scale": Case(made={"softmax_scale": 0.7}),
    "scale_negative": Case(made={"softmax_scale": -0.2}, kind="padding_causal"),
    "window": Case(kind="no_mask", window=(2, 1)),
    "padding_masks": Case(kind="padding_causal_bottom_right", padding="masks"),
    "post_bias": Case(bias=lambda: torch.randn(1, HEADS, *SIZES), bias_type="post_scale_bias"),
    "post_bias_batch": Case(bias=lambda: torch.randn(2, 1, *SIZES), bias_type="post_scale_bias", kind="padding"),
    "post_bias_keys": Case(bias=lambda: torch.randn(1, 1, 1, SIZES[1]), bias_type="post_scale_bias", kind="arbitrary"),
    "pre_bias": Case(bias=lambda: torch.randn(1, HEADS, *SIZES), bias_type="pre_scale_bias"),
    "pre_bias_scale": Case(
        bias=lambda: torch.randn(1, HEADS, *SIZES), bias_type="pre_scale_bias", made={"softmax_scale": 0.3}
    ),
    "alibi": Case(bias_type="alibi"),
    "alibi_top_left": Case(bias_type="alibi", kind="no_mask", diagonal=False),
    "alibi_padding": Case(bias_type="alibi", kind="padding"),
    "alibi_slopes": Case(bias_type="alibi", slopes=lambda: torch.rand(HEADS), kind="causal"),
    "alibi_slopes_batch": Case(bias_type="alibi", slopes=lambda: torch.rand(2, HEADS), kind="no_mask"),
    "off_by_one": Case(made={"softmax_type": "off-by-one"}),
    "learnable": Case(made={"softmax_type": "learnable"}),
    "learnable_padding": Case(made={"softmax_type": "learnable"}, kind="padding_causal", window=(4, 0)),
    "everything": Case(
        kind="padding", groups=2, dim_v=24, window=(5, 2), diagonal=False, bias_type="post_scale_bias",
        bias=lambda: torch.randn(1, HEADS, *SIZES), made={"softmax_type": "learnable", "softmax_scale": 0.4},
    ),
}  # fmt: skip


_AXES: dict[str, list[Any]] = {
    "kind": list(KINDS),
    "groups": [4, 2, 1],
    "dim_v": [16, 24],
    "window": [None, (0, 0), (2, 0), (2, 3), (9, 9)],
    "diagonal": [None, False, True],
    "scale": [None, 0.4, -0.3],
    "softmax_type": ["vanilla", "off-by-one", "learnable"],
    "bias": ["no_bias", "post_scale_bias", "pre_scale_bias", "keys", "alibi", "slopes"],
    "padding": ["cu_seqlens", "masks"],
    "qkv_format": ["bshd", "sbhd", "thd"],
    "dtype": [torch.float32, torch.bfloat16, torch.float16],
}


def _possible(values: dict[str, Any]) -> bool:
    """What Transformer Engine takes: causal windows look to the left, and packed sequences are a padding kind."""
    packed = values["qkv_format"] == "thd"
    if packed and ("padding" not in values["kind"] or values["padding"] == "masks"):
        return False
    return "causal" not in values["kind"] or values["window"] is None or values["window"][1] == 0


_BIASES: dict[str, tuple[str, Optional[Callable[[], torch.Tensor]]]] = {
    "post_scale_bias": ("post_scale_bias", lambda: torch.randn(1, HEADS, *SIZES)),
    "pre_scale_bias": ("pre_scale_bias", lambda: torch.randn(2, 1, *SIZES)),
    "keys": ("post_scale_bias", lambda: torch.randn(1, 1, 1, SIZES[1])),
    "slopes": ("alibi", None),
}


def _pair(
    scale: Optional[float], softmax_type: str, bias: str, qkv_format: str, dtype: torch.dtype, **rest: Any
) -> tuple[Case, str, torch.dtype]:
    bias_type, numbers = _BIASES.get(bias, (bias, None))
    slopes = (lambda: torch.rand(2, HEADS)) if bias == "slopes" else None
    made = {"softmax_scale": scale, "softmax_type": softmax_type}
    return Case(made=made, bias=numbers, bias_type=bias_type, slopes=slopes, **rest), qkv_format, dtype


# (case, format, dtype) in which every two values meet.
PAIRS = {
    "-".join(str(value).replace("torch.", "") for value in values.values()): _pair(**values)
    for values in pairwise(_AXES, _possible)
}


def draw(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k, v as bshd; then the sink of softmax_type "learnable" and the bias, where the case has them, in f32."""
    torch.manual_seed(10 * len(case.kind) + case.groups)
    shapes = ((2, SIZES[0], HEADS, DIM), (2, SIZES[1], case.groups, DIM), (2, SIZES[1], case.groups, case.dim_v))
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    if case.made.get("softmax_type") == "learnable":
        tensors.append(torch.randn(HEADS))
    return tensors if case.bias is None else [*tensors, case.bias()]


def _rest(case: Case, rest: Any) -> tuple[Any, Any]:
    """(sink, bias) of the tensors after q, k and v."""
    rest = list(rest)
    sink = rest.pop(0) if case.made.get("softmax_type") == "learnable" else None
    return sink, rest.pop(0) if rest else None


def _hidden() -> torch.Tensor:
    return torch.arange(SIZES[0] * SIZES[1]).reshape(1, 1, *SIZES) % 5 == 0


def _paddings() -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.arange(size)[None, None, None] >= torch.tensor(used)[:, None, None, None]
        for size, used in zip(SIZES, zip(*USED))
    )


def _packed(tensor: torch.Tensor, used: Any) -> torch.Tensor:
    return torch.cat([tensor[b, :n] for b, n in enumerate(used)])


def _unpacked(rows: torch.Tensor, used: Any) -> torch.Tensor:
    return torch.stack(
        [torch.nn.functional.pad(part, (0, 0, 0, SIZES[0] - n)) for part, n in zip(rows.split(used), used)]
    )


def by_module(case: Case, qkv_format: str) -> Callable[..., torch.Tensor]:
    """The call of the drop-in on bshd tensors; its result as bshd, with zeros where sequences are packed."""
    made = DotProductAttention(
        HEADS, (DIM, case.dim_v), case.groups, qkv_format=qkv_format, attn_mask_type=case.kind, window_size=case.window,
        bottom_right_diagonal=case.diagonal, **case.made,
    )  # fmt: skip
    slopes = None if case.slopes is None else (torch.manual_seed(1), case.slopes())[1]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        module = made.to(q.device)
        sink, bias = _rest(case, rest)
        if sink is not None:
            del module.softmax_offset
            module.softmax_offset = sink
        given: dict[str, Any] = {"core_attention_bias_type": case.bias_type, "core_attention_bias": bias}
        if slopes is not None:
            given["alibi_slopes"] = slopes.to(q.device, torch.float64 if q.dtype == torch.float64 else torch.float32)
        if case.kind == "arbitrary":
            given["attention_mask"] = _hidden().to(q.device)
        elif "padding" in case.kind and case.padding == "masks":
            given["attention_mask"] = tuple(mask.to(q.device) for mask in _paddings())
        elif "padding" in case.kind:
            cu = [lengths_to_cu(used).to(q.device) for used in zip(*USED)]
            given["cu_seqlens_q"], given["cu_seqlens_kv"] = cu
        if qkv_format == "thd":
            used_q, used_k = map(list, zip(*USED))
            longest = {"max_seqlen_q": SIZES[0], "max_seqlen_kv": SIZES[1]}  # those of the bias
            return _unpacked(
                module(_packed(q, used_q), _packed(k, used_k), _packed(v, used_k), **given, **longest), used_q
            )
        return to_format(module(*(to_format(tensor, qkv_format) for tensor in (q, k, v)), **given), qkv_format)

    return call


def by_formula(case: Case) -> Callable[..., torch.Tensor]:
    """The same by te_reference."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        sink, bias = _rest(case, rest)
        if case.made.get("softmax_type") == "off-by-one":
            sink = torch.zeros(HEADS)
        cells = torch.stack([visible(case.kind, case.window, case.diagonal, SIZES, used) for used in USED])[:, None]
        if case.kind == "arbitrary":
            cells = cells & ~_hidden()
        post: Any = 0.0
        if case.bias_type == "alibi":
            slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)
            if case.slopes is not None:
                torch.manual_seed(1)
                slopes = case.slopes()
            lower_right = diagonal_at_bottom_right(case.kind, case.diagonal)
            used = USED if "padding" in case.kind else [SIZES] * 2
            away = torch.stack([distances(lower_right, SIZES, lengths) for lengths in used])[:, None]
            post = (-slopes[..., None, None] * away.float()).to(q)
        elif case.bias_type == "post_scale_bias":
            post = bias
        pre = bias if case.bias_type == "pre_scale_bias" else 0.0
        out = attend(q, k, v, cells, case.made.get("softmax_scale"), pre, post, sink)
        return out.to(q.dtype)

    return call
