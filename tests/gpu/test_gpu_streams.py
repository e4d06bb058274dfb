# Streams, threads, devices and graphs: where work is enqueued, and what a capture may and may not do.
"""Calls on streams and in CUDA graphs."""

import threading

import pytest
import torch
from cases import assert_close
from gpu_support import dense64, qkv

import tilewise


def test_current_stream_is_used():
    """On any other stream the call would read q before the slow stream has written it."""
    fresh, k, v = qkv((2, 128, 4, 64))
    q = torch.zeros_like(fresh)
    tilewise.warmup(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        q.copy_(fresh)
        out = tilewise.attention(q, k, v)
    stream.synchronize()
    assert_close(out, dense64(fresh, k, v)[0], 2e-2)


def test_many_streams_at_once():
    """Decoding splits keys, so that each call has a workspace: they must not share one."""
    calls = [qkv((1, 1, 8, 128), (1, 8000, 8, 128), seed=seed) for seed in range(8)]
    streams = [torch.cuda.Stream() for _ in calls]
    tilewise.warmup(*calls[0])
    torch.cuda.synchronize()
    outs = []
    for _ in range(3):
        for stream, call in zip(streams, calls):
            with torch.cuda.stream(stream):
                outs.append(tilewise.attention(*call))
    torch.cuda.synchronize()
    for n, out in enumerate(outs):
        assert_close(out, dense64(*calls[n % len(calls)])[0], 2e-2)


def test_threads():
    results, errors = {}, []

    def work(n):
        try:
            call = qkv((1, 100 + n, 2, 64), seed=n)
            results[n] = call, tilewise.attention(*call, mask="causal")
            torch.cuda.synchronize()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for call, out in results.values():
        assert_close(out, dense64(*call, causal=True)[0], 2e-2)


def test_other_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    q, k, v = (tensor.to("cuda:1") for tensor in qkv((1, 100, 2, 64)))
    out = tilewise.attention(q, k, v)
    assert out.device == q.device
    assert_close(out, dense64(q, k, v)[0], 2e-2)
    with pytest.raises(TypeError, match=r"k: must be on cuda:1, where q is \(got cuda:0\)"):
        tilewise.attention(q, k.to("cuda:0"), v)


def _captured(function):
    """(graph, results of the function while it was captured)."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


@pytest.mark.parametrize(
    "shape", [((2, 200, 4, 64), None), ((1, 1, 8, 128), (1, 9000, 2, 128))], ids=["tiles", "split"]
)
def test_capture_after_warmup(shape):
    q, k, v = qkv(*shape)
    tilewise.warmup(q, k, v, mask="causal")
    graph, out = _captured(lambda: tilewise.attention(q, k, v, mask="causal"))
    for seed in range(3):
        for tensor, fresh in zip((q, k, v), qkv(*shape, seed=seed)):
            tensor.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        assert_close(out, dense64(q, k, v, causal=True)[0], 2e-2)


def test_capture_of_forward_and_backward():
    leaves = [tensor.requires_grad_() for tensor in qkv((1, 150, 4, 64), (1, 150, 2, 64))]
    dout = torch.randn_like(leaves[0])

    def both():
        out = tilewise.attention(*leaves, mask="causal")
        return (out, *torch.autograd.grad(out, leaves, dout))

    tilewise.warmup(*leaves, mask="causal")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # autograd's own first steps are no part of a capture either
        both()
    torch.cuda.synchronize()
    graph, results = _captured(both)
    with torch.no_grad():
        for tensor, fresh in zip(leaves, qkv((1, 150, 4, 64), (1, 150, 2, 64), seed=5)):
            tensor.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize()
    for captured, eager in zip(results, both()):
        assert_close(captured, eager.double(), 1e-3)


def test_seed_changes_between_replays():
    q, k, v = qkv((1, 100, 2, 64))
    seed = torch.tensor([5, 9], device="cuda")
    tilewise.warmup(q, k, v, dropout_p=0.5, seed=seed)
    graph, out = _captured(lambda: tilewise.attention(q, k, v, dropout_p=0.5, seed=seed))
    seen = []
    for values in ([5, 9], [5, 10], [6, 9], [5, 9]):
        seed.copy_(torch.tensor(values))
        graph.replay()
        torch.cuda.synchronize()
        seen.append(out.clone())
        assert torch.equal(out, tilewise.attention(q, k, v, dropout_p=0.5, seed=torch.tensor(values, device="cuda")))
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert torch.equal(seen[0], seen[3])


def test_drawn_seeds_follow_torchs_generator():
    q, k, v = qkv((1, 100, 2, 64))
    torch.manual_seed(3)
    first = tilewise.attention(q, k, v, dropout_p=0.5)
    second = tilewise.attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(first, tilewise.attention(q, k, v, dropout_p=0.5))
    assert not torch.equal(first, second)


def test_cold_kernel_in_a_capture():
    q, k, v = qkv((1, 40, 2, 232), dtype=torch.float16)  # no other test has this head_dim
    slopes = torch.rand(2, device="cuda")
    with pytest.raises(RuntimeError, match=r"tilewise\.warmup"):
        _captured(lambda: tilewise.attention(q, k, v, softcap=3.0, alibi_slopes=slopes))
    torch.cuda.synchronize()
    assert_close(tilewise.attention(q, k, v), dense64(q, k, v)[0], 3e-3)


def test_warmup_writes_nothing():
    q, k, v = qkv((1, 64, 2, 64))
    out = torch.full_like(q, 7.0)
    tilewise.warmup(q, k, v, out=out)
    assert torch.equal(out, torch.full_like(q, 7.0))


def test_compiled_by_torch():
    q, k, v = qkv((1, 100, 2, 64))
    compiled = torch.compile(lambda *a: tilewise.attention(*a, mask="causal") * 2, backend="aot_eager", fullgraph=True)
    assert_close(compiled(q, k, v), 2 * dense64(q, k, v, causal=True)[0], 2e-2)
