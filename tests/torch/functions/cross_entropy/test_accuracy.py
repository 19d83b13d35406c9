# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Hard inputs through the whole path, checked against float64: long sums, large vocabularies, extreme logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.experimental.loss.bounds import FORWARD_UNITS
from nkilib.torch import cross_entropy
from tests.torch.inputs import DTYPES, exact, gradient_of, make_logits, make_probabilities, make_targets, make_weight
from tests.torch.telling import UNIT, assert_gradient, assert_loss


def test_the_sum_of_65536_positions() -> None:
    """The error of a sum is that of its terms, not that of 65,536 additions: they are independent and pairwise."""
    positions, classes = 65_536, 16
    x, target = make_logits(positions, classes), make_targets(positions, classes=classes)
    expected = exact(x, target, reduction="sum")[0].item()
    relative = abs(cross_entropy(x, target, reduction="sum").item() - expected) / expected
    assert relative <= FORWARD_UNITS * UNIT
    mean = cross_entropy(x, target).item()
    assert abs(mean * positions - expected) / expected <= FORWARD_UNITS * UNIT


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_ragged_vocabulary_with_every_option(dtype: torch.dtype) -> None:
    positions, classes = 5, 17_003  # more than one chunk, and a short one at the end
    x = make_logits(positions, classes, dtype=dtype).requires_grad_()
    target = make_targets(positions, classes=classes, ignored=-100)
    weight = 0.5 + torch.rand(classes, generator=torch.Generator().manual_seed(3))
    outputs = cross_entropy(x, target, weight, label_smoothing=0.1, return_outputs=True)
    expected, expected_gradient = exact(x, target, weight=weight, label_smoothing=0.1)
    assert_loss(outputs.loss.detach(), expected, 30.0)
    assert_gradient(gradient_of(outputs.loss, x), expected_gradient, 1.0)
    assert torch.equal(outputs.argmax, x.argmax(1))
    softcapped = cross_entropy(x, target, weight, label_smoothing=0.1, logit_softcap=6.0, lse_square_scale=1e-4)
    z = (6.0 * torch.tanh(x.detach().double() / 6.0)).requires_grad_()
    z_loss = (
        1e-4 * (z.logsumexp(1).square() * (target != -100)).sum() / weight[target.clamp(min=0)][target != -100].sum()
    )
    assert_loss(softcapped.detach(), (exact(z, target, weight=weight, label_smoothing=0.1)[0] + z_loss).detach(), 30.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_logits_far_from_zero(offset: float, dtype: torch.dtype) -> None:
    x = (make_logits(6, 11, spread=100.0) + offset).to(dtype).requires_grad_()
    target = make_targets(6)
    loss = cross_entropy(x, target, reduction="none")
    upstream = torch.ones(6)
    expected, expected_gradient = exact(x, target, upstream, reduction="none")
    spread = float((x.max() - x.min()).detach())
    assert_loss(loss.detach(), expected, 3 + spread)  # the loss is not taken as a difference of two large numbers
    assert_gradient(gradient_of(loss, x, upstream), expected_gradient, 1.0)


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_small_differences_far_from_zero(offset: float) -> None:
    """A log-sum-exp in float32 is off by 2^-11 there, and whatever is formed from it."""
    x, target, upstream = (make_logits(6, 11) + offset).requires_grad_(), make_targets(6), torch.ones(6)
    outputs = cross_entropy(x, target, reduction="none", return_outputs=True)
    expected, expected_gradient = exact(x, target, upstream, reduction="none")
    assert outputs.logprob is not None
    assert_loss(outputs.loss.detach(), expected, 15.0)
    assert_loss(outputs.logprob.detach(), -expected, 15.0)
    for values, sign in ((outputs.loss, 1.0), (outputs.logprob, -1.0)):
        (gradient,) = torch.autograd.grad(values, x, sign * upstream, retain_graph=True)
        assert_gradient(gradient, expected_gradient, 1.0)


def test_gradients_of_probabilities_and_weights_far_from_zero() -> None:
    x = make_logits(6, 11) + 1e4
    y, weight = make_probabilities(6, 11), make_weight(11)
    leaves = [y.clone().requires_grad_(), weight.clone().requires_grad_()]
    leaves64 = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = F.cross_entropy(x.double(), leaves64[0], leaves64[1], label_smoothing=0.1, reduction="sum")
    actual = cross_entropy(x, leaves[0], leaves[1], label_smoothing=0.1, reduction="sum")
    spread = float(x.max() - x.min())
    for gradient, exact_one in zip(
        torch.autograd.grad(actual, leaves), torch.autograd.grad(expected, leaves64), strict=True
    ):
        assert_gradient(gradient, exact_one, spread)


def test_a_small_gradient_beside_a_large_one_of_lse() -> None:
    """The target's p = 2e-9 is all that is left of its gradient, beside a gradient of lse of 1."""
    x = torch.tensor([[20.0, 0.0, 1.0]], requires_grad=True)
    outputs = cross_entropy(x, torch.tensor([1]), return_outputs=True)
    exact_gradient = x.detach().double().softmax(1)
    torch.testing.assert_close(gradient_of(outputs.lse.sum(), x).double(), exact_gradient, rtol=32 * UNIT, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_minus_inf(dtype: torch.dtype) -> None:
    x = make_logits(6, 11, dtype=dtype)
    x[0, :5] = x[1, 5:] = -torch.inf
    target = torch.tensor([7, 2, 0, 3, 10, 5])
    x.requires_grad_()
    loss = cross_entropy(x, target)
    expected, expected_gradient = exact(x, target)
    assert_loss(loss.detach(), expected, 15.0)
    gradient: Tensor = gradient_of(loss, x)
    assert_gradient(gradient, expected_gradient, 1.0)
    assert not gradient[x.detach().isneginf()].any()
