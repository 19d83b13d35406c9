# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Means without a valid position: NaN with a gradient of 0, which is no error where autograd looks for NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import nkilib.torch as ours
from nkilib.torch.transformers import causal_lm_loss
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, POSITIONS, make_logits, make_targets, make_weight

FEATURES: Final = 16
WHOLE: Final = {"shard_sizes": [CLASSES, 0]}
Loss = Callable[..., Tensor]


@pytest.fixture(scope="module", autouse=True)
def _two_ranks() -> Iterator[None]:
    with two_ranks():
        yield


def both(outputs: ours.CrossEntropyOutputs) -> Tensor:
    """Loss and z-loss."""
    return outputs.loss + outputs.z_loss


def labelled(loss: Loss, logits: Tensor, target: Tensor, **arguments: Any) -> Tensor:
    """A divergence from another model, whose labels are the targets."""
    return loss(logits, logits.detach() * 0.5, labels=target, **arguments)


OUTPUTS: Final = {"return_outputs": True, "lse_square_scale": 0.1}
# Functions of logits, of targets and perhaps of weights.
OF_LOGITS: Final[dict[str, Loss]] = {
    "cross_entropy": ours.cross_entropy,
    "cross_entropy in place": lambda z, y, **a: ours.cross_entropy(z * 1.0, y, inplace=True, **a),
    "cross_entropy with outputs": lambda z, y, **a: both(ours.cross_entropy(z, y, **OUTPUTS, **a)),
    "vocab_parallel_cross_entropy": lambda z, y, **a: ours.vocab_parallel_cross_entropy(z, y, **WHOLE, **a),
    "nll_loss": lambda z, y, weight=None, label_smoothing=0.0: ours.nll_loss(z, y, weight),
}
OF_STATES: Final[dict[str, Loss]] = {
    "linear_cross_entropy": ours.linear_cross_entropy,
    "linear_cross_entropy in one launch": lambda x, w, y, **a: ours.linear_cross_entropy(
        x, w, y, memory_limit=2**30, **a
    ),
    "linear_cross_entropy with outputs": lambda x, w, y, **a: both(ours.linear_cross_entropy(x, w, y, **OUTPUTS, **a)),
    "vocab_parallel_linear_cross_entropy": lambda x, w, y, **a: ours.vocab_parallel_linear_cross_entropy(
        x, w, y, **WHOLE, **a
    ),
}
WITHOUT_WEIGHTS: Final[dict[str, Loss]] = {
    "causal_lm_loss": lambda z, y: causal_lm_loss(z[None], None, CLASSES, shift_labels=y[None]),
    **{
        f"distillation_loss {beta}": lambda z, y, beta=beta: labelled(ours.distillation_loss, z, y, beta=beta)
        for beta in (0.0, 0.5, 1.0)
    },
}
LINEAR_WITHOUT_WEIGHTS: Final[dict[str, Loss]] = {
    "linear_distillation_loss": lambda x, w, y: ours.linear_distillation_loss(x, w, x.detach() * 2.0, w.detach(), y),
}


def leaves(is_linear: bool, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Logits, or hidden states and a weight."""
    shapes = [(POSITIONS, FEATURES), (CLASSES, FEATURES)] if is_linear else [(POSITIONS, CLASSES)]
    return [make_logits(*shape, dtype=dtype, spread=1.0).requires_grad_() for shape in shapes]


def check_empty(loss: Loss, tensors: list[Tensor], **arguments: Any) -> None:
    """A mean of no position."""
    target = torch.full((POSITIONS,), -100)
    for upstream in (1.0, 0.0):
        with torch.autograd.detect_anomaly(check_nan=True):
            value = loss(*tensors, target, **arguments)
            gradients = torch.autograd.grad(value * upstream, tensors)
        assert value.isnan() and value.dtype == torch.float32
        assert not any(gradient.any() for gradient in gradients)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [*OF_LOGITS, *OF_STATES])
def test_a_mean_of_ignored_positions(name: str, weighted: bool) -> None:
    arguments = {"weight": make_weight(), "label_smoothing": 0.1} if weighted else {}
    check_empty({**OF_LOGITS, **OF_STATES}[name], leaves(name in OF_STATES), **arguments)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", [*WITHOUT_WEIGHTS, *LINEAR_WITHOUT_WEIGHTS])
def test_a_mean_of_ignored_positions_without_weights(name: str) -> None:
    losses = {**WITHOUT_WEIGHTS, **LINEAR_WITHOUT_WEIGHTS}
    check_empty(losses[name], leaves(name in LINEAR_WITHOUT_WEIGHTS))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", ["linear_cross_entropy", "linear_distillation_loss"])
def test_a_mean_of_ignored_positions_in_float16(name: str) -> None:
    """An infinite upstream gradient would be one of all positions there."""
    losses = {**OF_STATES, **LINEAR_WITHOUT_WEIGHTS}
    check_empty(losses[name], leaves(True, torch.float16))


@pytest.mark.parametrize("name", [*OF_LOGITS, *OF_STATES])
def test_a_mean_of_positions_without_weight_is_nan_with_its_gradient(name: str) -> None:
    """PyTorch multiplies 0 by infinity there, which is an error under ``detect_anomaly`` too."""
    tensors, target, weight = leaves(name in OF_STATES), make_targets(POSITIONS), torch.zeros(CLASSES)
    logits = make_logits(POSITIONS, CLASSES).requires_grad_()
    theirs = F.cross_entropy(logits, target, weight)
    value = {**OF_LOGITS, **OF_STATES}[name](*tensors, target, weight=weight)
    assert theirs.isnan() and value.isnan()
    assert torch.autograd.grad(theirs, logits)[0].isnan().any()
    assert all(gradient.isnan().any() for gradient in torch.autograd.grad(value, tensors))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_the_scores_of_ignored_positions() -> None:
    hidden, weight = leaves(is_linear=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        scores = ours.linear_token_scores(hidden, weight, torch.full((POSITIONS,), -100))
        gradients = torch.autograd.grad(scores.logprob.mean(), (hidden, weight))
    assert not scores.logprob.any() and not any(gradient.any() for gradient in gradients)
