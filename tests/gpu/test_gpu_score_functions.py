# score_mod and mask_mod on the GPU: forward, gradients and captured tensors against the reference on the CPU, and
# beside torch's compiled flex_attention.
"""Functions of scores on a GPU."""

import pytest
import torch
from gpu_support import qkv

import tilewise

BATCH, HEADS = 2, 4
LENGTH = 300
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = torch.sort(torch.randint(0, 5, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3)), -1).values
RELATIVE = torch.randn(HEADS, 129, generator=torch.Generator().manual_seed(4)).bfloat16()
ROUTED = torch.arange(LENGTH) % 3 != 1


def functions(device):
    """(score_mod, mask_mod) by name, of tensors on the device."""
    slopes, documents, relative, routed = (t.to(device) for t in (SLOPES, DOCUMENTS, RELATIVE, ROUTED))

    def alibi(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx)

    def by_distance(score, b, h, q_idx, kv_idx):
        return score + relative[h, torch.clamp(q_idx - kv_idx, -64, 64) + 64]

    def soft_capped(score, b, h, q_idx, kv_idx):
        return 2 * torch.tanh(score / 2) * (1 + b)

    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    def of_document(b, h, q_idx, kv_idx):
        return documents[b, q_idx] == documents[b, kv_idx]

    def dilated(b, h, q_idx, kv_idx):
        return routed[kv_idx] & ((q_idx - kv_idx) % 2 == 0) | (kv_idx < h)

    return {
        "alibi": (alibi, causal),
        "relative": (by_distance, None),
        "softcap": (soft_capped, of_document),
        "documents": (None, of_document),
        "dilated": (None, dilated),
    }


CASES = list(functions("cpu"))


def tensors(head_dim, dtype=torch.bfloat16, heads_k=HEADS):
    """q, k, v and dout on the GPU, [batch, length, heads, head_dim]."""
    shape, shape_k = (BATCH, LENGTH, HEADS, head_dim), (BATCH, LENGTH, heads_k, head_dim)
    return [*qkv(shape, shape_k, dtype), qkv(shape, dtype=dtype, seed=1)[0]]


def results(name, given, device, dtype, **options):
    """out, lse and gradients on a device, in float64 on the CPU."""
    score_mod, mask_mod = functions(device)[name]
    leaves = [t.detach().to(device, dtype).requires_grad_() for t in given[:3]]
    out, lse = tilewise.attention(*leaves, score_mod=score_mod, mask_mod=mask_mod, return_lse=True, **options)
    gradients = torch.autograd.grad(out, leaves, given[3].to(device, dtype))
    return [t.detach().cpu().double() for t in (out, lse, *gradients)]


def assert_near(actual, expected, tolerance=2e-2):
    for got, want in zip(actual, expected, strict=True):
        finite = torch.isfinite(want)
        assert torch.equal(got[~finite], want[~finite])
        scale = max(1.0, float(want[finite].abs().max()))
        assert float((got - want)[finite].abs().max()) <= tolerance * scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("name", CASES)
def test_against_the_reference(name, head_dim, dtype):
    given = tensors(head_dim, dtype)
    expected = results(name, given, "cpu", torch.float64, implementation="reference")
    assert_near(results(name, given, "cuda", dtype), expected)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_shared_key_heads(name, deterministic):
    given = tensors(64, heads_k=2)
    expected = results(name, given, "cpu", torch.float64, implementation="reference")
    assert_near(results(name, given, "cuda", torch.bfloat16, deterministic=deterministic), expected)


@pytest.mark.parametrize("name", CASES)
def test_decoding(name):
    given = tensors(128)
    given[0] = given[0][:, :1].contiguous()
    given[3] = given[3][:, :1].contiguous()
    expected = results(name, given, "cpu", torch.float64, implementation="reference")
    assert_near(results(name, given, "cuda", torch.bfloat16), expected)


@pytest.mark.parametrize("name", CASES)
def test_beside_flex_attention(name):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    given = tensors(64)
    score_mod, mask_mod = functions("cuda")[name]
    leaves = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in given[:3]]
    block_mask = None
    if mask_mod is not None:
        block_mask = flex.create_block_mask(mask_mod, BATCH, HEADS, LENGTH, LENGTH, device="cuda")
    out = torch.compile(flex.flex_attention)(*leaves, score_mod=score_mod, block_mask=block_mask)
    gradients = torch.autograd.grad(out, leaves, given[3].transpose(1, 2))
    theirs = [t.detach().transpose(1, 2).cpu().double() for t in (out, *gradients)]
    ours = results(name, given, "cuda", torch.bfloat16)
    assert_near([ours[0], *ours[2:]], theirs)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("name", CASES)
def test_hoppers_kernels_beside_the_portable_ones(name, head_dim):
    given = [t.cuda().bfloat16() for t in tensors(head_dim)[:3]]
    score_mod, mask_mod = functions("cuda")[name]
    out, expected = (
        tilewise.attention(*given, score_mod=score_mod, mask_mod=mask_mod, return_lse=True, implementation=by)
        for by in ("cuda.hopper", "cuda.sm80")
    )
    assert_near([t.cpu().double() for t in out], [t.cpu().double() for t in expected])


def test_the_portable_kernels_take_what_hoppers_refuse():
    terms = "+".join(f"exp(score*{n}.5)" for n in range(1, 40))
    problem = (
        "attention_forward dtype=bf16 device=cuda seqlen_q=512 seqlen_k=512 num_heads_q=4 head_dim=64 score_mod="
    ) + terms
    text = str(tilewise.explain(problem))
    rows = [line for line in text.splitlines() if "cuda.hopper" in line]
    assert rows and all("score_mod" in line for line in rows), text
    out = tilewise.attention(*qkv((1, 64, 4, 64)), score_mod=terms, implementation="cuda.sm80")
    assert out.isfinite().any()
