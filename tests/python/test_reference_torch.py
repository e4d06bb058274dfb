# The reference implementation against float64 formulas at the precision of one rounding to f32:
# every named case, and random combinations of options.
"""The oracle's own results, and the dropout map's fixed vectors."""

import random

import pytest
import torch
from cases import CASES, assert_close, draw, in_float64, lengths
from formulas import Call, dense

import tilewise

FORWARD = 3e-7  # the reference accumulates in double and rounds once
BACKWARD = 5e-6  # it starts from out and lse rounded to f32, as every backward pass does


def _leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def _check(tensors, options):
    differentiable = [
        name for name in ("bias", "sink") if options.get(name) is not None and options[name].dtype != torch.bool
    ]
    leaves = [_leaf(tensor) for tensor in tensors] + [_leaf(options[name]) for name in differentiable]
    exact_leaves = [_leaf(leaf.double()) for leaf in leaves]
    given = {**options, **dict(zip(differentiable, leaves[3:]))}
    out, lse = tilewise.attention(*leaves[:3], return_lse=True, implementation="reference", **given)
    exact_given = {**in_float64(options), **dict(zip(differentiable, exact_leaves[3:]))}
    exact_out, exact_lse = dense(Call(**exact_given), *exact_leaves[:3])
    assert_close(out, exact_out, FORWARD)
    assert_close(lse, exact_lse, FORWARD, "softmax_lse")

    dout = torch.randn_like(out)
    dlse = torch.where(torch.isfinite(exact_lse), torch.randn(lse.shape), 0.0).float()
    gradients = torch.autograd.grad((out, lse), leaves, (dout, dlse))
    exact = torch.autograd.grad((exact_out, exact_lse), exact_leaves, (dout.double(), dlse.double()))
    for name, gradient, expected in zip(["q", "k", "v", *differentiable], gradients, exact):
        assert_close(gradient, expected, BACKWARD, f"d{name}")


@pytest.mark.parametrize("name", CASES)
def test_named_cases(name):
    _check(*draw(name))


def _random_bias(rng, batch_size, num_heads, seqlen_q, seqlen_k):
    shape = [size if rng.random() < 0.6 else 1 for size in (batch_size, num_heads, seqlen_q, seqlen_k)]
    if rng.random() < 0.3:
        return torch.rand(shape) < rng.choice([0.2, 0.6, 0.9])
    bias = torch.randn(shape)
    if rng.random() < 0.4:
        bias[torch.rand(shape) < 0.3] = -torch.inf
    return bias


def _random_call(seed):
    """([q, k, v], options): any combination that is valid."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch_size, num_heads_k = rng.randint(1, 3), rng.randint(1, 2)
    num_heads_q = num_heads_k * rng.randint(1, 3)
    seqlen_q, seqlen_k = rng.choice([0, 1, 3, 8, 17]), rng.choice([0, 1, 4, 9, 33, 40])
    head_dim, head_dim_v = rng.choice([1, 3, 8, 20]), rng.choice([1, 5, 16])
    tensors = [
        torch.randn(batch_size, seqlen_q, num_heads_q, head_dim),
        torch.randn(batch_size, seqlen_k, num_heads_k, head_dim),
        torch.randn(batch_size, seqlen_k, num_heads_k, head_dim_v),
    ]
    options = {"mask": rng.choice([None, "causal", "causal_top_left"])}
    if options["mask"] != "causal_top_left":
        options["alignment"] = rng.choice(["bottom_right", "top_left"])
    if rng.random() < 0.4:
        options["window"] = (rng.choice([-1, 0, 2, 9]), -1 if options["mask"] else rng.choice([-1, 0, 3]))
    if rng.random() < 0.4:
        options["softmax_scale"] = rng.choice([0.0, -0.4, 1.3])
    if rng.random() < 0.3:
        options["softcap"] = rng.choice([0.5, 4.0])
    if rng.random() < 0.5:
        options["bias"] = _random_bias(rng, batch_size, num_heads_q, seqlen_q, seqlen_k)
    if rng.random() < 0.3:
        options["alibi_slopes"] = (
            torch.randn(batch_size, num_heads_q) if rng.random() < 0.5 else torch.randn(num_heads_q)
        )
    if rng.random() < 0.4:
        options["sink"] = torch.randn(num_heads_q)
    if rng.random() < 0.3:
        options.update(dropout_p=rng.choice([0.1, 0.5, 0.9]), seed=rng.getrandbits(64))
    leftpad = [rng.randint(0, seqlen_k) for _ in range(batch_size)]
    if rng.random() < 0.3:
        options["seqused_q"] = lengths(*(rng.randint(0, seqlen_q) for _ in range(batch_size)))
    if rng.random() < 0.3:
        options["leftpad_k"] = lengths(*leftpad)
    if rng.random() < 0.3:
        options["seqused_k"] = lengths(*(rng.randint(0, seqlen_k - left) for left in leftpad))
    return tensors, options


@pytest.mark.parametrize("seed", range(120))
def test_random_combinations(seed):
    _check(*_random_call(seed))
