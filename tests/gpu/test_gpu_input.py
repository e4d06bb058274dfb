# Bad input on a GPU: errors that name the argument, and lengths that lie without a fault. Other array libraries.
"""What a GPU call refuses, and what it takes beside torch tensors."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from cases import assert_close
from checking import Exporter
from gpu_support import dense64, qkv

import tilewise


def _small():
    return qkv((2, 30, 4, 64), (2, 40, 2, 64))


@pytest.mark.parametrize("name", ["k", "v", "bias", "sink", "alibi_slopes", "seqused_k", "seed", "out"])
def test_tensor_on_the_cpu(name):
    q, k, v = _small()
    given = {
        "k": k,
        "v": v,
        "bias": torch.zeros(30, 40),
        "sink": torch.zeros(4),
        "alibi_slopes": torch.zeros(4),
        "seqused_k": torch.tensor([3, 4], dtype=torch.int32),
        "seed": torch.tensor([1, 2]),
        "out": torch.empty_like(q),
    }
    arguments = {"q": q, "k": k, "v": v, name: given[name].cpu()}
    if name == "seed":
        arguments["dropout_p"] = 0.5
    shown = "seed_and_offset" if name == "seed" else name
    with pytest.raises(TypeError, match=rf"{shown}: must be on cuda:0, where q is \(got cpu\)"):
        tilewise.attention(**arguments)


def test_q_on_the_cpu():
    q, k, v = _small()
    with pytest.raises(TypeError, match=r"k: must be on cpu, where q is \(got cuda:0\)"):
        tilewise.attention(q.cpu(), k, v)


def test_float32_is_refused_with_reasons():
    q, k, v = (tensor.float() for tensor in _small())
    with pytest.raises(NotImplementedError, match="f32"):
        tilewise.attention(q, k, v)


def test_head_dim_is_refused_with_the_limit():
    with pytest.raises(NotImplementedError, match=r"head_dim and head_dim_v must be <= 256 \(got 320 and 320\)"):
        tilewise.attention(*qkv((1, 8, 1, 320)))


def test_implementation_of_the_cpu():
    with pytest.raises(NotImplementedError, match="runs on cpu, the tensors are on cuda"):
        tilewise.attention(*_small(), implementation="reference")


def test_packed_needs_the_longest_sequence():
    q = torch.randn(10, 2, 64, device="cuda", dtype=torch.bfloat16)
    cu = torch.tensor([0, 10], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="max_seqlen_q: must be given, since the host can't read cu_seqlens_q"):
        tilewise.attention(q, q, q, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu)


LIES = {
    "beyond": ([0, 5, 900_000_000], "max_seqlen_k"),
    "negative": ([0, -7, 30], "cu_seqlens_k"),
    "falling": ([0, 15, 10], "cu_seqlens_k"),
    "far": ([2_000_000_000, -2_000_000_000, 2_147_483_647], "cu_seqlens_k"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lengths_that_lie(lie, monkeypatch):
    """Kernels clamp them: no fault, whatever comes out. With TILEWISE_CHECK=1 they are named."""
    q = torch.randn(30, 2, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    good = torch.tensor([0, 12, 30], dtype=torch.int32, device="cuda")
    bad = torch.tensor(LIES[lie][0], dtype=torch.int32, device="cuda")
    options = {"layout": "thd", "max_seqlen_q": 18, "max_seqlen_k": 18}
    out = tilewise.attention(q, q, q, cu_seqlens_q=good, cu_seqlens_k=bad, **options)
    torch.autograd.grad(out.sum(), q)
    torch.cuda.synchronize()
    out = tilewise.attention(q, q, q, cu_seqlens_q=bad, cu_seqlens_k=good, **options)
    torch.autograd.grad(out.sum(), q)
    torch.cuda.synchronize()
    monkeypatch.setenv("TILEWISE_CHECK", "1")
    with pytest.raises(ValueError, match=LIES[lie][1]):
        tilewise.attention(q, q, q, cu_seqlens_q=good, cu_seqlens_k=bad, **options)


@pytest.mark.parametrize("name", ["seqused_q", "seqused_k", "leftpad_k"])
def test_used_lengths_that_lie(name, monkeypatch):
    q, k, v = _small()
    bad = torch.tensor([-3, 1_000_000_000], dtype=torch.int32, device="cuda")
    tilewise.attention(q, k, v, **{name: bad})
    torch.cuda.synchronize()
    monkeypatch.setenv("TILEWISE_CHECK", "1")
    with pytest.raises(ValueError, match=rf"{name}\[0\]: must be 0 to \d+, .* \(got -3\)"):
        tilewise.attention(q, k, v, **{name: bad})


def test_bad_stream():
    from tilewise import _arrays, _core
    from tilewise._options import Options

    q, k, v = qkv((1, 32, 1, 64))
    out = torch.empty_like(q)
    arrays = [_arrays.borrow(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v))]
    options = _arrays.core_options(Options())
    destroyed = torch.cuda.ExternalStream(0)  # a valid one first: the call itself must be fine
    _core.attention_forward(*arrays, _arrays.borrow("out", out, True), None, options, stream=destroyed.cuda_stream)
    torch.cuda.synchronize()
    if torch.cuda.device_count() < 2:
        pytest.skip("a stream of another device needs a second GPU")
    with torch.cuda.device(1):
        other = torch.cuda.Stream().cuda_stream
    with pytest.raises(ValueError, match="stream: must be a stream of cuda:0"):
        _core.attention_forward(*arrays, _arrays.borrow("out", out, True), None, options, stream=other)


def test_explain_shows_the_schedule():
    rows = {row.implementation: row for row in tilewise.explain(*_small(), mask="causal").rows}
    chosen = next(row for row in rows.values() if row.chosen)
    assert "tiles" in chosen.reason and "waves" in chosen.reason
    assert rows["reference"].reason == "runs on cpu, the tensors are on cuda"


def test_dlpack_objects():
    q, k, v = _small()
    out = tilewise.attention(*map(Exporter, (q, k, v)), mask="causal")
    assert_close(torch.from_dlpack(out), dense64(q, k, v, causal=True)[0], 2e-2)


def test_attention_backward_of_dlpack_objects():
    q, k, v = _small()
    leaves = [tensor.requires_grad_() for tensor in (q.clone(), k.clone(), v.clone())]
    out, lse = tilewise.attention(*leaves, mask="causal", return_lse=True, deterministic=True)
    dout = torch.randn_like(out)
    expected = torch.autograd.grad(out, leaves, dout)
    arrays = map(Exporter, (dout, q, k, v, out.detach(), lse.detach()))
    result = tilewise.attention_backward(*arrays, mask="causal", deterministic=True)
    for gradient, wanted in zip(result[:3], expected):
        assert torch.equal(torch.from_dlpack(gradient), wanted)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q, k, v = (cupy.random.standard_normal((1, 50, 2, 64), dtype=cupy.float32).astype(cupy.float16) for _ in range(3))
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    assert isinstance(out, cupy.ndarray) and isinstance(lse, cupy.ndarray)
    exact, exact_lse = dense64(*(torch.from_dlpack(array) for array in (q, k, v)))
    assert_close(torch.from_dlpack(out), exact, 3e-3)
    assert_close(torch.from_dlpack(lse), exact_lse, 1e-3)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        again = tilewise.attention(q, k, v)
        stream.synchronize()
    assert bool((again == out).all())


def test_jax():
    """In a process of its own: jax keeps the GPU memory it has seen."""
    pytest.importorskip("jax")
    code = """
        import jax, jax.numpy as jnp, numpy as np, tilewise
        q, k, v = (jax.random.normal(jax.random.key(n), (1, 50, 2, 64), jnp.bfloat16) for n in range(3))
        if q.device.platform != "gpu":
            raise SystemExit(f"jax has no GPU: {q.device}")
        out = tilewise.attention(q, k, v)
        assert isinstance(out, jax.Array) and out.dtype == jnp.bfloat16 and out.device == q.device
        expected = jax.nn.dot_product_attention(*(a.astype(jnp.float32) for a in (q, k, v)))
        assert np.abs(np.asarray(out, np.float32) - np.asarray(expected)).max() < 0.03
        print("done")
    """
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, timeout=240
    )
    if "jax has no GPU" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout.strip() == "done", done.stdout + done.stderr[-3000:]


def test_python_registration():
    """TILEWISE_TORCH_OPS=python: the same results through the operators registered from Python."""
    code = """
        import sys; sys.path[:0] = sys.argv[1:]
        import torch, tilewise, tilewise._torch
        from gpu_support import qkv, dense64
        assert tilewise._torch.registered_by.startswith("python"), tilewise._torch.registered_by
        leaves = [t.requires_grad_() for t in qkv((1, 70, 2, 64))]
        out = tilewise.attention(*leaves, mask="causal")
        exact = dense64(*leaves, causal=True)[0]
        assert (out - exact).abs().max() < 0.03
        dq, = torch.autograd.grad(out.sum(), leaves[:1])
        expected, = torch.autograd.grad(exact.sum(), leaves[:1])
        assert (dq - expected).abs().max() < 0.05
        print("done")
    """
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), here],
        capture_output=True,
        text=True,
        env={**os.environ, "TILEWISE_TORCH_OPS": "python"},
        timeout=240,
    )
    assert done.stdout.strip() == "done", done.stdout + done.stderr[-3000:]
