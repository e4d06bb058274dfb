# What asynchronous copies, barriers and persistent blocks could get wrong beside other work: bits, graphs, streams.
"""Hopper's own kernels under load, in CUDA graphs, on several streams and from several threads."""

import threading
from contextlib import contextmanager

import pytest
import torch
from cases import assert_close
from gpu_support import dense64, qkv

import tilewise

HOPPER = {"implementation": "cuda.hopper"}
RUNS = 250
# name: (shapes of q and k, options). Each takes another way through the kernels.
CASES = {
    "d64": (((2, 700, 4, 64), (2, 700, 4, 64)), {}),
    "d64 causal": (((2, 700, 4, 64), (2, 700, 2, 64)), {"mask": "causal"}),
    "d128": (((2, 1500, 4, 128), (2, 1500, 4, 128)), {}),
    "d128 causal, groups": (((2, 1500, 8, 128), (2, 1500, 2, 128)), {"mask": "causal"}),
    "d128 window": (((1, 2100, 4, 128), (1, 2100, 4, 128)), {"mask": "causal", "window": (300, -1)}),
    "d128 many short": (((40, 300, 8, 128), (40, 300, 8, 128)), {"mask": "causal"}),
    "d128 many tiles": (((8, 2048, 8, 128), (8, 2048, 8, 128)), {}),
    "d72": (((1, 500, 3, 72), (1, 900, 3, 72)), {"mask": "causal"}),
    "d256 causal": (((1, 900, 4, 256), (1, 900, 2, 256)), {"mask": "causal"}),
    "few queries": (((1, 70, 8, 128), (1, 5000, 2, 128)), {"mask": "causal"}),
    "few keys": (((1, 3000, 8, 128), (1, 200, 1, 128)), {}),
    "softcap": (((2, 700, 4, 128), (2, 700, 4, 128)), {"softcap": 20.0}),
    "dropout": (((2, 700, 4, 128), (2, 700, 4, 128)), {"dropout_p": 0.2, "seed": 34}),
    "dropout by half": (((2, 700, 4, 64), (2, 700, 2, 64)), {"dropout_p": 0.5, "seed": 36, "mask": "causal"}),
    "d256 dropout": (((2, 300, 4, 256), (2, 300, 2, 256)), {"dropout_p": 0.2, "seed": 35}),
}

if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)


def forward(tensors, **options):
    return tilewise.attention(*tensors, return_lse=True, **HOPPER, **options)


def backward(tensors, results, dout, **options):
    """dq, dk, dv."""
    return tilewise.attention_backward(dout, *tensors, *results, **HOPPER, **options)[:3]


@contextmanager
def load():
    """Another stream keeps the multiprocessors and the memory busy meanwhile."""
    busy = torch.cuda.Stream()
    factor = torch.randn(3000, 3000, device="cuda", dtype=torch.bfloat16)
    busy.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(busy):
        product = factor
        for _ in range(400):
            product = factor @ product * 0.01
    yield
    assert bool(torch.isfinite(product).all())


def differing(results, expected):
    """A number on the device, which nobody waits for: how many elements have other bits."""
    return sum(torch.count_nonzero(a.view(torch.uint8) != b.view(torch.uint8)) for a, b in zip(results, expected))


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_under_load(name):
    shapes, options = CASES[name]
    tensors = qkv(*shapes)
    expected = forward(tensors, **options)
    torch.cuda.synchronize()
    with load():
        wrong = sum(differing(forward(tensors, **options), expected) for _ in range(RUNS))
        assert int(wrong) == 0


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_of_dk_and_dv_under_load(name):
    """dq is added up in no fixed order, but for many short sequences: near, perhaps not equal."""
    shapes, options = CASES[name]
    tensors = qkv(*shapes)
    results = forward(tensors, **options)
    dout = torch.randn_like(results[0])
    expected = backward(tensors, results, dout, **options)
    torch.cuda.synchronize()
    with load():
        wrong, apart = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
        for _ in range(RUNS):
            gradients = backward(tensors, results, dout, **options)
            wrong += differing(gradients[1:], expected[1:])
            apart = torch.maximum(apart, (gradients[0].float() - expected[0].float()).norm())
        assert int(wrong) == 0
        assert float(apart) <= 2e-3 * float(expected[0].float().norm())  # bf16's rounding of sums that differ by 1e-5


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_in_a_fixed_order_under_load(name):
    shapes, options = CASES[name]
    tensors = qkv(*shapes)
    results = forward(tensors, **options)
    dout = torch.randn_like(results[0])
    expected = backward(tensors, results, dout, deterministic=True, **options)
    torch.cuda.synchronize()
    with load():
        wrong = sum(
            differing(backward(tensors, results, dout, deterministic=True, **options), expected) for _ in range(RUNS)
        )
        assert int(wrong) == 0


@pytest.mark.parametrize("name", CASES)
def test_captured_in_a_graph(name):
    """A replay computes from what the tensors hold by then, counters and dq's sums cleared anew."""
    shapes, options = CASES[name]
    tensors = qkv(*shapes)
    dout = torch.randn_like(tensors[0])

    def both():
        results = forward(tensors, **options)
        return (*results, *backward(tensors, results, dout, **options))

    both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for seed in (7, 8):
        for tensor, fresh in zip(tensors, qkv(*shapes, seed=seed)):
            tensor.copy_(fresh)
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        expected = both()
        assert int(differing((*captured[:2], *captured[3:]), (*expected[:2], *expected[3:]))) == 0
        assert_close(captured[2], expected[2].double(), 2e-2)


def test_several_streams_at_once():
    """Each call has counters and sums of its own."""
    calls = [qkv(*CASES[name][0], seed=n) for n, name in enumerate(CASES)]
    options = [CASES[name][1] for name in CASES]
    douts = [torch.randn_like(call[0]) for call in calls]

    def both(n):
        results = forward(calls[n], **options[n])
        return (*results, *backward(calls[n], results, douts[n], **options[n]))

    expected = [both(n) for n in range(len(calls))]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    got = []
    for _ in range(10):
        got = []
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got.append(both(n))
    torch.cuda.synchronize()
    for mine, theirs in zip(got, expected):
        assert int(differing((*mine[:2], *mine[3:]), (*theirs[:2], *theirs[3:]))) == 0
        assert_close(mine[2], theirs[2].double(), 2e-2)


def test_several_threads():
    results, errors = {}, []

    def work(n):
        try:
            tensors = qkv((1, 300 + n, 2, 128), seed=n)
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    out, lse = forward(tensors, mask="causal")
                    gradients = backward(tensors, (out, lse), torch.ones_like(out), mask="causal")
                torch.cuda.current_stream().synchronize()
            results[n] = tensors, out, gradients
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for tensors, out, gradients in results.values():
        leaves = [tensor.double().requires_grad_() for tensor in tensors]
        expected = dense64(*leaves, causal=True)[0]
        assert_close(out, expected.detach(), 2e-2)
        exact = torch.autograd.grad(expected, leaves, torch.ones_like(expected))
        for mine, theirs in zip(gradients, exact):
            assert_close(mine, theirs, 4e-2)
