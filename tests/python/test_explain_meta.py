# tilewise.explain of tensors that have no memory, and for another device than theirs.
"""explain() of meta and fake tensors."""

import pytest
import torch
from cases import CASES, draw, lengths
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewise


def _meta(tensors, options):
    moved = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    return [tensor.to("meta") for tensor in tensors], moved


@pytest.mark.parametrize("name", CASES)
def test_as_of_real_tensors(name):
    tensors, options = draw(name)
    real = tilewise.explain(*tensors, **options)
    tensors, options = _meta(tensors, options)
    explanation = tilewise.explain(*tensors, device="cpu", **options)
    assert explanation.problem == real.problem
    assert explanation.chosen == real.chosen
    assert str(explanation) == str(real)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_dtypes_and_layouts(dtype, layout):
    real = [torch.zeros(1, 8, 2, 16).to(dtype) for _ in range(3)]
    meta = [tensor.to("meta") for tensor in real]
    expected = tilewise.explain(*real, layout=layout, return_lse=True).problem
    assert tilewise.explain(*meta, device="cpu", layout=layout, return_lse=True).problem == expected


def test_where_it_would_run():
    q = torch.empty(1, 64, 4, 64, dtype=torch.bfloat16, device="meta")
    of_cpu, of_gpu = (tilewise.explain(q, q, q, device=device) for device in ("cpu", torch.device("cuda", 1)))
    assert "device=" not in of_cpu.problem
    assert "device=cuda" in of_gpu.problem
    gpu = torch.cuda.is_available()
    assert tilewise.explain(q, q, q).problem == (of_gpu if gpu else of_cpu).problem
    assert of_cpu.chosen is not None
    real = torch.zeros(1, 64, 4, 64, dtype=torch.bfloat16)
    assert tilewise.explain(real, real, real, device="cuda").problem == of_gpu.problem


def test_packed():
    q = torch.empty(12, 4, 16, device="meta")
    offsets = lengths(0, 5, 12)
    options = {"layout": "thd", "mask": "causal"}
    real = tilewise.explain(*[torch.zeros(12, 4, 16)] * 3, cu_seqlens_q=offsets, cu_seqlens_k=offsets, **options)
    known = tilewise.explain(q, q, q, device="cpu", cu_seqlens_q=offsets, cu_seqlens_k=offsets, **options)
    assert known.problem == real.problem
    options.update(cu_seqlens_q=offsets.to("meta"), cu_seqlens_k=offsets.to("meta"))
    assert tilewise.explain(q, q, q, device="cpu", max_seqlen_q=7, max_seqlen_k=7, **options).problem == real.problem
    with pytest.raises(ValueError, match="max_seqlen_k: must be given, since cu_seqlens_k has no values to read"):
        tilewise.explain(q, q, q, max_seqlen_q=7, **options)


def test_fake_tensors():
    with FakeTensorMode():
        q, k = torch.empty(2, 9, 4, 16), torch.empty(2, 9, 2, 16)
        explanation = tilewise.explain(q, k, k, mask="causal")
    real = tilewise.explain(torch.zeros(2, 9, 4, 16), *[torch.zeros(2, 9, 2, 16)] * 2, mask="causal")
    assert explanation.problem == real.problem


def test_views_keep_their_alignment():
    whole = torch.empty(1, 64, 4, 65, dtype=torch.bfloat16, device="meta")
    aligned = torch.empty(1, 64, 4, 64, dtype=torch.bfloat16, device="meta")
    view = whole[..., 1:]
    assert tilewise.explain(view, view, view, device="cuda").problem != (
        tilewise.explain(aligned, aligned, aligned, device="cuda").problem
    )


def test_out_and_bad_calls():
    q = torch.empty(1, 8, 2, 16, device="meta")
    assert tilewise.explain(q, q, q, out=torch.empty_like(q), device="cpu").chosen
    with pytest.raises(ValueError, match="out: shape must be"):
        tilewise.explain(q, q, q, out=q[:, :3], device="cpu")
    with pytest.raises(ValueError, match=r"k: shape must be"):
        tilewise.explain(q, q[..., :8], q, device="cpu")
    with pytest.raises(TypeError, match=r"q: dtype must be .*int8"):
        tilewise.explain(q.to(torch.int8), q, q, device="cpu")
    with pytest.raises(ValueError, match=r"device: must be cpu or cuda \(got meta\)"):
        tilewise.explain(q, q, q, device="meta")
    with pytest.raises(ValueError, match=r"device: must be a device of torch, .* \(got 'gpu'\)"):
        tilewise.explain(q, q, q, device="gpu")
    array = torch.zeros(1, 8, 2, 16).numpy()
    with pytest.raises(TypeError, match=r"device: must be None with arrays that are no torch tensors \(got 'cpu'\)"):
        tilewise.explain(array, array, array, device="cpu")
    with pytest.raises(TypeError, match="device: must not be given beside a problem as text"):
        tilewise.explain("attention_forward seqlen_q=8 head_dim=8", device="cpu")


def test_dropout_draws_where_it_would_run():
    q = torch.empty(1, 8, 2, 16, device="meta")
    assert "seed_tensor=1" in tilewise.explain(q, q, q, dropout_p=0.5, device="cuda").problem
    assert "seed_tensor" not in tilewise.explain(q, q, q, dropout_p=0.5, seed=3, device="cuda").problem
