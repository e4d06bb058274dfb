# NAME.packed computes what the operator does, and is what eager calls without gradients go by.
"""tilewise::NAME.packed."""

import pytest

import tilewise

torch = pytest.importorskip("torch")

from tilewise._torch.by_schema import OPERATIONS  # noqa: E402

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 5, 8, 6, 3, 2


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(TOKENS)]).to(torch.int32)
    return (
        torch.randn(TOKENS, HIDDEN, dtype=dtype),
        ids,
        torch.rand(TOKENS, TOP_K),
        torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN, dtype=dtype),
        torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, dtype=dtype),
    )


CASES = {
    "usual": dict,
    "gate": lambda: {"gate": "interleaved", "activation": "swiglu_oai", "alpha": 1.5, "limit": 3.0, "clamp": "before"},
    "bias": lambda: {"gate_up_bias": torch.randn(EXPERTS, 2 * INTERMEDIATE), "down_bias": torch.randn(EXPERTS, HIDDEN)},
    "numbers": lambda: {"first_expert": 1, "weight_on_input": True, "norm_weight": torch.rand(EXPERTS, HIDDEN)},
    "dtype": lambda: {"out_dtype": torch.bfloat16, "batch_invariant": True, "implementation": "reference"},
}


@pytest.fixture
def seen(monkeypatch):
    """Arguments of packed calls."""
    packed, calls = OPERATIONS["moe"]._packed, []
    own = packed.handle
    monkeypatch.setattr(packed, "handle", lambda *args: (calls.append(args), own(*args))[1])
    return calls


@pytest.mark.parametrize("name", CASES)
def test_packed_calls_compute_the_same(name, seen):
    tensors, options = inputs(), CASES[name]()
    for _ in range(2):
        packed = tilewise.moe(*tensors, **options)
    assert len(seen) == 2
    into = tilewise.moe(*tensors, **{"out_dtype": None, **options}, out=torch.empty_like(packed))
    assert len(seen) == 2 and torch.equal(packed, into)
    others = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.tilewise.moe.packed, seen[0], test_utils=others)
    whole = OPERATIONS["moe"].make.handle(*OPERATIONS["moe"]._packed.unpacked(*seen[0]))
    assert torch.equal(whole[0], packed)


def test_equal_calls_state_what_they_say(seen):
    tensors = inputs()
    stated = [{}, {"limit": 1.0}, {"limit": 1}, {"first_expert": 1}, {"weight_on_input": True}, {}]
    for options in stated:
        own = OPERATIONS["moe"].make.handle
        result = tilewise.moe(*tensors, **options)
        assert torch.equal(result, own(*OPERATIONS["moe"]._packed.unpacked(*seen[-1]))[0])
    assert len({call[2] for call in seen}) == 4  # 1 and 1.0 are the same limit
    with pytest.raises(TypeError, match="weight_on_input: must be True or False"):
        tilewise.moe(*tensors, weight_on_input=1)


def test_numbers_that_may_change_are_read_every_time():
    tensors, alpha = inputs(), torch.tensor(1.0, dtype=torch.float64)
    options = {"gate": "interleaved", "activation": "swiglu_oai"}
    before = tilewise.moe(*tensors, **options, alpha=alpha)
    alpha.fill_(3.0)
    after = tilewise.moe(*tensors, **options, alpha=alpha)
    assert torch.equal(after, tilewise.moe(*tensors, **options, alpha=3.0)) and not torch.equal(before, after)


def test_other_calls_go_by_the_whole_operator(seen):
    x, ids, weights, gate_up, down = inputs()
    tilewise.moe(x.clone().requires_grad_(), ids, weights, gate_up, down).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tilewise.moe(x, ids, weights, gate_up, down).dtype == torch.bfloat16
    assert seen == []
    with torch.no_grad():
        tilewise.moe(x.clone().requires_grad_(), ids, weights, gate_up, down)
    assert len(seen) == 1
    with pytest.raises(ValueError, match="activation: must be one of"):
        tilewise.moe(x, ids, weights, gate_up, down, activation="silu\n")
    with pytest.raises(ValueError, match="w_format: must be"):
        tilewise.moe(x, ids, weights, gate_up, down, w_format="none\nnone")
    with pytest.raises(ValueError, match="hidden"):
        tilewise.moe(x, ids, weights, gate_up[..., :4], down)
