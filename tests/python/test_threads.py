# set_num_threads, torch.set_num_threads and TILEWISE_NUM_THREADS, by the threads that calls start. Each test is a
# process of its own: a pool keeps the threads it has, and variables are read once.
"""The number of CPU threads."""

import os
import subprocess
import sys

import pytest

PROLOGUE = """
import os, sys
import numpy as np
import tilewise

def tasks():
    return len(os.listdir("/proc/self/task"))

def used(kind="torch"):
    # The threads of a call: those that the pool grew by in this process, and the caller. Only growth can be seen,
    # so ask for more each time.
    if kind == "torch":
        import torch
        q = torch.randn(1, 512, 4, 64)
        tasks_before = tasks()
    else:
        q = np.ones((1, 512, 4, 64), np.float32)
        tasks_before = tasks()
    tilewise.attention(q, q, q)
    global pool
    pool += tasks() - tasks_before
    return pool

pool = 1
"""


def run(code, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "TILEWISE_NUM_THREADS"}
    result = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code], env={**environment, **variables}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize("ops", ["c++", "python"])
def test_torch_tensors_follow_torch(ops):
    code = """
import torch
torch.set_num_threads(1)
print(used(), tilewise.get_num_threads())
torch.set_num_threads(3)
print(used(), tilewise.get_num_threads())
"""
    assert run(code, TILEWISE_TORCH_OPS=ops) == ["1", "1", "3", "3"]


@pytest.mark.parametrize("ops", ["c++", "python"])
def test_set_num_threads_holds_for_torch_tensors(ops):
    code = """
import torch
torch.set_num_threads(1)
tilewise.set_num_threads(2)
print(tilewise.get_num_threads(), used(), torch.get_num_threads())
torch.set_num_threads(3)
print(tilewise.get_num_threads(), used())
torch.set_num_threads(1)  # what has ended does not come back
print(tilewise.get_num_threads())
tilewise.set_num_threads(5)
print(tilewise.get_num_threads(), used())
tilewise.set_num_threads(None)
print(tilewise.get_num_threads())
"""
    assert run(code, TILEWISE_TORCH_OPS=ops) == ["2", "2", "1", "3", "3", "1", "5", "5", "1"]


def test_backward_and_merge_use_the_same_number():
    code = """
import torch
torch.set_num_threads(1)
q = torch.randn(1, 512, 4, 64, requires_grad=True)
loss = tilewise.attention(q, q, q).sum()
start = tasks()
tilewise.set_num_threads(3)
loss.backward()
print(tasks() - start)
tilewise.set_num_threads(4)
out, lse = tilewise.attention(*[q.detach()[:, :8]] * 3, return_lse=True)
outs, lses = [torch.randn(2, 512, 4, 64)] * 2, [torch.randn(2, 4, 512)] * 2
tilewise.merge(outs, lses)
print(tasks() - start)
"""
    assert run(code) == ["2", "3"]


def test_other_arrays_use_the_same_number():
    code = """
print(tilewise.get_num_threads() == len(os.sched_getaffinity(0)))
tilewise.set_num_threads(4)
print(used("numpy"), tilewise.get_num_threads())
import torch
torch.set_num_threads(3)
print(tilewise.get_num_threads())  # a choice made before torch was there holds against the first number seen
torch.set_num_threads(5)
print(tilewise.get_num_threads(), used("numpy"))
"""
    assert run(code) == ["True", "4", "4", "4", "5", "5"]


def test_the_variable_caps_everything():
    code = """
import torch
torch.set_num_threads(8)
print(tilewise.get_num_threads(), used())
tilewise.set_num_threads(5)
print(tilewise.get_num_threads(), used(), used("numpy"))
tilewise.set_num_threads(1)
print(tilewise.get_num_threads())
"""
    assert run(code, TILEWISE_NUM_THREADS="2") == ["2", "2", "2", "2", "2", "1"]


@pytest.mark.parametrize("value", ["many", "0", "1025"])
def test_a_bad_variable_is_an_error_everywhere(value):
    code = """
import torch
torch.set_num_threads(1)
tilewise.set_num_threads(1)
q = torch.randn(1, 4, 1, 8)
bias = torch.zeros(4, requires_grad=True)
calls = [
    tilewise.get_num_threads,
    lambda: tilewise.attention(q, q, q),
    lambda: tilewise.attention(q, q, q, softcap=1.0),
    lambda: tilewise.attention(q, q, q, implementation="reference"),
    lambda: tilewise.attention(q[:, :0], q, q),
    lambda: tilewise.attention(*[q.numpy()] * 3),
    lambda: tilewise.attention(q, q, q, bias=bias),
    lambda: tilewise.merge([q], [torch.zeros(1, 1, 4)]),
    lambda: tilewise.merge([q.numpy()], [np.zeros((1, 1, 4), np.float32)]),
]
for call in calls:
    try:
        call()
    except Exception as error:
        print(type(error).__name__, str(error).split(":")[0])
"""
    found = run(code, TILEWISE_NUM_THREADS=value, TILEWISE_TORCH_OPS="python" if value == "0" else "c++")
    assert found == ["ValueError", "TILEWISE_NUM_THREADS"] * 9


def test_bad_numbers():
    import tilewise

    for value in (-1, 1025, 2**63, -(2**70)):
        with pytest.raises(ValueError, match="num_threads: must"):
            tilewise.set_num_threads(value)
    for value in ("2", 2.0, [2]):
        with pytest.raises(TypeError, match="num_threads: must be an integer"):
            tilewise.set_num_threads(value)


MASKS = """
def masks():
    # Where each thread of the pool may run: those that a call started beside the ones that were there.
    import time
    import torch
    count = len(os.sched_getaffinity(os.getppid()))
    torch.set_num_threads(count)
    torch.randn(512, 512) @ torch.randn(512, 512)  # OpenMP's own threads
    before = set(os.listdir("/proc/self/task"))
    q = torch.randn(1, 512, 4, 64)
    tilewise.set_num_threads(count)
    tilewise.attention(q, q, q)
    time.sleep(0.5)  # until it first runs, which a busy machine puts off, a thread has its starter's processors
    started = set(os.listdir("/proc/self/task")) - before
    print(len(os.sched_getaffinity(0)), tilewise.get_num_threads(), len(started))
    print(*(len(os.sched_getaffinity(int(thread))) for thread in started))
"""


def several_processors():
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.skip("one processor")
    return processors


@pytest.mark.parametrize(
    "binding",
    [{"GOMP_CPU_AFFINITY": "{}"}, {"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "threads"}],
    ids=lambda b: next(iter(b)),
)
def test_the_pool_leaves_the_processor_that_openmp_binds_the_caller_to(binding):
    """n threads have n processors, though the one that starts them may only run on one."""
    processors = several_processors()
    text = " ".join(str(processor) for processor in processors)
    found = run(MASKS + "masks()", **{name: value.format(text) for name, value in binding.items()})
    count = len(processors)
    assert found == ["1", str(count), str(count - 1), *[str(count)] * (count - 1)]


def test_a_bound_thread_starts_a_pool_for_the_process():
    count = len(several_processors())
    code = """
import threading
def bound():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    masks()
thread = threading.Thread(target=bound)
thread.start()
thread.join()
"""
    assert run(MASKS + code) == ["1", str(count), str(count - 1), *[str(count)] * (count - 1)]


def test_a_process_that_is_bound_stays_there():
    several_processors()
    found = run("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + MASKS + "masks()")
    assert found[0] == "1"
    assert set(found[3:]) == {"1"}


def test_openmps_threads_where_they_are_shared():
    """No thread is started then, and results are the same. A forked child has none of them, and starts its own."""
    code = """
import torch
from tilewise import _core
torch.set_num_threads(3)
torch.randn(1 << 22).sum()
q = torch.randn(2, 700, 4, 64).numpy()  # torch itself would wait in a child for threads that are not there
before = tasks()
_core.share_openmp_threads(True)
shared = tilewise.attention(q, q, q)
print(tasks() - before)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(tilewise.attention(q, q, q), shared) and tasks() > 1 else 1)
print(os.waitpid(child, 0)[1])
_core.share_openmp_threads(False)
print(np.array_equal(tilewise.attention(q, q, q), shared), tasks() > before)
try:
    _core.share_openmp_threads(True)
    tilewise.attention(q[..., :3, :], q[..., :2, :], q[..., :2, :])
except ValueError:
    print("refused")
"""
    assert run(code) == ["0", "0", "True", "True", "refused"]
