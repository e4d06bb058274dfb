# NaN and infinities on the GPU: results are finite exactly where the reference's are, at every length of keys and in
# every gradient. Few kernels, and many cases in a call.
"""NaN never vanishes on a GPU."""

import math
from typing import Any, Optional

import pytest
import torch
from cases import lengths

import tilewise

DEVICE = "cuda"
VALUES = (math.nan, math.inf, -math.inf)


def _draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def _run(
    device: str, tensors: list[torch.Tensor], dout: Optional[torch.Tensor], **options: Any
) -> dict[str, torch.Tensor]:
    """Results and, given dout, gradients, on the CPU; by the reference where the device is the CPU."""
    leaves = [tensor.detach().to(device).requires_grad_() for tensor in tensors]
    given = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    if device == "cpu":
        given["implementation"] = "reference"
    out, lse = tilewise.attention(*leaves, return_lse=True, **given)
    results = {"out": out, "softmax_lse": lse}
    if dout is not None:
        gradients = torch.autograd.grad(out, leaves, dout.to(device))
        results |= dict(zip(("dq", "dk", "dv"), gradients))
    return {name: result.detach().float().cpu() for name, result in results.items()}


def _assert_classes(tensors: list[torch.Tensor], dout: Optional[torch.Tensor] = None, **options: Any) -> None:
    got, expected = _run(DEVICE, tensors, dout, **options), _run("cpu", tensors, dout, **options)
    for name, result in got.items():
        differ = torch.isfinite(result) != torch.isfinite(expected[name])
        where = differ.nonzero()[:4].tolist()
        assert not differ.any(), f"{name}: {int(differ.sum())} elements, the first at {where}"
    assert torch.equal(got["softmax_lse"] == -math.inf, expected["softmax_lse"] == -math.inf)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seqlen_q", [1, 3])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_every_length(which, seqlen_q, head_dim):
    """Sequences of 1 to 270 keys, past two tiles, in one packed call."""
    torch.manual_seed(1)
    longest = 270
    cu_k = torch.arange(longest + 1).cumsum(0)
    total = int(cu_k[-1])
    tensors = [_draw(seqlen_q * longest, 1, head_dim), _draw(total, 1, head_dim), _draw(total, 1, head_dim)]
    for n in range(longest):
        place = int(cu_k[n]) + (0, n, n // 2)[n % 3]  # of n + 1 keys
        if which == "q":
            tensors[0][seqlen_q * n, 0, n % 64] = math.nan
        elif which == "k":
            tensors[1][place, 0, n % 64] = math.nan
        else:
            tensors[2][place, 0, n % 64] = VALUES[n % 3]
    cu = {"cu_seqlens_q": lengths(*range(0, seqlen_q * longest + 1, seqlen_q)), "cu_seqlens_k": cu_k.int()}
    _assert_classes(tensors, layout="thd", max_seqlen_q=seqlen_q, max_seqlen_k=longest, **cu)


@pytest.mark.parametrize("sink", [-math.inf, 0.5, 300.0, math.nan])
def test_keys_that_are_split(sink):
    torch.manual_seed(2)
    tensors = [_draw(5, 1, 2, 64), _draw(5, 5000, 2, 64), _draw(5, 5000, 2, 64)]
    tensors[0][0, 0, 0, 3] = math.nan
    tensors[1][1, 4999, 1, 3] = math.nan
    tensors[2][2, 0, 0, 3] = math.inf
    tensors[2][3, 2500, 0, 3] = math.nan
    _assert_classes(tensors, sink=torch.tensor([sink, 1.0]))
    _assert_classes(tensors, sink=torch.tensor([sink, 1.0]), seqused_k=lengths(5000, 0, 17, 1, 4999))


@pytest.mark.parametrize("options", ["plain", "causal", "softcap", "bias", "deterministic", "scale_zero"])
@pytest.mark.parametrize("shape", [(1, 17), (70, 150), (200, 200), (33, 300)])
def test_gradients(shape, options):
    """A sequence for each input. Causal masks see all that is planted: the last query and the first key."""
    torch.manual_seed(3)
    seqlen_q, seqlen_k = shape
    q, k, v = _draw(5, seqlen_q, 2, 64), _draw(5, seqlen_k, 2, 64), _draw(5, seqlen_k, 2, 64)
    dout = _draw(5, seqlen_q, 2, 64)
    given: dict[str, Any] = {
        "plain": {},
        "causal": {"mask": "causal"},
        "softcap": {"softcap": 3.0},
        "bias": {"bias": torch.randn(5, 1, seqlen_q, seqlen_k)},
        "deterministic": {"deterministic": True},
        "scale_zero": {"softmax_scale": 0.0},
    }[options]
    for value in VALUES:
        planted = [tensor.clone() for tensor in (q, k, v)]
        planted[0][0, -1, 1, 7] = math.nan
        planted[1][1, 0, 0, 7] = math.nan
        planted[2][2, 0, 1, 7] = value
        planted_dout = dout.clone()
        planted_dout[3, -1, 0, 7] = value
        _assert_classes(planted, planted_dout, **given)


def test_bias_of_nan_and_infinity():
    torch.manual_seed(4)
    tensors = [_draw(4, 70, 2, 64), _draw(4, 90, 2, 64), _draw(4, 90, 2, 64)]
    bias = torch.randn(4, 1, 70, 90)
    bias[0, 0, 3, 5], bias[1, 0, 3, 5] = math.nan, math.inf
    bias[2, 0, 3, 5] = bias[3, 0, 3] = -math.inf  # hides one position, and a row
    tensors[0][3, 3] = 0.0
    _assert_classes(tensors, _draw(4, 70, 2, 64), bias=bias)
    tensors[0][3, 3, 0, 0] = math.nan  # -infinity does not hide a NaN
    _assert_classes(tensors, _draw(4, 70, 2, 64), bias=bias)


def test_a_false_bias_hides():
    torch.manual_seed(5)
    tensors = [_draw(2, 70, 2, 64), _draw(2, 90, 2, 64), _draw(2, 90, 2, 64)]
    bias = torch.ones(1, 1, 1, 90, dtype=torch.bool)
    for key, value in ((4, math.nan), (67, math.inf)):
        bias[..., key] = False
        tensors[1][:, key, :, 7] = value
    got = _run(DEVICE, tensors, _draw(2, 70, 2, 64), bias=bias)
    assert all(torch.isfinite(got[name]).all() for name in ("out", "softmax_lse", "dv"))
    assert not got["dk"][:, [4, 67]].any() and not got["dv"][:, [4, 67]].any()
    # The hidden keys' own column may reach dq, no other.
    assert torch.isfinite(got["dq"][..., [n for n in range(64) if n != 7]]).all()


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_that_see_nothing(deterministic):
    nan = [torch.full((1, n, 2, 64), math.nan, dtype=torch.bfloat16) for n in (100, 40, 40, 100)]
    got = _run(DEVICE, nan[:3], nan[3], mask="causal", deterministic=deterministic)  # 60 rows
    assert (got["softmax_lse"][..., :60] == -math.inf).all() and got["softmax_lse"][..., 60:].isnan().all()
    for name in ("out", "dq"):
        assert not got[name][:, :60].any(), name
        assert got[name][:, 60:].isnan().all(), name
