# tilewise.compat.flash_attn.losses and ops.triton.cross_entropy against torch's cross entropy and formulas in float64.
"""Cross entropy."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from tilewise.compat.flash_attn.losses.cross_entropy import CrossEntropyLoss
from tilewise.compat.flash_attn.ops.triton.cross_entropy import cross_entropy_loss

IGNORED = -7


def _inputs(dtype=torch.float32, rows=6, classes=11):
    torch.manual_seed(0)
    logits = (4 * torch.randn(rows, classes)).to(dtype).requires_grad_()
    labels = torch.randint(classes, (rows,))
    labels[2] = IGNORED
    return logits, labels


def _formula(logits, labels, smoothing, scale, square_scale):
    """(losses, z_losses) in float64."""
    scores = logits.double() * scale
    losses = F.cross_entropy(scores, labels, reduction="none", label_smoothing=smoothing, ignore_index=IGNORED)
    z_losses = square_scale * torch.logsumexp(scores, -1).square() * (labels != IGNORED)
    return losses + z_losses, z_losses


@pytest.mark.parametrize(
    ("smoothing", "scale", "square_scale"), list(itertools.product([0.0, 0.3], [1.0, 0.5], [0.0, 1e-2])), ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("inplace", [False, True])
def test_losses(smoothing, scale, square_scale, dtype, inplace):
    logits, labels = _inputs(dtype)
    want, want_z = _formula(logits, labels, smoothing, scale, square_scale)
    dlosses = torch.randn(6)
    (gradient,) = torch.autograd.grad(want, logits, dlosses.double())
    given = logits * 1
    losses, z_losses = cross_entropy_loss(
        given, labels, None, smoothing, scale, square_scale, IGNORED, inplace_backward=inplace
    )
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(losses.double(), want.detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(z_losses.double(), want_z.detach(), rtol=tolerance, atol=tolerance)
    assert not z_losses.requires_grad
    assert losses[2] == z_losses[2] == 0
    (actual,) = torch.autograd.grad(losses, logits, dlosses.to(losses.dtype))
    assert actual.dtype == dtype
    loose = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(actual, gradient, rtol=loose, atol=loose)
    assert not actual[2].any()
    assert torch.equal(given, actual) == inplace  # the gradient lies where the logits were


def test_a_log_sum_exp_that_is_known():
    logits, labels = _inputs()
    known = torch.logsumexp(logits.detach(), -1)
    losses, _ = cross_entropy_loss(logits, labels, known, ignore_index=IGNORED)
    torch.testing.assert_close(losses, cross_entropy_loss(logits, labels, ignore_index=IGNORED)[0])
    # It is used: another one shifts the losses. With smoothing or a scale it is not.
    shifted = cross_entropy_loss(logits, labels, known + 1.0, ignore_index=IGNORED)[0]
    torch.testing.assert_close(shifted, losses + (labels != IGNORED))
    for options in ({"label_smoothing": 0.1}, {"logit_scale": 2.0}):
        unused = cross_entropy_loss(logits, labels, known + 1.0, ignore_index=IGNORED, **options)[0]
        assert torch.equal(unused, cross_entropy_loss(logits, labels, ignore_index=IGNORED, **options)[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("return_z_loss", [False, True])
def test_module(reduction, return_z_loss):
    logits, labels = _inputs()
    module = CrossEntropyLoss(IGNORED, reduction, 0.1, 1.0, 1e-2, return_z_loss=return_z_loss)
    assert module.state_dict() == {}
    result = module(logits, labels)
    losses, z_losses = _formula(logits, labels, 0.1, 1.0, 1e-2)
    reduce = {"mean": lambda x: x.sum() / 5, "sum": torch.sum, "none": lambda x: x}[reduction]
    expected = (reduce(losses), reduce(z_losses)) if return_z_loss else (reduce(losses),)
    for actual, want in zip(result if return_z_loss else (result,), expected):
        torch.testing.assert_close(actual.double(), want, rtol=1e-5, atol=1e-5)
    loss = result[0] if return_z_loss else result
    (actual,) = torch.autograd.grad(loss.sum(), logits)
    (want,) = torch.autograd.grad(expected[0].sum(), logits)
    torch.testing.assert_close(actual, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inplace", [False, True])
def test_module_compiles(inplace):
    logits, labels = _inputs(torch.bfloat16)
    module = CrossEntropyLoss(IGNORED, inplace_backward=inplace)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    gradients = [torch.autograd.grad(f(logits * 1, labels), logits)[0] for f in (module, compiled)]
    torch.testing.assert_close(*gradients)
    torch._dynamo.reset()


def test_large_logits_and_refusals():
    logits = torch.tensor([[1e30, 1e30, -1e30], [3e4, 0.0, -torch.inf]])
    losses, _ = cross_entropy_loss(logits, torch.tensor([0, 0]))
    torch.testing.assert_close(losses, torch.tensor([0.0, 0.0]), atol=1.0, rtol=0.0)
    with pytest.raises(IndexError, match=r"labels: must be 0 to 2 or ignore_index \(got 3\)"):
        cross_entropy_loss(logits, torch.tensor([0, 3]))
    with pytest.raises(AssertionError, match=r"labels: must have shape \(2,\)"):
        cross_entropy_loss(logits, torch.tensor([0]))
    with pytest.raises(NotImplementedError, match=r"reduction: must be one of mean, none, sum \(got 'max'\)"):
        CrossEntropyLoss(reduction="max")
