"""The torch operators of the KV cache step: torch.compile, torch's own checks, tensors that require gradients."""

from __future__ import annotations

import pytest
import torch
from kv_cache_step import Step

import tilewise
from tilewise._kv_cache import ARRAYS

torch.manual_seed(0)


@pytest.mark.parametrize("scales", [False, True])
def test_compiled(scales):
    def step(q, k_cache, v_cache, k, v, seqlens, table, k_scale, v_scale):
        out = tilewise.kv_cache_attention(
            q, k_cache, v_cache, k, v, cache_seqlens=seqlens, block_table=table, k_scale=k_scale, v_scale=v_scale,
            mask="causal",
        )  # fmt: skip
        tilewise.append_kv(k_cache, v_cache, k, v, cache_seqlens=seqlens + 1, block_table=table, k_scale=k_scale,
                           v_scale=v_scale)  # fmt: skip
        return out + 1

    first = Step(4, [9, 2], 1)
    table = torch.randperm(16)[:8].view(2, 4).int()
    dtype = torch.float8_e4m3fn if scales else torch.float32
    caches = [torch.randn(16, 4, 2, 32).to(dtype) for _ in range(2)]
    kinds = [torch.rand(16, 4, 2) + 0.1 for _ in range(2)] if scales else [None, None]
    results = []
    for function in (step, torch.compile(step, fullgraph=True)):
        own = [None if t is None else t.clone() for t in (*caches, *kinds)]
        out = function(first.q, own[0], own[1], first.k, first.v, first.seqlens, table, own[2], own[3])
        results.append([out, *(t.float() for t in own if t is not None)])
    for eager, compiled in zip(*results):
        assert torch.equal(eager.nan_to_num(), compiled.nan_to_num())


def test_compiled_with_another_length_at_each_step():
    """An integer for cache_seqlens becomes a symbol: no step after the second compiles again, let alone fails."""
    step = Step(4, [0, 0], 1)
    caches = [torch.zeros(2, 16, 2, 32) for _ in range(2)]

    def call(caches, length):
        return tilewise.kv_cache_attention(step.q, *caches, step.k, step.v, cache_seqlens=length, mask="causal")

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    mine = [cache.clone() for cache in caches]
    for length in range(5):
        assert torch.equal(compiled(mine, length), call(caches, length))
    assert counter.frame_count <= 3, "0, 1, and any other length"
    with pytest.raises(Exception, match=r"cache_seqlens \+ seqlen_k_new must be <= 16.* \(got 16 \+ 1\)"):
        compiled(mine, 16)
    assert all(map(torch.equal, mine, caches))


def _operands(appending_alone=False):
    """Operands of the operators, in the order of their schemas."""
    step = Step(4, [9, 2], 1)
    caches = [torch.randn(16, 4, 2, 32) for _ in range(2)]
    table = torch.randperm(16)[:8].view(2, 4).int()
    indices = None if appending_alone else torch.tensor([[[[3, 0, 3]]], [[[1, -1, 2]]]], dtype=torch.int32)
    arrays = (None, None, None, None, None, step.seqlens, None, None, table, None, None, None, indices)
    if appending_alone:
        return (*caches, None, None, step.k, step.v, *arrays, None, None, 0, False, None, None, None, None)
    scalars = (None, None, None, 0, False, True, -1, -1, None, 0.0, 0, False, None, None, None, None)
    return (step.q, *caches, None, None, step.k, step.v, *arrays, *scalars)


@pytest.mark.parametrize("overload", ["default", "detached"])
@pytest.mark.parametrize("name", ["kv_cache_attention", "kv_cache_attention_out", "append_kv"])
def test_operators_pass_torchs_own_checks(name, overload):
    tilewise.append_kv(*(torch.zeros(1, 1, 1, 8) for _ in range(4)), cache_seqlens=0)  # registers them
    operands = _operands(name == "append_kv")
    if name.endswith("_out"):
        operands = (*operands[:7], torch.empty(2, 1, 4, 32), *operands[7:])
    operator = getattr(getattr(torch.ops.tilewise, name), overload)
    torch.library.opcheck(operator, operands, test_utils=("test_schema", "test_faketensor"))


def _plain_operands():
    """What kv_cache_attention.plain takes, and the same of the whole operator."""
    q, k_cache, v_cache, _, _, k, v, *rest = _operands()
    cos, sin = torch.rand(2, 16, 8).unbind()
    rest[12] = None  # key_indices, which that one does not take
    whole = (q, k_cache, v_cache, None, None, k, v, *rest[:2], cos, sin, *rest[4:])
    return (q, k_cache, v_cache, k, v, rest[5], rest[8], cos, sin, True, None), whole


@pytest.mark.parametrize("name", ["kv_cache_attention", "kv_cache_attention_out", "append_kv"])
def test_operators_take_arrays_in_their_order(name):
    tilewise.append_kv(*(torch.zeros(1, 1, 1, 8) for _ in range(4)), cache_seqlens=0)
    arguments = getattr(torch.ops.tilewise, name).default._schema.arguments
    arrays = [each.name for each in arguments if "Tensor" in str(each.type) and each.name in ARRAYS]
    assert sorted(arrays[:2]) == ["k_scale", "v_scale"]  # among the caches, which a call may change
    assert arrays[2:] == [array for array in ARRAYS if array not in arrays[:2]]


def test_the_plain_operator_passes_torchs_own_checks():
    tilewise.append_kv(*(torch.zeros(1, 1, 1, 8) for _ in range(4)), cache_seqlens=0)
    operator = torch.ops.tilewise.kv_cache_attention.plain
    torch.library.opcheck(operator, _plain_operands()[0], test_utils=("test_schema", "test_faketensor"))


def test_the_plain_operator_is_the_whole_one():
    tilewise.append_kv(*(torch.zeros(1, 1, 1, 8) for _ in range(4)), cache_seqlens=0)
    operands = [[t.clone() if isinstance(t, torch.Tensor) else t for t in each] for each in _plain_operands()]
    plain, whole = torch.ops.tilewise.kv_cache_attention.plain, torch.ops.tilewise.kv_cache_attention.detached
    for _ in range(2):  # the second time appends over the first
        assert torch.equal(plain(*operands[0]), whole(*operands[1])[0])
        assert torch.equal(operands[0][1], operands[1][1])
        assert torch.equal(operands[0][2], operands[1][2])


def test_the_plain_operator_in_python():
    """Where torch lacks what the operators in C++ need."""
    from tilewise._torch import kv_cache

    tilewise.append_kv(*(torch.zeros(1, 1, 1, 8) for _ in range(4)), cache_seqlens=0)
    operands = _plain_operands()[0]
    again = [t.clone() if isinstance(t, torch.Tensor) else t for t in operands]
    out = torch.ops.tilewise.kv_cache_attention.plain(*operands)
    assert torch.equal(kv_cache._kernel_plain(*again), out)
    assert all(map(torch.equal, operands[1:3], again[1:3]))


def test_a_plain_call_refuses_gradients():
    q, k_cache, v_cache, k, v, seqlens, table, *_ = _plain_operands()[0]
    with pytest.raises(NotImplementedError, match=r"^v: must not require gradients"):
        tilewise.kv_cache_attention(
            q, k_cache, v_cache, k, v.requires_grad_(), cache_seqlens=seqlens, block_table=table, mask="causal"
        )


@pytest.mark.parametrize("name", ["kv_cache_attention", "append_kv"])
def test_operators_refuse_gradients(name):
    """Who calls them directly is told so as well, and not given an out whose gradients stay None."""
    tilewise.append_kv(*(torch.zeros(1, 1, 1, 8) for _ in range(4)), cache_seqlens=0)
    operator = getattr(torch.ops.tilewise, name)
    operands = list(_operands(name == "append_kv"))
    names = [argument.name for argument in operator.default._schema.arguments]
    for place, operand in enumerate(operands):
        if not isinstance(operand, torch.Tensor) or not operand.is_floating_point():
            continue
        before = [operand.clone() if isinstance(operand, torch.Tensor) else None for operand in operands]
        given = [*operands[:place], operand.clone().requires_grad_(), *operands[place + 1 :]]
        with pytest.raises(NotImplementedError, match=f"^{names[place]}: must not require gradients"):
            operator(*given)
        for old, operand in zip(before, operands):
            assert old is None or torch.equal(old, operand)
        with torch.no_grad():
            operator(*given)
