# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softcap, z-loss, normalizer and the named outputs, against the same formulas in float64 PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import CrossEntropyOutputs, cross_entropy
from tests.torch.formula import capped, entropy_of, formula
from tests.torch.inputs import (
    CLASSES,
    DTYPES,
    POSITIONS,
    gradient_of,
    make_logits,
    make_probabilities,
    make_targets,
    make_weight,
)
from tests.torch.telling import assert_gradient, assert_loss

SCALE = 0.05
SOFTCAP = 4.0


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
@pytest.mark.parametrize("scale", [0.0, SCALE])
@pytest.mark.parametrize("extras", [{"temperature": 0.6}, {"label_smoothing": 0.1, "weight": make_weight()}])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_and_z_loss(
    dtype: torch.dtype, reduction: str, soft: bool, extras: dict[str, Any], scale: float, softcap: float | None
) -> None:
    x = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    target = make_probabilities(POSITIONS, CLASSES) if soft else make_targets(POSITIONS, ignored=-100)
    upstream = make_logits(POSITIONS, seed=9) if reduction == "none" else torch.tensor(1.0)
    expected = formula(x, target, softcap, scale, reduction, **extras)
    actual = cross_entropy(x, target, reduction=reduction, logit_softcap=softcap, lse_square_scale=scale, **extras)
    assert_loss(actual.detach(), expected.detach(), 30.0 * POSITIONS)
    expected_gradient = gradient_of(expected, x, upstream.double()).double()
    # The exact gradient comes back through the cast in the type of x; in float32 that costs half a unit.
    x64 = x.detach().double().requires_grad_()
    expected_gradient = gradient_of(formula(x64, target, softcap, scale, reduction, **extras), x64, upstream.double())
    assert_gradient(gradient_of(actual, x, upstream), expected_gradient, 12.0)


def test_minus_inf_stays_minus_inf_under_a_softcap() -> None:
    x = make_logits(POSITIONS, CLASSES)
    x[:, -3:] = -torch.inf
    x.requires_grad_()
    target = make_targets(POSITIONS, classes=CLASSES - 3)
    loss = cross_entropy(x, target, logit_softcap=SOFTCAP)
    unpadded = x.detach()[:, :-3].double().requires_grad_()
    expected = formula(unpadded, target, SOFTCAP, 0.0)
    assert_loss(loss.detach(), expected.detach(), 10.0)
    gradient = gradient_of(loss, x)
    assert_gradient(gradient[:, :-3], gradient_of(expected, unpadded), 1.0)
    assert torch.equal(gradient[:, -3:], torch.zeros(POSITIONS, 3))


def test_the_normalizer_replaces_the_divisor() -> None:
    x, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS, ignored=-100)
    normalizer = torch.tensor(37)
    loss = cross_entropy(x, target, make_weight(), normalizer=normalizer)
    x64 = x.detach().double().requires_grad_()
    expected = formula(x64, target, None, 0.0, "sum", weight=make_weight()) / 37
    assert_loss(loss.detach(), expected.detach(), 5.0)
    assert_gradient(gradient_of(loss, x), gradient_of(expected, x64), 0.1)


def outputs_of(x: Tensor, target: Tensor, **arguments: Any) -> CrossEntropyOutputs:
    return cross_entropy(x, target, return_outputs=True, **arguments)


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_outputs_are_what_their_names_say(dtype: torch.dtype, softcap: float | None) -> None:
    x, target = make_logits(POSITIONS, CLASSES, dtype=dtype), make_targets(POSITIONS, ignored=-100)
    outputs = outputs_of(x, target, logit_softcap=softcap, lse_square_scale=SCALE)
    z = capped(x, softcap)
    logprobs, valid = z.log_softmax(1), target != -100
    chosen = logprobs.gather(1, target.clamp(min=0)[:, None])[:, 0]
    assert_loss(outputs.lse, z.logsumexp(1), 15.0)
    assert_loss(outputs.entropy, -(logprobs.exp() * logprobs).sum(1), 30.0)
    assert outputs.logprob is not None
    assert_loss(outputs.logprob, torch.where(valid, chosen, 0.0), 15.0)
    assert_loss(outputs.z_loss, SCALE * z.logsumexp(1).square()[valid].sum() / valid.sum(), 10.0)
    assert torch.equal(outputs.argmax, z.argmax(1))
    assert torch.equal(outputs.loss, cross_entropy(x, target, logit_softcap=softcap, lse_square_scale=SCALE))


def test_the_outputs_have_the_shape_of_the_targets() -> None:
    x, target = make_logits(2, CLASSES, 3), make_targets(2, 3)
    outputs = outputs_of(x, target)
    shapes = [tensor.shape for tensor in outputs if tensor is not None]
    assert shapes == [(), (2, 3), (), (2, 3), (2, 3), (2, 3)]
    assert outputs.argmax.dtype == torch.int64
    assert outputs_of(x, target, reduction="none", lse_square_scale=SCALE).z_loss.shape == (2, 3)
    unbatched = outputs_of(x[0, :, 0], target[0, 0])
    assert [tensor.shape for tensor in unbatched if tensor is not None] == [()] * 6


def test_class_probabilities_have_no_logprob() -> None:
    outputs = outputs_of(make_logits(POSITIONS, CLASSES), make_probabilities(POSITIONS, CLASSES))
    assert outputs.logprob is None


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lse_logprob_z_loss_and_entropy_are_differentiable(
    dtype: torch.dtype, soft: bool, softcap: float | None
) -> None:
    x = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    target = make_probabilities(POSITIONS, CLASSES) if soft else make_targets(POSITIONS, ignored=-100)
    factors = make_logits(3, POSITIONS, seed=9)
    recipe: dict[str, Any] = {"label_smoothing": 0.1, "temperature": 1.5}
    outputs = outputs_of(x, target, logit_softcap=softcap, lse_square_scale=SCALE, **recipe)
    mixed = 2.0 * outputs.loss + (factors[0] * outputs.lse).sum() + 3.0 * outputs.z_loss
    mixed = mixed + (factors[2] * outputs.entropy).sum()
    x64 = x.detach().double().requires_grad_()
    z, counted = capped(x64, softcap, 1.5), torch.ones(POSITIONS) if soft else (target != -100).double()
    z_loss = SCALE * (counted * z.logsumexp(1).square()).sum() / counted.sum()
    expected = 2.0 * formula(x64, target, softcap, SCALE, **recipe) + (factors[0] * z.logsumexp(1)).sum()
    expected = expected + 3.0 * z_loss + (factors[2] * entropy_of(z)).sum()
    if outputs.logprob is not None:
        mixed = mixed + (factors[1] * outputs.logprob).sum()
        logprob = z.log_softmax(1).gather(1, target.clamp(min=0)[:, None])[:, 0]
        expected = expected + (factors[1] * counted * logprob).sum()
    assert_gradient(gradient_of(mixed, x), gradient_of(expected, x64), 20.0)


def test_the_argmax_is_a_constant() -> None:
    x = make_logits(POSITIONS, CLASSES).requires_grad_()
    outputs = outputs_of(x, make_targets(POSITIONS))
    assert not outputs.argmax.requires_grad and outputs.entropy.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_entropy_alone_and_of_masked_classes(dtype: torch.dtype) -> None:
    """Where a class is -inf, p log p and its gradient are 0; ignored positions have an entropy, too."""
    x = make_logits(POSITIONS, CLASSES, dtype=dtype)
    x[:, -3:], x[0, 1:4] = -torch.inf, -torch.inf
    x.requires_grad_()
    target, upstream = make_targets(POSITIONS, ignored=-100), make_logits(POSITIONS, seed=9)
    target[1] = CLASSES - 1  # itself masked: its loss is infinite, and nobody uses it
    outputs = outputs_of(x, target)
    x64 = x.detach().double().requires_grad_()
    exact = entropy_of(x64)
    assert_loss(outputs.entropy.detach(), exact.detach(), 10.0)
    gradient = gradient_of(outputs.entropy, x, upstream)
    assert_gradient(gradient, gradient_of(exact, x64, upstream.double()), 10.0)
    assert not gradient[:, -3:].any() and gradient[target == -100].any()


def test_outputs_in_place() -> None:
    leaf = make_logits(POSITIONS, CLASSES).requires_grad_()
    target = make_targets(POSITIONS)
    gradients = []
    for inplace in (False, True):
        outputs = outputs_of(leaf.clone(), target, inplace=inplace)
        assert outputs.logprob is not None
        gradients.append(gradient_of(outputs.loss + outputs.lse.sum() + outputs.logprob[0], leaf))
    assert torch.equal(*gradients)
