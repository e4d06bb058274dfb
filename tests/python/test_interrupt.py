# Ctrl-C during a long call on the CPU: a child process computes what would take minutes, gets SIGINT, must raise
# KeyboardInterrupt long before that, and computes rightly afterwards.
"""Interrupting calls."""

import subprocess
import sys

import pytest

PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
import torch
import tilewise
import tilewise._torch

SEQLEN = 400_000
sent = 0.0
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it

def interrupt_soon(delay=0.5):
    def send():
        global sent
        time.sleep(delay)
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()

def tensors(count, seqlen=SEQLEN, **options):
    return [torch.full((1, seqlen, 2, 64), 0.5, **options) for _ in range(count)]

def check():
    q, k, v = (torch.randn(2, 300, 4, 64) for _ in range(3))
    out = tilewise.attention(q, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    assert torch.allclose(out.transpose(1, 2), expected, atol=1e-4)
    assert np.array_equal(out.numpy(), tilewise.attention(q.numpy(), k.numpy(), v.numpy()))

check()
"""

EPILOGUE = """
interrupt_soon()
try:
    call()
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - sent)
for _ in range(3):
    check()
print("usable")
"""

CALLS = {
    "plain": "q = tensors(3); call = lambda: tilewise.attention(*q)",
    "one_thread": "torch.set_num_threads(1); q = tensors(3); call = lambda: tilewise.attention(*q)",
    "options": "q = tensors(3); call = lambda: tilewise.attention(*q, softcap=3.0, return_lse=True)",
    "numpy": "q = [x.numpy() for x in tensors(3)]; call = lambda: tilewise.attention(*q)",
    "reference": "q = tensors(3, 50_000); call = lambda: tilewise.attention(*q, implementation='reference')",
    "operator": "q = tensors(3); call = lambda: torch.ops.tilewise.attention_forward(*q)",
    # Compiled before: Dynamo of torch 2.13 can lose an interrupt that comes while it compiles.
    "compiled": """
compiled = torch.compile(tilewise.attention, backend="eager", dynamic=True)
compiled(*tensors(3, 300))
torch.compiler.set_stance("fail_on_recompile")
q = tensors(3); call = lambda: compiled(*q)
""",
    "backward": """
q, lse = tensors(5), torch.zeros(1, 2, SEQLEN)
call = lambda: torch.ops.tilewise.attention_backward(q[0], None, *q[1:], lse, True, True, True, False, False)
""",
    "reference_backward": """
q, lse = tensors(5, 50_000), torch.zeros(1, 2, 50_000)
call = lambda: torch.ops.tilewise.attention_backward(
    q[0], None, *q[1:], lse, True, True, True, False, False, implementation="reference")
""",
    "bias_gradient": """
q, lse, bias = tensors(5), torch.zeros(1, 2, SEQLEN), torch.zeros(1, 1)
call = lambda: torch.ops.tilewise.attention_backward(
    q[0], None, *q[1:], lse, False, False, False, True, False, bias=bias)
""",
    "autograd": """
q = tensors(3, 4096, requires_grad=True)
def call():
    while True:
        tilewise.attention(*q).sum().backward()
""",
}


def run(code, **variables):
    command = [sys.executable, "-W", "ignore", "-c", PROLOGUE + code]
    return subprocess.run(command, env=variables or None, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", CALLS)
def test_call_ends(name):
    result = run(CALLS[name] + EPILOGUE)
    assert result.returncode == 0, result.stderr
    interrupted, seconds, usable = result.stdout.split()
    assert (interrupted, usable) == ("interrupted", "usable")
    assert float(seconds) < 10  # measured: below 0.1; a call takes minutes


def test_python_operators(monkeypatch):
    monkeypatch.setenv("TILEWISE_TORCH_OPS", "python")
    result = run(CALLS["plain"] + EPILOGUE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[::2] == ["interrupted", "usable"]


def test_other_threads_go_on():
    """Of calls in several threads, the main one's is interrupted, whichever of them has the pool; the others finish."""
    code = """
q = tensors(3)
small = [torch.randn(1, 1500, 4, 64) for _ in range(3)]
expected = tilewise.attention(*small)
stop = False
results = []
def work():
    while not stop:
        results.append(torch.equal(tilewise.attention(*small), expected))
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
for _ in range(3):
    interrupt_soon(0.3)
    try:
        tilewise.attention(*q)
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - sent < 20)
stop = True
for worker in workers:
    worker.join()
print(len(results) > 0 and all(results))
check()
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["interrupted", "True"] * 3 + ["True"]


def test_handlers_that_return_or_call_tilewise():
    """A handler that returns does not end the call; it may call Tilewise, and raise what it wants."""
    code = """
q = [torch.randn(1, 4096, 8, 64) for _ in range(3)]
torch.set_num_threads(1)
expected = tilewise.attention(*q)
handled = 0
def handle(*_):
    global handled
    check()
    handled += 1
    signal.setitimer(signal.ITIMER_REAL, 0.02)  # the next one, not before this has ended
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.02)
while handled < 3:
    assert torch.equal(tilewise.attention(*q), expected)
signal.setitimer(signal.ITIMER_REAL, 0)
class Late(Exception): pass
def raise_late(*_):
    raise Late
signal.signal(signal.SIGALRM, raise_late)
q = tensors(3)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    tilewise.attention(*q)
except Late:
    print("late")
check()
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["late"]
