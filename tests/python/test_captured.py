# A function that was traced before is not traced again while nothing that tracing could see has changed, and never
# gives what an earlier one gave. Every case compares with a trace of its own.
import functools
import math
import threading
import weakref

import numpy as np
import pytest

import tilewise
from tilewise import _captured
from tilewise._tracing import Tracer
from tilewise.expression import trace, traced

torch = pytest.importorskip("torch")

WINDOW = 3
SLOPES = torch.tensor([0.5, 0.25, -1.0])
MUTABLE = [1, 2]


@pytest.fixture(autouse=True)
def nothing_known():
    _captured.forget()
    yield
    _captured.forget()


_traces = []


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """Notes every trace."""
    own = Tracer.run

    def run(self, function, arguments):
        _traces.append(function)
        return own(self, function, arguments)

    monkeypatch.setattr(Tracer, "run", run)
    _traces.clear()


def runs_of(function):
    """How often a use of it traces it; what it gives is compared with a trace."""
    before = len(_traces)
    made = traced(function)
    runs, own = len(_traces) - before, trace(function)
    assert made[:2] == own[:2] and len(made.tables) == len(own.tables)
    assert all(one.data_ptr() == other.data_ptr() for one, other in zip(made.tables, own.tables))
    return runs


def is_known(function):
    """Whether a second use of it is not traced."""
    traced(function)
    return runs_of(function) == 0


def shifted(n, slopes=SLOPES):
    return lambda score, b, h, q_idx, kv_idx: torch.where(q_idx - kv_idx < n, score + slopes[h], score)


def both(*masks):
    def of_both(b, h, q_idx, kv_idx):
        result = q_idx.new_ones((), dtype=torch.bool)
        for mask in masks:
            result = result & mask(b, h, q_idx, kv_idx).to(result.device)
        return result

    return of_both


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def in_window(b, h, q_idx, kv_idx):
    return q_idx - kv_idx < WINDOW


def test_the_same_function_and_others_of_its_code():
    assert is_known(shifted(3))
    assert runs_of(shifted(3)) == 0
    for n in (4, 3.0, True, np.int32(3), np.float64(3)):
        assert runs_of(shifted(n)) == 1
        assert runs_of(shifted(n)) == 0
    assert is_known(causal) and is_known(both(causal, in_window)) and runs_of(both(in_window, causal)) == 1
    assert is_known(functools.partial(lambda n, b, h, q_idx, kv_idx: q_idx < n, 3))


def test_signs_of_zero_are_told_apart():
    def plus(number):
        return lambda score, b, h, q_idx, kv_idx: score + number

    traced(plus(0.0))
    assert runs_of(plus(-0.0)) == 1
    traced(plus(math.nan))


def test_captured_tensors_are_taken_as_they_are():
    slopes = SLOPES.clone()
    function = shifted(3, slopes)
    assert is_known(function)
    slopes += 1  # what tables hold is read by the kernel
    assert runs_of(function) == 0
    other = torch.rand(3)
    assert runs_of(shifted(3, other)) == 0 and traced(shifted(3, other)).tables[0] is other
    for others in (torch.rand(3, dtype=torch.float16), torch.ones(3, dtype=torch.bool), torch.rand(3)[None][0:1, 0]):
        assert runs_of(shifted(3, others)) == 1
    slopes.resize_(5)
    assert traced(function, None, True) == trace(function)


def test_which_tensors_are_the_same_one():
    def two(a, b):
        return lambda score, batch, h, q_idx, kv_idx: score + a[h] * b[h]

    one, other = torch.rand(3), torch.rand(3)
    assert is_known(two(one, one)) and len(traced(two(one, one)).tables) == 1
    assert [table is each for table, each in zip(traced(two(one, other)).tables, (one, other))] == [True, True]
    assert [table is each for table, each in zip(traced(two(other, one)).tables, (other, one))] == [True, True]
    assert len(traced(two(other, other)).tables) == 1


def test_numbers_in_tensors():
    def scaled(number):
        return lambda score, b, h, q_idx, kv_idx: score * number

    number = torch.tensor(2.0)
    assert is_known(scaled(number))
    other = torch.tensor(3.0)
    assert traced(scaled(other)).tables[0].data_ptr() == other.data_ptr()


def test_names_outside():
    def windowed(b, h, q_idx, kv_idx):
        return in_window(b, h, q_idx, kv_idx)

    assert is_known(windowed)
    before = traced(windowed).text
    globals()["WINDOW"] = 5
    try:
        assert traced(windowed).text == trace(windowed).text != before
    finally:
        globals()["WINDOW"] = 3
    assert runs_of(windowed) == 0
    globals()["abs"] = lambda x: x * 2
    try:
        function = lambda score, b, h, q_idx, kv_idx: abs(score)  # noqa: E731
        assert traced(function) == trace(function)
        del globals()["abs"]
        assert traced(function) == trace(function)
    finally:
        globals().pop("abs", None)


def test_what_a_function_is_made_of():
    def maker(n):
        def mask(b, h, q_idx, kv_idx, most=5):
            return (q_idx < n) & (kv_idx < most)

        return mask

    one = maker(3)
    assert is_known(one)
    one.__defaults__ = (6,)
    assert traced(one) == trace(one)
    one.__code__ = maker(4).__code__
    assert traced(one) == trace(one)
    one.__closure__[0].cell_contents = 9
    assert traced(one) == trace(one) and "9" in traced(one).text


def test_lists_are_looked_into():
    bounds = [1, 2]
    function = lambda b, h, q_idx, kv_idx: q_idx < bounds[0] + len(bounds)  # noqa: E731
    assert is_known(function)
    bounds[0] = 7
    assert traced(function) == trace(function) and "9" in traced(function).text
    bounds.append(1)
    assert traced(function) == trace(function) and "10" in traced(function).text


class Holder:
    def __init__(self, n):
        self.n = n

    def mask_mod(self, b, h, q_idx, kv_idx):
        return q_idx - kv_idx < self.n


def _counting():
    calls = []

    def mask(b, h, q_idx, kv_idx):
        calls.append(1)
        return q_idx < len(calls)

    return mask


def _counting_outside():
    count = 0

    def mask(b, h, q_idx, kv_idx):
        nonlocal count
        count += 1
        return q_idx < count

    return mask


def _recursive():
    def mask(b, h, q_idx, kv_idx, depth=3):
        return q_idx < 1 if depth == 0 else mask(b, h, q_idx, kv_idx, depth - 1)

    return mask


HOLDER = Holder(3)
FLAG = torch.tensor(True)
TABLES = {"a": 1}
HOSTS = np.ones(3)
UNKNOWN = {
    "a method": HOLDER.mask_mod,
    "an object": lambda b, h, q_idx, kv_idx: q_idx < HOLDER.n,
    "a dictionary": lambda b, h, q_idx, kv_idx: q_idx < TABLES["a"],
    "a number read from a tensor": lambda b, h, q_idx, kv_idx: q_idx < int(FLAG),
    "a decision by a tensor": lambda b, h, q_idx, kv_idx: q_idx < (3 if FLAG else 4),
    "a tensor made of another": lambda score, b, h, q_idx, kv_idx: score + (SLOPES * 2)[h],
    "a part of a tensor": lambda score, b, h, q_idx, kv_idx: score + SLOPES[1:][h],
    "a new tensor": lambda score, b, h, q_idx, kv_idx: score + torch.ones(3)[h],
    "a tensor as text": lambda b, h, q_idx, kv_idx: q_idx < len(f"{FLAG}"),
    "a walk over a tensor": lambda b, h, q_idx, kv_idx: q_idx < max(SLOPES),
    "a loop over a tensor": lambda b, h, q_idx, kv_idx: q_idx < len([1 for each in SLOPES if each > 0]),
    "an import": lambda b, h, q_idx, kv_idx: q_idx < __import__("math").pi,
    "an unknown attribute": lambda b, h, q_idx, kv_idx: q_idx < (3 if torch.is_grad_enabled() else 4),
    "NumPy's array": lambda score, b, h, q_idx, kv_idx: score + HOSTS[0],
    "a call that is counted": _counting(),
    "another that is": _counting_outside(),
    "itself": _recursive(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_change_unseen_is_traced_every_time(name):
    function = UNKNOWN[name]
    for _ in range(2):
        before = len(_traces)
        traced(function)
        assert len(_traces) == before + 1


def test_what_changes_unseen_counts():
    assert "3" in traced(HOLDER.mask_mod).text
    HOLDER.n = 8
    assert "8" in traced(HOLDER.mask_mod).text
    HOLDER.n = 3
    counting = _counting()
    assert [traced(counting).text for _ in range(2)] == ["q_idx<1", "q_idx<2"]


def test_shapes_of_tensors_are_known():
    def within(b, h, q_idx, kv_idx):
        return q_idx < SLOPES.shape[0] + len(SLOPES) + SLOPES.size(0) + SLOPES.dim()

    assert is_known(within) and "10" in traced(within).text


def test_devices_that_functions_ask_for():
    def asks(b, h, q_idx, kv_idx):
        return q_idx < (3 if q_idx.device == SLOPES.device else 4)

    assert is_known(asks) and "3" in traced(asks).text
    with torch.device("meta"):
        assert "4" in traced(asks).text
    assert "3" in traced(asks).text


def test_nothing_of_the_callers_is_kept():
    class Tracked(torch.Tensor):
        pass

    slopes = torch.rand(3)
    assert is_known(shifted(3, slopes))
    there = weakref.ref(slopes)
    _traces.clear()
    del slopes
    assert there() is None
    for size in range(200):  # addresses of functions, cells and code come again and again
        function = shifted(size % 5, torch.rand(1 + size % 7))
        assert traced(function).text == trace(function).text
        space = {}
        exec(f"mask = lambda b, h, q_idx, kv_idx: q_idx < {size}", space)
        assert str(size) in traced(space["mask"]).text
    assert not is_known(shifted(3, torch.rand(3).as_subclass(Tracked)))


def test_many_functions_are_forgotten(monkeypatch):
    monkeypatch.setattr(_captured, "_MOST_KNOWN", 4)
    for n in range(20):
        assert f"<{n}" in traced(shifted(n)).text
        assert traced(shifted(n)) == trace(shifted(n))


def test_threads():
    wrong = []

    def work(seed):
        for step in range(60):
            n, table = (seed + step) % 4, torch.full((3,), float(seed))
            made = traced(shifted(n, table))
            if f"<{n}" not in made.text or made.tables[0] is not table:
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _expected(q, k, v, slopes, n):
    places = torch.arange(q.shape[1])
    distance = places[:, None] - places[None]
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    scores = torch.where(distance < n, scores + slopes[:, None, None], scores)
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), v)


def test_results_follow_what_is_captured():
    q, k, v = (torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    slopes = SLOPES.clone()

    def check(n, table):
        for _ in range(2):
            out = tilewise.attention(q, k, v, score_mod=shifted(n, table))
            torch.testing.assert_close(out, _expected(q, k, v, table, n), atol=2e-5, rtol=2e-5)
            out, lse = tilewise.attention(q, k, v, score_mod=shifted(n, table), return_lse=True)
            torch.testing.assert_close(out, _expected(q, k, v, table, n), atol=2e-5, rtol=2e-5)
            assert lse.shape == (2, 3, q.shape[1])

    check(3, slopes)
    slopes.mul_(-3)
    check(3, slopes)
    check(2, slopes)
    check(3, torch.rand(3))
    check(3, torch.rand(6)[::2])  # the same shape, other strides
    q, k, v = (tensor[:, :4].contiguous() for tensor in (q, k, v))
    check(3, slopes)
    leaf, table = q.clone().requires_grad_(), slopes.clone().requires_grad_()
    for n in (2, 3, 2):
        own = torch.autograd.grad(
            tilewise.attention(leaf, k, v, score_mod=shifted(n, table)).sin().sum(), (leaf, table)
        )
        others = torch.autograd.grad(_expected(leaf, k, v, table, n).sin().sum(), (leaf, table))
        torch.testing.assert_close(own, others, atol=5e-5, rtol=5e-5)


def test_block_masks_follow_their_lists():
    q, k, v = (torch.randn(1, 64, 2, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))

    def check(given, n):
        for _ in range(2):
            out = tilewise.attention(q, k, v, block_mask=given)
            own = tilewise.attention(q, k, v, mask_mod=lambda b, h, q_idx, kv_idx: q_idx - kv_idx < n, window=(-1, 0))
            torch.testing.assert_close(out, own, atol=2e-5, rtol=2e-5)

    def made(n):
        def mask(b, h, q_idx, kv_idx):
            return (q_idx - kv_idx < n) & (q_idx >= kv_idx)

        return tilewise.block_mask(mask, 64, 64, block_size=16, device="cpu")

    mask = made(20)
    check(mask, 20)
    check(made(40), 40)
    check(mask, 20)
    check(tilewise.block_mask(mask.mask_mod, 64, 64, block_size=32, device="cpu"), 20)
    mask.full_counts.zero_()
    mask.counts.zero_()
    assert tilewise.attention(q, k, v, block_mask=mask).abs().max() == 0


def test_operators_count_and_check():
    q = torch.randn(1, 5, 3, 8)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        tilewise.attention(q, q, q, score_mod=shifted(3))
    assert counter.get_total_flops() == 2 * 3 * 5 * 5 * 16
    operators = torch.ops.tilewise.attention_forward
    args = (q, q, q, 0, None, "score+table0[h]", "q_idx>=kv_idx", [SLOPES], 1, 0, 0)
    for operator in (operators.functions, operators.functions_lse):
        torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))
    out, lse = operators.functions_lse(*args)
    given = (out, None, q, q, q, out, lse, 1 + 4 + 8, False, *args[3:])
    torch.library.opcheck(
        torch.ops.tilewise.attention_backward.functions, given, test_utils=("test_schema", "test_faketensor")
    )
