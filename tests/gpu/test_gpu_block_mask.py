# Block masks that are made on the GPU: true, as good as the CPU's for documents, and made without waiting.
"""tilewise.block_mask on a GPU."""

import pytest
import torch
from gpu_support import qkv

import tilewise

LENGTH, BLOCK = 1000, 64
DOCUMENTS = torch.arange(LENGTH, dtype=torch.int32) // 230


def functions(device):
    documents = DOCUMENTS.to(device)

    def of_document(b, h, q_idx, kv_idx):
        return documents[q_idx] == documents[kv_idx]

    def causal_of_document(b, h, q_idx, kv_idx):
        return (documents[q_idx] == documents[kv_idx]) & (kv_idx <= q_idx)

    def windows(b, h, q_idx, kv_idx):
        return (abs(q_idx - kv_idx) < 100 + 50 * h) | (kv_idx < 64)

    return {"document": of_document, "causal": causal_of_document, "window": windows}


def states(mask):
    """0, 1 or 2 of each block."""
    columns = -(-LENGTH // BLOCK)
    made = torch.zeros(*mask.counts.shape, columns, dtype=torch.int32)
    for state, counts, indices in ((1, mask.counts, mask.indices), (2, mask.full_counts, mask.full_indices)):
        counts, indices = (torch.as_tensor(t).cpu() for t in (counts, indices))
        is_listed = torch.arange(columns) < counts[..., None]
        made.scatter_add_(-1, indices.long(), torch.where(is_listed, state, 0).int())
    return made


@pytest.mark.parametrize("name", ["document", "causal", "window"])
def test_is_true_and_makes_attention_s_results(name):
    sizes = {"num_heads": 4, "block_size": BLOCK}
    exact = tilewise.block_mask(functions("cpu")[name], LENGTH, LENGTH, device="cpu", **sizes)
    ours = tilewise.block_mask(functions("cuda")[name], LENGTH, LENGTH, device="cuda", **sizes)
    assert ours.counts.device.type == "cuda"
    found, expected = states(ours), states(exact)
    assert torch.equal(found[found != 1], expected[found != 1])
    if name == "document":
        assert torch.equal(found, expected)
    q, k, v = qkv((1, LENGTH, 4, 64))
    out = tilewise.attention(q, k, v, block_mask=ours)
    torch.testing.assert_close(out, tilewise.attention(q, k, v, mask_mod=functions("cuda")[name]), rtol=0, atol=2e-2)


def test_nothing_waits():
    mask_mod = functions("cuda")["causal"]
    make = lambda: tilewise.block_mask(mask_mod, LENGTH, LENGTH, block_size=BLOCK, device="cuda")  # noqa: E731
    make()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        make()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="num_heads: must be given where mask_mod speaks of h"):
        tilewise.block_mask(functions("cuda")["window"], LENGTH, LENGTH, device="cuda")
