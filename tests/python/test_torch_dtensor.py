# DTensors sharded over batch and heads, on two processes over the loopback: the results and gradients of the whole
# call, and no communication.
"""Sharding rules of the torch operators."""

import os

import pytest
import torch
import torch.distributed as dist

import tilewise

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

LAYOUTS = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}
AXES = {"bshd": (0, 2), "sbhd": (1, 2), "bhsd": (0, 1)}


def _draw(layout, heads_k=2):
    torch.manual_seed(3)
    shapes = ((4, 5, 4, 8), (4, 7, heads_k, 8), (4, 7, heads_k, 6))
    return [torch.randn(shape).permute(LAYOUTS[layout]).contiguous() for shape in shapes]


def _check(tensors, placements, expected_gradients, options=None, others=None):
    """The call on DTensors of these placements against the whole call, gradients too, without communication.

    `others`: more tensors by name, with their placements; `expected_gradients`: placements of those of q, k and v.
    """
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    options, others = options or {}, others or {}
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    whole = [tensor.clone().requires_grad_() for tensor in tensors]
    parts = [distribute_tensor(tensor, mesh, [place]).requires_grad_() for tensor, place in zip(tensors, placements)]
    more, more_parts = {}, {}
    for name, (tensor, place) in others.items():
        more[name] = tensor.clone().requires_grad_(tensor.is_floating_point() and name != "alibi_slopes")
        more_parts[name] = distribute_tensor(tensor, mesh, [place]).requires_grad_(more[name].requires_grad)
    leaves, part_leaves = ([*rows, *(t for t in extra.values() if t.requires_grad)]
                           for rows, extra in ((whole, more), (parts, more_parts)))  # fmt: skip
    expected, lse = tilewise.attention(*whole, return_lse=True, **options, **more)
    gradients = torch.autograd.grad([expected, lse], leaves, [expected.detach(), lse.detach()])
    with CommDebugMode() as communication:
        out, part_lse = tilewise.attention(*parts, return_lse=True, **options, **more_parts)
        alone = tilewise.attention(*parts, **options, **more_parts)
        found = torch.autograd.grad([out, part_lse], part_leaves, [out.detach(), part_lse.detach()])
    assert communication.get_total_counts() == 0, communication.get_comm_counts()
    assert out.placements[0] == placements[0], out.placements
    assert torch.equal(alone.full_tensor(), out.full_tensor())
    assert [gradient.placements[0] for gradient in found[:3]] == expected_gradients
    for got, want in zip((out, part_lse, *found), (expected, lse, *gradients)):
        torch.testing.assert_close(got.full_tensor(), want, rtol=1e-5, atol=1e-5)


def _cases():
    from torch.distributed.tensor import Partial, Replicate, Shard

    for layout, (batch, heads) in AXES.items():
        for axis in (batch, heads):
            for options in ({}, {"mask": "causal"}, {"window": (2, 1)}, {"softcap": 3.0, "deterministic": True}):
                yield _draw(layout), [Shard(axis)] * 3, [Shard(axis)] * 3, {"layout": layout, **options}, {}
    one = [Shard(2), Replicate(), Replicate()]  # a single key head, which all shards read
    yield _draw("bshd", heads_k=1), one, [Shard(2), Partial(), Partial()], {"mask": "causal"}, {}
    lengths = torch.tensor([3, 7, 0, 5], dtype=torch.int32)
    sink, slopes = torch.randn(4), torch.rand(4)
    bias, of_all = torch.randn(4, 1, 5, 7), torch.randn(5, 7)
    by_batch = {"seqused_k": (lengths, Shard(0)), "sink": (sink, Replicate()), "alibi_slopes": (slopes, Replicate())}
    yield _draw("bshd"), [Shard(0)] * 3, [Shard(0)] * 3, {}, {**by_batch, "bias": (bias, Shard(0))}
    yield _draw("bshd"), [Shard(0)] * 3, [Shard(0)] * 3, {}, {"bias": (of_all, Replicate())}
    by_heads = {"seqused_k": (lengths, Replicate()), "sink": (sink, Shard(0)), "alibi_slopes": (slopes, Shard(0))}
    yield _draw("bshd"), [Shard(2)] * 3, [Shard(2)] * 3, {}, {**by_heads, "bias": (bias, Replicate())}
    torch.manual_seed(5)
    packed = [torch.randn(9, heads, 8) for heads in (4, 2, 2)]
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    places = {f"cu_seqlens_{side}": (offsets, Replicate()) for side in "qk"}
    yield packed, [Shard(1)] * 3, [Shard(1)] * 3, {"layout": "thd", "mask": "causal"}, places


def _check_the_rest():
    """What no shard can compute by itself is gathered; dropout is refused."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for tensors, axis in ((_draw("bshd", heads_k=1), 2), (_draw("bshd"), 1)):
        parts = [distribute_tensor(tensor, mesh, [Shard(axis)]) for tensor in tensors]
        torch.testing.assert_close(tilewise.attention(*parts).full_tensor(), tilewise.attention(*tensors))
    parts = [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in _draw("bshd")]
    for seed in (None, 3):
        with pytest.raises(NotImplementedError, match=r"dropout_p: must be 0 with DTensors, .* \(got 0.5\)"):
            tilewise.attention(*parts, dropout_p=0.5, seed=seed)


def _process(rank, store):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    tilewise.attention(*_draw("bshd"))  # the torch side is there before torch's DTensor is
    for tensors, placements, gradients, options, others in _cases():
        print(f"{placements}, {options}, {list(others)}", flush=True)  # the last one is what failed
        _check(tensors, placements, gradients, options, others)
    _check_the_rest()
    dist.destroy_process_group()


def test_two_processes(tmp_path):
    torch.multiprocessing.spawn(_process, (str(tmp_path / "store"),), nprocs=2)
