# tilewise.compat.flash_attn's layers of a group of processes: two processes together compute what one does with all
# weights, values and gradients, with rows shared and not.
"""Tensor parallelism."""

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")

_SCRIPT = """
import sys, torch
import torch.distributed as dist
from torch.nn import functional as F
from tilewise.compat.flash_attn.losses.cross_entropy import CrossEntropyLoss
from tilewise.compat.flash_attn.modules import embedding, mha, mlp
from tilewise.compat.flash_attn.ops import fused_dense
from tilewise.compat.flash_attn.utils import distributed

rank, size, store = int(sys.argv[1]), 2, sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
group = dist.group.WORLD


def part(tensor, dim=0):
    return tensor.chunk(size, dim)[rank]


def same(name, actual, want):
    torch.testing.assert_close(actual, want, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")


def check(name, module, whole, halves, x):
    '''A module of a group beside one with all weights; `halves`: {parameter: this process's part of the whole one}.'''
    for parameter, cut in halves.items():
        module.get_parameter(parameter).data.copy_(cut(whole.get_parameter(parameter).data))
    for shared in (True, False):
        for each in module.modules():
            if hasattr(each, "sequence_parallel"):
                each.sequence_parallel = shared
        given = (part(x) if shared else x).clone().requires_grad_()
        alone = x.clone().requires_grad_()
        out, want = module(given), whole(alone)
        same(name, out, part(want) if shared else want)
        dout = torch.ones_like(want) * torch.arange(want.numel()).view_as(want) / want.numel()
        module.zero_grad(), whole.zero_grad()
        out.backward(part(dout) if shared else dout)
        want.backward(dout)
        same(f"{name} dx", given.grad, part(alone.grad) if shared else alone.grad)
        for parameter, cut in halves.items():
            gradient = cut(whole.get_parameter(parameter).grad)
            same(f"{name} {parameter}", module.get_parameter(parameter).grad, gradient)


torch.manual_seed(0)
x = torch.randn(6, 8)
rows, columns = part, lambda w: part(w, 1)
gates = lambda w: torch.cat([part(half) for half in w.chunk(2)])
usual = {"fc1.weight": rows, "fc1.bias": rows, "fc2.weight": columns}
check("ParallelMLP", mlp.ParallelMLP(8, 12, process_group=group, bias2=False), mlp.Mlp(8, 12, bias2=False), usual, x)
check("ParallelFusedMLP", fused_dense.ParallelFusedMLP(8, 12, process_group=group, bias2=False),
      fused_dense.FusedMLP(8, 12, bias2=False), usual, x)
check("ParallelGatedMlp", mlp.ParallelGatedMlp(8, group, 12, multiple_of=4, activation=F.silu, bias2=False),
      mlp.GatedMlp(8, 12, multiple_of=4, activation=F.silu, bias2=False),
      {"fc1.weight": gates, "fc1.bias": gates, "fc2.weight": columns}, x)

# Attention: each process has its heads of queries, keys and values.
for kv_heads, options in ((4, {"rotary_emb_dim": 4}), (2, {"use_alibi": True})):
    common = dict(causal=True, use_flash_attn=True, **options)
    module = mha.ParallelMHA(16, 4, group, kv_heads, out_proj_bias=False, **common)
    whole = mha.MHA(16, 4, kv_heads, out_proj_bias=False, **common)
    cut = lambda w: torch.cat([part(piece) for piece in w.split([16, kv_heads * 4, kv_heads * 4])])
    tokens = torch.randn(2, 5, 16)
    for parameter, of in (("Wqkv.weight", cut), ("Wqkv.bias", cut), ("out_proj.weight", columns)):
        module.get_parameter(parameter).data.copy_(of(whole.get_parameter(parameter).data))
    want = whole(tokens)
    for shared in (True, False):
        module.Wqkv.sequence_parallel = module.out_proj.sequence_parallel = shared
        same("ParallelMHA", module(part(tokens) if shared else tokens), part(want) if shared else want)
        flat = tokens.flatten(0, 1)
        same("ParallelMHA of rows", module(part(flat) if shared else flat, seqlen=5),
             part(want.flatten(0, 1)) if shared else want.flatten(0, 1))
    assert module.allocate_inference_cache(1, 3).shape == (1, 3, 2, kv_heads // 2, 4)

# The bias of the rows' sum is the first process's.
dense = fused_dense.RowParallelLinear(8, 3, group)
assert (dense.bias is None) == (rank == 1) and dense.weight.shape == (3, 4)
uneven = fused_dense.ColumnParallelLinear(8, 6, group, multiple_of=2)
assert uneven.weight.shape == ((4, 8) if rank == 0 else (2, 8))

# Embeddings. The last layers have drawn another number of times on each process.
torch.manual_seed(0)
ids = torch.randint(10, (2, 4))
module, whole = embedding.ParallelGPT2Embeddings(6, 10, 5, group), embedding.GPT2Embeddings(6, 10, 5)
module.word_embeddings.weight.data.copy_(part(whole.word_embeddings.weight.data))
module.position_embeddings.weight.data.copy_(part(whole.position_embeddings.weight.data, 1))
want = whole(ids)
same("ParallelGPT2Embeddings", module(ids), part(want))
same("embeddings of rows", module(ids, combine_batch_seqlen_dim=True), part(want.flatten(0, 1)))
module.sequence_parallel = False
same("all embeddings", module(ids), want)

# Sums of gradients, and parameters that all share.
norm = torch.nn.LayerNorm(3)
for p in norm.parameters():
    p._sequence_parallel = p._shared_params = True
    p.grad = torch.full_like(p, rank + 1.0)
norm.weight.data.fill_(rank + 5.0)
distributed.allreduce_sequence_parallel_grad(norm, group)
distributed.sync_shared_params(norm, group)
assert norm.weight.grad.eq(3).all() and norm.bias.grad.eq(3).all() and norm.weight.eq(5).all()

try:
    CrossEntropyLoss(process_group=group)
except NotImplementedError as error:
    print(error)
dist.destroy_process_group()
print("same")
"""


def test_two_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        results = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, errors) in zip(processes, results):
        assert process.returncode == 0, errors[-3000:]
        assert out.splitlines() == [
            "process_group: must be None or a group of one process in Tilewise's flash_attn (got one of 2)",
            "same",
        ]


def test_shares():
    from tilewise.compat.flash_attn.utils.distributed import get_dim_for_local_rank

    assert [get_dim_for_local_rank(10, 4, rank) for rank in range(4)] == [3, 3, 2, 2]
    assert [get_dim_for_local_rank(24, 2, rank, 8) for rank in range(2)] == [16, 8]
